//! Inspected lock file: a break removes exactly the file that was shown, no later one (K22–K26).
//!
//! `tenure why` shows it; `tenure break` shows it and then removes it. A record stays open, so that
//! no new file gets its inode number. A file that cannot be opened is compared by inode only.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::deadline::{Deadline, Wait};
use crate::dir::{Dir, FileId};
use crate::error::{BlockingHolder, Class, Error, Result};
use crate::fence;
use crate::publish;
use crate::record::OpenRecord;
use crate::remove::{Removal, force_remove, no_pause, remove, take_away};

/// How long a break waits for the fence counter.
pub(crate) const COUNTER_WAIT: Duration = Duration::from_secs(5);

/// An inspected lock, or another file in its place.
#[derive(Debug)]
pub struct ObservedLock {
    dir: Dir,
    name: OsString,
    thing: ObservedFile,
    state: ObservedState,
}

#[derive(Debug)]
enum ObservedFile {
    Record(OpenRecord),
    /// Not opened: not a regular file, too large, or without read permission.
    Other(FileId),
    /// Removed before it could be inspected.
    Nothing,
}

/// The result of the inspection.
#[derive(Debug)]
pub enum ObservedState {
    /// The holder is dead.
    Dead(Option<BlockingHolder>),
    /// The holder is alive, or may be.
    Held(BlockingHolder),
    /// The lock cannot be judged.
    Problem(Error),
}

/// Which locks [`ObservedLock::break_it`] may remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// Only locks of dead holders.
    No,
    /// Also live, foreign and malformed locks.
    Yes,
}

impl ObservedLock {
    pub(crate) fn new(
        dir: Dir,
        name: OsString,
        record: Option<OpenRecord>,
        state: ObservedState,
    ) -> ObservedLock {
        let thing = match record {
            Some(record) => ObservedFile::Record(record),
            None => dir.stat(&name).map_or(ObservedFile::Nothing, |stat| {
                ObservedFile::Other(FileId::of(&stat))
            }),
        };
        ObservedLock {
            dir,
            name,
            thing,
            state,
        }
    }

    /// Returns the path of the lock file.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    /// Returns the bytes of the record, if it could be read.
    pub fn bytes(&self) -> Option<&[u8]> {
        match &self.thing {
            ObservedFile::Record(record) => Some(record.bytes()),
            ObservedFile::Other(_) | ObservedFile::Nothing => None,
        }
    }

    /// Returns the result of the inspection.
    pub fn state(&self) -> &ObservedState {
        &self.state
    }

    /// Removes the lock. A live holder detects the loss and gets `Compromised` (K34 (detect a lost
    /// lock)). A forced removal also increments the directory's fence counter, if there is one.
    ///
    /// # Errors
    ///
    /// `Held` if the holder is not proven dead and `force` is [`Force::No`], `LostRace` if the file
    /// changed since the inspection, or the problem that the inspection found.
    pub fn break_it(self, force: Force) -> Result<()> {
        let path = self.path();
        let removal = match (force, self.state, self.thing) {
            (Force::No, ObservedState::Dead(_), ObservedFile::Record(mut record)) => {
                remove(&self.dir, &mut record, &no_pause)?
            }
            (Force::No, ObservedState::Held(blocker), _) => {
                let what = "its holder is not known to be dead";
                return Err(Error::new(Class::Held, path, what)
                    .blocked_by(blocker)
                    .next("break it with --force"));
            }
            (Force::No, ObservedState::Problem(error), _) => return Err(error),
            (Force::Yes, _, ObservedFile::Record(record)) => force_remove(&self.dir, &record)?,
            (Force::Yes, _, ObservedFile::Other(id)) => {
                take_away(&self.dir, &self.name, id, &no_pause)?
            }
            (_, _, ObservedFile::Nothing | ObservedFile::Other(_)) => Removal::Changed,
        };
        match removal {
            Removal::Removed if force == Force::Yes => shut_out(&self.dir),
            Removal::Removed => Ok(()),
            Removal::Busy => Err(Error::new(
                Class::Held,
                path,
                "another process has its kernel lock",
            )),
            Removal::Changed => {
                let what = "it is not the lock that was shown any more";
                Err(Error::new(Class::LostRace, path, what).next("look again"))
            }
        }
    }
}

/// Increments the fence counter, if the directory has one, so that resources reject the broken
/// holder (C16 (details of codes and break)).
fn shut_out(dir: &Dir) -> Result<()> {
    match fence::last(dir)? {
        Some(_) => {
            let wait_deadline = Deadline::new(Wait::For(COUNTER_WAIT), None);
            fence::next(dir, publish::Options::default(), &wait_deadline).map(drop)
        }
        None => Ok(()),
    }
}
