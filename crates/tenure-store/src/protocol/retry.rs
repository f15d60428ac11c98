//! One question, repeated while it fails (P25).

use std::time::Duration;

use super::{
    ConditionFailure, OpFailure, OpFailureKind, OpResult, Procedure, ProcedureStep, StoreOp,
};
use crate::time::{BootTime, Now};

/// Asks the store something that may be asked twice: a read, a list, a wait.
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
    /// What the clocks showed before the question went out. Whatever the answer shows may have
    /// changed since, so a judgement of it counts from here: a process that stands still before it
    /// reads an answer must not take its own pause for the age of somebody's lock.
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
        // A wait that was cut short is no wait: what it was for may still come.
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
