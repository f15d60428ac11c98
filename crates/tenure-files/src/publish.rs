//! Publishing: a record appears under its name complete, locked, and in one step that fails if the
//! name is taken (K17, K18).
//!
//!   draft (nameless or private) ── write, sync, flock ──▶ publish ──▶ Published
//!                                        ▲                   │
//!                                        └──── name taken ───┘   the draft can be tried again
//!
//! Four ways, from best to last resort; a file system that lacks one gets the next.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::thread;
use std::time::{Duration, SystemTime};

use rustix::fs::{
    AtFlags, CWD, FlockOperation, Mode, OFlags, RenameFlags, flock, fstat, linkat, openat,
    renameat_with, unlinkat,
};
use rustix::io::Errno;

use crate::dir::{Dir, FileId};
use crate::error::{Class, Error, Result};
use crate::record::{flock_failed, timestamp, try_flock};
use crate::remove::{aside_name, no_pause, take_away};

/// How a name is made to appear (K17).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PublishMethod {
    /// A nameless file (`O_TMPFILE`), linked to the name.
    Tmpfile,
    /// A private file, renamed without replacing.
    Rename,
    /// A private file, hard-linked to the name.
    Link,
    /// The name itself is created and then filled: a reader may see it empty.
    Create,
}

impl PublishMethod {
    /// The word that `why` and `doctor` show.
    pub fn name(self) -> &'static str {
        match self {
            PublishMethod::Tmpfile => "tmpfile",
            PublishMethod::Rename => "rename",
            PublishMethod::Link => "link",
            PublishMethod::Create => "create",
        }
    }

    fn next(self) -> Option<PublishMethod> {
        match self {
            PublishMethod::Tmpfile => Some(PublishMethod::Rename),
            PublishMethod::Rename => Some(PublishMethod::Link),
            PublishMethod::Link => Some(PublishMethod::Create),
            PublishMethod::Create => None,
        }
    }
}

/// What must be on disk before the name appears (K19).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The record is synced, so that no torn one is ever seen, not even after a power cut.
    Durable,
    /// Nothing is synced.
    Fast,
}

/// How a record is to be published.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Permission bits, before the umask (K32).
    pub mode: u32,
    /// Whether to sync.
    pub durability: Durability,
    /// Start with this way instead of the best one: for tests, and for file systems known to lie.
    pub first_way: PublishMethod,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            mode: 0o600,
            durability: Durability::Durable,
            first_way: PublishMethod::Tmpfile,
        }
    }
}

/// A record that stands under its name and is ours: its `flock` is held through `file`.
#[derive(Debug)]
pub struct Published {
    /// The open file. Closing it gives up the `flock`.
    pub file: File,
    /// Which file it is.
    pub id: FileId,
    /// How it got there.
    pub way: PublishMethod,
    /// Its modification time at that moment, by the file system's clock.
    pub modified: SystemTime,
}

/// A record on its way: written, synced and locked, but not yet under its name.
#[derive(Debug)]
pub struct Draft<'d> {
    dir: &'d Dir,
    name: OsString,
    options: Options,
    way: PublishMethod,
    bytes: Vec<u8>,
    body: Option<DraftFile>,
}

/// The file behind a draft, and its private name if it has one.
#[derive(Debug)]
struct DraftFile {
    file: File,
    private: Option<OsString>,
}

impl<'d> Draft<'d> {
    /// A draft for `name`. Nothing is touched yet.
    pub fn new(dir: &'d Dir, name: &OsStr, options: Options) -> Draft<'d> {
        let way = options.first_way;
        Draft {
            dir,
            name: name.to_owned(),
            options,
            way,
            bytes: Vec::new(),
            body: None,
        }
    }

    /// Sets the content. May be called again as long as the draft is not published.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let was_longer = self.bytes.len() > bytes.len();
        self.bytes = bytes.to_vec();
        if was_longer && let Some(body) = &self.body {
            rustix::fs::ftruncate(&body.file, bytes.len() as u64)
                .map_err(|errno| self.failed("cannot shorten the lock file", errno))?;
        }
        if self.way != PublishMethod::Create && self.body.is_some() {
            return self.fill();
        }
        Ok(())
    }

    /// The way that is going to be used, as far as is known.
    pub fn way(&self) -> PublishMethod {
        self.way
    }

    /// Makes the name appear. `None`: somebody else has it; the draft can be tried again.
    pub fn publish(&mut self) -> Result<Option<Published>> {
        loop {
            match self.publish_by(self.way) {
                Ok(PublishAttempt::Won(body)) => return self.settle(body).map(Some),
                Ok(PublishAttempt::Taken) => return Ok(None),
                Ok(PublishAttempt::NotHere(errno)) => {
                    self.discard();
                    self.way = self
                        .way
                        .next()
                        .ok_or_else(|| self.failed("cannot create the lock file", errno))?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn publish_by(&mut self, way: PublishMethod) -> Result<PublishAttempt> {
        if way == PublishMethod::Create {
            return self.create();
        }
        if self.body.is_none() {
            match self.open_body(way) {
                Ok(body) => self.body = Some(body),
                // What an `open` without O_TMPFILE support answers.
                Err(errno @ (Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT))
                    if way == PublishMethod::Tmpfile =>
                {
                    return Ok(PublishAttempt::NotHere(errno));
                }
                Err(errno) => return Err(self.failed("cannot create the lock file", errno)),
            }
            self.fill()?;
            let body = self.body.as_ref().expect("it was made just above");
            flock(&body.file, FlockOperation::LockExclusive)
                .map_err(|errno| flock_failed(self.dir, &self.name, errno))?;
        }
        let body = self.body.as_ref().expect("it was made just above");
        let answer = match (way, &body.private) {
            (PublishMethod::Tmpfile, _) => link_nameless(&body.file, self.dir, &self.name),
            (PublishMethod::Rename, Some(private)) => renameat_with(
                self.dir,
                private,
                self.dir,
                &self.name,
                RenameFlags::NOREPLACE,
            ),
            (PublishMethod::Link, Some(private)) => return self.link(&private.clone()),
            (PublishMethod::Rename | PublishMethod::Link | PublishMethod::Create, _) => {
                Err(Errno::INVAL)
            }
        };
        match answer {
            Ok(()) => Ok(PublishAttempt::Won(self.take_body())),
            Err(Errno::EXIST) => Ok(PublishAttempt::Taken),
            Err(
                errno @ (Errno::NOENT
                | Errno::XDEV
                | Errno::PERM
                | Errno::OPNOTSUPP
                | Errno::INVAL
                | Errno::NOSYS),
            ) => Ok(PublishAttempt::NotHere(errno)),
            Err(errno) => Err(self.failed("cannot publish the lock file", errno)),
        }
    }

    /// Over a network `link` may report an error although it worked, and "exists" although it was
    /// us: what counts is whether both names lead to one file (K17.3).
    fn link(&mut self, private: &OsStr) -> Result<PublishAttempt> {
        let answer = linkat(self.dir, private, self.dir, &self.name, AtFlags::empty());
        let body = self.body.as_ref().expect("the caller has one");
        let id = file_id(&body.file).map_err(|errno| self.failed("cannot stat", errno))?;
        let won = self
            .dir
            .leads_to(&self.name, id)
            .map_err(|errno| self.failed("cannot stat", errno))?;
        if won {
            unlinkat(self.dir, private, AtFlags::empty())
                .map_err(|errno| self.failed("cannot remove the private name", errno))?;
            return Ok(PublishAttempt::Won(self.take_body()));
        }
        match answer {
            Err(Errno::EXIST) => Ok(PublishAttempt::Taken),
            Err(errno @ (Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK)) => {
                Ok(PublishAttempt::NotHere(errno))
            }
            Err(errno) => Err(self.failed("cannot link the lock file", errno)),
            // It worked, and the name already leads elsewhere: removed and taken by another.
            Ok(()) => Ok(PublishAttempt::Taken),
        }
    }

    /// The last resort (K17.4). Until the lock is ours and the name still leads to our file,
    /// nothing is written: a judge may have removed the empty file while we were stopped.
    fn create(&mut self) -> Result<PublishAttempt> {
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
        let file: File = match openat(self.dir, &self.name, flags, self.mode()) {
            Ok(fd) => fd.into(),
            Err(Errno::EXIST) => return Ok(PublishAttempt::Taken),
            Err(errno) => return Err(self.failed("cannot create the lock file", errno)),
        };
        let id = file_id(&file).map_err(|errno| self.failed("cannot stat", errno))?;
        let (dir, name) = (self.dir, self.name.clone());
        let still_ours = || {
            dir.leads_to(&name, id)
                .map_err(|errno| Error::io(dir.join(&name), "cannot stat", errno))
        };
        // A judge holds the lock only for as long as it looks.
        let wait_deadline = 200;
        let mut locked = false;
        for _ in 0..wait_deadline {
            locked = try_flock(&file, self.dir, &self.name)?;
            if locked || !still_ours()? {
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
        if !still_ours()? {
            return Ok(PublishAttempt::Taken);
        }
        self.body = Some(DraftFile {
            file,
            private: None,
        });
        let filled = match locked {
            true => self.fill(),
            false => Err(Error::new(
                Class::LostRace,
                self.dir.join(&self.name),
                "another process keeps the new lock file locked",
            )),
        };
        if let Err(error) = filled {
            self.body = None;
            // Half a record must not stay. Only ours is removed.
            if still_ours()? {
                let _ = unlinkat(dir, &name, AtFlags::empty());
            }
            return Err(error);
        }
        Ok(PublishAttempt::Won(self.take_body()))
    }

    fn open_body(&self, way: PublishMethod) -> rustix::io::Result<DraftFile> {
        if way == PublishMethod::Tmpfile {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            let file = openat(self.dir, ".", flags, self.mode())?.into();
            return Ok(DraftFile {
                file,
                private: None,
            });
        }
        let private = aside_name(&self.name, "tenure");
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
        let file = openat(self.dir, &private, flags, self.mode())?.into();
        Ok(DraftFile {
            file,
            private: Some(private),
        })
    }

    fn fill(&mut self) -> Result<()> {
        let body = self.body.as_ref().expect("the caller has one");
        write_all(&body.file, &self.bytes)
            .map_err(|errno| self.failed("cannot write the lock file", errno))?;
        if self.options.durability == Durability::Durable {
            rustix::fs::fdatasync(&body.file)
                .map_err(|errno| self.failed("cannot sync the lock file", errno))?;
        }
        Ok(())
    }

    fn take_body(&mut self) -> DraftFile {
        self.body.take().expect("only called with one")
    }

    /// After the name appeared: the identity, and the directory on disk where that matters (K19).
    fn settle(&mut self, body: DraftFile) -> Result<Published> {
        let stat = fstat(&body.file).map_err(|errno| self.failed("cannot stat", errno))?;
        let id = FileId::of(&stat);
        if self.options.durability == Durability::Durable && !self.dir.is_local() {
            match rustix::fs::fsync(self.dir) {
                // Some network file systems cannot sync a directory.
                Ok(()) | Err(Errno::INVAL | Errno::BADF | Errno::OPNOTSUPP) => {}
                Err(errno) => {
                    let _ = take_away(self.dir, &self.name, id, &no_pause);
                    return Err(self.failed("cannot sync the directory", errno));
                }
            }
        }
        Ok(Published {
            file: body.file,
            id,
            way: self.way,
            modified: timestamp(stat.st_mtime, stat.st_mtime_nsec),
        })
    }

    /// Gives up the body, with its private name if it has one.
    fn discard(&mut self) {
        if let Some(DraftFile {
            private: Some(private),
            ..
        }) = self.body.take()
        {
            let _ = unlinkat(self.dir, &private, AtFlags::empty());
        }
    }

    fn mode(&self) -> Mode {
        Mode::from_raw_mode(self.options.mode)
    }

    fn failed(&self, what: &str, errno: Errno) -> Error {
        Error::io(self.dir.join(&self.name), what, errno)
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        self.discard();
    }
}

enum PublishAttempt {
    Won(DraftFile),
    Taken,
    NotHere(Errno),
}

fn link_nameless(file: &File, dir: &Dir, name: &OsStr) -> rustix::io::Result<()> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, path, dir, name, AtFlags::SYMLINK_FOLLOW)
}

fn file_id(file: &File) -> rustix::io::Result<FileId> {
    fstat(file).map(|stat| FileId::of(&stat))
}

/// Writes the whole content from the start of the file.
fn write_all(file: &File, bytes: &[u8]) -> rustix::io::Result<()> {
    let mut written = 0;
    while written < bytes.len() {
        written += rustix::io::pwrite(file, &bytes[written..], written as u64)?;
    }
    Ok(())
}

/// The file system's own idea of now: the modification time of a private file made for it (K45).
pub(crate) fn file_system_time(dir: &Dir) -> Result<SystemTime> {
    let name = OsStr::new("clock");
    let mut draft = Draft::new(dir, name, Options::default());
    let body = draft
        .open_body(PublishMethod::Rename)
        .map_err(|errno| draft.failed("cannot ask the file system for the time", errno))?;
    let stat = fstat(&body.file);
    draft.body = Some(body);
    let stat = stat.map_err(|errno| draft.failed("cannot stat", errno))?;
    Ok(timestamp(stat.st_mtime, stat.st_mtime_nsec))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const WAYS: [PublishMethod; 4] = [
        PublishMethod::Tmpfile,
        PublishMethod::Rename,
        PublishMethod::Link,
        PublishMethod::Create,
    ];
    const NAME: &str = "state.lock";

    fn options(first_way: PublishMethod) -> Options {
        Options {
            first_way,
            durability: Durability::Fast,
            ..Options::default()
        }
    }

    fn names(dir: &Dir) -> Vec<String> {
        let entries = std::fs::read_dir(dir.path()).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    /// K17, K18, K32: each way gives a complete, locked record of the right mode and leaves nothing
    /// else behind; the second publisher is told that the name is taken.
    #[test]
    fn each_way_publishes_one_complete_locked_record() {
        for way in WAYS {
            let temp = tempfile::tempdir().unwrap();
            let dir = Dir::open(temp.path()).unwrap();
            let mut first = Draft::new(&dir, OsStr::new(NAME), options(way));
            first.write(b"mine").unwrap();
            let published = first.publish().unwrap().expect("the name is free");
            assert_eq!(published.way, way);
            drop(first);
            assert_eq!(names(&dir), [NAME], "{way:?}");

            let path = dir.join(NAME);
            assert_eq!(std::fs::read(&path).unwrap(), b"mine", "{way:?}");
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{way:?}");
            let judge = File::open(&path).unwrap();
            let lock = flock(&judge, FlockOperation::NonBlockingLockExclusive);
            assert_eq!(
                lock,
                Err(Errno::WOULDBLOCK),
                "{way:?}: published without its lock"
            );

            let mut second = Draft::new(&dir, OsStr::new(NAME), options(way));
            second.write(b"theirs").unwrap();
            assert!(second.publish().unwrap().is_none(), "{way:?}");
            assert_eq!(std::fs::read(&path).unwrap(), b"mine", "{way:?}");

            std::fs::remove_file(&path).unwrap();
            second.write(b"theirs, later").unwrap();
            assert!(
                second.publish().unwrap().is_some(),
                "{way:?}: a draft can be tried again"
            );
            assert_eq!(std::fs::read(&path).unwrap(), b"theirs, later", "{way:?}");
            drop(second);
            assert_eq!(names(&dir), [NAME], "{way:?}");
        }
    }

    /// K17: no reader ever sees a partial record by the first three ways.
    #[test]
    fn a_reader_never_sees_half_a_record() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        let path = dir.join(NAME);
        let full = vec![b'x'; 300_000];
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut seen = 0;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    if let Ok(bytes) = std::fs::read(&path) {
                        assert_eq!(bytes.len(), full.len());
                        seen += 1;
                    }
                }
                seen
            });
            for way in [
                PublishMethod::Tmpfile,
                PublishMethod::Rename,
                PublishMethod::Link,
            ] {
                for _ in 0..200 {
                    let mut draft = Draft::new(&dir, OsStr::new(NAME), options(way));
                    draft.write(&full).unwrap();
                    draft.publish().unwrap().expect("nobody else publishes");
                    std::fs::remove_file(&path).unwrap();
                }
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            reader.join().unwrap();
        });
    }

    /// K17: a place where nothing can be created is an `Io` error, not a loop through the ways.
    #[test]
    fn a_place_that_cannot_create_is_an_io_error() {
        let dir = Dir::open("/proc/self").unwrap();
        for way in WAYS {
            let mut draft = Draft::new(&dir, OsStr::new(NAME), options(way));
            draft.write(b"x").unwrap();
            assert_eq!(draft.publish().unwrap_err().class(), Class::Io, "{way:?}");
        }
    }

    /// K45: the time of the file system, and nothing stays behind.
    #[test]
    fn the_file_system_tells_its_time() {
        let temp = tempfile::tempdir().unwrap();
        let dir = Dir::open(temp.path()).unwrap();
        let time = file_system_time(&dir).unwrap();
        let now = SystemTime::now();
        let off = crate::clock::age(now, time).max(crate::clock::age(time, now));
        assert!(off < Duration::from_secs(5));
        assert!(names(&dir).is_empty());
    }
}
