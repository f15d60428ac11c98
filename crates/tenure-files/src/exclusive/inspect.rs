//! Inspection of an exclusive lock without taking it (X21 (show running cycles), X24 (break an
//! exclusive lock)): for `tenure why` and `tenure break`.

use std::ffi::OsString;
use std::path::Path;

use super::staleness::{JudgedLock, judge};
use super::{FILE_NAME, StalenessRules, gate};
use crate::dir::Dir;
use crate::error::Result;
use crate::observed::{ObservedLock, ObservedState};

/// The state of a database's lock.
#[derive(Debug)]
pub struct Inspection {
    /// The lock, if there is one.
    pub observed_lock: Option<ObservedLock>,
    /// Whether a cycle of a Tenure server runs (X21).
    pub cycle_is_running: bool,
}

/// Inspects the lock in `dir`. Takes and removes nothing.
///
/// # Errors
///
/// `NotFound` if the directory does not exist. A file that is not a valid lock is a
/// [`ObservedState::Problem`], not an error.
pub fn inspect(dir: impl AsRef<Path>) -> Result<Inspection> {
    let dir = Dir::open(dir)?;
    let cycle_is_running = gate::is_busy(&dir)?;
    let (record, state) = match judge(&dir, &StalenessRules::default())? {
        JudgedLock::Free => {
            return Ok(Inspection {
                observed_lock: None,
                cycle_is_running,
            });
        }
        JudgedLock::Dead { found, blocker } => (Some(found), ObservedState::Dead(Some(blocker))),
        JudgedLock::Held { found, blocker, .. } => (Some(found), ObservedState::Held(blocker)),
        JudgedLock::Problem { found, error } => (found, ObservedState::Problem(error)),
    };
    let observed_lock = Some(ObservedLock::new(
        dir,
        OsString::from(FILE_NAME),
        record,
        state,
    ));
    Ok(Inspection {
        observed_lock,
        cycle_is_running,
    })
}
