//! The upload locker on disk: `ID.lock` and `ID.stop` in the upload directory (U1 (identifiers with
//! subdirectories), U3 (lock directory), U10 (acquire an upload lock), U11 (upload locks within one
//! process)).

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
use crate::liveness::{PidTrust, Proof, Verdict};
use crate::process::{PerProcess, own_pid};
use crate::publish::Durability;

/// Time limits and intervals of the protocol. Holders and waiters that share a directory should use
/// the same values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadTimes {
    /// Default time to wait for a lock.
    pub acquire_timeout: Duration,
    /// How often a holder polls for a release request.
    pub holder_poll: Duration,
    /// How often a waiter polls and renews its request.
    pub acquirer_poll: Duration,
    /// How long a holder may take to save its state after a request.
    pub grace: Duration,
    /// How long a doubtful holder may ignore a request before it counts as dead. Must exceed the
    /// sum of `holder_poll` and `grace` of all originals (U13a (test a doubtful holder)).
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
    /// Replaces a zero `acquire_timeout` or `grace` by its default, and refuses zero poll
    /// intervals.
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

/// Options of a [`FileLocker`].
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The time limits and intervals of the protocol.
    pub times: UploadTimes,
    /// The heartbeat interval (U18 (heartbeat of upload locks)).
    pub heartbeat: Duration,
    /// Whether records are synced before they appear (K19 (durable records and torn records)).
    pub durability: Durability,
    /// The permission bits of records, whatever the umask. `None` means 0600; in a directory that a
    /// group may write, the group may read and write the record (K32 (file modes and symlinks)).
    pub mode: Option<u32>,
    /// Whether to take a fencing number with every lock (K39 (fencing number per acquisition)).
    pub fence: Fencing,
    /// Whether process ids in records may belong to other containers that share the directory. A
    /// missing process then proves nothing, and the holder is tested with a release request (U13.3
    /// order of upload tests, U13a).
    pub foreign_pids: bool,
    /// Whether no other container shares the directory: a missing process then proves that the
    /// holder is dead, also where this process cannot see all others.
    pub trust_pid: bool,
}

/// Whether a lock takes a fencing number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fencing {
    /// Takes a number from the counter in the lock's directory (K40 (fence counter file)).
    Taken,
    /// Takes none.
    None,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            times: UploadTimes::default(),
            heartbeat: Duration::from_secs(10),
            durability: Durability::Durable,
            mode: None,
            fence: Fencing::None,
            foreign_pids: false,
            trust_pid: false,
        }
    }
}

/// Locks uploads by files in their directory, together with all other programs that use this
/// protocol.
#[derive(Clone, Debug)]
pub struct FileLocker {
    dir: PathBuf,
    options: Options,
}

/// The locks of this process, by directory and name. It is checked before the disk (U11).
pub(super) static TABLE: PerProcess<Arc<UploadTable<LockFileKey>>> = PerProcess::new();

impl FileLocker {
    /// Creates a locker with default options for the uploads in `dir`.
    ///
    /// # Errors
    ///
    /// `NotFound` if the directory does not exist (U3).
    pub fn new(dir: impl AsRef<Path>) -> Result<FileLocker> {
        FileLocker::with(dir, Options::default())
    }

    /// Creates a locker with `options` for the uploads in `dir`.
    ///
    /// # Errors
    ///
    /// `NotFound` if the directory does not exist, `BadInput` if a poll interval is zero.
    pub fn with(dir: impl AsRef<Path>, options: Options) -> Result<FileLocker> {
        let dir = dir.as_ref();
        Dir::open(dir)?;
        let times = options.times.checked(dir)?;
        Ok(FileLocker {
            dir: dir.to_owned(),
            options: Options { times, ..options },
        })
    }

    /// Returns the upload directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the wait mode with `acquire_timeout` as its limit.
    pub fn default_wait(&self) -> Wait {
        Wait::For(self.options.times.acquire_timeout)
    }

    /// Takes over a hold that follows another process (C13 (holds for scripts)), identified by its
    /// token: for `renew` and `unlock`.
    ///
    /// # Errors
    ///
    /// `NotHeld` if the record is gone or has another token.
    pub fn adopt(&self, id: &UploadId, token: Token) -> Result<FileHolding> {
        let dir = Arc::new(self.open_dir(id)?);
        FileHolding::adopt(dir, &self.names(id).lock, LIMIT, token)
    }

    /// Opens the directory of one upload's files. A missing one is not created (U1).
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
            pids: match (self.options.trust_pid, self.options.foreign_pids) {
                (_, true) => PidTrust::Foreign,
                (true, false) => PidTrust::Trusted,
                (false, false) => PidTrust::Checked,
            },
            ..StalenessRules::default()
        }
    }
}

impl UploadLocker for FileLocker {
    fn lock_for(&self, id: &UploadId, request: LockRequest) -> Result<UploadGuard> {
        let wait_deadline =
            Deadline::new(request.wait, request.cancel.clone()).reports(request.on_wait.clone());
        let dir = self.open_dir(id)?;
        let names = self.names(id);
        let asking = request.release_request();
        let key = key(&dir, &names)?;
        let ticket = TABLE
            .get()
            .enter(&key, &asking, &wait_deadline, &|| {
                taken(&dir, &names, request.wait)
            })
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
    /// Creates a request of this process, as `tenure ask` does.
    pub fn new(reason: Option<String>) -> UploadReleaseRequest {
        UploadReleaseRequest {
            by: Some(super::asking()),
            reason,
        }
    }
}
