//! A lock that was seen, and can be broken: this one, and none that came later (K22–K26).
//!
//! `why` shows it, `break` shows it and then removes it. Between the two the file stays open, so that
//! what is removed is what was shown.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::dir::{Dir, FileId};
use crate::error::{Blocker, Class, Error, Result};
use crate::fence;
use crate::publish;
use crate::record::Record;
use crate::remove::{Removal, force_remove, no_pause, remove, take_away};

/// A lock, or whatever stands in its place.
#[derive(Debug)]
pub struct Sighting {
    dir: Dir,
    name: OsString,
    thing: Thing,
    state: State,
}

#[derive(Debug)]
enum Thing {
    Record(Record),
    /// Not opened: not a regular file, too large, or not ours to read.
    Other(FileId),
    /// Gone before it could be looked at.
    Nothing,
}

/// What was concluded about it.
#[derive(Debug)]
pub enum State {
    /// Its holder is dead.
    Dead(Option<Blocker>),
    /// Its holder is alive, or may be.
    Held(Blocker),
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

impl Sighting {
    pub(crate) fn new(dir: Dir, name: OsString, record: Option<Record>, state: State) -> Sighting {
        let thing = match record {
            Some(record) => Thing::Record(record),
            None => dir
                .stat(&name)
                .map_or(Thing::Nothing, |stat| Thing::Other(FileId::of(&stat))),
        };
        Sighting {
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
            Thing::Record(record) => Some(record.bytes()),
            Thing::Other(_) | Thing::Nothing => None,
        }
    }

    /// What was concluded about it.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Removes it. A holder that lives notices, and is `Compromised` (K34).
    pub fn break_it(self, force: Force) -> Result<()> {
        let path = self.path();
        let removal = match (force, self.state, self.thing) {
            (Force::No, State::Dead(_), Thing::Record(mut record)) => {
                remove(&self.dir, &mut record, &no_pause)?
            }
            (Force::No, State::Held(blocker), _) => {
                let what = "its holder is not known to be dead";
                return Err(Error::new(Class::Held, path, what)
                    .blocked_by(blocker)
                    .next("break it with --force"));
            }
            (Force::No, State::Problem(error), _) => return Err(error),
            (Force::Yes, _, Thing::Record(record)) => force_remove(&self.dir, &record)?,
            (Force::Yes, _, Thing::Other(id)) => take_away(&self.dir, &self.name, id, &no_pause)?,
            (_, _, Thing::Nothing | Thing::Other(_)) => Removal::Changed,
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
