//! One question, repeated while it fails (P25).

use std::time::Duration;

use super::{Answer, Failure, FailureKind, Op, Progress, Steps, Why};
use crate::time::{Boot, Now};

/// Asks the store something that may be asked twice: a read, a list, a wait.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ask {
    op: Op,
    retries: u8,
    pause: Duration,
    until: Option<Boot>,
    asked: Option<Now>,
}

impl Ask {
    pub(super) fn new(op: Op, retries: u8) -> Ask {
        Ask {
            op,
            retries,
            pause: Duration::from_millis(200),
            until: None,
            asked: None,
        }
    }
}

impl Ask {
    /// What the clocks showed before the question went out. Whatever the answer shows may have
    /// changed since, so a judgement of it counts from here: a process that stands still before it
    /// reads an answer must not take its own pause for the age of somebody's lock.
    pub(super) fn asked(&self, answered: Now) -> Now {
        self.asked.unwrap_or(answered)
    }
}

impl Steps for Ask {
    type End = Result<Answer, Failure>;

    fn next(&mut self, now: Now) -> Op {
        match self.until {
            Some(until) => Op::WaitUntil(until),
            None => {
                self.asked.get_or_insert(now);
                self.op.clone()
            }
        }
    }

    fn answer(&mut self, answer: Answer, now: Now) -> Progress<Self::End> {
        if self.until.take().is_some() {
            return Progress::Going;
        }
        // A wait that was cut short is no wait: what it was for may still come.
        if let (Op::WaitUntil(until), Answer::Waited) = (&self.op, &answer)
            && now.boot < *until
        {
            return Progress::Going;
        }
        let failure = match answer {
            Answer::Failed(failure) => failure,
            Answer::Refused(Why::Contention) => super::unexpected(answer),
            answer => return Progress::Done(Ok(answer)),
        };
        if failure.kind != FailureKind::Passing || self.retries == 0 {
            return Progress::Done(Err(failure));
        }
        self.retries -= 1;
        self.asked = None;
        self.until = Some(now.boot + self.pause);
        self.pause = (self.pause * 2).min(Duration::from_secs(2));
        Progress::Going
    }
}
