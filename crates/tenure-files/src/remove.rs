//! Safe removal of a dead lock, without removing a live one (K22 (keep the judged file open)–K27
//! (removal does not acquire)).
//!
//! ```text
//!   open ─ judge ─ flock ─ compare ─ rename away ─ compare ─ unlink
//!                    │        │                       │
//!                    └ Busy   └ Changed               └ another file: put it back or keep it
//! ```
//!
//! One descriptor stays open through all steps, so the inode number cannot be reused and "same
//! file" is exact. A crash at any point blocks no other process: the kernel releases the `flock`
//! with the process.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rustix::fs::{AtFlags, RenameFlags, linkat, renameat, renameat_with, unlinkat};
use rustix::io::Errno;

use crate::dir::{Dir, FileId};
use crate::error::{Class, Error, Result, printable};
use crate::identity::random_suffix;
use crate::record::{OpenRecord, read_at_most};

/// The outcome of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "only `Removed` frees the name"]
pub enum Removal {
    /// The lock was removed. The caller does not hold it yet (K27).
    Removed,
    /// Another process has its `flock`: a live holder, or a process that judges it (K24 (lock
    /// before removal)).
    Busy,
    /// The file or its bytes changed since they were judged (K25 (check again before removal)).
    Changed,
}

/// A step of the removal at which a test may change files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalStep {
    /// Before the `flock` (K24).
    BeforeLock,
    /// Locked, before the comparison (K25).
    BeforeCompare,
    /// Compared, before the rename (K26 (rename, compare, then unlink)).
    BeforeRename,
    /// Another file was renamed away and is about to be put back.
    BeforePutBack,
}

/// Hook that runs at every [`RemovalStep`]. Production code passes [`no_pause`].
pub(crate) type StepHook<'a> = &'a (dyn Fn(RemovalStep) + Sync);

/// Does nothing.
pub fn no_pause(_: RemovalStep) {}

/// Removes a judged record if it is unchanged and its `flock` is free (K24–K26).
///
/// The record stays open, so that its verdict remains about this file.
pub fn remove(dir: &Dir, record: &mut OpenRecord, pause: StepHook<'_>) -> Result<Removal> {
    pause(RemovalStep::BeforeLock);
    if !record.try_lock(dir)? {
        return Ok(Removal::Busy);
    }
    pause(RemovalStep::BeforeCompare);
    let failed = |errno| Error::io(dir.join(record.name()), "cannot compare the lock", errno);
    if !record.is_unchanged().map_err(failed)?
        || !dir.leads_to(record.name(), record.id()).map_err(failed)?
    {
        return Ok(Removal::Changed);
    }
    pause(RemovalStep::BeforeRename);
    take_away(dir, record.name(), record.id(), pause)
}

/// Removes a record by order of a user, even if its holder is alive.
///
/// Takes no `flock`, but the file and its bytes must still be those that the user was shown (K25,
/// K26).
pub(crate) fn force_remove(dir: &Dir, record: &OpenRecord) -> Result<Removal> {
    let failed = |errno| Error::io(dir.join(record.name()), "cannot compare the lock", errno);
    if !record.is_unchanged().map_err(failed)?
        || !dir.leads_to(record.name(), record.id()).map_err(failed)?
    {
        return Ok(Removal::Changed);
    }
    take_away(dir, record.name(), record.id(), &no_pause)
}

/// Performs K26 only: renames the file away and unlinks it if it is the file `id`. The caller has
/// done K24 and K25 and keeps a descriptor of the file open.
pub(crate) fn take_away(
    dir: &Dir,
    name: &OsStr,
    id: FileId,
    pause: StepHook<'_>,
) -> Result<Removal> {
    let aside = aside_name(name, "dead");
    match renameat(dir, name, dir, &aside) {
        Ok(()) => {}
        // Over a network a repeated request finds that the first one has done it.
        Err(Errno::NOENT) if !dir.is_local() && matches!(dir.leads_to(&aside, id), Ok(true)) => {}
        Err(Errno::NOENT) => return Ok(Removal::Changed),
        Err(errno) => return Err(may_not_remove(dir, name, errno)),
    }
    let failed = |errno| Error::io(dir.join(&aside), "cannot remove the dead lock", errno);
    // Originals replace a lock by name and take no flock, so the rename may have hit a newer file.
    // The private name is ours alone: compare it, and only then unlink.
    if dir.leads_to(&aside, id).map_err(failed)? {
        match unlinkat(dir, &aside, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(Removal::Removed),
            Err(errno) => return Err(failed(errno)),
        }
    }
    pause(RemovalStep::BeforePutBack);
    put_back(dir, name, &aside)?;
    Ok(Removal::Changed)
}

/// Restores a live lock that the rename hit. If a third process has taken the name meanwhile, two
/// holders believe that they hold the lock: the displaced record is kept aside and reported as
/// `Compromised` (K26).
fn put_back(dir: &Dir, name: &OsStr, aside: &OsStr) -> Result<()> {
    let back = match renameat_with(dir, aside, dir, name, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => linkat(dir, aside, dir, name, AtFlags::empty())
            .and_then(|()| unlinkat(dir, aside, AtFlags::empty())),
        other => other,
    };
    match back {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) => {
            let kept = aside_name(name, "kept");
            let (present, displaced) = (show(dir, name), show(dir, aside));
            renameat(dir, aside, dir, &kept)
                .map_err(|errno| Error::io(dir.join(aside), "cannot keep the lock", errno))?;
            let what = format!(
                "a live lock was displaced and another took its place; \
                 now here: {present}; displaced: {displaced}"
            );
            Err(
                Error::new(Class::Compromised, dir.join(name), what).next(format!(
                    "the displaced record is kept as {}",
                    dir.join(kept).display()
                )),
            )
        }
        Err(errno) => Err(Error::io(
            dir.join(aside),
            "cannot put the lock back",
            errno,
        )),
    }
}

/// Returns the private name `.<name>.<word>-<16 hex>`. A name too long for that is cut, because a
/// lock with a long name must be releasable, too; the random part keeps the names distinct.
pub(crate) fn aside_name(name: &OsStr, word: &str) -> OsString {
    let end = format!(".{word}-{}", random_suffix());
    let room = NAME_MAX - 1 - end.len();
    let shown = name.as_bytes();
    let mut aside = vec![b'.'];
    aside.extend_from_slice(&shown[..shown.len().min(room)]);
    aside.extend_from_slice(end.as_bytes());
    OsString::from_vec(aside)
}

/// Maximum length of a file name in bytes (`NAME_MAX` of Linux).
const NAME_MAX: usize = 255;

/// The content of a record for an error message, at most 2 KiB.
fn show(dir: &Dir, name: &OsStr) -> String {
    let bytes = rustix::fs::openat(
        dir,
        name,
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK,
        rustix::fs::Mode::empty(),
    )
    .map(File::from)
    .and_then(|file| read_at_most(&file, 2048));
    match bytes {
        Ok(bytes) => printable(String::from_utf8_lossy(&bytes).trim()),
        Err(errno) => format!("({errno})"),
    }
}

/// The error of a rename. If permission is missing, it names the user who can remove the file,
/// because waiting would not help (K26).
fn may_not_remove(dir: &Dir, name: &OsStr, errno: Errno) -> Error {
    let error = Error::io(dir.join(name), "the dead lock cannot be removed", errno);
    if !matches!(errno, Errno::PERM | Errno::ACCESS) {
        return error;
    }
    match dir.stat(name) {
        Ok(stat) => error.next(format!("user {} can remove it", user_name(stat.st_uid))),
        Err(_) => error,
    }
}

/// Returns the login name of a user id, or the number.
fn user_name(uid: u32) -> String {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    passwd
        .lines()
        .find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
        })
        .unwrap_or_else(|| uid.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::{FlockOperation, flock};

    use super::*;

    const NAME: &str = "state.lock";

    struct Place {
        temp: tempfile::TempDir,
        dir: Dir,
    }

    fn place() -> Place {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        std::fs::write(temp.path().join(NAME), b"dead").unwrap();
        Place { temp, dir }
    }

    impl Place {
        fn judged(&self) -> OpenRecord {
            OpenRecord::open(&self.dir, OsStr::new(NAME), 1000)
                .unwrap()
                .unwrap()
        }
        fn read(&self) -> Option<String> {
            std::fs::read_to_string(self.temp.path().join(NAME)).ok()
        }
        /// An original replaces the file by name: another inode under the same name.
        fn replace(&self, content: &str) {
            std::fs::remove_file(self.temp.path().join(NAME)).unwrap();
            std::fs::write(self.temp.path().join(NAME), content).unwrap();
        }
        fn names(&self) -> Vec<String> {
            let mut names: Vec<String> = std::fs::read_dir(self.temp.path())
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        }
        fn remove_with(&self, when: RemovalStep, what: impl Fn() + Sync) -> Result<Removal> {
            let done = AtomicBool::new(false);
            let pause = |step| {
                if step == when && !done.swap(true, Ordering::Relaxed) {
                    what();
                }
            };
            let mut record = self.judged();
            let result = remove(&self.dir, &mut record, &pause);
            assert!(done.load(Ordering::Relaxed), "{when:?} was never reached");
            result
        }
    }

    #[test]
    fn a_dead_lock_is_removed_and_nothing_stays() {
        let place = place();
        let removal = remove(&place.dir, &mut place.judged(), &no_pause).unwrap();
        assert_eq!(removal, Removal::Removed);
        assert!(place.names().is_empty());
    }

    /// K24: a lock whose flock is held belongs to a live holder or to another judging process; it
    /// stays.
    #[test]
    fn a_locked_record_is_not_removed() {
        let place = place();
        let mut record = place.judged();
        let holder = File::open(place.temp.path().join(NAME)).unwrap();
        flock(&holder, FlockOperation::LockExclusive).unwrap();
        assert_eq!(
            remove(&place.dir, &mut record, &no_pause).unwrap(),
            Removal::Busy
        );
        assert_eq!(place.read().as_deref(), Some("dead"));
    }

    /// K22, K23 (read through that descriptor), K25: the file was replaced before the comparison.
    /// Even with equal bytes it is another file and stays.
    #[test]
    fn a_replaced_record_is_left_alone() {
        let place = place();
        let removal = place
            .remove_with(RemovalStep::BeforeLock, || place.replace("dead"))
            .unwrap();
        assert_eq!(removal, Removal::Changed);
        assert_eq!(place.read().as_deref(), Some("dead"));
    }

    /// K25: the holder resumed and wrote a heartbeat.
    #[test]
    fn a_record_that_beats_is_left_alone() {
        let place = place();
        let removal = place
            .remove_with(RemovalStep::BeforeCompare, || {
                std::fs::write(place.temp.path().join(NAME), b"beat").unwrap();
            })
            .unwrap();
        assert_eq!(removal, Removal::Changed);
        assert_eq!(place.read().as_deref(), Some("beat"));
    }

    /// K26: an original replaces the file between comparison and rename; its file is put back.
    #[test]
    fn a_stranger_hit_by_the_rename_is_put_back() {
        let place = place();
        let removal = place
            .remove_with(RemovalStep::BeforeRename, || place.replace("fresh"))
            .unwrap();
        assert_eq!(removal, Removal::Changed);
        assert_eq!(place.read().as_deref(), Some("fresh"));
        assert_eq!(place.names(), [NAME]);
    }

    /// K26: if a third process has taken the name meanwhile, both records are reported and kept.
    #[test]
    fn a_stranger_that_cannot_go_back_is_kept_and_reported() {
        let place = place();
        let stage = std::sync::Mutex::new(0);
        let pause = |step| {
            let mut stage = stage.lock().unwrap();
            match (*stage, step) {
                (0, RemovalStep::BeforeRename) => {
                    place.replace("second");
                    *stage = 1;
                }
                (1, RemovalStep::BeforePutBack) => {
                    std::fs::write(place.temp.path().join(NAME), b"third").unwrap();
                    *stage = 2;
                }
                _ => {}
            }
        };
        let error = remove(&place.dir, &mut place.judged(), &pause).unwrap_err();
        assert_eq!(error.class(), Class::Compromised);
        assert!(error.to_string().contains("second") && error.to_string().contains("third"));
        assert_eq!(place.read().as_deref(), Some("third"));
        let names = place.names();
        assert!(
            names
                .iter()
                .any(|name| name.starts_with(".state.lock.kept-")),
            "{names:?}"
        );
        assert_eq!(names.len(), 2);
    }

    /// X24 (break an exclusive lock), K25: a forced removal removes the file that was shown, locked
    /// or not, and no later one.
    #[test]
    fn force_removes_what_was_shown() {
        let place = place();
        let holder = File::open(place.temp.path().join(NAME)).unwrap();
        flock(&holder, FlockOperation::LockExclusive).unwrap();
        let shown = place.judged();
        place.replace("later");
        assert_eq!(force_remove(&place.dir, &shown).unwrap(), Removal::Changed);
        assert_eq!(place.read().as_deref(), Some("later"));
        assert_eq!(
            force_remove(&place.dir, &place.judged()).unwrap(),
            Removal::Removed
        );
        assert!(place.names().is_empty());
    }

    /// K27: ten threads judge one dead lock; one removes it, and none removes the fresh lock.
    #[test]
    fn many_judges_remove_once() {
        for _ in 0..50 {
            let place = place();
            let removed: usize = std::thread::scope(|scope| {
                let judges: Vec<_> = (0..10)
                    .map(|_| {
                        scope.spawn(|| {
                            let dir = Dir::open(place.temp.path()).unwrap();
                            let Some(mut record) =
                                OpenRecord::open(&dir, OsStr::new(NAME), 1000).unwrap()
                            else {
                                return 0;
                            };
                            if record.bytes() != b"dead" {
                                return 0;
                            }
                            match remove(&dir, &mut record, &no_pause).unwrap() {
                                Removal::Removed => {
                                    std::fs::write(place.temp.path().join(NAME), b"live").unwrap();
                                    1
                                }
                                Removal::Busy | Removal::Changed => 0,
                            }
                        })
                    })
                    .collect();
                judges.into_iter().map(|judge| judge.join().unwrap()).sum()
            });
            assert_eq!(removed, 1);
            assert_eq!(place.read().as_deref(), Some("live"));
        }
    }
}
