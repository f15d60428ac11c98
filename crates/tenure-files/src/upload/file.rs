//! The upload locker on disk: `ID.lock` and `ID.stop` in the upload directory (U1, U3, U10, U11).

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::acquire::Acquirer;
use super::held::FileHold;
use super::held_table::{AlreadyHeld, UploadTable};
use super::record::LIMIT;
use super::{
    LockFileKey, LockRequest, Names, StalenessRules, UploadGuard, UploadId, UploadLocker,
    UploadReleaseRequest, Wait,
};
use crate::deadline::Deadline;
use crate::dir::{Dir, FileId};
use crate::error::{BlockingHolder, Class, Error, Result};
use crate::hold::FileHolding;
use crate::identity::{Token, host_name};
use crate::liveness::{Proof, Verdict};
use crate::process::{PerProcess, own_pid};
use crate::publish::Durability;

/// The times of the protocol. Holders and waiters that share a directory should agree on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadTimes {
    /// How long a newcomer waits, where it does not say otherwise.
    pub acquire_timeout: Duration,
    /// How often a holder looks for a request without being told of one.
    pub holder_poll: Duration,
    /// How often a waiter tries again and renews its request without being told of a change.
    pub acquirer_poll: Duration,
    /// How long a holder may take to save its state after being asked.
    pub grace: Duration,
    /// How long a doubtful holder may be silent before it counts as dead. Must be above the
    /// `holder_poll` and `grace` of all originals together (U13a).
    pub confirm: Duration,
}

impl Default for UploadTimes {
    fn default() -> UploadTimes {
        UploadTimes {
            acquire_timeout: Duration::from_secs(20),
            holder_poll: Duration::from_secs(5),
            acquirer_poll: Duration::from_secs(2),
            grace: Duration::from_secs(10),
            confirm: Duration::from_secs(16),
        }
    }
}

impl UploadTimes {
    /// Zero means the default where that makes sense, and is refused for the polls.
    fn checked(self, dir: &Path) -> Result<UploadTimes> {
        let defaults = UploadTimes::default();
        let or = |time: Duration, default| if time.is_zero() { default } else { time };
        for (name, poll) in [
            ("holder_poll", self.holder_poll),
            ("acquirer_poll", self.acquirer_poll),
        ] {
            if poll.is_zero() {
                let what = format!("{name} must be above zero");
                return Err(Error::new(Class::BadInput, dir, what));
            }
        }
        Ok(UploadTimes {
            acquire_timeout: or(self.acquire_timeout, defaults.acquire_timeout),
            grace: or(self.grace, defaults.grace),
            ..self
        })
    }
}

/// How a [`FileLocker`] locks.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The times of the protocol.
    pub times: UploadTimes,
    /// The interval of the heartbeat (U18).
    pub heartbeat: Duration,
    /// Whether records are synced before they appear (K19).
    pub durability: Durability,
    /// Whether to take a fencing number with every lock (K39).
    pub fence: Fencing,
    /// Process ids in records may belong to other containers that share the directory: a missing
    /// process proves nothing then, and is tested by asking (U13.3, U13a).
    pub foreign_pids: bool,
}

/// Whether a fencing number is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fencing {
    /// Yes, from the counter in the lock's directory (K40).
    Taken,
    /// No.
    None,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            times: UploadTimes::default(),
            heartbeat: Duration::from_secs(10),
            durability: Durability::Durable,
            fence: Fencing::None,
            foreign_pids: false,
        }
    }
}

/// Locks uploads by files in their directory, together with every other program that does.
#[derive(Clone, Debug)]
pub struct FileLocker {
    dir: PathBuf,
    options: Options,
}

/// Locks of this process, by directory and name: in front of the disk (U11).
pub(super) static TABLE: PerProcess<Arc<UploadTable<LockFileKey>>> = PerProcess::new();

impl FileLocker {
    /// A locker for the uploads in `dir`, which must exist (U3).
    pub fn new(dir: impl AsRef<Path>) -> Result<FileLocker> {
        FileLocker::with(dir, Options::default())
    }

    /// The same with other options.
    pub fn with(dir: impl AsRef<Path>, options: Options) -> Result<FileLocker> {
        let dir = dir.as_ref();
        Dir::open(dir)?;
        let times = options.times.checked(dir)?;
        Ok(FileLocker {
            dir: dir.to_owned(),
            options: Options { times, ..options },
        })
    }

    /// The directory of the uploads.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// How it locks.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Waiting for as long as `acquire_timeout` says.
    pub fn default_wait(&self) -> Wait {
        Wait::For(self.options.times.acquire_timeout)
    }

    /// Takes over a hold that follows another process, by its token: for `renew` and `unlock` (C13).
    pub fn adopt(&self, id: &UploadId, token: Token) -> Result<FileHolding> {
        let dir = Arc::new(self.open_dir(id)?);
        FileHolding::adopt(dir, &self.names(id).lock, LIMIT, token)
    }

    /// The directory of one upload's files; a missing one is not made (U1).
    pub(super) fn open_dir(&self, id: &UploadId) -> Result<Dir> {
        match id.split() {
            (Some(sub), _) => Dir::open(self.dir.join(sub)),
            (None, _) => Dir::open(&self.dir),
        }
    }

    pub(super) fn names(&self, id: &UploadId) -> Names {
        let (_, name) = id.split();
        Names {
            lock: OsString::from(format!("{name}.lock")),
            stop: OsString::from(format!("{name}.stop")),
            address: format!("upload:{}#{id}", self.dir.display()),
        }
    }

    pub(super) fn judging(&self) -> StalenessRules {
        StalenessRules {
            foreign_pids: self.options.foreign_pids,
            ..StalenessRules::default()
        }
    }
}

impl UploadLocker for FileLocker {
    fn lock_for(&self, id: &UploadId, request: LockRequest) -> Result<UploadGuard> {
        let wait_deadline = Deadline::new(request.wait, request.cancel.clone());
        let dir = self.open_dir(id)?;
        let names = self.names(id);
        let asking = request.release_request();
        let key = key(&dir, &names)?;
        let ticket = TABLE
            .get()
            .enter(&key, &asking, &wait_deadline)
            .map_err(|AlreadyHeld| taken(&dir, &names, request.wait))?;
        let acquirer = Acquirer {
            names,
            options: &self.options,
            judging: self.judging(),
            asking,
            wait_deadline,
        };
        let hold: FileHold = acquirer.acquire(dir, ticket, request)?;
        Ok(UploadGuard::on_disk(id.clone(), hold))
    }
}

pub(super) fn key(dir: &Dir, names: &Names) -> Result<LockFileKey> {
    let stat = rustix::fs::fstat(dir)
        .map_err(|errno| Error::io(dir.path(), "cannot stat the directory", errno))?;
    Ok(LockFileKey {
        dir: FileId::of(&stat),
        name: names.lock.clone(),
    })
}

fn taken(dir: &Dir, names: &Names, wait: Wait) -> Error {
    let (class, what) = match wait {
        Wait::No => (Class::Held, "held"),
        Wait::For(_) | Wait::Forever => (Class::Timeout, "not released in time"),
    };
    Error::new(class, dir.join(&names.lock), what).blocked_by(BlockingHolder {
        address: names.address.clone(),
        pid: Some(own_pid()),
        host: Some(host_name()),
        name: None,
        token: None,
        since: None,
        verdict: Verdict::Alive(Proof::Ourselves),
    })
}

impl UploadReleaseRequest {
    /// Makes a request by hand, as `tenure ask` does.
    pub fn new(reason: Option<String>) -> UploadReleaseRequest {
        UploadReleaseRequest {
            by: Some(super::asking()),
            reason,
        }
    }
}
