//! Operations on an upload directory without holding a lock: inspect, ask, list, clean (U24 (upload
//! address and verbs)).

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Duration;

use super::file::{TABLE, key};
use super::record::UploadRecord;
use super::staleness::{JudgedUpload, judge};
use super::{FileLocker, StalenessRules, UploadId, UploadReleaseRequest, stop_request};
use crate::clock::{Clock, age};
use crate::dir::Dir;
use crate::error::{BlockingHolder, Error, Result};
use crate::leftovers;
use crate::observed::{ObservedLock, ObservedState};
use crate::remove::{Removal, no_pause, remove};

/// Age after which a release request without a lock is abandoned: a waiter would have renewed it.
const REQUEST_AGE: Duration = Duration::from_secs(60);

/// The lock state of one upload.
#[derive(Debug)]
pub struct Inspection {
    /// The lock, if there is one.
    pub observed_lock: Option<ObservedLock>,
    /// The release request, if there is one.
    pub request: Option<UploadReleaseRequest>,
}

/// What [`FileLocker::clean`] removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Uploads whose lock had a dead Tenure holder.
    pub locks: Vec<UploadId>,
    /// Uploads that had a release request but no lock.
    pub requests: Vec<UploadId>,
    /// Private files of crashed Tenure processes (K20 (remove leftover private files)).
    pub leftovers: Vec<OsString>,
}

impl FileLocker {
    /// Inspects one upload. Takes and removes nothing.
    pub fn inspect(&self, id: &UploadId) -> Result<Inspection> {
        let dir = self.open_dir(id)?;
        let names = self.names(id);
        let request = stop_request::look(&dir, &names).map(|stop| stop.content().request);
        // A fixed local time: reading the clock of a remote file system would create a file (K45 (age
        // of files and objects)).
        let judging = StalenessRules {
            clock: Clock::fixed(Clock::SYSTEM.now()),
            ..self.judging()
        };
        let (record, state) = match judge(&dir, &names, &judging)? {
            JudgedUpload::Free => {
                return Ok(Inspection {
                    observed_lock: None,
                    request,
                });
            }
            JudgedUpload::Dead(found) => (Some(found), ObservedState::Dead(None)),
            JudgedUpload::Held(held) => (held.found, ObservedState::Held(held.blocker)),
            JudgedUpload::Refused(error) => (None, ObservedState::Problem(error)),
        };
        let observed_lock = Some(ObservedLock::new(dir, names.lock, record, state));
        Ok(Inspection {
            observed_lock,
            request,
        })
    }

    /// Asks the holder of one upload to release, without waiting (`tenure ask`). Returns the
    /// holder, or `None` if the upload is not locked.
    pub fn ask(
        &self,
        id: &UploadId,
        request: &UploadReleaseRequest,
    ) -> Result<Option<BlockingHolder>> {
        let dir = self.open_dir(id)?;
        let names = self.names(id);
        match judge(&dir, &names, &self.judging())? {
            JudgedUpload::Free | JudgedUpload::Dead(_) => Ok(None),
            JudgedUpload::Refused(error) => Err(error),
            JudgedUpload::Held(held) => {
                // A holder in this process is called directly; others get the file.
                if !TABLE.get().ask(&key(&dir, &names)?, request) {
                    let addressee = held.blocker.token.as_deref();
                    stop_request::make(&dir, &names, addressee, request, None)?;
                }
                Ok(Some(held.blocker))
            }
        }
    }

    /// Returns all uploads that have a lock, sorted.
    pub fn list(&self) -> Result<Vec<UploadId>> {
        self.with_suffix(".lock")
    }

    /// Removes locks of dead Tenure holders, leftover private files, and abandoned release requests.
    /// Leaves every file alone that may be another program's.
    pub fn clean(&self) -> Result<Cleaned> {
        let mut cleaned = Cleaned::default();
        for id in self.list()? {
            let (dir, names) = (self.open_dir(&id)?, self.names(&id));
            // Without Tenure's line it may be the file of any other program: `Gemfile.lock`, a pid
            // file. The next acquisition of that upload judges it.
            if let JudgedUpload::Dead(mut found) = judge(&dir, &names, &self.judging())?
                && UploadRecord::parse(found.bytes()).tenure.is_some()
                && remove(&dir, &mut found, &no_pause)? == Removal::Removed
            {
                cleaned.locks.push(id);
            }
        }
        for id in self.with_suffix(".stop")? {
            let (dir, names) = (self.open_dir(&id)?, self.names(&id));
            let is_alone = dir.stat(&names.lock).is_err();
            let now = Clock::SYSTEM.now_in(&dir)?;
            if let Some(stop) = stop_request::look(&dir, &names)
                && is_alone
                && age(now, stop.modified()) > REQUEST_AGE
                && stop.remove(&dir)
            {
                cleaned.requests.push(id);
            }
        }
        for dir in self.directories()? {
            cleaned
                .leftovers
                .extend(leftovers::leftovers(&Dir::open(dir)?, Clock::SYSTEM)?);
        }
        Ok(cleaned)
    }

    /// Returns the uploads that have a file with this suffix. Names that are no identifiers belong
    /// to other programs and are skipped.
    fn with_suffix(&self, suffix: &str) -> Result<Vec<UploadId>> {
        let mut uploads = Vec::new();
        for dir in self.directories()? {
            let prefix = dir
                .strip_prefix(self.dir())
                .unwrap_or(Path::new(""))
                .to_owned();
            for entry in entries(&dir)? {
                let path = prefix.join(entry.file_name());
                let id = path.to_str().and_then(|path| path.strip_suffix(suffix));
                uploads.extend(id.and_then(|id| UploadId::new(id).ok()));
            }
        }
        uploads.sort();
        Ok(uploads)
    }

    /// Returns the upload directory and all its subdirectories. Does not follow symbolic links.
    fn directories(&self) -> Result<Vec<std::path::PathBuf>> {
        let mut found = vec![self.dir().to_owned()];
        let mut next = 0;
        while let Some(dir) = found.get(next).cloned() {
            next += 1;
            let below = entries(&dir)?;
            let is_dir = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
            found.extend(
                below
                    .iter()
                    .filter(|entry| is_dir(entry))
                    .map(fs::DirEntry::path),
            );
        }
        Ok(found)
    }
}

fn entries(dir: &Path) -> Result<Vec<fs::DirEntry>> {
    let listed =
        fs::read_dir(dir).map_err(|error| Error::io(dir, "cannot list the directory", error))?;
    Ok(listed.flatten().collect())
}
