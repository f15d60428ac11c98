//! The server's side: ask before every cycle, and let tools know that a cycle runs (X7, X13, X20).

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::decision::CycleDecision;
use super::gate::{self, GateShare};
use super::staleness::{JudgedLock, judge};
use super::{FILE_NAME, GATE_NAME, StalenessRules};
use crate::dir::Dir;
use crate::error::{BlockingHolder, Class, Error, Result};
use crate::remove::{Removal, no_pause, remove};

/// How often a dead lock is tried to be removed before a live rival is believed in (X14).
const REMOVAL_TRIES: u32 = 5;
/// How long a server waits for somebody who has the gate but no lock.
const GATE_TIMEOUT: Duration = Duration::from_secs(1);

/// A server that works on the database in one directory.
#[derive(Clone, Debug)]
pub struct ExclusiveServer {
    dir: PathBuf,
    judging: StalenessRules,
}

/// A running cycle. The gate is shared until it is dropped, so a tool knows when it is over.
#[derive(Debug)]
#[must_use = "the cycle is over when this is dropped"]
pub struct Cycle {
    /// The answer that let the cycle begin: `Proceed` or `Removed`.
    pub answer: CycleDecision,
    _share: GateShare,
}

/// What to do with a dead lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeadLockAction {
    Remove,
    /// Say what would be done (X23).
    Leave,
}

impl ExclusiveServer {
    /// The server of the database in `dir`.
    pub fn new(dir: impl AsRef<Path>) -> ExclusiveServer {
        ExclusiveServer {
            dir: dir.as_ref().to_owned(),
            judging: StalenessRules::default(),
        }
    }

    /// Process ids in locks may belong to other containers with the same host name: a missing process
    /// proves nothing then (X12.4).
    #[must_use]
    pub fn foreign_pids(mut self) -> ExclusiveServer {
        self.judging.foreign_pids = true;
        self
    }

    /// Shall this database be skipped? Removes the lock of a dead holder (X7).
    pub fn should_skip(&self) -> CycleDecision {
        self.answer(DeadLockAction::Remove)
    }

    /// The same question; nothing is removed (X23).
    pub fn would_skip(&self) -> CycleDecision {
        self.answer(DeadLockAction::Leave)
    }

    /// Begins a cycle: goes through the gate first, then asks, so that a tool either finds the gate
    /// shared or its lock respected (X20). `Err` is the answer that says why to skip.
    pub fn begin_cycle(&self) -> std::result::Result<Cycle, CycleDecision> {
        let share = self.enter_gate()?;
        match self.should_skip() {
            answer if answer.skips() => Err(answer),
            answer => Ok(Cycle {
                answer,
                _share: share,
            }),
        }
    }

    /// Whether a cycle of some Tenure server is running (X21).
    pub fn cycle_is_running(&self) -> Result<bool> {
        gate::is_busy(&Dir::open(&self.dir)?)
    }

    /// Whoever has the gate alone has published its lock before (X20), so usually the question has its
    /// answer already. Otherwise it is somebody looking, who is gone in an instant.
    fn enter_gate(&self) -> std::result::Result<GateShare, CycleDecision> {
        let failed = |error| CycleDecision::Failed(None, error);
        let dir = Dir::open(&self.dir).map_err(failed)?;
        let give_up = Instant::now() + GATE_TIMEOUT;
        loop {
            if let Some(share) = GateShare::enter(&dir).map_err(failed)? {
                return Ok(share);
            }
            let answer = self.should_skip();
            if answer.skips() {
                return Err(answer);
            }
            if Instant::now() >= give_up {
                let what = "somebody keeps the gate locked without holding the lock";
                return Err(failed(Error::new(Class::Held, dir.join(GATE_NAME), what)));
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn answer(&self, dead: DeadLockAction) -> CycleDecision {
        let dir = match Dir::open(&self.dir) {
            Ok(dir) => dir,
            Err(error) if error.class() == Class::NotFound => return CycleDecision::Proceed,
            Err(error) => return CycleDecision::Failed(None, error),
        };
        for _ in 0..REMOVAL_TRIES {
            let answer = match judge(&dir, &self.judging) {
                Ok(JudgedLock::Free) => CycleDecision::Proceed,
                Ok(JudgedLock::Held { blocker, class, .. }) => {
                    CycleDecision::Locked(Box::new(blocker), class)
                }
                Ok(JudgedLock::Problem { error, .. }) => CycleDecision::Failed(None, error),
                Ok(JudgedLock::Dead { blocker, .. }) if dead == DeadLockAction::Leave => {
                    CycleDecision::Removed(Box::new(blocker))
                }
                Ok(JudgedLock::Dead { mut found, blocker }) => {
                    match remove(&dir, &mut found, &no_pause) {
                        Ok(Removal::Removed) => CycleDecision::Removed(Box::new(blocker)),
                        // Another judge is at it, or a new lock stands there: look again.
                        Ok(Removal::Busy | Removal::Changed) => continue,
                        Err(error) => failed_to_remove(blocker, error),
                    }
                }
                Err(error) => CycleDecision::Failed(None, error),
            };
            return answer;
        }
        let what = "the lock changes faster than it can be judged";
        CycleDecision::Failed(
            None,
            Error::new(Class::LostRace, dir.join(OsStr::new(FILE_NAME)), what),
        )
    }
}

/// The text that the protocol fixes for this case (X7), around what really happened.
fn failed_to_remove(blocker: BlockingHolder, error: Error) -> CycleDecision {
    let what = match error.os_error() {
        Some(os) => format!("failed to remove stale lock: {}: {os}", error.what()),
        None => format!("failed to remove stale lock: {}", error.what()),
    };
    let mut outer = Error::new(error.class(), error.path(), what).blocked_by(blocker.clone());
    if let Some(os) = error.os_error() {
        outer = outer.caused_by(std::io::Error::from(os.kind()));
    }
    CycleDecision::Failed(Some(Box::new(blocker)), outer)
}
