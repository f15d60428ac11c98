//! Atomic publication of a lock record: it appears complete, with its `flock` held, and never
//! replaces a file (K17 (publish in one step), K18 (flock before the name)).
//!
//! ```text
//!   draft (no name or private name) ── write, sync, flock ──▶ publish ──▶ Published
//!                                             ▲                  │
//!                                             └── name exists ───┘   retry with the same draft
//! ```
//!
//! Methods, best first: `O_TMPFILE`, rename, hard link, `O_EXCL`. A file system that lacks one gets
//! the next. `O_EXCL` is not atomic: the file is visible before it is locked and written.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, SystemTime};

use rustix::fs::{
    AtFlags, CWD, FlockOperation, Gid, Mode, OFlags, RenameFlags, fchmod, fchown, flock, fstat,
    linkat, openat, renameat_with, unlinkat,
};
use rustix::io::Errno;

use crate::dir::{Dir, FileId};
use crate::error::{Class, Error, Result};
use crate::record::{OpenRecord, flock_failed, timestamp, try_flock};
use crate::remove::{aside_name, no_pause, take_away};

/// The method by which the record gets its name (K17).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PublishMethod {
    /// An unnamed file (`O_TMPFILE`) is linked to the name.
    Tmpfile,
    /// A private file is renamed with `RENAME_NOREPLACE`.
    Rename,
    /// A private file is hard-linked to the name.
    Link,
    /// The name is created with `O_EXCL` and then filled: a reader may see an empty file.
    Create,
}

impl PublishMethod {
    /// The method to try where this one is not supported.
    fn next(self) -> Option<PublishMethod> {
        match self {
            PublishMethod::Tmpfile => Some(PublishMethod::Rename),
            PublishMethod::Rename => Some(PublishMethod::Link),
            PublishMethod::Link => Some(PublishMethod::Create),
            PublishMethod::Create => None,
        }
    }
}

/// What must be on disk before the name appears (K19 (durable records and torn records)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The record is synced, so that no reader sees a torn record, even after a power failure.
    Durable,
    /// Nothing is synced.
    Fast,
}

/// Options for publishing a record.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Permission bits before the umask (K32 (file modes and symlinks)).
    pub mode: u32,
    /// Who else may read and lock the record.
    pub access: FileAccess,
    /// Whether to sync.
    pub durability: Durability,
    /// The first method to try: for tests, and for file systems whose better methods are known to
    /// be broken.
    pub first_way: PublishMethod,
}

/// Who may use a record, besides the permission bits (K32).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileAccess {
    /// In a directory that a group may write, the group may also read and lock the record: its
    /// members must be able to judge and replace each other's locks.
    #[default]
    Group,
    /// Exactly the permission bits, whatever the umask.
    Exact,
    /// The permission bits and the umask decide.
    AsCreated,
}

impl FileAccess {
    /// Applies the access to a new file or directory. `mode` are the bits with which it was made.
    pub(crate) fn apply(self, dir: &Dir, file: impl AsFd, mode: u32) -> rustix::io::Result<()> {
        match (self, dir.sharing().group) {
            (FileAccess::Exact, _) => fchmod(&file, Mode::from_raw_mode(mode)),
            (FileAccess::Group, Some(group)) => {
                // Only a member of the group may give the file to it. Others keep it private: the
                // bits would open it to a group that has nothing to do with the directory.
                let is_member = fstat(&file)?.st_gid == group
                    || fchown(&file, None, Some(Gid::from_raw(group))).is_ok();
                // A file system without modes (FAT, some FUSE) ignores or refuses this.
                match is_member {
                    true => match fchmod(&file, Mode::from_raw_mode(mode | (mode & 0o700) >> 3)) {
                        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
                        other => other,
                    },
                    false => Ok(()),
                }
            }
            (FileAccess::Group, None) | (FileAccess::AsCreated, _) => Ok(()),
        }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            mode: 0o600,
            access: FileAccess::default(),
            durability: Durability::Durable,
            first_way: PublishMethod::Tmpfile,
        }
    }
}

/// A published record of this process: `file` holds its `flock`.
#[derive(Debug)]
pub struct Published {
    /// The open file. Closing it releases the `flock`.
    pub file: File,
    /// Device and inode of the file.
    pub id: FileId,
    /// The method that was used.
    pub way: PublishMethod,
    /// The modification time after publication, by the clock of the file system.
    pub modified: SystemTime,
}

/// A record that is written, synced and locked, but not yet published.
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
    id: FileId,
    private: Option<OsString>,
}

impl<'d> Draft<'d> {
    /// Creates a draft for `name`. Touches no file.
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

    /// Sets the content. May be called again until the draft is published.
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

    /// Publishes the draft.
    ///
    /// Returns `None` if the name already exists; the draft can then be published later.
    ///
    /// # Errors
    ///
    /// `Io` if no method works, `Unsupported` if the file system cannot lock files, `LostRace` if
    /// another process keeps the new file locked ([`PublishMethod::Create`] only).
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

    /// One attempt with one method. The body (the draft's file) is created, written and locked once
    /// and kept for later attempts.
    fn publish_by(&mut self, way: PublishMethod) -> Result<PublishAttempt> {
        if way == PublishMethod::Create {
            return self.create();
        }
        if self.body.is_none() {
            match self.open_body(way) {
                Ok(body) => self.body = Some(body),
                // The errors of `open` on file systems without O_TMPFILE.
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
            self.unlock_if_mandatory(&body.file)?;
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
            (PublishMethod::Link, Some(private)) => {
                linkat(self.dir, private, self.dir, &self.name, AtFlags::empty())
            }
            (PublishMethod::Rename | PublishMethod::Link | PublishMethod::Create, _) => {
                Err(Errno::INVAL)
            }
        };
        if self.has_appeared(answer)? {
            return self.won(way).map(PublishAttempt::Won);
        }
        // `NOENT`: `/proc` is not mounted (see `link_nameless`), or the private file was removed.
        // `ACCESS`: a security module forbids links (AppArmor, Landlock). All of these errors mean:
        // try the next method with a new file.
        match answer {
            // The name appeared and is taken already: ours was removed.
            Ok(()) | Err(Errno::EXIST) => Ok(PublishAttempt::Taken),
            Err(
                errno @ (Errno::NOENT
                | Errno::ACCESS
                | Errno::XDEV
                | Errno::PERM
                | Errno::OPNOTSUPP
                | Errno::INVAL
                | Errno::MLINK
                | Errno::NOSYS),
            ) => Ok(PublishAttempt::NotHere(errno)),
            Err(errno) => Err(self.failed("cannot publish the lock file", errno)),
        }
    }

    /// Whether the name leads to our file. Over a network a request may report an error although it
    /// succeeded, also `EEXIST` for our own link, because its answer was lost and the request
    /// repeated. Only the file under the name counts (K17.3).
    fn has_appeared(&mut self, answer: rustix::io::Result<()>) -> Result<bool> {
        if self.dir.is_local() {
            return Ok(answer.is_ok());
        }
        let id = self.body.as_ref().expect("the caller has one").id;
        match (self.dir.leads_to(&self.name, id), answer) {
            (Ok(true), _) => Ok(true),
            // Two names of one file may have two inode numbers (sshfs): then its bytes decide,
            // which contain a token of ours.
            (Ok(false), Ok(()) | Err(Errno::EXIST)) => Ok(self.has_our_bytes()),
            (Ok(false), Err(_)) => Ok(false),
            (Err(errno), Ok(())) => {
                self.take_back();
                Err(self.failed("cannot stat", errno))
            }
            (Err(errno), Err(_)) => Err(self.failed("cannot stat", errno)),
        }
    }

    fn has_our_bytes(&self) -> bool {
        let found = OpenRecord::open(self.dir, &self.name, self.bytes.len());
        found.is_ok_and(|found| found.is_some_and(|found| found.bytes() == self.bytes))
    }

    /// Finishes a won publication: removes the private name of a link. If that fails, the public
    /// name goes, too: an error must leave no lock (S17 (clean up failed acquisitions)).
    fn won(&mut self, way: PublishMethod) -> Result<DraftFile> {
        if way != PublishMethod::Link {
            return Ok(self.take_body());
        }
        let body = self.body.as_ref().expect("the caller has one");
        let is_one_inode = self.dir.leads_to(&self.name, body.id).unwrap_or(true);
        if !is_one_inode && let Err(error) = self.use_public_name() {
            self.take_back();
            return Err(error);
        }
        let mut body = self.take_body();
        let private = body.private.take().unwrap_or_default();
        match unlinkat(self.dir, &private, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(body),
            Err(errno) => {
                self.body = Some(body);
                self.take_back();
                Err(self.failed("cannot remove the private name", errno))
            }
        }
    }

    /// Opens the public name and uses that descriptor from now on. The other one belongs to the
    /// private name, whose inode number no later check would find.
    fn use_public_name(&mut self) -> Result<()> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let failed = |errno| Error::io(self.dir.join(&self.name), "cannot open the lock", errno);
        let file: File = openat(self.dir, &self.name, flags, Mode::empty())
            .map_err(failed)?
            .into();
        let id = file_id(&file).map_err(failed)?;
        let body = self.body.as_mut().expect("the caller has one");
        body.id = id;
        // Closes the old descriptor, and with it the old lock.
        body.file = file;
        // A judge may have the lock for a moment: then it sees a live holder, and goes on.
        let body = self.body.as_ref().expect("the caller has one");
        if try_flock(&body.file, self.dir, &self.name)? {
            self.unlock_if_mandatory(&body.file)?;
        }
        Ok(())
    }

    /// Removes the name that we have just published. Best effort: the caller reports its own error.
    fn take_back(&mut self) {
        if let Some(body) = &self.body {
            let _ = take_away(self.dir, &self.name, body.id, &no_pause);
        }
    }

    /// Where a lock keeps others from reading, a holder keeps none: it would prove nothing there
    /// (K31 (local file systems)), and originals could not read the record.
    fn unlock_if_mandatory(&self, file: &File) -> Result<()> {
        if self.dir.has_mandatory_locks(file) {
            flock(file, FlockOperation::Unlock)
                .map_err(|errno| flock_failed(self.dir, &self.name, errno))?;
        }
        Ok(())
    }

    /// The last method (K17.4). The new file is visible while it is empty, so another process may
    /// judge and remove it while this one is stopped. Therefore nothing is written before the
    /// `flock` is ours and the name is known to refer still to our file.
    fn create(&mut self) -> Result<PublishAttempt> {
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
        let file: File = match openat(self.dir, &self.name, flags, self.mode()) {
            Ok(fd) => fd.into(),
            Err(Errno::EXIST) => return Ok(PublishAttempt::Taken),
            Err(errno) => return Err(self.failed("cannot create the lock file", errno)),
        };
        let id = match file_id(&file) {
            Ok(id) => id,
            Err(errno) => {
                // Just created, and the only thing that is known of it is its name.
                let _ = unlinkat(self.dir, &self.name, AtFlags::empty());
                return Err(self.failed("cannot stat", errno));
            }
        };
        self.body = Some(DraftFile {
            file,
            id,
            private: None,
        });
        match self.fill_created(id) {
            Ok(true) => Ok(PublishAttempt::Won(self.take_body())),
            Ok(false) => {
                self.body = None;
                Ok(PublishAttempt::Taken)
            }
            Err(error) => {
                // Remove the incomplete record, but only if the name still refers to our file.
                self.take_back();
                self.body = None;
                Err(error)
            }
        }
    }

    /// Locks and fills the file that `create` made; `false` if a judge removed it meanwhile.
    fn fill_created(&mut self, id: FileId) -> Result<bool> {
        let file = &self.body.as_ref().expect("the caller has one").file;
        let still_ours = || {
            self.dir
                .leads_to(&self.name, id)
                .map_err(|errno| self.failed("cannot stat", errno))
        };
        self.options
            .access
            .apply(self.dir, file, self.options.mode)
            .map_err(|errno| self.failed("cannot set the mode", errno))?;
        // Another process holds this flock only while it judges the file. 200 tries every 5 ms: one
        // second.
        let wait_deadline = 200;
        let mut locked = false;
        for _ in 0..wait_deadline {
            locked = try_flock(file, self.dir, &self.name)?;
            if locked || !still_ours()? {
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
        if !still_ours()? {
            return Ok(false);
        }
        if !locked {
            return Err(Error::new(
                Class::LostRace,
                self.dir.join(&self.name),
                "another process keeps the new lock file locked",
            ));
        }
        self.fill()?;
        let body = self.body.as_ref().expect("the caller has one");
        self.unlock_if_mandatory(&body.file)?;
        Ok(true)
    }

    /// Opens the draft's file: unnamed, or under a private name.
    fn open_body(&self, way: PublishMethod) -> rustix::io::Result<DraftFile> {
        if way == PublishMethod::Tmpfile {
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            return self.body_of(openat(self.dir, ".", flags, self.mode())?.into(), None);
        }
        let private = aside_name(&self.name, "tenure");
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
        let file = openat(self.dir, &private, flags, self.mode())?.into();
        self.body_of(file, Some(private.clone())).inspect_err(|_| {
            let _ = unlinkat(self.dir, &private, AtFlags::empty());
        })
    }

    fn body_of(&self, file: File, private: Option<OsString>) -> rustix::io::Result<DraftFile> {
        self.options
            .access
            .apply(self.dir, &file, self.options.mode)?;
        let id = file_id(&file)?;
        Ok(DraftFile { file, id, private })
    }

    /// Writes the content, and syncs it if the options say so.
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

    /// Runs after the name appeared: reads its times, and syncs the directory on file systems that
    /// are not local (K19). An error takes the name away again.
    fn settle(&mut self, body: DraftFile) -> Result<Published> {
        let id = body.id;
        let settled = self.settled(&body);
        match settled {
            Ok(modified) => Ok(Published {
                file: body.file,
                id,
                way: self.way,
                modified,
            }),
            Err(error) => {
                let _ = take_away(self.dir, &self.name, id, &no_pause);
                Err(error)
            }
        }
    }

    fn settled(&self, body: &DraftFile) -> Result<SystemTime> {
        let stat = fstat(&body.file).map_err(|errno| self.failed("cannot stat", errno))?;
        if self.options.durability == Durability::Durable && !self.dir.is_local() {
            match rustix::fs::fsync(self.dir) {
                // Some network file systems cannot sync a directory: not an error.
                Ok(()) | Err(Errno::INVAL | Errno::BADF | Errno::OPNOTSUPP | Errno::NOSYS) => {}
                Err(errno) => return Err(self.failed("cannot sync the directory", errno)),
            }
        }
        Ok(timestamp(stat.st_mtime, stat.st_mtime_nsec))
    }

    /// Closes the draft's file and removes its private name, if it has one.
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
    /// The name now refers to this file.
    Won(DraftFile),
    /// The name exists.
    Taken,
    /// The file system does not support the method.
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

/// Writes `bytes` at the start of the file.
fn write_all(file: &File, bytes: &[u8]) -> rustix::io::Result<()> {
    let mut written = 0;
    while written < bytes.len() {
        written += rustix::io::pwrite(file, &bytes[written..], written as u64)?;
    }
    Ok(())
}

/// Returns the current time by the clock of the file system: the modification time of a new private
/// file (K45 (age of files and objects)).
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

    /// K17, K18, K32: each method publishes a complete, locked record with the right mode and
    /// leaves no other file; a second publisher finds the name taken.
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

    /// K17: with the first three methods no reader sees a partial record.
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
                    draft
                        .publish()
                        .unwrap()
                        .expect("no other process publishes");
                    std::fs::remove_file(&path).unwrap();
                }
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            reader.join().unwrap();
        });
    }

    /// K17: a directory in which no file can be created gives an `Io` error, not an endless retry.
    #[test]
    fn a_place_that_cannot_create_is_an_io_error() {
        let dir = Dir::open("/proc/self").unwrap();
        for way in WAYS {
            let mut draft = Draft::new(&dir, OsStr::new(NAME), options(way));
            draft.write(b"x").unwrap();
            assert_eq!(draft.publish().unwrap_err().class(), Class::Io, "{way:?}");
        }
    }

    /// K45: the file system's clock is read, and no file remains.
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
