//! The fencing number: one counter beside the locks that only grows (P38, K39–K41).

use std::time::Duration;

use super::ask::Ask;
use super::{Answer, Body, Failure, FailureKind, Op, Progress, Steps, Why, unexpected};
use crate::judge::{Content, Version};
use crate::key::Key;
use crate::terms::{Level, Mode, Terms};
use crate::time::Now;

/// Takes the next number. It is taken when the lock is held, never before (K39).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct TakeFence {
    terms: Terms,
    mode: Mode,
    rounds: u8,
    failures: u8,
    doing: Doing,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Doing {
    Reading(Ask),
    Writing(u64, Option<Version>),
    Pausing(Ask),
}

impl TakeFence {
    /// So many holders may take a number at one moment before the last of them gives up.
    const ROUNDS: u8 = 100;

    pub(super) fn new(terms: Terms, mode: Mode) -> TakeFence {
        let doing = Doing::read(&terms);
        let failures = terms.retries;
        TakeFence {
            terms,
            mode,
            rounds: Self::ROUNDS,
            failures,
            doing,
        }
    }

    fn found(&mut self, number: u64, version: Option<Version>) -> Progress<<Self as Steps>::End> {
        // Without conditions two writers could give out one number twice. An exclusive holder is
        // the only one of its kind; a shared one is not, so it makes do with the last number.
        if self.terms.level == Level::Nothing && self.mode == Mode::Shared {
            return Progress::Done(Ok((number > 0).then_some(number)));
        }
        let Some(next) = number.checked_add(1) else {
            return Progress::Done(Err(FenceError::Used));
        };
        self.doing = Doing::Writing(next, version);
        Progress::Going
    }

    fn again(&mut self, now: Now) -> Progress<<Self as Steps>::End> {
        if self.rounds == 0 {
            let busy = Failure::passing("too many holders take fencing numbers at this moment");
            return Progress::Done(Err(FenceError::Failed(busy)));
        }
        self.rounds -= 1;
        let until = now.boot + Duration::from_millis(u64::from(Self::ROUNDS - self.rounds).min(50));
        self.doing = Doing::Pausing(Ask::new(Op::WaitUntil(until), 0));
        Progress::Going
    }
}

/// Why there is no number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum FenceError {
    /// The counter cannot be read: an error, never a restart from zero (K40).
    Malformed,
    /// The counter is at its end.
    Used,
    /// The store.
    Failed(Failure),
}

impl Doing {
    fn read(terms: &Terms) -> Doing {
        Doing::Reading(Ask::new(Op::Read(Key::Fence), terms.retries))
    }
}

impl Steps for TakeFence {
    /// `None` only for a shared holder at level 0 where nobody ever counted.
    type End = Result<Option<u64>, FenceError>;

    fn next(&mut self, now: Now) -> Op {
        match &mut self.doing {
            Doing::Reading(ask) | Doing::Pausing(ask) => ask.next(now),
            Doing::Writing(number, version) => {
                let body = Body::Fence(*number);
                match (self.terms.level, version) {
                    (Level::Nothing, _) => Op::Put(Key::Fence, body),
                    (_, None) => Op::Create(Key::Fence, body),
                    (_, Some(version)) => Op::Replace(Key::Fence, body, version.clone()),
                }
            }
        }
    }

    fn answer(&mut self, answer: Answer, now: Now) -> Progress<Self::End> {
        match &mut self.doing {
            Doing::Pausing(_) => {
                self.doing = Doing::read(&self.terms);
                Progress::Going
            }
            Doing::Reading(ask) => match ask.answer(answer, now) {
                Progress::Going => Progress::Going,
                Progress::Done(Err(failure)) => Progress::Done(Err(FenceError::Failed(failure))),
                Progress::Done(Ok(Answer::Absent)) => self.found(0, None),
                Progress::Done(Ok(Answer::Found(object))) => match object.content {
                    Content::Fence(number) => self.found(number, Some(object.version)),
                    Content::Record(_) | Content::Unreadable { .. } => {
                        Progress::Done(Err(FenceError::Malformed))
                    }
                },
                Progress::Done(Ok(other)) => {
                    Progress::Done(Err(FenceError::Failed(unexpected(other))))
                }
            },
            Doing::Writing(number, _) => match answer {
                Answer::Written(_) => Progress::Done(Ok(Some(*number))),
                Answer::Refused(Why::Condition | Why::Contention) => self.again(now),
                // Perhaps it was counted, perhaps not: a number that nobody got is no harm.
                Answer::Failed(failure)
                    if failure.kind == FailureKind::Passing && self.failures > 0 =>
                {
                    self.failures -= 1;
                    self.again(now)
                }
                other => Progress::Done(Err(FenceError::Failed(unexpected(other)))),
            },
        }
    }
}
