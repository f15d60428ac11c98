//! FIFO queue per path: R79 (no overtaking).
//!
//! A waiter is identified by the fence that is reserved for it: R83 (one pending entry per
//! namespace). There are three checks, all robust against late messages:
//!
//! - Its position never grows: E4 (blocker and queue position).
//! - If the owner asks again and still waits, no owner that first asked for the path after this
//!   waiter was known has been granted it before.
//! - It is not replaced by another waiter, unless it may have timed out, or was granted and its
//!   lease ran out.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::path::Path;
use tenure_core::policy::Mode;
use tenure_core::value::{Fence, OwnerId};
use tenure_node::{AcquireAnswer, AcquireRequest, Answer, ClientRequest, Deadlock};

use super::{CheckResult, ClientCall, Fact, Relevance, takes_from};
use crate::time::SimTime;

/// A known waiter.
struct QueuedRequest {
    path: Path,
    /// When its owner first knew of it.
    since: SimTime,
    position: u32,
    fence: Option<Fence>,
    /// When the last request that was answered QUEUED was sent, and when its answer arrived.
    asked: SimTime,
    answered: SimTime,
    /// Until then it exists even on the fastest clock.
    ends: SimTime,
    overtaken: Option<(OwnerId, SimTime)>,
}

/// All known waiters.
#[derive(Default)]
pub(super) struct Fifo {
    places: BTreeMap<OwnerId, QueuedRequest>,
    /// When each owner first sent an acquire.
    asked: BTreeMap<OwnerId, SimTime>,
    /// Owners that another client may have removed, or whose waiter may be withdrawn on deadlock.
    doomed: BTreeSet<OwnerId>,
}

/// Returns an acquire that this checker covers: one path, for writing, in a namespace whose policy
/// is fixed.
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
                    // The waiter may be withdrawn without the client's knowledge: E5 (refuse on
                    // deadlock).
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

    /// A grant ends the waiter of this owner, and overtakes waiters that were known before it
    /// asked.
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

    /// Checks an answer QUEUED against what was known of the waiter.
    fn queued(
        &mut self,
        now: SimTime,
        ask: &ClientCall,
        acquire: &AcquireRequest,
        path: &Path,
        (position, fence): (u32, Option<Fence>),
    ) -> CheckResult {
        // A repeat with the same key does not extend the waiter: R105 (replays report present
        // truth).
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
            // The owner waits for another path now.
            *place = new;
            return Ok(Relevance::Passed);
        }
        if ask.sent <= place.answered {
            // Both requests were under way at the same time, so their order is unknown.
            return Ok(Relevance::Passed);
        }
        if place.fence != fence {
            // If it was granted in between, the hold would still exist: a lease lasts this long on
            // any clock.
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
