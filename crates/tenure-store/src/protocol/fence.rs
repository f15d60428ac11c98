//! Fencing counter: one object beside the locks whose number only grows (P38 (repository fence
//! counter), K39–K41).
//!
//! With conditional writes, an acquire takes its number with its last look ([`FenceBase`],
//! [`Confirm`](super::confirm::Confirm)). [`TakeFence`] takes one alone: at level 0, and for a
//! break.

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

/// The counter as it was read: the base of a conditional write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct FenceBase {
    pub(super) number: u64,
    /// `None` if there was no counter.
    version: Option<Version>,
}

impl FenceBase {
    /// Interprets the result of a read of the counter.
    pub(super) fn read(answer: OpResult) -> Result<FenceBase, FenceError> {
        match answer {
            OpResult::Absent => Ok(FenceBase {
                number: 0,
                version: None,
            }),
            OpResult::Found(object) => match object.content {
                ObjectContent::Fence(number) => Ok(FenceBase {
                    number,
                    version: Some(object.version),
                }),
                ObjectContent::Record(_) | ObjectContent::Unreadable { .. } => {
                    Err(FenceError::Malformed)
                }
            },
            other => Err(FenceError::Failed(unexpected(other))),
        }
    }

    /// Returns the next number and the write that takes it.
    pub(super) fn raise(&self, level: ConditionLevel) -> Result<(u64, StoreOp), FenceError> {
        let next = self.number.checked_add(1).ok_or(FenceError::Used)?;
        let body = OpBody::Fence(next);
        let write = match (level, &self.version) {
            (ConditionLevel::Nothing, _) => StoreOp::Put(ObjectKey::Fence, body),
            (_, None) => StoreOp::Create(ObjectKey::Fence, body),
            (_, Some(version)) => StoreOp::Replace(ObjectKey::Fence, body, version.clone()),
        };
        Ok((next, write))
    }

    /// The counter after the write of `number`.
    pub(super) fn written(number: u64, version: Version) -> FenceBase {
        FenceBase {
            number,
            version: Some(version),
        }
    }
}

/// Returns the pause before the counter is read again, after `attempts` others were faster.
pub(super) fn contention_pause(attempts: u8) -> Duration {
    Duration::from_millis(u64::from(attempts).min(50))
}

/// Takes the next fencing number.
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
    Writing(u64, StoreOp),
    Pausing(Retried),
}

impl TakeFence {
    /// Maximum number of attempts while other holders take numbers at the same time.
    pub(super) const ROUNDS: u8 = 100;

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

    fn found(&mut self, base: &FenceBase) -> ProcedureStep<<Self as Procedure>::End> {
        // At level 0, two concurrent writers could hand out the same number. An exclusive holder is
        // alone; a shared one is not, so it uses the last number without incrementing it.
        if self.terms.level == ConditionLevel::Nothing && self.mode == LockMode::Shared {
            return ProcedureStep::Done(Ok((base.number > 0).then_some(base.number)));
        }
        match base.raise(self.terms.level) {
            Ok((next, write)) => {
                self.doing = FenceState::Writing(next, write);
                ProcedureStep::Going
            }
            Err(error) => ProcedureStep::Done(Err(error)),
        }
    }

    fn again(&mut self, now: Now) -> ProcedureStep<<Self as Procedure>::End> {
        if self.rounds == 0 {
            return ProcedureStep::Done(Err(FenceError::busy()));
        }
        self.rounds -= 1;
        let until = now.boot + contention_pause(Self::ROUNDS - self.rounds);
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

impl FenceError {
    pub(super) fn busy() -> FenceError {
        FenceError::Failed(OpFailure::passing(
            "too many holders take fencing numbers at this moment",
        ))
    }
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
            FenceState::Writing(_, write) => write.clone(),
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
                ProcedureStep::Done(Ok(found)) => match FenceBase::read(found) {
                    Ok(base) => self.found(&base),
                    Err(error) => ProcedureStep::Done(Err(error)),
                },
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
