//! Rebalancer: carries out the placement plan for the groups that this node leads, round by round.

use std::collections::BTreeMap;

use tenure_node::{ChangeRefused, GroupId, Input, Membership, Node, RequestId};

use crate::placement_plan::{self, LeaderBalance, PlacementRules, PlacementStep, PlacementView};

/// Time between rounds while replicas move.
const BUSY_ROUND_MS: u64 = 100;
/// A change without an answer for this long was lost with the leadership, and may be requested
/// again.
const LOST_AFTER_MS: u64 = 10_000;

/// Schedules rounds and tracks requested membership changes.
pub(crate) struct Rebalancer {
    rules: PlacementRules,
    view: Option<PlacementView>,
    next_round_ms: u64,
    next_balance_ms: u64,
    /// Requested changes without an answer, with the time of the request. At most one per group.
    asked: BTreeMap<GroupId, (RequestId, u64)>,
    last_id: u64,
}

impl Rebalancer {
    pub(crate) fn new(rules: PlacementRules, now_ms: u64) -> Rebalancer {
        Rebalancer {
            next_round_ms: now_ms + BUSY_ROUND_MS,
            next_balance_ms: now_ms + rules.balance_ms,
            rules,
            view: None,
            asked: BTreeMap::new(),
            last_id: 0,
        }
    }

    /// Takes a new view of the cluster; a changed view starts a round at once.
    pub(crate) fn plan_round(&mut self, view: PlacementView) {
        if self.view.as_ref() != Some(&view) {
            self.view = Some(view);
            self.next_round_ms = 0;
        }
    }

    /// Notes the result of a membership change.
    pub(crate) fn changed(&mut self, id: RequestId, result: Result<Membership, ChangeRefused>) {
        if let Err(refused) = result {
            tracing::debug!(%refused, "a membership change was refused and is tried again");
        }
        self.asked.retain(|_, (asked, _)| *asked != id);
    }

    pub(crate) fn wake_in(&self, now_ms: u64) -> u64 {
        self.next_round_ms.saturating_sub(now_ms)
    }

    /// Returns the inputs for the node, if a round is due.
    pub(crate) fn turn(&mut self, node: &Node, now_ms: u64) -> Vec<Input> {
        if now_ms < self.next_round_ms {
            return Vec::new();
        }
        let Some(view) = &self.view else {
            self.next_round_ms = now_ms + BUSY_ROUND_MS;
            return Vec::new();
        };
        let balance = if now_ms >= self.next_balance_ms {
            LeaderBalance::Now
        } else {
            LeaderBalance::NotNow
        };
        let groups = node.status().groups;
        let steps =
            placement_plan::plan(node.member(), &groups, view, &self.rules, balance, now_ms);
        let moving = groups.iter().any(|group| {
            group.serves && (group.membership.is_joint() || !group.membership.learners.is_empty())
        });
        if balance == LeaderBalance::Now && steps.is_empty() {
            self.next_balance_ms = now_ms + self.rules.balance_ms;
        }
        // Stability and eviction windows end without an event, so a settled cluster is planned
        // periodically too.
        let pause = if moving || !steps.is_empty() {
            BUSY_ROUND_MS
        } else {
            self.rules.settled_round_ms()
        };
        self.next_round_ms = now_ms + pause;
        self.asked
            .retain(|_, (_, since)| now_ms.saturating_sub(*since) < LOST_AFTER_MS);
        steps
            .into_iter()
            .filter_map(|step| self.input(step, now_ms))
            .collect()
    }

    fn input(&mut self, step: PlacementStep, now_ms: u64) -> Option<Input> {
        match step {
            PlacementStep::Transfer(group, to) => Some(Input::Transfer { group, to }),
            PlacementStep::Change(group, _) if self.asked.contains_key(&group) => None,
            PlacementStep::Change(group, change) => {
                self.last_id += 1;
                let id = RequestId(self.last_id);
                self.asked.insert(group, (id, now_ms));
                tracing::debug!(%group, ?change, "membership");
                Some(Input::Change { id, group, change })
            }
        }
    }
}
