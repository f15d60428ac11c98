//! Retry with exponential backoff for operations that may be repeated (P25 (failed reads are not
//! absence)).

use std::time::Duration;

use super::batch::Part;
use super::{
    ConditionFailure, OpFailure, OpFailureKind, OpResult, Procedure, ProcedureStep, StoreOp,
};
use crate::key::ObjectKey;
use crate::time::{BootTime, Now};

/// An operation that may be repeated: a read, a list or a wait.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Retried {
    op: StoreOp,
    retries: u8,
    pause: Duration,
    until: Option<BootTime>,
    asked: Option<Now>,
}

impl Retried {
    pub(super) fn new(op: StoreOp, retries: u8) -> Retried {
        Retried {
            op,
            retries,
            pause: Duration::from_millis(200),
            until: None,
            asked: None,
        }
    }
}

impl Retried {
    /// Returns the clock reading from before the latest request was sent.
    ///
    /// The object may have changed since then, so its staleness is decided for this time. Otherwise
    /// a process that is paused between request and response would count its own pause as the age
    /// of the lock.
    pub(super) fn asked(&self, answered: Now) -> Now {
        self.asked.unwrap_or(answered)
    }
}

impl Procedure for Retried {
    type End = Result<OpResult, OpFailure>;

    fn next(&mut self, now: Now) -> StoreOp {
        match self.until {
            Some(until) => StoreOp::WaitUntil(until),
            None => {
                self.asked.get_or_insert(now);
                self.op.clone()
            }
        }
    }

    fn answer(&mut self, answer: OpResult, now: Now) -> ProcedureStep<Self::End> {
        if self.until.take().is_some() {
            return ProcedureStep::Going;
        }
        // The wait ended early: keep waiting, because the awaited event may still come.
        if let (StoreOp::WaitUntil(until), OpResult::Waited) = (&self.op, &answer)
            && now.boot < *until
        {
            return ProcedureStep::Going;
        }
        let failure = match answer {
            OpResult::Failed(failure) => failure,
            OpResult::Refused(ConditionFailure::Contention) => super::unexpected(answer),
            answer => return ProcedureStep::Done(Ok(answer)),
        };
        if failure.kind != OpFailureKind::Passing || self.retries == 0 {
            return ProcedureStep::Done(Err(failure));
        }
        self.retries -= 1;
        self.asked = None;
        self.until = Some(now.boot + self.pause);
        self.pause = (self.pause * 2).min(Duration::from_secs(2));
        ProcedureStep::Going
    }
}

/// A read beside other requests. Its result comes with the clock reading of [`Retried::asked`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Read(Retried);

/// The result of a read, and when it was sent.
pub(super) type ReadEnd = (Result<OpResult, OpFailure>, Now);

/// A read beside other requests.
pub(super) type ReadPart = Part<Read, ReadEnd>;

impl Read {
    pub(super) fn part(key: ObjectKey, retries: u8) -> ReadPart {
        Part::new(Read(Retried::new(StoreOp::Read(key), retries)))
    }
}

impl Procedure for Read {
    type End = ReadEnd;

    fn next(&mut self, now: Now) -> StoreOp {
        self.0.next(now)
    }

    fn answer(&mut self, answer: OpResult, now: Now) -> ProcedureStep<ReadEnd> {
        match self.0.answer(answer, now) {
            ProcedureStep::Going => ProcedureStep::Going,
            ProcedureStep::Done(end) => ProcedureStep::Done((end, self.0.asked(now))),
        }
    }
}

/// One operation without retries.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Once(pub(super) StoreOp);

impl Procedure for Once {
    type End = OpResult;

    fn next(&mut self, _now: Now) -> StoreOp {
        self.0.clone()
    }

    fn answer(&mut self, answer: OpResult, _now: Now) -> ProcedureStep<OpResult> {
        ProcedureStep::Done(answer)
    }
}
