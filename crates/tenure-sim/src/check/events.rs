//! Nothing that an owner is told is told twice; in the convergence phase, everybody who listens is told everything
//! (R122), whoever leads.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tenure_core::value::OwnerId;

use super::{CheckResult, Fact, Relevance};
use crate::plan::RunPlan;
use crate::time::{SECOND, SimTime};

/// Who has listened for so long hears everything that is said.
const LISTENS_AFTER: SimTime = 3 * SECOND;
/// A group that keeps fewer events than this may forget one before a node that followed the leader
/// before has asked the next (R123): nobody can demand it.
const KEPT_LONG: u32 = 64;
/// In the convergence phase, what one listener heard so long ago has reached all others.
const NEWS_TAKES: SimTime = 5 * SECOND;

/// See the module.
pub(super) struct EventDelivery {
    streams: BTreeMap<u64, OwnerListener>,
    convergence: bool,
    /// Whether groups keep events for long enough to demand all of them.
    kept: bool,
    /// What was told in the convergence phase and is not old enough to ask for: when, to whom, what.
    told: VecDeque<(SimTime, OwnerId, u64)>,
}

struct OwnerListener {
    owner: OwnerId,
    since: SimTime,
    /// By their ids, which no two groups give twice (R121).
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
