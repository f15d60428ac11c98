//! Probing: what does this store do with conditions? (P26, P36)
//!
//! A scratch object is created twice, replaced by its version and by an old one, and deleted by an
//! old version and by its own. Each pair is one promise: the first must work, the second must be
//! refused. A store that answers 200 to both ignores the header, and that is worse than an error.

use std::time::Duration;

use super::dice::Dice;
use super::{Answer, Body, Failure, FailureKind, Op, Progress, Steps, Why, unexpected};
use crate::judge::Version;
use crate::key::Key;
use crate::terms::Level;
use crate::time::{Boot, Now};

/// Finds out what the store can do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Probe {
    dice: Dice,
    number: u64,
    retries: u8,
    phase: Phase,
    pause: Option<Boot>,
}

/// What a store can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Abilities {
    /// What it does with conditions.
    pub level: Level,
    /// Whether an older version comes to light when the newest is deleted (P36).
    pub resurfaces: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Create,
    CreateAgain {
        first: Version,
    },
    Replace {
        first: Version,
    },
    ReplaceOld {
        first: Version,
        second: Version,
    },
    DeleteOld {
        first: Version,
        second: Version,
    },
    DeleteNew {
        second: Version,
    },
    CleanUp(Level),
    LookAfter(Level),
    /// An answer was lost: nothing can be concluded from this object any more.
    StartOver(Failure),
}

type End = Result<Abilities, Failure>;

impl Probe {
    /// Begins to probe; `seed` keeps simultaneous probes apart.
    pub fn new(seed: u128, retries: u8) -> Probe {
        let mut dice = Dice::new(seed);
        let number = dice.number();
        Probe {
            dice,
            number,
            retries,
            phase: Phase::Create,
            pause: None,
        }
    }

    fn key(&self) -> Key {
        Key::Probe(self.number)
    }

    fn go(&mut self, phase: Phase) -> Progress<End> {
        self.phase = phase;
        Progress::Going
    }

    /// A busy store: the same question again, a little later.
    fn again(&mut self, failure: Failure, now: Now) -> Progress<End> {
        if self.retries == 0 || failure.kind != FailureKind::Passing {
            return Progress::Done(Err(failure));
        }
        self.retries -= 1;
        self.pause = Some(now.boot + Duration::from_millis(200));
        Progress::Going
    }

    /// An answer that says nothing about conditions.
    fn unclear(&mut self, answer: Answer, now: Now) -> Progress<End> {
        match answer {
            Answer::Refused(Why::Contention) => self.again(unexpected(answer), now),
            other => self.go(Phase::StartOver(unexpected(other))),
        }
    }

    fn start_over(&mut self, failure: Failure, now: Now) -> Progress<End> {
        self.number = self.dice.number();
        self.phase = Phase::Create;
        self.again(failure, now)
    }

    fn decide(&mut self, phase: Phase, answer: Answer, now: Now) -> Progress<End> {
        use Answer::{Absent, Deleted, Found, Refused, Written};
        use Why::{Condition, NotSupported};
        match (phase, answer) {
            (Phase::Create, Written(first)) => self.go(Phase::CreateAgain { first }),
            (Phase::Create, Refused(Condition | NotSupported)) => {
                self.go(Phase::CleanUp(Level::Nothing))
            }
            (Phase::CreateAgain { first }, Refused(Condition)) => self.go(Phase::Replace { first }),
            (Phase::CreateAgain { .. }, Written(_) | Refused(NotSupported)) => {
                self.go(Phase::CleanUp(Level::Nothing))
            }
            (Phase::Replace { first }, Written(second)) => {
                self.go(Phase::ReplaceOld { first, second })
            }
            (Phase::Replace { .. }, Refused(Condition | NotSupported) | Absent) => {
                self.go(Phase::CleanUp(Level::Nothing))
            }
            (Phase::ReplaceOld { first, second }, Refused(Condition)) => {
                self.go(Phase::DeleteOld { first, second })
            }
            (Phase::ReplaceOld { .. }, Written(_) | Refused(NotSupported) | Absent) => {
                self.go(Phase::CleanUp(Level::Nothing))
            }
            (Phase::DeleteOld { second, .. }, Refused(Condition)) => {
                self.go(Phase::DeleteNew { second })
            }
            (Phase::DeleteOld { .. }, Deleted | Absent | Refused(NotSupported)) => {
                self.go(Phase::CleanUp(Level::Writes))
            }
            // A condition that is part of the signature is refused as a forgery.
            (Phase::DeleteOld { .. } | Phase::DeleteNew { .. }, Answer::Failed(failure))
                if failure.kind == FailureKind::Lasting =>
            {
                self.go(Phase::CleanUp(Level::Writes))
            }
            (Phase::DeleteNew { .. }, Deleted) => self.go(Phase::LookAfter(Level::Deletes)),
            (Phase::DeleteNew { .. }, Refused(Condition | NotSupported) | Absent) => {
                self.go(Phase::CleanUp(Level::Writes))
            }
            (Phase::CleanUp(level), Deleted | Absent) => self.go(Phase::LookAfter(level)),
            (Phase::CleanUp(_), other) => self.again(unexpected(other), now),
            (Phase::LookAfter(level), Absent) => Progress::Done(Ok(Abilities {
                level,
                resurfaces: false,
            })),
            (Phase::LookAfter(level), Found(_)) => Progress::Done(Ok(Abilities {
                level,
                resurfaces: true,
            })),
            (Phase::LookAfter(_), other) => self.again(unexpected(other), now),
            (Phase::StartOver(failure), _) => self.start_over(failure, now),
            (_, other) => self.unclear(other, now),
        }
    }
}

impl Steps for Probe {
    type End = End;

    fn next(&mut self, _now: Now) -> Op {
        if let Some(until) = self.pause {
            return Op::WaitUntil(until);
        }
        let key = self.key();
        match &self.phase {
            Phase::Create => Op::Create(key, Body::Probe(1)),
            Phase::CreateAgain { .. } => Op::Create(key, Body::Probe(2)),
            Phase::Replace { first } => Op::Replace(key, Body::Probe(3), first.clone()),
            Phase::ReplaceOld { first, .. } => Op::Replace(key, Body::Probe(4), first.clone()),
            Phase::DeleteOld { first, .. } => Op::DeleteVersion(key, first.clone()),
            Phase::DeleteNew { second } => Op::DeleteVersion(key, second.clone()),
            Phase::CleanUp(_) | Phase::StartOver(_) => Op::Delete(key),
            Phase::LookAfter(_) => Op::Read(key),
        }
    }

    fn answer(&mut self, answer: Answer, now: Now) -> Progress<End> {
        if self.pause.take().is_some() {
            return Progress::Going;
        }
        self.decide(self.phase.clone(), answer, now)
    }
}
