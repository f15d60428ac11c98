//! Removing a dead lock without hitting a live one (K22–K27).
//!
//!   open ─ judge ─ flock ─ compare ─ rename away ─ compare ─ unlink
//!                    │        │                       │
//!                    └ busy   └ changed               └ a stranger: put it back, or keep it aside
//!
//! Everything goes through one descriptor that stays open, so "same file" means the same file. A
//! crash at any point leaves no guard behind, because `flock` ends with the process.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rustix::fs::{AtFlags, RenameFlags, linkat, renameat, renameat_with, unlinkat};
use rustix::io::Errno;

use crate::dir::{Dir, FileId};
use crate::error::{Class, Error, Result, printable};
use crate::identity::random_suffix;
use crate::record::{OpenRecord, read_at_most};

/// How an attempt to remove a lock ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "only `Removed` frees the name"]
pub enum Removal {
    /// It is gone. That does not give us the lock (K27).
    Removed,
    /// Somebody has its `flock`: a live holder, or another judge (K24).
    Busy,
    /// It is not what was judged any more (K25).
    Changed,
}

/// A point at which a test may let the world change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalStep {
    /// Before the `flock` of K24.
    BeforeLock,
    /// Locked, before the comparison of K25.
    BeforeCompare,
    /// Compared, before the rename of K26.
    BeforeRename,
    /// A stranger was renamed away and is about to be put back.
    BeforePutBack,
}

/// Called at every [`RemovalStep`]. [`no_pause`] in production.
pub type StepHook<'a> = &'a (dyn Fn(RemovalStep) + Sync);

/// Goes on at once.
pub fn no_pause(_: RemovalStep) {}

/// Removes a judged record (K24–K26). The record stays open, so its verdict stays about this file.
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

/// Removes a record that a person decided against, whoever holds it: no `flock` is asked for, but it
/// must still be the file and the bytes that were shown (K25, K26).
pub fn force_remove(dir: &Dir, record: &OpenRecord) -> Result<Removal> {
    let failed = |errno| Error::io(dir.join(record.name()), "cannot compare the lock", errno);
    if !record.is_unchanged().map_err(failed)?
        || !dir.leads_to(record.name(), record.id()).map_err(failed)?
    {
        return Ok(Removal::Changed);
    }
    take_away(dir, record.name(), record.id(), &no_pause)
}

/// K26 alone: renames the name away, and unlinks it if it was the file that was meant. The caller
/// has done K24 and K25 and keeps a descriptor of the file open.
pub(crate) fn take_away(
    dir: &Dir,
    name: &OsStr,
    id: FileId,
    pause: StepHook<'_>,
) -> Result<Removal> {
    let aside = aside_name(name, "dead");
    match renameat(dir, name, dir, &aside) {
        Ok(()) => {}
        Err(Errno::NOENT) => return Ok(Removal::Changed),
        Err(errno) => return Err(may_not_remove(dir, name, errno)),
    }
    let failed = |errno| Error::io(dir.join(&aside), "cannot remove the dead lock", errno);
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

/// A live lock was hit in the last window. It goes back under its name, unless a third process has
/// taken that meanwhile: then two believe they hold it, and somebody must be told (K26).
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

/// `.<name>.<word>-<16 hex>`. Of a name that leaves no room for that, the beginning: what was locked
/// must be released and reclaimed, too. The random part keeps such names apart.
pub(crate) fn aside_name(name: &OsStr, word: &str) -> OsString {
    let end = format!(".{word}-{}", random_suffix());
    let room = NAME_MAX - 1 - end.len();
    let shown = name.as_bytes();
    let mut aside = vec![b'.'];
    aside.extend_from_slice(&shown[..shown.len().min(room)]);
    aside.extend_from_slice(end.as_bytes());
    OsString::from_vec(aside)
}

/// The most bytes that a name may have in a directory.
const NAME_MAX: usize = 255;

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

/// A rename that is not permitted names the user who may do it; waiting would not help (K26).
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

/// The login name of a user id, or the number.
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

    /// K24: whoever has the flock is alive or judging; its lock stays.
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

    /// K22, K23, K25: replaced before the comparison, even by equal bytes: another file, so hands off.
    #[test]
    fn a_replaced_record_is_left_alone() {
        let place = place();
        let removal = place
            .remove_with(RemovalStep::BeforeLock, || place.replace("dead"))
            .unwrap();
        assert_eq!(removal, Removal::Changed);
        assert_eq!(place.read().as_deref(), Some("dead"));
    }

    /// K25: the holder woke up and beat.
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

    /// K26: an original slips in between comparison and rename; its file is put back.
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

    /// K26: and if a third has taken the name meanwhile, both records are reported and kept.
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

    /// X24, K25: force removes what was shown, locked or not, and nothing that came later.
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

    /// K27: ten judges of one dead lock, one removal, and a fresh lock is never hit.
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
