//! A stand-in of the original, step by step as the protocol's section 5 tells it, holes included.
//!
//! ```text
//! exclusive: read exclusive ▶ list shared ▶ read each ▶ write ▶ read back ▶ hold
//! shared:    read exclusive ▶ write own ▶ read exclusive ▶ hold, or delete own
//! holding:   every 30 s: read own ▶ ours: write, not ours: stop refreshing and say nothing
//! release:   read own ▶ ours: delete
//! ```
//!
//! It hands out one step at a time and takes the answer, so that the model can put anything in
//! between and a test can play it against a real store.

use std::time::Duration;

use jiff::Timestamp;

use super::LockMode;

/// What it asks of the store. It knows no conditions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    Read(String),
    ListShared,
    Write(String, OriginalRecord),
    Delete(String),
}

/// What it gets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Got {
    /// The record. `None`: absent, damaged, or the read failed; the original does not care which.
    Record(Option<OriginalRecord>),
    /// Keys under the shared prefix.
    Keys(Vec<String>),
    /// The write or the deletion is done.
    Done,
}

/// The fields of a record that the original looks at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OriginalRecord {
    pub(crate) holder: String,
    pub(crate) acquired_at: String,
    /// `None`: not a date, in force for ever.
    pub(crate) expires: Option<Timestamp>,
    pub(crate) is_shared: bool,
}

impl OriginalRecord {
    fn in_force(&self, now: Timestamp) -> bool {
        self.expires.is_none_or(|expires| expires > now)
    }
}

/// Where it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    LookAtExclusive,
    ListShared,
    LookAtShared {
        left: Vec<String>,
    },
    Write,
    Verify,
    LookAgain,
    Withdraw,
    Holding {
        refreshed: Timestamp,
        refreshing: bool,
    },
    LookAtOwn {
        then: Then,
    },
    Refresh,
    Delete,
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Then {
    Refresh,
    Release,
}

/// One original process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Original {
    mode: LockMode,
    holder: String,
    acquired_at: String,
    key: String,
    phase: Phase,
}

const TTL: Duration = Duration::from_secs(60);
const REFRESH: Duration = Duration::from_secs(30);

impl Original {
    /// A process that starts to acquire now.
    pub(crate) fn new(mode: LockMode, holder: &str, now: Timestamp) -> Original {
        let key = match mode {
            LockMode::Exclusive => "index/lock.exclusive".to_owned(),
            LockMode::Shared => format!("index/lock.shared/{now}"),
        };
        let holder = holder.to_owned();
        Original {
            mode,
            holder,
            acquired_at: now.to_string(),
            key,
            phase: Phase::LookAtExclusive,
        }
    }

    /// Whether it works, in the belief that it holds the lock. It goes on working when it has
    /// lost it (hole 3).
    pub(crate) fn works(&self) -> bool {
        match self.phase {
            Phase::Holding { .. }
            | Phase::LookAtOwn {
                then: Then::Refresh,
            }
            | Phase::Refresh => true,
            Phase::LookAtExclusive
            | Phase::ListShared
            | Phase::LookAtShared { .. }
            | Phase::Write
            | Phase::Verify
            | Phase::LookAgain
            | Phase::Withdraw
            | Phase::LookAtOwn {
                then: Then::Release,
            }
            | Phase::Delete
            | Phase::Ended => false,
        }
    }

    /// Whether it has nothing more to do.
    pub(crate) fn ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    /// Whether it is in the middle of something that began with a look.
    pub(crate) fn is_busy(&self) -> bool {
        match self.phase {
            Phase::ListShared
            | Phase::LookAtShared { .. }
            | Phase::Write
            | Phase::Verify
            | Phase::LookAgain
            | Phase::Withdraw
            | Phase::Refresh
            | Phase::Delete => true,
            Phase::LookAtExclusive
            | Phase::Holding { .. }
            | Phase::LookAtOwn { .. }
            | Phase::Ended => false,
        }
    }

    /// Whether it has seen that the lock is not its own any more, and works on (hole 3).
    pub(crate) fn knows_better(&self) -> bool {
        matches!(
            self.phase,
            Phase::Holding {
                refreshing: false,
                ..
            }
        )
    }

    /// What it calls its lock: the record without a date, and the key.
    pub(crate) fn own(&self) -> (OriginalRecord, &str) {
        let record = OriginalRecord {
            holder: self.holder.clone(),
            acquired_at: self.acquired_at.clone(),
            expires: None,
            is_shared: self.mode == LockMode::Shared,
        };
        (record, &self.key)
    }

    /// When it acts by itself next, if it only waits.
    pub(crate) fn wakes(&self) -> Option<Timestamp> {
        match self.phase {
            Phase::Holding {
                refreshed,
                refreshing: true,
            } => Some(refreshed + REFRESH),
            _ => None,
        }
    }

    /// The timer rang: look at the own record and refresh it.
    pub(crate) fn wake(&mut self) {
        assert!(self.wakes().is_some(), "only a holder refreshes");
        self.phase = Phase::LookAtOwn {
            then: Then::Refresh,
        };
    }

    /// The work is done: give the lock back.
    pub(crate) fn release(&mut self) {
        assert!(
            matches!(self.phase, Phase::Holding { .. }),
            "only a holder releases"
        );
        self.phase = Phase::LookAtOwn {
            then: Then::Release,
        };
    }

    /// What it wants from the store now, if anything.
    pub(crate) fn step(&self, now: Timestamp) -> Option<Step> {
        let exclusive = "index/lock.exclusive".to_owned();
        match &self.phase {
            Phase::LookAtExclusive | Phase::LookAgain => Some(Step::Read(exclusive)),
            Phase::ListShared => Some(Step::ListShared),
            Phase::LookAtShared { left } => Some(Step::Read(
                left.last().expect("an empty list is not looked at").clone(),
            )),
            Phase::Write | Phase::Refresh => Some(Step::Write(self.key.clone(), self.record(now))),
            Phase::Verify | Phase::LookAtOwn { .. } => Some(Step::Read(self.key.clone())),
            Phase::Withdraw | Phase::Delete => Some(Step::Delete(self.key.clone())),
            Phase::Holding { .. } | Phase::Ended => None,
        }
    }

    /// The answer to its step.
    pub(crate) fn answer(&mut self, got: Got, now: Timestamp) {
        let phase = std::mem::replace(&mut self.phase, Phase::Ended);
        self.phase = match (phase, got) {
            (Phase::LookAtExclusive, Got::Record(record)) => match (blocks(record, now), self.mode)
            {
                (true, _) => Phase::Ended,
                (false, LockMode::Exclusive) => Phase::ListShared,
                (false, LockMode::Shared) => Phase::Write,
            },
            (Phase::ListShared, Got::Keys(keys)) => look_at(keys),
            (Phase::LookAtShared { mut left }, Got::Record(record)) => {
                left.pop();
                if blocks(record, now) {
                    Phase::Ended
                } else {
                    look_at(left)
                }
            }
            (Phase::Write, Got::Done) => match self.mode {
                LockMode::Exclusive => Phase::Verify,
                LockMode::Shared => Phase::LookAgain,
            },
            (Phase::Verify, Got::Record(record)) => {
                if self.is_own(record) {
                    holding(now)
                } else {
                    Phase::Ended
                }
            }
            (Phase::LookAgain, Got::Record(record)) => {
                if blocks(record, now) {
                    Phase::Withdraw
                } else {
                    holding(now)
                }
            }
            (Phase::LookAtOwn { then }, Got::Record(record)) => match (self.is_own(record), then) {
                (true, Then::Refresh) => Phase::Refresh,
                (true, Then::Release) => Phase::Delete,
                (false, Then::Refresh) => Phase::Holding {
                    refreshed: now,
                    refreshing: false,
                },
                (false, Then::Release) => Phase::Ended,
            },
            (Phase::Refresh, Got::Done) => holding(now),
            (Phase::Withdraw | Phase::Delete, Got::Done) => Phase::Ended,
            (phase, got) => panic!("{got:?} is no answer in {phase:?}"),
        };
    }

    fn record(&self, now: Timestamp) -> OriginalRecord {
        OriginalRecord {
            holder: self.holder.clone(),
            acquired_at: self.acquired_at.clone(),
            expires: Some(now + TTL),
            is_shared: self.mode == LockMode::Shared,
        }
    }

    fn is_own(&self, record: Option<OriginalRecord>) -> bool {
        record.is_some_and(|record| {
            record.holder == self.holder && record.acquired_at == self.acquired_at
        })
    }
}

fn blocks(record: Option<OriginalRecord>, now: Timestamp) -> bool {
    record.is_some_and(|record| record.in_force(now))
}

fn look_at(left: Vec<String>) -> Phase {
    if left.is_empty() {
        Phase::Write
    } else {
        Phase::LookAtShared { left }
    }
}

fn holding(now: Timestamp) -> Phase {
    Phase::Holding {
        refreshed: now,
        refreshing: true,
    }
}
