//! Fencing counter: one object beside the locks whose number only grows (P38 (repository fence
//! counter), K39–K41).

use std::time::Duration;

use super::retry::Retried;
use super::{
    ConditionFailure, OpBody, OpFailure, OpFailureKind, OpResult, Procedure, ProcedureStep,
    StoreOp, unexpected,
};
use crate::key::ObjectKey;
use crate::lock_terms::{ConditionLevel, LockMode, LockTerms};
use crate::staleness::{ObjectContent, Version};
use crate::time::Now;

/// Takes the next fencing number. It is taken while the lock is held, never before (K39 (fencing
/// number per acquisition)).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct TakeFence {
    terms: LockTerms,
    mode: LockMode,
    rounds: u8,
    failures: u8,
    doing: FenceState,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum FenceState {
    Reading(Retried),
    Writing(u64, Option<Version>),
    Pausing(Retried),
}

impl TakeFence {
    /// Maximum number of attempts while other holders take numbers at the same time.
    const ROUNDS: u8 = 100;

    pub(super) fn new(terms: LockTerms, mode: LockMode) -> TakeFence {
        let doing = FenceState::read(&terms);
        let failures = terms.retries;
        TakeFence {
            terms,
            mode,
            rounds: Self::ROUNDS,
            failures,
            doing,
        }
    }

    fn found(
        &mut self,
        number: u64,
        version: Option<Version>,
    ) -> ProcedureStep<<Self as Procedure>::End> {
        // At level 0, two concurrent writers could hand out the same number. An exclusive holder is
        // alone; a shared one is not, so it uses the last number without incrementing it.
        if self.terms.level == ConditionLevel::Nothing && self.mode == LockMode::Shared {
            return ProcedureStep::Done(Ok((number > 0).then_some(number)));
        }
        let Some(next) = number.checked_add(1) else {
            return ProcedureStep::Done(Err(FenceError::Used));
        };
        self.doing = FenceState::Writing(next, version);
        ProcedureStep::Going
    }

    fn again(&mut self, now: Now) -> ProcedureStep<<Self as Procedure>::End> {
        if self.rounds == 0 {
            let busy = OpFailure::passing("too many holders take fencing numbers at this moment");
            return ProcedureStep::Done(Err(FenceError::Failed(busy)));
        }
        self.rounds -= 1;
        let until = now.boot + Duration::from_millis(u64::from(Self::ROUNDS - self.rounds).min(50));
        self.doing = FenceState::Pausing(Retried::new(StoreOp::WaitUntil(until), 0));
        ProcedureStep::Going
    }
}

/// The reason why no number was taken.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum FenceError {
    /// The counter is unreadable: an error, never a restart from zero (K40 (fence counter file)).
    Malformed,
    /// The counter is at its maximum.
    Used,
    /// The store failed.
    Failed(OpFailure),
}

impl FenceState {
    fn read(terms: &LockTerms) -> FenceState {
        FenceState::Reading(Retried::new(StoreOp::Read(ObjectKey::Fence), terms.retries))
    }
}

impl Procedure for TakeFence {
    /// `None` only for a shared holder at level 0 whose counter was never incremented.
    type End = Result<Option<u64>, FenceError>;

    fn next(&mut self, now: Now) -> StoreOp {
        match &mut self.doing {
            FenceState::Reading(ask) | FenceState::Pausing(ask) => ask.next(now),
            FenceState::Writing(number, version) => {
                let body = OpBody::Fence(*number);
                match (self.terms.level, version) {
                    (ConditionLevel::Nothing, _) => StoreOp::Put(ObjectKey::Fence, body),
                    (_, None) => StoreOp::Create(ObjectKey::Fence, body),
                    (_, Some(version)) => StoreOp::Replace(ObjectKey::Fence, body, version.clone()),
                }
            }
        }
    }

    fn answer(&mut self, answer: OpResult, now: Now) -> ProcedureStep<Self::End> {
        match &mut self.doing {
            FenceState::Pausing(_) => {
                self.doing = FenceState::read(&self.terms);
                ProcedureStep::Going
            }
            FenceState::Reading(ask) => match ask.answer(answer, now) {
                ProcedureStep::Going => ProcedureStep::Going,
                ProcedureStep::Done(Err(failure)) => {
                    ProcedureStep::Done(Err(FenceError::Failed(failure)))
                }
                ProcedureStep::Done(Ok(OpResult::Absent)) => self.found(0, None),
                ProcedureStep::Done(Ok(OpResult::Found(object))) => match object.content {
                    ObjectContent::Fence(number) => self.found(number, Some(object.version)),
                    ObjectContent::Record(_) | ObjectContent::Unreadable { .. } => {
                        ProcedureStep::Done(Err(FenceError::Malformed))
                    }
                },
                ProcedureStep::Done(Ok(other)) => {
                    ProcedureStep::Done(Err(FenceError::Failed(unexpected(other))))
                }
            },
            FenceState::Writing(number, _) => match answer {
                OpResult::Written(_) => ProcedureStep::Done(Ok(Some(*number))),
                OpResult::Refused(ConditionFailure::Condition | ConditionFailure::Contention) => {
                    self.again(now)
                }
                // The write may have taken effect. A skipped number does no harm.
                OpResult::Failed(failure)
                    if failure.kind == OpFailureKind::Passing && self.failures > 0 =>
                {
                    self.failures -= 1;
                    self.again(now)
                }
                other => ProcedureStep::Done(Err(FenceError::Failed(unexpected(other)))),
            },
        }
    }
}
