//! Looking at a lock without taking it, and breaking one that a person decided against (S30).
//!
//! `why`, `try`, `ls`, `doctor` and `break` are made of these. Looking never writes.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::lock_path::{LockPaths, ParentDirectory};
use super::options::{Options, Payload, StalePolicy};
use super::payload::LIMIT;
use super::reclaim;
use super::staleness::{self, JudgedSidecar, StalenessRuling};
use crate::clock::{Clock, age};
use crate::dir::{Dir, FileSystem};
use crate::error::{BlockingHolder, Class, Decision, Error, Result};
use crate::identity::{Here, Identity};
use crate::liveness::{Doubt, Verdict};
use crate::publish;
use crate::record::{OpenRecord, timestamp};
use crate::record_layout::parse_object;
use crate::remove::{Removal, force_remove, no_pause, remove};
use crate::{fence, leftovers};

/// What stands at a target's lock path.
#[derive(Clone, Debug)]
pub struct TargetState {
    /// The normalized target.
    pub target: PathBuf,
    /// The lock path.
    pub lock_path: PathBuf,
    /// The lock, if there is one.
    pub lock: Option<LockState>,
    /// The reclaim guard, if there is one.
    pub guard: Option<GuardState>,
    /// What the directory lies on, and so what can be proven there.
    pub file_system: FileSystem,
    /// How often a holder with these options would beat.
    pub heartbeat: Option<Duration>,
}

impl TargetState {
    /// What an attempt to take the lock would come to.
    pub fn decision(&self) -> Decision {
        match (&self.lock, &self.guard) {
            (_, Some(GuardState::Locked | GuardState::Foreign { .. })) => Decision::Wait,
            (Some(lock), _) => lock.decision,
            (None, _) => Decision::Proceed,
        }
    }
}

/// A lock that was looked at.
#[derive(Clone, Debug)]
pub struct LockState {
    /// Who holds it, and how that was judged.
    pub blocker: BlockingHolder,
    /// What S19 says to do with it.
    pub decision: Decision,
    /// The class under which it would be reported.
    pub class: Option<Class>,
    /// The record, if it is a JSON object.
    pub payload: Option<Payload>,
    /// Its tenure block.
    pub identity: Option<Identity>,
    /// How long ago it was last modified; none if it may not be read.
    pub modified_ago: Option<Duration>,
}

/// A reclaim guard that was looked at (S22).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardState {
    /// A living process has its lock.
    Locked,
    /// A dead Tenure left it; the next acquirer takes it down.
    Left,
    /// An original's: it stands, and when it was last modified.
    Foreign {
        /// How long ago.
        modified_ago: Duration,
    },
}

/// Looks at the lock of `options`' target. What cannot be a lock is the error it would be for an
/// acquirer.
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

/// Whoever only looks asks nobody for approval and uses the local clock (K45).
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

/// Whether a live lock may be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// Only what is dead or stale.
    No,
    /// Whatever stands there, as long as it is what was shown.
    Yes,
}

/// What was broken.
#[derive(Clone, Debug)]
pub struct Broken {
    /// The lock file that is gone.
    pub lock_path: PathBuf,
    /// Who held it; none if it could not be a lock at all.
    pub blocker: Option<BlockingHolder>,
    /// The fence from which on the victim is shut out, where the directory has a counter (C16).
    pub fence: Option<std::num::NonZeroU64>,
}

/// Breaks the lock of `options`' target. With `token`, only if that hold is still the one.
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
    let fence = match fence::last(&paths.dir)? {
        Some(_) => Some(fence::next(&paths.dir, publish::Options::default())?),
        None => None,
    };
    Ok(Broken {
        lock_path: paths.lock_path,
        blocker: Some(judged.blocker),
        fence,
    })
}

/// K30: what cannot be a lock goes only by force, with the exact path. A directory stays.
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

/// Takes down a guard directory that nobody has locked (`break --guard`, S22). `false`: there is
/// none, or a living process has it, or it is not an empty directory.
pub fn break_guard(options: &Options) -> Result<bool> {
    reclaim::remove_unlocked(&LockPaths::of(options, ParentDirectory::Leave)?)
}

/// The targets of a directory that have a lock, sorted. Leftovers of crashes go by the way (K20).
pub fn list(directory: impl AsRef<Path>) -> Result<Vec<PathBuf>> {
    let dir = Dir::open(directory.as_ref())?;
    leftovers::leftovers(&dir, Clock::SYSTEM)?;
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
