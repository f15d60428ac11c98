//! Looking at the lock without wanting it, and breaking it (X21, X24): what `why` and `break` need.

use std::ffi::OsStr;
use std::path::Path;

use super::judge::{Judged, judge};
use super::{FILE_NAME, Judging, gate};
use crate::dir::{Dir, FileId};
use crate::error::{Blocker, Class, Error, Result};
use crate::record::Record as Found;
use crate::remove::{Removal, no_pause, remove, remove_by_force};

/// What stands in a database's directory.
#[derive(Debug)]
pub struct Inspection {
    /// The lock, if there is one.
    pub sighting: Option<Sighting>,
    /// Whether a cycle of a Tenure server is running (X21).
    pub cycle_is_running: bool,
}

/// A lock that was seen. It stays open, so that breaking it breaks this one and none that came later.
#[derive(Debug)]
pub struct Sighting {
    dir: Dir,
    found: Option<Found>,
    /// Which file a thing is that could not be opened.
    unopened: Option<FileId>,
    /// Who holds it, as far as is known.
    pub blocker: Option<Blocker>,
    /// What is wrong with it, if it cannot be judged.
    pub problem: Option<Error>,
    is_dead: bool,
}

/// Which locks may be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// Only dead ones.
    No,
    /// Live, foreign and malformed ones too.
    Yes,
}

/// Looks at the lock in `dir`. Takes nothing, removes nothing.
pub fn inspect(dir: impl AsRef<Path>) -> Result<Inspection> {
    let dir = Dir::open(dir)?;
    let cycle_is_running = gate::is_busy(&dir)?;
    let judged = judge(&dir, &Judging::default())?;
    let (found, blocker, problem, is_dead) = match judged {
        Judged::Free => {
            return Ok(Inspection {
                sighting: None,
                cycle_is_running,
            });
        }
        Judged::Dead { found, blocker } => (Some(found), Some(blocker), None, true),
        Judged::Held { found, blocker, .. } => (Some(found), Some(blocker), None, false),
        Judged::Problem { found, error } => (found, None, Some(error), false),
    };
    let unopened = match found {
        Some(_) => None,
        None => dir
            .stat(OsStr::new(FILE_NAME))
            .ok()
            .map(|stat| FileId::of(&stat)),
    };
    let sighting = Some(Sighting {
        dir,
        found,
        unopened,
        blocker,
        problem,
        is_dead,
    });
    Ok(Inspection {
        sighting,
        cycle_is_running,
    })
}

impl Sighting {
    /// The record's bytes, where it could be read.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.found.as_ref().map(Found::bytes)
    }

    /// Whether its holder is known to be dead.
    pub fn is_dead(&self) -> bool {
        self.is_dead
    }

    /// Removes the lock that was seen, and nothing that came later (K22–K26).
    pub fn break_it(mut self, force: Force) -> Result<()> {
        let path = self.dir.join(FILE_NAME);
        let name = OsStr::new(FILE_NAME);
        let removal = match (force, &mut self.found) {
            (Force::No, Some(found)) if self.is_dead => remove(&self.dir, found, &no_pause)?,
            (Force::No, _) => {
                let error = Error::new(Class::Held, &path, "its holder is not known to be dead");
                return Err(match self.blocker {
                    Some(blocker) => error.blocked_by(blocker),
                    None => error,
                });
            }
            (Force::Yes, Some(found)) => remove_by_force(&self.dir, found)?,
            (Force::Yes, None) => match self.unopened {
                Some(id) => crate::remove::take_away(&self.dir, name, id, &no_pause)?,
                None => Removal::Changed,
            },
        };
        match removal {
            Removal::Removed => Ok(()),
            Removal::Busy => Err(Error::new(
                Class::Held,
                &path,
                "somebody has its kernel lock",
            )),
            Removal::Changed => Err(Error::new(
                Class::LostRace,
                &path,
                "it is not the lock that was shown any more",
            )),
        }
    }
}
