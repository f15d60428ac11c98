//! Looking at the lock without wanting it (X21, X24): what `why` and `break` need.

use std::ffi::OsString;
use std::path::Path;

use super::judge::{Judged, judge};
use super::{FILE_NAME, Judging, gate};
use crate::dir::Dir;
use crate::error::Result;
use crate::sighting::{Sighting, State};

/// What stands in a database's directory.
#[derive(Debug)]
pub struct Inspection {
    /// The lock, if there is one.
    pub sighting: Option<Sighting>,
    /// Whether a cycle of a Tenure server is running (X21).
    pub cycle_is_running: bool,
}

/// Looks at the lock in `dir`. Takes nothing, removes nothing.
pub fn inspect(dir: impl AsRef<Path>) -> Result<Inspection> {
    let dir = Dir::open(dir)?;
    let cycle_is_running = gate::is_busy(&dir)?;
    let (record, state) = match judge(&dir, &Judging::default())? {
        Judged::Free => {
            return Ok(Inspection {
                sighting: None,
                cycle_is_running,
            });
        }
        Judged::Dead { found, blocker } => (Some(found), State::Dead(Some(blocker))),
        Judged::Held { found, blocker, .. } => (Some(found), State::Held(blocker)),
        Judged::Problem { found, error } => (found, State::Problem(error)),
    };
    let sighting = Some(Sighting::new(dir, OsString::from(FILE_NAME), record, state));
    Ok(Inspection {
        sighting,
        cycle_is_running,
    })
}
