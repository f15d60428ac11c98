//! Nobody is overtaken, per path.
//!
//! A place in line is known by the fence that is reserved with it (R83). Three signs, each safe from
//! news that is late: a place must not move back (E4); nobody who asked for the same path after its
//! owner first knew of it may have been granted before its owner asks again and still waits; and it
//! must not have gone for another one, unless it may have lapsed, or have been granted and run out.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::path::Path;
use tenure_core::policy::Mode;
use tenure_core::value::{Fence, OwnerId};
use tenure_node::{AcquireAnswer, AcquireRequest, Answer, ClientRequest, Deadlock};

use super::{CheckResult, ClientCall, Fact, Relevance, takes_from};
use crate::time::SimTime;

struct QueuedRequest {
    path: Path,
    /// When its owner first knew of it.
    since: SimTime,
    position: u32,
    fence: Option<Fence>,
    /// When its owner last asked and was answered that it waits, and when the answer came.
    asked: SimTime,
    answered: SimTime,
    /// Until then it lives by the fastest clock.
    ends: SimTime,
    overtaken: Option<(OwnerId, SimTime)>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Fifo {
    places: BTreeMap<OwnerId, QueuedRequest>,
    /// The first acquire of each owner for its path.
    asked: BTreeMap<OwnerId, SimTime>,
    /// Owners that somebody asked to be killed, or that may have lost their place to a deadlock.
    doomed: BTreeSet<OwnerId>,
}

/// Simple requests only: one path of a namespace whose policy stays, for writing.
fn simple(request: &ClientRequest) -> Option<(&AcquireRequest, &Path)> {
    let ClientRequest::Acquire(acquire) = request else {
        return None;
    };
    let [one] = acquire.requests.as_slice() else {
        return None;
    };
    let fits = one.mode == Mode::Write && matches!(one.path.handler(), "t" | "u");
    fits.then_some((acquire, &one.path))
}

impl Fifo {
    pub(super) fn see(&mut self, now: SimTime, fact: &Fact<'_>) -> CheckResult {
        match fact {
            Fact::Asked(ask) => {
                if let Some((acquire, _)) = simple(&ask.request) {
                    self.asked.entry(acquire.owner.clone()).or_insert(now);
                }
                if let ClientRequest::Acquire(acquire) = &*ask.request
                    && acquire.deadlock == Deadlock::Refuse
                {
                    // Its place may be withdrawn, and it may not hear of it (E5).
                    self.doomed.insert(acquire.owner.clone());
                }
                if let Some(victim) = takes_from(&ask.request) {
                    self.doomed.insert(victim.clone());
                }
                Ok(Relevance::Passed)
            }
            Fact::Stops(owner) => {
                self.places.remove(*owner);
                Ok(Relevance::Passed)
            }
            Fact::Believes(belief) => {
                if let [(path, Mode::Write)] = belief.holds.as_slice() {
                    self.granted(now, &belief.owner, path);
                }
                Ok(Relevance::Passed)
            }
            Fact::Answered(ask, Ok(Answer::Acquire(answer))) => {
                match (simple(&ask.request), answer) {
                    (
                        Some((acquire, path)),
                        AcquireAnswer::Queued {
                            position, fence, ..
                        },
                    ) => self.queued(now, ask, acquire, path, (*position, *fence)),
                    (Some((acquire, _)), _) => {
                        self.places.remove(&acquire.owner);
                        Ok(Relevance::Passed)
                    }
                    (None, _) => Ok(Relevance::Passed),
                }
            }
            _ => Ok(Relevance::Passed),
        }
    }

    fn granted(&mut self, now: SimTime, owner: &OwnerId, path: &Path) {
        self.places.remove(owner);
        let Some(asked) = self.asked.get(owner).copied() else {
            return;
        };
        for place in self.places.values_mut() {
            if place.path == *path && place.since < asked && place.overtaken.is_none() {
                place.overtaken = Some((owner.clone(), now));
            }
        }
    }

    fn queued(
        &mut self,
        now: SimTime,
        ask: &ClientCall,
        acquire: &AcquireRequest,
        path: &Path,
        (position, fence): (u32, Option<Fence>),
    ) -> CheckResult {
        // A repeat under one key prolongs nothing (R105).
        let ends = ask.first_sent + acquire.queue_ttl.millis() * 1000 * 10 / 11;
        let new = QueuedRequest {
            path: path.clone(),
            since: now,
            position,
            fence,
            asked: ask.sent,
            answered: now,
            ends,
            overtaken: None,
        };
        let Some(place) = self.places.get_mut(&acquire.owner) else {
            self.places.insert(acquire.owner.clone(), new);
            return Ok(Relevance::Passed);
        };
        if place.path != *path {
            // It wants something else now.
            *place = new;
            return Ok(Relevance::Passed);
        }
        if ask.sent <= place.answered {
            // The two questions were on their way together: which came first is not known.
            return Ok(Relevance::Passed);
        }
        if place.fence != fence {
            // A grant in between would still stand: a lease lasts that long by any clock.
            let granted_and_gone = now >= place.asked + acquire.ttl.millis() * 1000 * 10 / 11;
            if now < place.ends && !granted_and_gone && !self.doomed.contains(&acquire.owner) {
                return Err(format!(
                    "{} lost its place in the line for {path}: it had {:?}, now {fence:?}",
                    acquire.owner, place.fence
                ));
            }
            *place = new;
            return Ok(Relevance::Passed);
        }
        if let Some((by, when)) = &place.overtaken
            && *when < ask.sent
        {
            return Err(format!(
                "{} waits for {path} since {}, but {by}, who came later, got it at {when}",
                acquire.owner, place.since
            ));
        }
        if position > place.position {
            return Err(format!(
                "{} moved back in the line for {path}: from {} to {position}",
                acquire.owner, place.position
            ));
        }
        place.position = position;
        place.asked = ask.sent;
        place.answered = now;
        place.ends = place.ends.max(ends);
        Ok(Relevance::Checked)
    }
}
