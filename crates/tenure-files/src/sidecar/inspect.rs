//! Inspection of sidecar locks without taking them, and removal by order of a user (S30 (sidecar
//! address and verbs)).
//!
//! The commands `why`, `try`, `ls`, `doctor` and `break` use these functions. [`inspect`] never
//! writes; [`list`] removes leftovers of crashed processes.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::lock_path::{LockPaths, ParentDirectory};
use super::options::{Options, Payload, StalePolicy};
use super::payload::LIMIT;
use super::reclaim;
use super::staleness::{self, JudgedSidecar, StalenessRuling};
use crate::clock::{Clock, age};
use crate::deadline::{Deadline, Wait};
use crate::dir::{Dir, FileSystem};
use crate::error::{BlockingHolder, Class, Decision, Error, Result};
use crate::identity::{Here, Identity};
use crate::liveness::{Doubt, Verdict};
use crate::observed::COUNTER_WAIT;
use crate::publish;
use crate::record::{OpenRecord, timestamp};
use crate::record_layout::parse_object;
use crate::remove::{Removal, force_remove, no_pause, remove};
use crate::{fence, leftovers};

/// The state of a target's lock.
#[derive(Clone, Debug)]
pub struct TargetState {
    /// The normalized target.
    pub target: PathBuf,
    /// Path of the lock file.
    pub lock_path: PathBuf,
    /// The lock, if there is one.
    pub lock: Option<LockState>,
    /// The reclaim guard, if there is one.
    pub guard: Option<GuardState>,
    /// The file system type, which determines what can be proven there.
    pub file_system: FileSystem,
    /// The heartbeat interval of a holder with these options.
    pub heartbeat: Option<Duration>,
}

impl TargetState {
    /// Returns what an attempt to acquire the lock would decide.
    pub fn decision(&self) -> Decision {
        match (&self.lock, &self.guard) {
            (_, Some(GuardState::Locked | GuardState::Foreign { .. })) => Decision::Wait,
            (Some(lock), _) => lock.decision,
            (None, _) => Decision::Proceed,
        }
    }
}

/// An inspected lock.
#[derive(Clone, Debug)]
pub struct LockState {
    /// The holder, with the verdict on its liveness.
    pub blocker: BlockingHolder,
    /// The decision by S19 (order of sidecar tests).
    pub decision: Decision,
    /// The class of the error that an acquirer would get.
    pub class: Option<Class>,
    /// The record, if it is a JSON object.
    pub payload: Option<Payload>,
    /// The `tenure` block of the record.
    pub identity: Option<Identity>,
    /// Time since its last modification; `None` if it cannot be read.
    pub modified_ago: Option<Duration>,
}

/// An inspected reclaim guard (S22 (guards of crashed reclaimers)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardState {
    /// A live process has its `flock`.
    Locked,
    /// Left by a dead Tenure process; the next acquirer removes it.
    Left,
    /// Made by an original.
    Foreign {
        /// Time since its last modification.
        modified_ago: Duration,
    },
}

/// Inspects the lock of the target of `options`.
///
/// # Errors
///
/// The error that an acquirer would get for a file that cannot be a lock.
pub fn inspect(options: &Options) -> Result<TargetState> {
    let options = looking(options);
    let paths = LockPaths::of(&options, ParentDirectory::Leave)?;
    let judged = staleness::judge(&paths, &paths.lock_name, &options, &Here::now())?;
    let now = options.clock.now();
    Ok(TargetState {
        lock: judged.map(|judged| lock_state(judged, now)),
        guard: guard_state(&paths, now)?,
        file_system: paths.dir.file_system(),
        heartbeat: options.heartbeat_interval(),
        target: paths.target,
        lock_path: paths.lock_path,
    })
}

/// Options for inspection: no approval callback, and a fixed local time, because reading the clock
/// of a remote file system would create a file (K45 (age of files and objects)).
fn looking(options: &Options) -> Options {
    let now = options.clock.now();
    let mut looking = options
        .clone()
        .clock(Clock::fixed(now))
        .recovery(StalePolicy::FailClosed);
    looking.approve = None;
    looking
}

fn lock_state(judged: JudgedSidecar, now: SystemTime) -> LockState {
    let (decision, class) = match (judged.ruling, judged.blocker.verdict) {
        (StalenessRuling::Reclaim, _) => (Decision::Reclaim, None),
        (StalenessRuling::Stale, _) => (Decision::Refuse, Some(Class::Stale)),
        (StalenessRuling::Unreadable, _) => (Decision::Wait, Some(Class::Unreadable)),
        (StalenessRuling::Wait, Verdict::Unknown(Doubt::OtherHost | Doubt::OtherNamespace)) => {
            (Decision::Wait, Some(Class::Foreign))
        }
        (StalenessRuling::Wait, _) => (Decision::Wait, Some(Class::Held)),
    };
    let record = judged.record.as_ref();
    LockState {
        decision,
        class,
        payload: record.and_then(|record| parse_object(record.bytes())),
        identity: judged.identity,
        modified_ago: record.map(|record| age(now, record.modified())),
        blocker: judged.blocker,
    }
}

fn guard_state(paths: &LockPaths, now: SystemTime) -> Result<Option<GuardState>> {
    use reclaim::ExistingGuard;
    Ok(match reclaim::standing(paths)? {
        ExistingGuard::None => None,
        ExistingGuard::Locked(..) => Some(GuardState::Locked),
        ExistingGuard::Left(..) => Some(GuardState::Left),
        ExistingGuard::Directory(stat) | ExistingGuard::File(stat) | ExistingGuard::Other(stat) => {
            let modified = timestamp(stat.st_mtime, stat.st_mtime_nsec);
            Some(GuardState::Foreign {
                modified_ago: age(now, modified),
            })
        }
    })
}

/// Whether [`break_lock`] may remove a live lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// Only locks that are dead or stale.
    No,
    /// Any file, if it is unchanged since it was judged.
    Yes,
}

/// A broken lock.
#[derive(Clone, Debug)]
pub struct Broken {
    /// Path of the removed lock file.
    pub lock_path: PathBuf,
    /// The holder; `None` if the file could not be a lock.
    pub blocker: Option<BlockingHolder>,
    /// The fence below which resources reject the previous holder, if the directory has a counter
    /// (C16 (details of codes and break)).
    pub fence: Option<std::num::NonZeroU64>,
}

/// Removes the lock of the target of `options`. With `token`, only if the lock still has that
/// token.
///
/// # Errors
///
/// `NotHeld` if there is no lock or the token differs, `Held` if the lock is live and `force` is
/// [`Force::No`], `LostRace` if the lock changed meanwhile.
pub fn break_lock(options: &Options, force: Force, token: Option<&str>) -> Result<Broken> {
    let options = looking(options);
    let paths = LockPaths::of(&options, ParentDirectory::Leave)?;
    let judged = match staleness::judge(&paths, &paths.lock_name, &options, &Here::now()) {
        Ok(judged) => judged,
        Err(error) if force == Force::Yes && token.is_none() => {
            return break_what_is_no_lock(&paths, error);
        }
        Err(error) => return Err(error),
    };
    let judged = judged.ok_or_else(|| not_held(&paths, "there is no lock"))?;
    if token.is_some_and(|token| judged.blocker.token.as_deref() != Some(token)) {
        return Err(not_held(&paths, "another holds it now").blocked_by(judged.blocker));
    }
    let Some(mut record) = judged.record else {
        return Err(
            Error::new(Class::Unreadable, &paths.lock_path, "may not be read")
                .blocked_by(judged.blocker),
        );
    };
    // A forced removal takes no flock. Otherwise `remove` takes it, so that a holder that resumed
    // keeps its lock.
    let removal = match (force, judged.ruling) {
        (Force::Yes, _) => force_remove(&paths.dir, &record)?,
        (Force::No, StalenessRuling::Reclaim | StalenessRuling::Stale) => {
            remove(&paths.dir, &mut record, &no_pause)?
        }
        (Force::No, StalenessRuling::Wait | StalenessRuling::Unreadable) => {
            return Err(Error::new(Class::Held, &paths.lock_path, "held")
                .next(format!(
                    "to break a live lock: tenure break --force {}",
                    paths.address()
                ))
                .blocked_by(judged.blocker));
        }
    };
    match removal {
        Removal::Removed => {}
        Removal::Busy | Removal::Changed => {
            let what = "it changed while it was about to be broken";
            return Err(
                Error::new(Class::LostRace, &paths.lock_path, what).blocked_by(judged.blocker)
            );
        }
    }
    // From now on resources that check fences reject the previous holder, even if it does not
    // notice the removal (C16).
    let fence = match fence::last(&paths.dir)? {
        Some(_) => {
            let wait_deadline = Deadline::new(Wait::For(COUNTER_WAIT), None);
            Some(fence::next(
                &paths.dir,
                publish::Options::default(),
                &wait_deadline,
            )?)
        }
        None => None,
    };
    Ok(Broken {
        lock_path: paths.lock_path,
        blocker: Some(judged.blocker),
        fence,
    })
}

/// K30 (keep files that are no records): a file that cannot be a lock is removed only by force. A
/// directory stays.
fn break_what_is_no_lock(paths: &LockPaths, error: Error) -> Result<Broken> {
    if !matches!(error.class(), Class::NotALock | Class::TooLarge) {
        return Err(error);
    }
    match rustix::fs::unlinkat(&*paths.dir, &paths.lock_name, rustix::fs::AtFlags::empty()) {
        Ok(()) => Ok(Broken {
            lock_path: paths.lock_path.clone(),
            blocker: None,
            fence: None,
        }),
        Err(rustix::io::Errno::ISDIR) => Err(error),
        Err(errno) => Err(Error::io(&paths.lock_path, "cannot be removed", errno)),
    }
}

/// Removes a guard directory whose `flock` is free (`break --guard`, S22). Returns `false` if there
/// is none, a live process has its `flock`, or it is not an empty directory.
pub fn break_guard(options: &Options) -> Result<bool> {
    reclaim::remove_unlocked(&LockPaths::of(options, ParentDirectory::Leave)?)
}

/// Returns the targets in a directory that have a lock, sorted. Also removes leftovers of crashed
/// processes (K20 (remove leftover private files)).
pub fn list(directory: impl AsRef<Path>) -> Result<Vec<PathBuf>> {
    let dir = Dir::open(directory.as_ref())?;
    // A listing does not depend on it: the directory may be read-only.
    let _ = leftovers::leftovers(&dir, Clock::SYSTEM);
    let entries = std::fs::read_dir(dir.path())
        .map_err(|error| Error::io(dir.path(), "cannot list the directory", error))?;
    let mut targets: Vec<PathBuf> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let target = name.to_str()?.strip_suffix(".lock")?;
            let is_record =
                OpenRecord::open(&dir, &name, LIMIT).is_ok_and(|record| record.is_some());
            (is_record && !target.is_empty()).then(|| dir.join(target))
        })
        .collect();
    targets.sort();
    Ok(targets)
}

fn not_held(paths: &LockPaths, what: &str) -> Error {
    Error::new(Class::NotHeld, &paths.lock_path, what)
}
