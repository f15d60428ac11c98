//! Nobody is overtaken, per path.
//!
//! Two signs, each safe from news that is late: an owner whose place in line was answered, and who
//! is answered again that it waits, must not have moved back (E4), and nobody who asked for the
//! same path after its first answer may have been granted before its second question.

use std::collections::BTreeMap;

use tenure_core::path::Path;
use tenure_core::policy::Mode;
use tenure_core::value::OwnerId;
use tenure_node::{AcquireAnswer, AcquireRequest, Answer, ClientRequest};

use super::{Ask, Fact, Finding, Seen};
use crate::time::Time;

struct Place {
    path: Path,
    /// When its owner first knew of it.
    since: Time,
    position: u32,
    /// Until then it lives by the fastest clock.
    ends: Time,
    overtaken: Option<(OwnerId, Time)>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Fifo {
    places: BTreeMap<OwnerId, Place>,
    /// The first acquire of each owner for its path.
    asked: BTreeMap<OwnerId, Time>,
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
    pub(super) fn see(&mut self, now: Time, fact: &Fact<'_>) -> Finding {
        match fact {
            Fact::Asked(ask) => {
                if let Some((acquire, _)) = simple(&ask.request) {
                    self.asked.entry(acquire.owner.clone()).or_insert(now);
                }
                Ok(Seen::Passed)
            }
            Fact::Stops(owner) => {
                self.places.remove(*owner);
                Ok(Seen::Passed)
            }
            Fact::Believes(belief) => {
                if let [(path, Mode::Write)] = belief.holds.as_slice() {
                    self.granted(now, &belief.owner, path);
                }
                Ok(Seen::Passed)
            }
            Fact::Answered(ask, Ok(Answer::Acquire(answer))) => match (simple(&ask.request), answer) {
                (Some((acquire, path)), AcquireAnswer::Queued { position, .. }) => {
                    self.queued(now, ask, acquire, path, *position)
                }
                (Some((acquire, _)), _) => {
                    self.places.remove(&acquire.owner);
                    Ok(Seen::Passed)
                }
                (None, _) => Ok(Seen::Passed),
            },
            Fact::Answered(..) | Fact::Granted { .. } | Fact::Wrote { .. } => Ok(Seen::Passed),
        }
    }

    fn granted(&mut self, now: Time, owner: &OwnerId, path: &Path) {
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

    fn queued(&mut self, now: Time, ask: &Ask, acquire: &AcquireRequest, path: &Path, position: u32) -> Finding {
        let lives = acquire.queue_ttl.millis() * 1000 * 10 / 11;
        let ends = ask.sent + lives;
        let Some(place) = self.places.get_mut(&acquire.owner) else {
            let place = Place { path: path.clone(), since: now, position, ends, overtaken: None };
            self.places.insert(acquire.owner.clone(), place);
            return Ok(Seen::Passed);
        };
        if now >= place.ends {
            // It may have lapsed and begun again.
            *place = Place { path: path.clone(), since: now, position, ends, overtaken: None };
            return Ok(Seen::Passed);
        }
        if let Some((by, when)) = &place.overtaken
            && *when < ask.sent
        {
            return Err(format!("{} waits for {path} since {}, but {by}, who came later, got it at {when}", acquire.owner, place.since));
        }
        if position > place.position {
            return Err(format!("{} moved back in the line for {path}: from {} to {position}", acquire.owner, place.position));
        }
        place.position = position;
        place.ends = place.ends.max(ends);
        Ok(Seen::Checked)
    }
}
