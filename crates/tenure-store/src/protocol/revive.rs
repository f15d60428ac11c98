//! Revive: recovers a lapsed lock (P34 (revive a lapsed lease)). Writes first, then checks for
//! conflicts and takes a fencing number.
//!
//! The write succeeds only if no other client has changed our record. The conflict check finds
//! clients that treated our record as stale without changing it; it comes after the write, because
//! a pause could follow an earlier check. Shared holders may have come and gone in between, with
//! numbers larger than ours; then the fencing number is a new one. If the counter still shows our
//! number, it is kept.

use super::confirm::{Confirm, Confirmed, ConfirmedHold, FencePlan};
use super::fence::FenceError;
use super::renew::{RefreshRecord, RefreshResult};
use super::{BlockingObject, OpFailure, OpResult, OwnRecord, Procedure, ProcedureStep, StoreOp};
use crate::lock_terms::{LockMode, LockTerms};
use crate::staleness::{Object, Observations};
use crate::time::Now;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Revive {
    terms: LockTerms,
    mode: LockMode,
    /// The fencing number before the lapse.
    fence: Option<u64>,
    observations: Observations,
    /// Our record as last known, whatever the result.
    own: OwnRecord,
    doing: ReviveState,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ReviveState {
    Writing(RefreshRecord),
    Looking(Confirm),
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
        fence: Option<u64>,
        observations: Observations,
    ) -> Revive {
        let doing = ReviveState::Writing(RefreshRecord::new(terms.clone(), own.clone()));
        Revive {
            terms,
            mode,
            fence,
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
                let plan = match self.fence {
                    Some(number) => FencePlan::Keep(number),
                    None => FencePlan::Take(None),
                };
                let terms = self.terms.clone();
                let confirm = Confirm::new(terms, self.mode, own, observations, plan, now);
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
            Confirmed::Held(ConfirmedHold {
                own,
                observations,
                fence,
                ..
            }) => {
                self.own = own;
                ProcedureStep::Done(Revived::Held(fence, observations))
            }
            Confirmed::Conflict(blocker) => ProcedureStep::Done(Revived::Intruder(blocker)),
            Confirmed::Overtaken(found) => ProcedureStep::Done(Revived::Lost(found)),
            Confirmed::Failed(failure) | Confirmed::NoFence(FenceError::Failed(failure)) => {
                ProcedureStep::Done(Revived::Failed(failure))
            }
            Confirmed::NoFence(FenceError::Malformed | FenceError::Used) => {
                let failure = OpFailure::passing("no fencing number was to be had");
                ProcedureStep::Done(Revived::Failed(failure))
            }
        }
    }
}

impl Procedure for Revive {
    type End = Revived;

    fn next(&mut self, now: Now) -> StoreOp {
        match &mut self.doing {
            ReviveState::Writing(renew) => renew.next(now),
            ReviveState::Looking(confirm) => confirm.next(now),
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
        }
    }
}
