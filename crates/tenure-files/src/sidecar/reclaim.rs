//! The reclaim guard (`….lock.reclaim`), made before a stale lock is removed. Tenure and originals
//! of the third generation wait while it exists; older originals ignore it (S20 (vanished is not
//! stale)–S22 (guards of crashed reclaimers)).
//!
//! Our guard is a directory that is locked before it becomes visible; on a local file system the
//! sticky bit marks it, so a marked guard with a free lock belongs to a dead process. Without
//! `RENAME_NOREPLACE` a guard is visible before it is locked, so it is not marked.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat, flock, fstat, mkdirat,
    openat, renameat_with, unlinkat,
};
use rustix::io::Errno;

use super::lock_path::LockPaths;
use super::options::{Options, StalePolicy};
use crate::clock::age;
use crate::dir::{Dir, FileId};
use crate::error::{Error, Result};
use crate::process::PerProcess;
use crate::publish::FileAccess;
use crate::record::{flock_failed, timestamp, try_flock};
use crate::remove::aside_name;

/// Permission bits of our guards. The sticky bit has no meaning for other programs here.
const MARK: u32 = STICKY | 0o700;
/// The bit that marks our guards. Originals make directories without it.
const STICKY: u32 = 0o1000;
/// Permission bits where the mark would prove nothing, or would be visible before the lock is
/// taken.
const PLAIN: u32 = 0o700;

/// How long this process itself must have seen an original's guard unchanged (S22).
const OBSERVED: Duration = Duration::from_secs(10);

/// A guard of this process. Dropping it removes it.
#[derive(Debug)]
pub(super) struct ReclaimGuard {
    dir: Arc<Dir>,
    name: OsString,
    _locked: File,
}

impl ReclaimGuard {
    /// Makes the guard; `None` if one exists (S21.2 reclaim under the guard).
    pub(super) fn make(paths: &LockPaths) -> Result<Option<ReclaimGuard>> {
        let LockPaths {
            dir,
            guard_name: name,
            ..
        } = paths;
        let failed = |errno| Error::io(dir.join(name), "cannot make the reclaim guard", errno);
        let private = aside_name(name, "tenure");
        let mode = if dir.is_local() { MARK } else { PLAIN };
        mkdirat(dir.as_ref(), &private, Mode::from_raw_mode(mode)).map_err(failed)?;
        let made = open_locked(dir, &private).and_then(|locked| {
            // Members of the group must be able to open and lock a guard that one of them left.
            FileAccess::Group
                .apply(dir, &locked, mode)
                .map_err(failed_as(dir, name))?;
            let moved =
                renameat_with(dir, &private, dir, name, RenameFlags::NOREPLACE).map(|()| locked);
            moved.map_err(failed_as(dir, name))
        });
        match made {
            Ok(locked) => {
                remember(dir, name);
                Ok(Some(ReclaimGuard {
                    dir: Arc::clone(dir),
                    name: name.clone(),
                    _locked: locked,
                }))
            }
            Err(GuardRefused::Taken) => {
                let _ = unlinkat(dir, &private, AtFlags::REMOVEDIR);
                Ok(None)
            }
            Err(GuardRefused::NoRename) => {
                let _ = unlinkat(dir, &private, AtFlags::REMOVEDIR);
                ReclaimGuard::make_plainly(paths)
            }
            Err(GuardRefused::Failed(error)) => {
                let _ = unlinkat(dir, &private, AtFlags::REMOVEDIR);
                Err(error)
            }
        }
    }

    /// Makes the guard on file systems without `RENAME_NOREPLACE`. This guard is visible before it
    /// is locked, so it must not carry our mark: another process would take it for one of a dead
    /// Tenure process.
    fn make_plainly(paths: &LockPaths) -> Result<Option<ReclaimGuard>> {
        let LockPaths {
            dir,
            guard_name: name,
            ..
        } = paths;
        match mkdirat(dir.as_ref(), name, Mode::from_raw_mode(PLAIN)) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Ok(None),
            Err(errno) => {
                return Err(Error::io(
                    dir.join(name),
                    "cannot make the reclaim guard",
                    errno,
                ));
            }
        }
        remember(dir, name);
        match open_locked(dir, name) {
            Ok(locked) => Ok(Some(ReclaimGuard {
                dir: Arc::clone(dir),
                name: name.clone(),
                _locked: locked,
            })),
            Err(refused) => {
                let _ = unlinkat(dir, name, AtFlags::REMOVEDIR);
                forget(dir, name);
                match refused {
                    GuardRefused::Failed(error) => Err(error),
                    GuardRefused::Taken | GuardRefused::NoRename => Ok(None),
                }
            }
        }
    }
}

impl Drop for ReclaimGuard {
    fn drop(&mut self) {
        let _ = unlinkat(&*self.dir, &self.name, AtFlags::REMOVEDIR);
        forget(&self.dir, &self.name);
    }
}

enum GuardRefused {
    Taken,
    NoRename,
    Failed(Error),
}

fn failed_as<'a>(dir: &'a Dir, name: &'a OsStr) -> impl Fn(Errno) -> GuardRefused + 'a {
    move |errno| match errno {
        Errno::EXIST | Errno::NOTEMPTY => GuardRefused::Taken,
        Errno::INVAL | Errno::NOSYS => GuardRefused::NoRename,
        errno => GuardRefused::Failed(Error::io(
            dir.join(name),
            "cannot make the reclaim guard",
            errno,
        )),
    }
}

fn open_locked(dir: &Dir, name: &OsStr) -> std::result::Result<File, GuardRefused> {
    let file = open_directory(dir, name).map_err(failed_as(dir, name))?;
    flock(&file, FlockOperation::LockExclusive)
        .map_err(|errno| GuardRefused::Failed(flock_failed(dir, name, errno)))?;
    Ok(file)
}

fn open_directory(dir: &Dir, name: &OsStr) -> rustix::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(dir, name, flags, Mode::empty()).map(File::from)
}

/// The state of an existing guard.
#[derive(Debug)]
pub(super) enum ExistingGuard {
    /// There is no guard.
    None,
    /// A directory whose `flock` a live process has; it is removed soon.
    Locked(File, FileId),
    /// A directory with our mark whose `flock` was free and is now ours: left by a dead Tenure
    /// process (S22).
    Left(File, FileId),
    /// A directory without a `flock`: made by an original.
    Directory(Stat),
    /// A file with a record, which is judged like a lock.
    File(Stat),
    /// Any other file type; its existence is enough (S3 (reclaim guard path)).
    Other(Stat),
}

/// Inspects the guard of `paths`.
pub(super) fn standing(paths: &LockPaths) -> Result<ExistingGuard> {
    let LockPaths {
        dir,
        guard_name: name,
        ..
    } = paths;
    let failed = |errno| Error::io(dir.join(name), "cannot look at the reclaim guard", errno);
    let stat = match dir.stat(name) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(ExistingGuard::None),
        Err(errno) => return Err(failed(errno)),
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {}
        FileType::RegularFile => return Ok(ExistingGuard::File(stat)),
        _ => return Ok(ExistingGuard::Other(stat)),
    }
    let file = match open_directory(dir, name) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(ExistingGuard::None),
        Err(_) => return Ok(ExistingGuard::Directory(stat)),
    };
    let stat = fstat(&file).map_err(failed)?;
    let id = FileId::of(&stat);
    if !try_flock(&file, dir, name)? {
        return Ok(ExistingGuard::Locked(file, id));
    }
    // Other bits may differ: a setgid directory passes its bit on, and a group gets its own.
    match stat.st_mode & STICKY != 0 && dir.is_local() {
        true => Ok(ExistingGuard::Left(file, id)),
        false => Ok(ExistingGuard::Directory(stat)),
    }
}

/// Removes a guard of a dead Tenure process; `false` if that is not possible and the guard still
/// counts.
pub(super) fn take_down(paths: &LockPaths, _locked: &File, id: FileId) -> Result<bool> {
    let LockPaths {
        dir,
        guard_name: name,
        ..
    } = paths;
    let failed = |errno| Error::io(dir.join(name), "cannot look at the reclaim guard", errno);
    // We have its `flock`, so no other Tenure process removes it and makes a new one.
    if !dir.leads_to(name, id).map_err(failed)? {
        return Ok(true);
    }
    match unlinkat(dir.as_ref(), name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(_) => Ok(false), // Not empty, or not ours to remove.
    }
}

/// How long this process has seen an original's guard unchanged.
#[derive(Debug, Default)]
pub(super) struct GuardObservation {
    seen: Option<(FileId, i64, Instant)>,
}

impl GuardObservation {
    /// Removes a guard directory that an original left, if the policy allows it and the guard was
    /// unchanged for long enough, both by the clock of the file system and by our own observation
    /// (S22).
    pub(super) fn remove_if_left(
        &mut self,
        paths: &LockPaths,
        stat: &Stat,
        options: &Options,
    ) -> Result<bool> {
        let key = (FileId::of(stat), stat.st_mtime);
        let since = match self.seen {
            Some((id, modified, since)) if (id, modified) == key => since,
            _ => {
                self.seen = Some((key.0, key.1, Instant::now()));
                return Ok(false);
            }
        };
        if options.recovery != StalePolicy::RemoveIfUnchanged
            || !paths.dir.is_local()
            || since.elapsed() < OBSERVED
        {
            return Ok(false);
        }
        let now = options.clock.now_in(&paths.dir)?;
        let modified = timestamp(stat.st_mtime, stat.st_mtime_nsec);
        Ok(age(now, modified) > options.guard_stale && remove_unlocked(paths)?)
    }
}

/// Removes a guard directory that is empty and whose `flock` is free: for `break --guard`, and S22.
pub(super) fn remove_unlocked(paths: &LockPaths) -> Result<bool> {
    let LockPaths {
        dir,
        guard_name: name,
        ..
    } = paths;
    let Ok(file) = open_directory(dir, name) else {
        return Ok(false);
    };
    if !try_flock(&file, dir, name)? {
        return Ok(false);
    }
    match unlinkat(dir.as_ref(), name, AtFlags::REMOVEDIR) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT | Errno::NOTEMPTY) => Ok(false),
        Err(errno) => Err(Error::io(
            dir.join(name),
            "cannot remove the reclaim guard",
            errno,
        )),
    }
}

/// The guards of this process, which a normal exit removes (S27 (release on exit)).
static OWN_GUARDS: PerProcess<Mutex<Vec<OwnGuard>>> = PerProcess::new();

type OwnGuard = (Arc<Dir>, OsString);

fn remember(dir: &Arc<Dir>, name: &OsStr) {
    crate::exit::at_exit(remove_own_guards);
    let mut standing = OWN_GUARDS
        .get()
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    standing.push((Arc::clone(dir), name.to_owned()));
}

fn forget(dir: &Arc<Dir>, name: &OsStr) {
    let mut standing = OWN_GUARDS
        .get()
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if let Some(at) = standing
        .iter()
        .position(|(d, n)| Arc::ptr_eq(d, dir) && n == name)
    {
        standing.swap_remove(at);
    }
}

/// Removes all guards of this process. Does not block: see `exit::run_hooks`.
fn remove_own_guards() {
    if let Ok(standing) = OWN_GUARDS.get().try_lock() {
        for (dir, name) in standing.iter() {
            let _ = unlinkat(dir.as_ref(), name, AtFlags::REMOVEDIR);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::sidecar::lock_path::ParentDirectory;

    /// S22: an original's guard is removed only if it was unchanged by both clocks, was observed
    /// so, and the policy allows it; never while another process has its lock.
    #[test]
    fn an_originals_guard_must_be_seen_standing_still() {
        let temp = tempfile::tempdir().unwrap();
        let options = Options::new(temp.path().join("state.json"))
            .recovery(StalePolicy::RemoveIfUnchanged)
            .clock(Clock::fixed(
                std::time::SystemTime::now() + Duration::from_secs(3600),
            ));
        let paths = LockPaths::of(&options, ParentDirectory::Create).unwrap();
        let path = paths.dir.join(&paths.guard_name);
        std::fs::create_dir(&path).unwrap();
        let stat = paths.dir.stat(&paths.guard_name).unwrap();
        let seen_for = |age: Duration, modified| GuardObservation {
            seen: Some((
                FileId::of(&stat),
                modified,
                Instant::now().checked_sub(age).unwrap(),
            )),
        };
        let long = OBSERVED + Duration::from_secs(1);
        let removes = |mut observation: GuardObservation, options: &Options| {
            observation.remove_if_left(&paths, &stat, options).unwrap()
        };
        assert!(
            !removes(GuardObservation::default(), &options),
            "never seen before"
        );
        assert!(!removes(
            seen_for(Duration::from_secs(9), stat.st_mtime),
            &options
        ));
        assert!(
            !removes(seen_for(long, stat.st_mtime - 1), &options),
            "it moved"
        );
        let young = options.clone().clock(Clock::SYSTEM);
        assert!(
            !removes(seen_for(long, stat.st_mtime), &young),
            "young by the file's clock"
        );
        let closed = options.clone().recovery(StalePolicy::FailClosed);
        assert!(!removes(seen_for(long, stat.st_mtime), &closed));
        let holder = File::open(&path).unwrap();
        flock(&holder, FlockOperation::LockExclusive).unwrap();
        assert!(!removes(seen_for(long, stat.st_mtime), &options), "locked");
        // Unlock instead of close: a child that another test starts right now shares the open file.
        flock(&holder, FlockOperation::Unlock).unwrap();
        assert!(path.is_dir());
        assert!(removes(seen_for(long, stat.st_mtime), &options));
        assert!(!path.exists());
    }

    /// S21.2: there is only one guard at a time; it is locked; dropping it removes it.
    #[test]
    fn there_is_one_guard_at_a_time() {
        let temp = tempfile::tempdir().unwrap();
        let options = Options::new(temp.path().join("state.json"));
        let paths = LockPaths::of(&options, ParentDirectory::Create).unwrap();
        for make in [ReclaimGuard::make, ReclaimGuard::make_plainly] {
            let first = make(&paths).unwrap().expect("there is none yet");
            assert!(matches!(
                standing(&paths).unwrap(),
                ExistingGuard::Locked(..)
            ));
            assert!(ReclaimGuard::make(&paths).unwrap().is_none());
            assert!(ReclaimGuard::make_plainly(&paths).unwrap().is_none());
            drop(first);
            assert!(matches!(standing(&paths).unwrap(), ExistingGuard::None));
            assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0);
        }
    }
}
