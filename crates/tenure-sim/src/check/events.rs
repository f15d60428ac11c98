//! Checker of owner events, R122 (events are always delivered): no subscription gets one twice;
//! after the faults, an event that one subscription gets reaches all subscriptions of that owner.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tenure_core::value::OwnerId;

use super::{CheckResult, Fact, Relevance};
use crate::plan::RunPlan;
use crate::time::{SECOND, SimTime};

/// A subscription that is older than this receives every new event.
const LISTENS_AFTER: SimTime = 3 * SECOND;
/// If a group keeps fewer events than this, an event may be dropped before a node that followed the
/// old leader has asked the new one: R123 (slow subscribers are closed). Then completeness is not
/// checked.
const KEPT_LONG: u32 = 64;
/// In the convergence phase an event that one subscriber received this long ago has reached all
/// others.
const NEWS_TAKES: SimTime = 5 * SECOND;

/// All subscriptions with the events that they received.
pub(super) struct EventDelivery {
    streams: BTreeMap<u64, OwnerListener>,
    convergence: bool,
    /// Whether groups keep enough events to require completeness.
    kept: bool,
    /// Events delivered in the convergence phase that are not yet old enough to check: when, owner,
    /// id.
    told: VecDeque<(SimTime, OwnerId, u64)>,
}

struct OwnerListener {
    owner: OwnerId,
    since: SimTime,
    /// Ids of received events. They are unique across groups: R121 (event ids).
    heard: BTreeSet<u64>,
}

impl EventDelivery {
    pub(super) fn new(plan: &RunPlan) -> EventDelivery {
        EventDelivery {
            streams: BTreeMap::new(),
            convergence: false,
            kept: plan.limits.space.events >= KEPT_LONG,
            told: VecDeque::new(),
        }
    }

    pub(super) fn see(&mut self, now: SimTime, fact: &Fact<'_>) -> CheckResult {
        match fact {
            Fact::Subscribed { stream, owner } => {
                let listener = OwnerListener {
                    owner: (*owner).clone(),
                    since: now,
                    heard: BTreeSet::new(),
                };
                self.streams.insert(*stream, listener);
            }
            Fact::Unsubscribed(stream) => {
                self.streams.remove(stream);
            }
            Fact::ConvergencePhase => self.convergence = true,
            Fact::Told { stream, event } => {
                let Some(listener) = self.streams.get_mut(stream) else {
                    return Ok(Relevance::Passed);
                };
                if listener.owner != event.owner {
                    return Err(format!(
                        "{} was told what is for {}",
                        listener.owner, event.owner
                    ));
                }
                if !listener.heard.insert(event.id) {
                    return Err(format!("{} was told twice: {:?}", event.owner, event.kind));
                }
                if self.convergence && self.kept {
                    self.told.push_back((now, event.owner.clone(), event.id));
                }
            }
            _ => {}
        }
        self.complete(now)
    }

    /// Checks the delivered events that are old enough: every subscriber of the owner must have
    /// them.
    fn complete(&mut self, now: SimTime) -> CheckResult {
        let mut checked = Relevance::Passed;
        while let Some((when, ..)) = self.told.front()
            && when + NEWS_TAKES < now
        {
            let Some((when, owner, id)) = self.told.pop_front() else {
                break;
            };
            for listener in self.streams.values() {
                if listener.owner == owner && listener.since + LISTENS_AFTER < when {
                    checked = Relevance::Checked;
                    if !listener.heard.contains(&id) {
                        return Err(format!(
                            "{owner} was told event {id} at {when} on one node and never on another"
                        ));
                    }
                }
            }
        }
        Ok(checked)
    }
}
