//! Reviving a lapsed lock: write first, then look around, then count (P34).
//!
//! The write succeeds only if nobody touched our record; the look finds those who passed it by as
//! stale without touching it. A look before the write could be followed by a pause. The number is
//! a new one: shared holders may have come and gone meanwhile, and theirs are larger than ours.

use super::confirm::{Confirm, Confirmed};
use super::fence::TakeFence;
use super::renew::{Renew, Renewed};
use super::{Answer, Blocker, Failure, Op, Own, Progress, Steps};
use crate::judge::{Object, Sightings};
use crate::terms::{Mode, Terms};
use crate::time::Now;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Revive {
    terms: Terms,
    mode: Mode,
    sightings: Sightings,
    /// Our record as we know it, whatever comes of this.
    own: Own,
    doing: Doing,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Doing {
    Writing(Renew),
    Looking(Confirm),
    Counting(TakeFence),
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Revived {
    /// Held again, with this number.
    Held(Option<u64>, Sightings),
    /// Somebody who excludes us is there: our record must go.
    Intruder(Box<Blocker>),
    /// Our record is gone; this is in its place, if anything.
    Lost(Option<Object>),
    /// Not now. Nothing is decided.
    Failed(Failure),
}

impl Revive {
    pub(super) fn new(terms: Terms, mode: Mode, own: Own, sightings: Sightings) -> Revive {
        let doing = Doing::Writing(Renew::new(terms.clone(), own.clone()));
        Revive {
            terms,
            mode,
            sightings,
            own,
            doing,
        }
    }

    /// Our record as last known.
    pub(super) fn own(&self) -> &Own {
        &self.own
    }

    fn wrote(&mut self, end: Renewed, now: Now) -> Progress<Revived> {
        match end {
            Renewed::Ours(own) => {
                self.own = own.clone();
                let sightings = std::mem::take(&mut self.sightings);
                let confirm = Confirm::new(self.terms.clone(), self.mode, own, sightings, now);
                self.doing = Doing::Looking(confirm);
                Progress::Going
            }
            Renewed::Lost(found) => Progress::Done(Revived::Lost(found)),
            Renewed::Failed(own, failure) => {
                self.own = own;
                Progress::Done(Revived::Failed(failure))
            }
        }
    }

    fn looked(&mut self, end: Confirmed) -> Progress<Revived> {
        match end {
            Confirmed::Held(own, sightings, _) => {
                self.own = own;
                self.sightings = sightings;
                self.doing = Doing::Counting(TakeFence::new(self.terms.clone(), self.mode));
                Progress::Going
            }
            Confirmed::Conflict(blocker) => Progress::Done(Revived::Intruder(blocker)),
            Confirmed::Overtaken(found) => Progress::Done(Revived::Lost(found)),
            Confirmed::Failed(failure) => Progress::Done(Revived::Failed(failure)),
        }
    }
}

impl Steps for Revive {
    type End = Revived;

    fn next(&mut self, now: Now) -> Op {
        match &mut self.doing {
            Doing::Writing(renew) => renew.next(now),
            Doing::Looking(confirm) => confirm.next(now),
            Doing::Counting(fence) => fence.next(now),
        }
    }

    fn answer(&mut self, answer: Answer, now: Now) -> Progress<Revived> {
        match &mut self.doing {
            Doing::Writing(renew) => match renew.answer(answer, now) {
                Progress::Going => Progress::Going,
                Progress::Done(end) => self.wrote(end, now),
            },
            Doing::Looking(confirm) => match confirm.answer(answer, now) {
                Progress::Going => Progress::Going,
                Progress::Done(end) => self.looked(end),
            },
            Doing::Counting(fence) => match fence.answer(answer, now) {
                Progress::Going => Progress::Going,
                Progress::Done(Ok(number)) => {
                    Progress::Done(Revived::Held(number, std::mem::take(&mut self.sightings)))
                }
                Progress::Done(Err(_)) => {
                    let failure = Failure::passing("no fencing number was to be had");
                    Progress::Done(Revived::Failed(failure))
                }
            },
        }
    }
}
