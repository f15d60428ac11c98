//! Revive: recovers a lapsed lock (P34 (revive a lapsed lease)). Writes first, then checks for
//! conflicts, then takes a fencing number.
//!
//! The write succeeds only if no other client has changed our record. The conflict check finds
//! clients that treated our record as stale without changing it; it comes after the write, because
//! a pause could follow an earlier check. The fencing number is new: shared holders may have come
//! and gone in between, with numbers larger than ours.

use super::confirm::{Confirm, Confirmed};
use super::fence::TakeFence;
use super::renew::{RefreshRecord, RefreshResult};
use super::{BlockingObject, OpFailure, OpResult, OwnRecord, Procedure, ProcedureStep, StoreOp};
use crate::lock_terms::{LockMode, LockTerms};
use crate::staleness::{Object, Observations};
use crate::time::Now;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Revive {
    terms: LockTerms,
    mode: LockMode,
    observations: Observations,
    /// Our record as last known, whatever the result.
    own: OwnRecord,
    doing: ReviveState,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ReviveState {
    Writing(RefreshRecord),
    Looking(Confirm),
    Counting(TakeFence),
}

/// The result of a revival.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Revived {
    /// Held again, with this fencing number.
    Held(Option<u64>, Observations),
    /// A conflicting lock is held: our record must be removed.
    Intruder(Box<BlockingObject>),
    /// Our record is gone or was replaced by this object.
    Lost(Option<Object>),
    /// Failed; the revival may be tried again.
    Failed(OpFailure),
}

impl Revive {
    pub(super) fn new(
        terms: LockTerms,
        mode: LockMode,
        own: OwnRecord,
        observations: Observations,
    ) -> Revive {
        let doing = ReviveState::Writing(RefreshRecord::new(terms.clone(), own.clone()));
        Revive {
            terms,
            mode,
            observations,
            own,
            doing,
        }
    }

    /// Our record as last known.
    pub(super) fn own(&self) -> &OwnRecord {
        &self.own
    }

    fn wrote(&mut self, end: RefreshResult, now: Now) -> ProcedureStep<Revived> {
        match end {
            RefreshResult::Ours(own) => {
                self.own = own.clone();
                let observations = std::mem::take(&mut self.observations);
                let confirm = Confirm::new(self.terms.clone(), self.mode, own, observations, now);
                self.doing = ReviveState::Looking(confirm);
                ProcedureStep::Going
            }
            RefreshResult::Lost(found) => ProcedureStep::Done(Revived::Lost(found)),
            RefreshResult::Failed(own, failure) => {
                self.own = own;
                ProcedureStep::Done(Revived::Failed(failure))
            }
        }
    }

    fn looked(&mut self, end: Confirmed) -> ProcedureStep<Revived> {
        match end {
            Confirmed::Held(own, observations, _) => {
                self.own = own;
                self.observations = observations;
                self.doing = ReviveState::Counting(TakeFence::new(self.terms.clone(), self.mode));
                ProcedureStep::Going
            }
            Confirmed::Conflict(blocker) => ProcedureStep::Done(Revived::Intruder(blocker)),
            Confirmed::Overtaken(found) => ProcedureStep::Done(Revived::Lost(found)),
            Confirmed::Failed(failure) => ProcedureStep::Done(Revived::Failed(failure)),
        }
    }
}

impl Procedure for Revive {
    type End = Revived;

    fn next(&mut self, now: Now) -> StoreOp {
        match &mut self.doing {
            ReviveState::Writing(renew) => renew.next(now),
            ReviveState::Looking(confirm) => confirm.next(now),
            ReviveState::Counting(fence) => fence.next(now),
        }
    }

    fn answer(&mut self, answer: OpResult, now: Now) -> ProcedureStep<Revived> {
        match &mut self.doing {
            ReviveState::Writing(renew) => match renew.answer(answer, now) {
                ProcedureStep::Going => ProcedureStep::Going,
                ProcedureStep::Done(end) => self.wrote(end, now),
            },
            ReviveState::Looking(confirm) => match confirm.answer(answer, now) {
                ProcedureStep::Going => ProcedureStep::Going,
                ProcedureStep::Done(end) => self.looked(end),
            },
            ReviveState::Counting(fence) => match fence.answer(answer, now) {
                ProcedureStep::Going => ProcedureStep::Going,
                ProcedureStep::Done(Ok(number)) => ProcedureStep::Done(Revived::Held(
                    number,
                    std::mem::take(&mut self.observations),
                )),
                ProcedureStep::Done(Err(_)) => {
                    let failure = OpFailure::passing("no fencing number was to be had");
                    ProcedureStep::Done(Revived::Failed(failure))
                }
            },
        }
    }
}
