//! Simulated original: follows section 5 of the protocol step by step, including its faults
//! ("holes").
//!
//! ```text
//! exclusive: read exclusive ▶ list shared ▶ read each ▶ write ▶ read back ▶ hold
//! shared:    read exclusive ▶ write own ▶ read exclusive ▶ hold, or delete own
//! holding:   every 30 s: read own ▶ ours: write, not ours: stop refreshing and say nothing
//! release:   read own ▶ ours: delete
//! ```
//!
//! It returns one step at a time and receives its result, so that the model can interleave other
//! events and a test can run it on a real store.

use std::time::Duration;

use jiff::Timestamp;

use super::LockMode;

/// A request to the store, always unconditional.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    Read(String),
    ListShared,
    Write(String, OriginalRecord),
    Delete(String),
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Got {
    /// The record. `None` if it is absent or damaged or the read failed; the original treats these
    /// alike.
    Record(Option<OriginalRecord>),
    /// The keys under the shared prefix.
    Keys(Vec<String>),
    /// The write or delete is done.
    Done,
}

/// The fields of a record that the original reads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OriginalRecord {
    pub(crate) holder: String,
    pub(crate) acquired_at: String,
    /// `None` if it is not a date: the record never expires.
    pub(crate) expires: Option<Timestamp>,
    pub(crate) is_shared: bool,
}

impl OriginalRecord {
    fn in_force(&self, now: Timestamp) -> bool {
        self.expires.is_none_or(|expires| expires > now)
    }
}

/// The current step of the process.
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

/// An original process.
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
    /// Creates a process that starts to acquire now.
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

    /// Returns `true` while it works as if it held the lock. It continues after it has lost the
    /// lock (hole 3).
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

    /// Returns `true` if it has ended.
    pub(crate) fn ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    /// Returns `true` if it is in the middle of a sequence that started with a read.
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

    /// Returns `true` if it has seen that the lock is not its own any more and still works (hole
    /// 3).
    pub(crate) fn knows_better(&self) -> bool {
        matches!(
            self.phase,
            Phase::Holding {
                refreshing: false,
                ..
            }
        )
    }

    /// Returns its lock: the record without a date, and the key.
    pub(crate) fn own(&self) -> (OriginalRecord, &str) {
        let record = OriginalRecord {
            holder: self.holder.clone(),
            acquired_at: self.acquired_at.clone(),
            expires: None,
            is_shared: self.mode == LockMode::Shared,
        };
        (record, &self.key)
    }

    /// Returns the time of its next own action, if it only waits.
    pub(crate) fn wakes(&self) -> Option<Timestamp> {
        match self.phase {
            Phase::Holding {
                refreshed,
                refreshing: true,
            } => Some(refreshed + REFRESH),
            _ => None,
        }
    }

    /// The timer fires: read its own record and refresh it.
    pub(crate) fn wake(&mut self) {
        assert!(self.wakes().is_some(), "only a holder refreshes");
        self.phase = Phase::LookAtOwn {
            then: Then::Refresh,
        };
    }

    /// The work is done: release the lock.
    pub(crate) fn release(&mut self) {
        assert!(
            matches!(self.phase, Phase::Holding { .. }),
            "only a holder releases"
        );
        self.phase = Phase::LookAtOwn {
            then: Then::Release,
        };
    }

    /// Returns the next request, if any.
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

    /// Receives the result of its request.
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
