//! A Tenure process in the model: the shipped machines, and where its one request is.

use tenure_store::judge::Sightings;
use tenure_store::record::Block;
use tenure_store::steps::{Acquire, Answer, Hold, Op, Progress, Request, Status, Steps, Wait};
use tenure_store::terms::Terms;
use tenure_store::time::Now;

use crate::support::Mode;

/// Where the process is between two requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Io {
    /// Made and perhaps on its way; not applied.
    Sent(Op),
    /// Applied; the process stands before it reads the answer.
    Answered { answer: Answer, ticked: bool },
    /// The process stands before it makes its next request.
    Unsent { ticked: bool },
    /// Nothing more to do.
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Acquiring(Acquire),
    Holding(Hold),
    Ended,
}

/// One process that wants the lock once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tenure {
    terms: Terms,
    stage: Stage,
    io: Io,
    released: bool,
    revivals_left: u8,
}

impl Tenure {
    pub(crate) fn new(number: usize, mode: Mode, terms: Terms, now: Now) -> Tenure {
        let request = Request {
            mode,
            operation: "model".into(),
            holder: format!("host (pid {number})"),
            block: Block::default(),
            wait: Wait::No,
            seed: number as u128,
        };
        let acquire = Acquire::new(terms.clone(), request, Sightings::default());
        let mut tenure = Tenure {
            terms,
            stage: Stage::Acquiring(acquire),
            io: Io::Over,
            released: false,
            revivals_left: 1,
        };
        tenure.go_on(now);
        tenure
    }

    pub(crate) fn io(&self) -> &Io {
        &self.io
    }

    /// Whether it relies on the lock. A paused process relies on it until its lease ends.
    pub(crate) fn works(&self, now: Now) -> bool {
        match &self.stage {
            Stage::Holding(hold) => {
                !self.released && *hold.status() == Status::Held && now.boot < hold.valid_until()
            }
            Stage::Acquiring(_) | Stage::Ended => false,
        }
    }

    /// Whether its owner may call an end: it rests, and was not told yet.
    pub(crate) fn may_release(&self) -> bool {
        self.rests() && !self.released
    }

    /// Whether its owner may want a lapsed lock back.
    pub(crate) fn may_revive(&self, now: Now) -> bool {
        let Stage::Holding(hold) = &self.stage else {
            return false;
        };
        let lapsed = now.boot >= hold.valid_until() && !matches!(hold.status(), Status::Lost(_));
        self.rests() && lapsed && !self.released && self.revivals_left > 0
    }

    fn rests(&self) -> bool {
        matches!(
            (&self.stage, &self.io),
            (Stage::Holding(_), Io::Sent(Op::WaitUntil(_)))
        )
    }

    pub(crate) fn release(&mut self, now: Now) {
        let Stage::Holding(hold) = &mut self.stage else {
            unreachable!("only a holder releases")
        };
        hold.release();
        self.released = true;
        self.take(Answer::Waited, now).go_on(now);
    }

    pub(crate) fn revive(&mut self, now: Now) {
        let Stage::Holding(hold) = &mut self.stage else {
            unreachable!("only a holder revives")
        };
        hold.tick(now);
        hold.revive();
        self.revivals_left -= 1;
        self.take(Answer::Waited, now).go_on(now);
    }

    /// The answer is there, and stays unread.
    pub(crate) fn keep(&mut self, answer: Answer) {
        self.io = Io::Answered {
            answer,
            ticked: false,
        };
    }

    /// Reads the answer.
    pub(crate) fn take(&mut self, answer: Answer, now: Now) -> &mut Tenure {
        self.io = Io::Unsent { ticked: false };
        match &mut self.stage {
            Stage::Acquiring(acquire) => match acquire.answer(answer, now) {
                Progress::Going => {}
                Progress::Done(Ok(acquired)) => {
                    self.stage = Stage::Holding(Hold::new(self.terms.clone(), acquired));
                }
                Progress::Done(Err(_)) => self.stage = Stage::Ended,
            },
            Stage::Holding(hold) => {
                match hold.answer(answer, now) {
                    Progress::Going => {
                        // Read by people, and only a burden on the state.
                        hold.take_notices();
                    }
                    Progress::Done(_) => self.stage = Stage::Ended,
                }
            }
            Stage::Ended => unreachable!("nobody answers a process that ended"),
        }
        if self.stage == Stage::Ended {
            self.io = Io::Over;
        }
        self
    }

    /// Whether it stands still between two requests.
    pub(crate) fn stands(&self) -> bool {
        matches!(self.io, Io::Answered { .. } | Io::Unsent { .. })
    }

    /// Makes the next request.
    pub(crate) fn go_on(&mut self, now: Now) {
        self.io = match &mut self.stage {
            Stage::Acquiring(acquire) => Io::Sent(acquire.next(now)),
            Stage::Holding(hold) => Io::Sent(hold.next(now)),
            Stage::Ended => Io::Over,
        };
    }

    /// Wakes up after a pause.
    pub(crate) fn resume(&mut self, now: Now) {
        match std::mem::replace(&mut self.io, Io::Over) {
            Io::Answered { answer, .. } => self.take(answer, now).go_on(now),
            Io::Unsent { .. } => self.go_on(now),
            Io::Sent(_) | Io::Over => unreachable!("only who stands can wake up"),
        }
    }

    pub(crate) fn tick(&mut self) {
        match &mut self.io {
            Io::Answered { ticked, .. } | Io::Unsent { ticked } => *ticked = true,
            Io::Sent(_) | Io::Over => {}
        }
    }
}
