//! Placement plan: desired voters of each group and the next membership change towards them. Pure
//! decisions for the groups that this node leads (R164 (replication factor), R165 (pace of
//! membership changes), R166 (draining a node)).
//!
//! ```text
//!   stable nodes, ranked for a group ──▶ wanted voters ──▶ add learners ──▶ one joint change
//! ```
//!
//! A replica moves for three reasons: a node that has been up for a while ranks higher, a node is
//! draining, or a node is lost permanently. A node that is only down keeps its voter places:
//! failures never reduce the number of a group's voters.

use std::collections::{BTreeMap, BTreeSet};

use tenure_node::{
    GroupId, GroupStatus, MembershipChange, MembershipStep, NodeId, ReplicaId, Role, placement,
};

/// The cluster as this node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlacementView {
    /// Current incarnation of every known node that was not removed, this node included.
    pub(crate) nodes: BTreeMap<NodeId, NodeView>,
    /// Incarnations that an operator has removed.
    pub(crate) removed: BTreeSet<ReplicaId>,
}

/// One node of a [`PlacementView`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeView {
    pub(crate) member: ReplicaId,
    /// Whether the node is up, and since when it is up or down.
    pub(crate) up: bool,
    pub(crate) since_ms: u64,
    pub(crate) draining: bool,
}

/// Settings for moving replicas and leaderships.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementRules {
    /// Number of voters per group; odd.
    pub replication_factor: usize,
    /// A node is stable after this time without interruption.
    pub stability_ms: u64,
    /// A voter that is down may be replaced after this time.
    pub eviction_ms: u64,
    /// Interval at which leaderships move to the preferred voters.
    pub balance_ms: u64,
    /// Maximum number of groups whose membership changes at the same time.
    pub at_once: usize,
}

impl PlacementRules {
    /// Returns the time between rounds when nothing moves. Windows end without an event, so
    /// planning must be periodic.
    pub(crate) fn settled_round_ms(&self) -> u64 {
        let windows = [self.stability_ms, self.eviction_ms, self.balance_ms];
        let shortest = windows.into_iter().filter(|window| *window > 0).min();
        shortest.unwrap_or(u64::MAX).clamp(1_000, 5_000)
    }
}

/// One action for a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PlacementStep {
    Change(GroupId, MembershipChange),
    Transfer(GroupId, ReplicaId),
}

/// Maximum number of leadership transfers in one round.
const TRANSFERS_AT_ONCE: usize = 4;
/// A replica that is at most this many entries behind may become voter or leader.
const NEAR: u64 = 64;

/// Whether leaderships are balanced in this round. If not, they only leave nodes that are draining.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaderBalance {
    Now,
    NotNow,
}

/// Returns the next steps for all groups that this node leads, at most [`PlacementRules::at_once`]
/// membership changes at a time.
pub(crate) fn plan(
    me: ReplicaId,
    groups: &[GroupStatus],
    view: &PlacementView,
    rules: &PlacementRules,
    balance: LeaderBalance,
    now_ms: u64,
) -> Vec<PlacementStep> {
    let planner = Planner {
        view,
        rules,
        now_ms,
    };
    let led = groups.iter().filter(|one| one.serves);
    let (mut changes, mut transfers) = (Vec::new(), Vec::new());
    let mut under_way = 0;
    let mut fresh = Vec::new();
    for group in led {
        let wanted = planner.wanted(group);
        match planner.change(me, group, &wanted) {
            MembershipNeed::None => {
                if transfers.len() < TRANSFERS_AT_ONCE
                    && let Some(to) = planner.transfer(me, group, balance)
                {
                    transfers.push(PlacementStep::Transfer(group.group, to));
                }
            }
            MembershipNeed::Wait => under_way += 1,
            MembershipNeed::GoOn(steps) => {
                under_way += 1;
                changes.push(PlacementStep::Change(
                    group.group,
                    MembershipChange { steps },
                ));
            }
            MembershipNeed::Begin(steps) => fresh.push((group.group, steps)),
        }
    }
    // New changes start only in the room that changes in progress leave.
    let room = rules.at_once.saturating_sub(under_way);
    for (group, steps) in fresh.into_iter().take(room) {
        changes.push(PlacementStep::Change(group, MembershipChange { steps }));
    }
    changes.append(&mut transfers);
    changes
}

/// What the membership of a group needs next.
#[derive(Debug, PartialEq, Eq)]
enum MembershipNeed {
    None,
    /// A change is in progress and needs time.
    Wait,
    /// Next step of a change in progress.
    GoOn(Vec<MembershipStep>),
    /// First step of a new change.
    Begin(Vec<MembershipStep>),
}

struct Planner<'a> {
    view: &'a PlacementView,
    rules: &'a PlacementRules,
    now_ms: u64,
}

impl Planner<'_> {
    fn age(&self, seen: &NodeView) -> u64 {
        self.now_ms.saturating_sub(seen.since_ms)
    }

    fn seen(&self, member: ReplicaId) -> Option<&NodeView> {
        let seen = self.view.nodes.get(&member.node);
        seen.filter(|seen| seen.member.shares_disk(member))
    }

    /// Returns whether an operator has removed this incarnation.
    fn is_removed(&self, member: ReplicaId) -> bool {
        self.view.removed.contains(&member.numbered(0))
    }

    fn is_up(&self, member: ReplicaId) -> bool {
        self.seen(member).is_some_and(|seen| seen.up)
    }

    /// Returns whether a node may get new replicas.
    fn is_stable(&self, seen: &NodeView) -> bool {
        seen.up && !seen.draining && self.age(seen) >= self.rules.stability_ms
    }

    /// Returns whether this incarnation is over: removed by an operator or replaced by a newer one.
    fn is_past(&self, member: ReplicaId) -> bool {
        let newer = self.view.nodes.get(&member.node);
        self.is_removed(member) || newer.is_some_and(|seen| !seen.member.shares_disk(member))
    }

    /// Returns whether a replica may stay where it is, if the ranking keeps it there.
    fn is_sound(&self, member: ReplicaId) -> bool {
        match self.seen(member) {
            Some(seen) => !seen.draining && (seen.up || self.age(seen) < self.rules.eviction_ms),
            // Not heard of yet, because this node has only just started.
            None => !self.is_past(member),
        }
    }

    /// Returns the voters that a group should have.
    ///
    /// Candidates are the current voters that may stay, the stable nodes, and the learners that are
    /// already catching up (they stay candidates through a short interruption, so that their
    /// transfer is not wasted). Rendezvous ranking picks the voters among them.
    fn wanted(&self, group: &GroupStatus) -> BTreeSet<ReplicaId> {
        let present = &group.membership;
        let voters: Vec<ReplicaId> = present.voters.clone();
        let everybody = present.everybody();
        // The replica that the node already has, or a new one on this node.
        let replica = |node: ReplicaId| {
            let mut here = everybody.iter().filter(|member| member.shares_disk(node));
            here.next().copied().unwrap_or(node)
        };
        let sound = |member: &&ReplicaId| self.is_sound(**member);
        let mut pool: BTreeMap<NodeId, ReplicaId> = voters
            .iter()
            .filter(sound)
            .map(|member| (member.node, *member))
            .collect();
        let stable = self.view.nodes.values().filter(|seen| {
            self.is_stable(seen)
                || (seen.up && !seen.draining && present.learners.contains(&replica(seen.member)))
        });
        let mut stable_count = 0;
        for seen in stable {
            stable_count += 1;
            pool.insert(seen.member.node, replica(seen.member));
        }
        let count = self.count(&voters, stable_count);
        if let ([lone], 1) = (voters.as_slice(), count)
            && self.rules.replication_factor > 1
            && self.is_sound(*lone)
        {
            // A single copy stays where it is until there can be more: moving it gains nothing.
            return BTreeSet::from([*lone]);
        }
        let nodes: Vec<NodeId> = pool.keys().copied().collect();
        let mut wanted: BTreeSet<ReplicaId> = placement::voters_of(group.group, &nodes, count)
            .into_iter()
            .filter_map(|node| pool.get(&node).copied())
            .collect();
        // There is no replacement yet: these voters stay, nodes that are up first.
        let mut rest: Vec<ReplicaId> = voters
            .iter()
            .copied()
            .filter(|member| !wanted.contains(member) && !self.is_removed(*member))
            .collect();
        rest.sort_by_key(|member| (!self.is_up(*member), *member));
        for member in rest {
            if wanted.len() < count {
                wanted.insert(member);
            }
        }
        wanted
    }

    /// Returns the number of voters (R164): as many as the stable nodes allow, never fewer because
    /// nodes are down.
    fn count(&self, voters: &[ReplicaId], stable: usize) -> usize {
        let possible = self.rules.replication_factor.min(stable);
        let odd = if possible.is_multiple_of(2) {
            possible.saturating_sub(1)
        } else {
            possible
        };
        // Replicas on removed or draining nodes do not count; the others keep theirs.
        let leaves = |member: &ReplicaId| {
            self.is_removed(*member) || self.seen(*member).is_some_and(|seen| seen.draining)
        };
        let remain = voters.iter().filter(|member| !leaves(member)).count();
        odd.max(remain.min(self.rules.replication_factor)).max(1)
    }

    fn change(
        &self,
        me: ReplicaId,
        group: &GroupStatus,
        wanted: &BTreeSet<ReplicaId>,
    ) -> MembershipNeed {
        let present = &group.membership;
        // Raft allows one membership change at a time: wait until the joint configuration is left.
        if present.is_joint() {
            return MembershipNeed::Wait;
        }
        let voters: BTreeSet<ReplicaId> = present.voters.iter().copied().collect();
        let learners: BTreeSet<ReplicaId> = present.learners.iter().copied().collect();
        let useless = learners.difference(wanted).copied();
        let missing: Vec<ReplicaId> = wanted
            .iter()
            .copied()
            .filter(|one| !voters.contains(one) && !learners.contains(one))
            .collect();
        if !missing.is_empty() {
            let steps = missing.into_iter().map(MembershipStep::Learner);
            let steps = steps.chain(useless.map(MembershipStep::Remove)).collect();
            return if learners.is_empty() {
                MembershipNeed::Begin(steps)
            } else {
                MembershipNeed::GoOn(steps)
            };
        }
        if voters == *wanted {
            let steps: Vec<MembershipStep> = useless.map(MembershipStep::Remove).collect();
            return if steps.is_empty() {
                MembershipNeed::None
            } else {
                MembershipNeed::GoOn(steps)
            };
        }
        let coming = wanted.difference(&voters).copied();
        let near = |member| self.is_near(group, member);
        // New voters must catch up as learners first, or commits could stall on them.
        if !coming.clone().all(near) {
            return MembershipNeed::Wait;
        }
        // R165: the change needs a majority of the new voters that is up.
        let up = wanted.iter().filter(|one| self.is_up(**one)).count();
        if up * 2 <= wanted.len() {
            return MembershipNeed::Wait;
        }
        // A leader does not remove itself: it transfers its leadership first, and only to a voter.
        // If no current voter stays, the new voters are added beside the leader, and it leaves in
        // the next round.
        let nobody_stays = voters.is_disjoint(wanted);
        let going = voters
            .difference(wanted)
            .copied()
            .filter(|member| !(nobody_stays && member.shares_disk(me)));
        let steps: Vec<MembershipStep> = coming
            .map(MembershipStep::Voter)
            .chain(going.map(MembershipStep::Remove))
            .chain(useless.map(MembershipStep::Remove))
            .collect();
        MembershipNeed::GoOn(steps)
    }

    fn is_near(&self, group: &GroupStatus, member: ReplicaId) -> bool {
        let known = group.progress.iter().find(|(one, _)| *one == member);
        known.is_some_and(|(_, progress)| {
            progress.recent && progress.matched > 0 && progress.matched + NEAR >= group.last
        })
    }

    /// Returns the voter that should lead instead of this node, if any.
    fn transfer(
        &self,
        me: ReplicaId,
        group: &GroupStatus,
        balance: LeaderBalance,
    ) -> Option<ReplicaId> {
        debug_assert_eq!(group.role, Role::Leader);
        let fit = |member: &ReplicaId| {
            let sound = self
                .seen(*member)
                .is_some_and(|seen| seen.up && !seen.draining);
            sound && (member.shares_disk(me) || self.is_near(group, *member))
        };
        let fit: BTreeMap<NodeId, ReplicaId> = group
            .membership
            .voters
            .iter()
            .filter(|member| fit(member))
            .map(|member| (member.node, *member))
            .collect();
        let leaves = !fit.contains_key(&me.node);
        if balance == LeaderBalance::NotNow && !leaves {
            return None;
        }
        let nodes: Vec<NodeId> = fit.keys().copied().collect();
        let first = placement::voters_of(group.group, &nodes, 1);
        let preferred = first.first().and_then(|node| fit.get(node).copied());
        preferred.filter(|member| !member.shares_disk(me))
    }
}

#[cfg(test)]
mod tests;
