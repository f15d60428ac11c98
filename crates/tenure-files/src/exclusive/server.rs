//! The server side of exclusive locks: check for a lock before every cycle, and hold the gate
//! during it (X7 (answers of `should_skip`), X13 (reclaim and proceed), X20 (the gate file)).

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::decision::CycleDecision;
use super::gate::{self, GateShare};
use super::staleness::{JudgedLock, judge};
use super::{FILE_NAME, GATE_NAME, StalenessRules};
use crate::dir::Dir;
use crate::error::{BlockingHolder, Class, Error, Result};
use crate::liveness::PidTrust;
use crate::remove::{Removal, no_pause, remove};

/// Attempts to remove a dead lock before the race counts as lost (X14 (acquire as a tool)).
const REMOVAL_TRIES: u32 = 5;
/// How long a server waits for a process that has the gate exclusively but no lock.
const GATE_TIMEOUT: Duration = Duration::from_secs(1);

/// The server of the database in one directory.
#[derive(Clone, Debug)]
pub struct ExclusiveServer {
    dir: PathBuf,
    judging: StalenessRules,
}

/// A running cycle. It holds the gate until it is dropped, so that a tool can wait for its end.
#[derive(Debug)]
#[must_use = "the cycle is over when this is dropped"]
pub struct Cycle {
    /// The decision that allowed the cycle: `Proceed` or `Removed`.
    pub answer: CycleDecision,
    share: GateShare,
}

impl AsFd for Cycle {
    /// Returns the descriptor of the gate, for a child process that keeps it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.share.as_fd()
    }
}

/// What to do with a dead lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeadLockAction {
    Remove,
    /// Only report what would be done (X23 (check removes dead locks)).
    Leave,
}

impl ExclusiveServer {
    /// Creates the server of the database in `dir`.
    pub fn new(dir: impl AsRef<Path>) -> ExclusiveServer {
        ExclusiveServer {
            dir: dir.as_ref().to_owned(),
            judging: StalenessRules::default(),
        }
    }

    /// Declares that process ids in records may belong to other containers with the same host name.
    /// A missing process then proves nothing (X12.4 order of exclusive tests).
    #[must_use]
    pub fn foreign_pids(mut self) -> ExclusiveServer {
        self.judging.pids = PidTrust::Foreign;
        self
    }

    /// Declares that no other container shares the directory: a missing process proves that the
    /// holder is dead, also where this process cannot see all others.
    #[must_use]
    pub fn trust_pid(mut self) -> ExclusiveServer {
        self.judging.pids = PidTrust::Trusted;
        self
    }

    /// Decides whether to skip this database. Removes the lock of a dead holder (X7).
    pub fn should_skip(&self) -> CycleDecision {
        self.answer(DeadLockAction::Remove)
    }

    /// Decides whether to skip this database, like [`should_skip`](ExclusiveServer::should_skip),
    /// but removes nothing (X23).
    pub fn would_skip(&self) -> CycleDecision {
        self.answer(DeadLockAction::Leave)
    }

    /// Begins a cycle: takes the gate first and then checks for a lock. So a tool either has to
    /// wait for this cycle, or the cycle sees the tool's lock (X20).
    ///
    /// # Errors
    ///
    /// Returns the decision that says why to skip.
    pub fn begin_cycle(&self) -> std::result::Result<Cycle, CycleDecision> {
        let share = self.enter_gate()?;
        match self.should_skip() {
            answer if answer.skips() => Err(answer),
            answer => Ok(Cycle { answer, share }),
        }
    }

    /// Returns whether a cycle of a Tenure server is running (X21 (show running cycles)).
    pub fn cycle_is_running(&self) -> Result<bool> {
        gate::is_busy(&Dir::open(&self.dir)?)
    }

    /// Takes the gate shared. A tool takes it exclusively only after publishing its lock (X20), so
    /// if the gate is taken, there is usually a lock to report. Otherwise another process only
    /// probes the gate (`gate::is_busy`) and releases it at once: retry.
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
                let what = "another process keeps the gate locked without holding the lock";
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
                        // Another process judges the lock, or a new lock exists: check again.
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

/// Builds the text that the protocol prescribes for this case (X7), with the cause.
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
