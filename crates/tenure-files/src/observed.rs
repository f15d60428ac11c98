//! A lock that was seen, and can be broken: this one, and none that came later (K22–K26).
//!
//! `why` shows it, `break` shows it and then removes it. Between the two the file stays open, so that
//! what is removed is what was shown.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::dir::{Dir, FileId};
use crate::error::{BlockingHolder, Class, Error, Result};
use crate::fence;
use crate::publish;
use crate::record::OpenRecord;
use crate::remove::{Removal, force_remove, no_pause, remove, take_away};

/// A lock, or whatever stands in its place.
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
    /// Not opened: not a regular file, too large, or not ours to read.
    Other(FileId),
    /// Gone before it could be looked at.
    Nothing,
}

/// What was concluded about it.
#[derive(Debug)]
pub enum ObservedState {
    /// Its holder is dead.
    Dead(Option<BlockingHolder>),
    /// Its holder is alive, or may be.
    Held(BlockingHolder),
    /// It cannot be judged.
    Problem(Error),
}

/// Which locks may be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// Only dead ones.
    No,
    /// Live, foreign and malformed ones too.
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

    /// Where it stands.
    pub fn path(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    /// The record's bytes, where it could be read.
    pub fn bytes(&self) -> Option<&[u8]> {
        match &self.thing {
            ObservedFile::Record(record) => Some(record.bytes()),
            ObservedFile::Other(_) | ObservedFile::Nothing => None,
        }
    }

    /// What was concluded about it.
    pub fn state(&self) -> &ObservedState {
        &self.state
    }

    /// Removes it. A holder that lives notices, and is `Compromised` (K34).
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
                "somebody has its kernel lock",
            )),
            Removal::Changed => {
                let what = "it is not the lock that was shown any more";
                Err(Error::new(Class::LostRace, path, what).next("look again"))
            }
        }
    }
}

/// Where fences are in use, the number rises, so that a holder that was broken is shut out (C16).
fn shut_out(dir: &Dir) -> Result<()> {
    match fence::last(dir)? {
        Some(_) => fence::next(dir, publish::Options::default()).map(drop),
        None => Ok(()),
    }
}
