//! Nothing that an owner is told is told twice; in the calm, everybody who listens is told everything
//! (R122), whoever leads.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tenure_core::value::OwnerId;

use super::{Fact, Finding, Seen};
use crate::plan::Plan;
use crate::time::{SECOND, Time};

/// Who has listened for so long hears everything that is said.
const LISTENS_AFTER: Time = 3 * SECOND;
/// A group that keeps fewer events than this may forget one before a node that followed the leader
/// before has asked the next (R123): nobody can demand it.
const KEPT_LONG: u32 = 64;
/// In the calm, what one listener heard so long ago has reached all others.
const NEWS_TAKES: Time = 5 * SECOND;

/// See the module.
pub(super) struct Events {
    streams: BTreeMap<u64, Listener>,
    calm: bool,
    /// Whether groups keep events for long enough to demand all of them.
    kept: bool,
    /// What was told in the calm and is not old enough to ask for: when, to whom, what.
    told: VecDeque<(Time, OwnerId, u64)>,
}

struct Listener {
    owner: OwnerId,
    since: Time,
    /// By their ids, which no two groups give twice (R121).
    heard: BTreeSet<u64>,
}

impl Events {
    pub(super) fn new(plan: &Plan) -> Events {
        Events {
            streams: BTreeMap::new(),
            calm: false,
            kept: plan.limits.space.events >= KEPT_LONG,
            told: VecDeque::new(),
        }
    }

    pub(super) fn see(&mut self, now: Time, fact: &Fact<'_>) -> Finding {
        match fact {
            Fact::Subscribed { stream, owner } => {
                let listener = Listener {
                    owner: (*owner).clone(),
                    since: now,
                    heard: BTreeSet::new(),
                };
                self.streams.insert(*stream, listener);
            }
            Fact::Unsubscribed(stream) => {
                self.streams.remove(stream);
            }
            Fact::Calm => self.calm = true,
            Fact::Told { stream, event } => {
                let Some(listener) = self.streams.get_mut(stream) else {
                    return Ok(Seen::Passed);
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
                if self.calm && self.kept {
                    self.told.push_back((now, event.owner.clone(), event.id));
                }
            }
            _ => {}
        }
        self.complete(now)
    }

    fn complete(&mut self, now: Time) -> Finding {
        let mut checked = Seen::Passed;
        while let Some((when, ..)) = self.told.front()
            && when + NEWS_TAKES < now
        {
            let Some((when, owner, id)) = self.told.pop_front() else {
                break;
            };
            for listener in self.streams.values() {
                if listener.owner == owner && listener.since + LISTENS_AFTER < when {
                    checked = Seen::Checked;
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
