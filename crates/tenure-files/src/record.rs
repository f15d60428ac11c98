//! An existing lock record, opened once and judged through that descriptor (K22 (keep the judged
//! file open), K23 (read through that descriptor), K28 (open an existing record)).
//!
//! The file under the name may be hostile: a symlink, a FIFO, a gigabyte. `open` follows no link,
//! does not block, and reads no more than the protocol's limit (K30 (keep files that are no
//! records)).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, SystemTime};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, openat};
use rustix::io::Errno;

use crate::dir::{Dir, FileId};
use crate::error::{Class, Error, Result};

/// An open record: its descriptor, its metadata, and the bytes that were read.
#[derive(Debug)]
pub struct OpenRecord {
    file: File,
    name: OsString,
    id: FileId,
    bytes: Vec<u8>,
    modified: SystemTime,
    changed: SystemTime,
    locked: bool,
}

impl OpenRecord {
    /// Opens and reads the record `name`. Returns `None` if there is no such file.
    ///
    /// # Errors
    ///
    /// `NotALock` if it is not a regular file, `TooLarge` if it exceeds `limit`, `Unreadable` if it
    /// cannot be read.
    pub fn open(dir: &Dir, name: &OsStr, limit: usize) -> Result<Option<OpenRecord>> {
        let path = || dir.join(name);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file: File = match openat(dir, name, flags, Mode::empty()) {
            Ok(fd) => fd.into(),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(not_a_lock(dir, name, "a symbolic link")),
            // A socket or a device without a driver.
            Err(Errno::NXIO | Errno::NODEV) => {
                return Err(not_a_lock(dir, name, "a socket or device"));
            }
            Err(errno @ (Errno::ACCESS | Errno::PERM)) => {
                return Err(
                    Error::new(Class::Unreadable, path(), "may not be read").caused_by(errno)
                );
            }
            Err(errno) => return Err(Error::io(path(), "cannot open the record", errno)),
        };
        let stat = fstat(&file).map_err(|errno| Error::io(path(), "cannot stat", errno))?;
        if let Some(kind) = special_file(&stat) {
            return Err(not_a_lock(dir, name, kind));
        }
        let mut record = OpenRecord {
            file,
            name: name.to_owned(),
            id: FileId::of(&stat),
            bytes: Vec::new(),
            modified: timestamp(stat.st_mtime, stat.st_mtime_nsec),
            changed: timestamp(stat.st_ctime, stat.st_ctime_nsec),
            locked: false,
        };
        if u64::try_from(stat.st_size).unwrap_or(u64::MAX) > limit as u64 {
            return Err(too_large(dir, name, limit));
        }
        record.bytes = read_at_most(&record.file, limit + 1).map_err(|errno| {
            Error::new(Class::Unreadable, path(), "cannot read the record").caused_by(errno)
        })?;
        if record.bytes.len() > limit {
            return Err(too_large(dir, name, limit));
        }
        Ok(Some(record))
    }

    /// Returns the file name.
    pub(crate) fn name(&self) -> &OsStr {
        &self.name
    }

    /// Returns device and inode, which are unique while this record is open (K22).
    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    /// Returns the bytes that were read when the record was opened (K23).
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the modification time (mtime).
    pub fn modified(&self) -> SystemTime {
        self.modified
    }

    /// Returns the change time (ctime).
    pub(crate) fn changed(&self) -> SystemTime {
        self.changed
    }

    /// Returns the open file, for a waiter that watches it.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns whether [`try_lock`](OpenRecord::try_lock) took the `flock`.
    #[cfg(test)]
    pub(crate) fn is_locked(&self) -> bool {
        self.locked
    }

    /// Tries `flock(LOCK_EX | LOCK_NB)`, and returns `false` if another process has it (K10 (prove
    /// life by flock), K24 (lock before removal)).
    ///
    /// The `flock` is kept until the record is dropped, so a process that proves a holder dead and
    /// then reclaims the lock already has it.
    pub(crate) fn try_lock(&mut self, dir: &Dir) -> Result<bool> {
        if !self.locked {
            self.locked = try_flock(&self.file, dir, &self.name)?;
        }
        Ok(self.locked)
    }

    /// Returns whether the file still has the bytes that were read (K25 (check again before
    /// removal)).
    pub(crate) fn is_unchanged(&self) -> rustix::io::Result<bool> {
        Ok(read_at_most(&self.file, self.bytes.len() + 1)? == self.bytes)
    }
}

impl AsFd for OpenRecord {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Tries `flock(LOCK_EX | LOCK_NB)`; `false` if another process has it. A file system that cannot
/// lock is an error that names it (K31 (local file systems)); there is no silent fallback.
pub(crate) fn try_flock(file: impl AsFd, dir: &Dir, name: &OsStr) -> Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(flock_failed(dir, name, errno)),
    }
}

pub(crate) fn flock_failed(dir: &Dir, name: &OsStr, errno: Errno) -> Error {
    match errno {
        Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP => {
            let what = format!(
                "the file system ({}) cannot lock files",
                dir.file_system().name
            );
            Error::new(Class::Unsupported, dir.join(name), what).caused_by(errno)
        }
        _ => Error::io(dir.join(name), "flock failed", errno),
    }
}

/// Reads at most `limit` bytes from the start of the file, independent of its offset.
pub(crate) fn read_at_most(file: impl AsFd, limit: usize) -> rustix::io::Result<Vec<u8>> {
    // Most records fit into 4 KiB; larger ones grow the buffer by factor 4.
    let mut bytes = vec![0; limit.min(4096)];
    let mut filled = 0;
    loop {
        let read = rustix::io::pread(&file, &mut bytes[filled..], filled as u64)?;
        filled += read;
        // A short read of a regular file means end of file.
        if filled < bytes.len() || filled == limit {
            bytes.truncate(filled);
            return Ok(bytes);
        }
        bytes.resize(limit.min(bytes.len() * 4), 0);
    }
}

fn special_file(stat: &Stat) -> Option<&'static str> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => None,
        FileType::Directory => Some("a directory"),
        FileType::Symlink => Some("a symbolic link"),
        FileType::Fifo => Some("a FIFO"),
        FileType::Socket => Some("a socket"),
        FileType::CharacterDevice | FileType::BlockDevice => Some("a device"),
        FileType::Unknown => Some("an unknown kind of file"),
    }
}

fn not_a_lock(dir: &Dir, name: &OsStr, kind: &str) -> Error {
    let what = format!("{kind} stands where the lock file belongs");
    Error::new(Class::NotALock, dir.join(name), what).next("look at it and remove it by hand")
}

fn too_large(dir: &Dir, name: &OsStr, limit: usize) -> Error {
    let what = format!("has more than {limit} bytes, so it is not a lock record");
    Error::new(Class::TooLarge, dir.join(name), what).next("look at it and remove it by hand")
}

// 32-bit systems have another type for the nanoseconds.
pub(crate) fn timestamp(seconds: i64, nanos: impl Into<u64>) -> SystemTime {
    let nanos = u32::try_from(nanos.into()).unwrap_or(0);
    let time = if seconds >= 0 {
        SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds.unsigned_abs(), nanos))
    } else {
        SystemTime::UNIX_EPOCH.checked_sub(Duration::new(seconds.unsigned_abs(), 0))
    };
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const NAME: &str = "r.lock";

    fn open_in(temp: &tempfile::TempDir, limit: usize) -> Result<Option<OpenRecord>> {
        OpenRecord::open(&Dir::open(temp.path()).unwrap(), OsStr::new(NAME), limit)
    }

    fn class_of(temp: &tempfile::TempDir) -> Class {
        open_in(temp, 100).unwrap_err().class()
    }

    /// K28: a directory, symlink, dangling symlink, FIFO or socket is not a lock, and none of them
    /// blocks.
    #[test]
    fn special_files_are_not_locks() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join(NAME);
        assert!(open_in(&temp, 100).unwrap().is_none());

        std::fs::create_dir(&path).unwrap();
        assert_eq!(class_of(&temp), Class::NotALock);
        std::fs::remove_dir(&path).unwrap();

        symlink("nowhere", &path).unwrap();
        assert_eq!(class_of(&temp), Class::NotALock);
        std::fs::remove_file(&path).unwrap();

        std::fs::write(temp.path().join("real"), b"{}").unwrap();
        symlink("real", &path).unwrap();
        assert_eq!(class_of(&temp), Class::NotALock);
        std::fs::remove_file(&path).unwrap();

        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        assert_eq!(class_of(&temp), Class::NotALock);
        std::fs::remove_file(&path).unwrap();

        let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(class_of(&temp), Class::NotALock);
    }

    /// K30: a file of exactly the limit is read; one byte more is refused and the file stays.
    #[test]
    fn more_than_the_limit_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join(NAME);
        std::fs::write(&path, vec![b'x'; 5000]).unwrap();
        assert_eq!(open_in(&temp, 5000).unwrap().unwrap().bytes().len(), 5000);
        assert_eq!(open_in(&temp, 4999).unwrap_err().class(), Class::TooLarge);
        assert!(path.exists());
    }

    /// K25: changed bytes in the open file are detected.
    #[test]
    fn a_changed_record_is_noticed() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join(NAME);
        std::fs::write(&path, b"beat 1").unwrap();
        let record = open_in(&temp, 100).unwrap().unwrap();
        assert!(record.is_unchanged().unwrap());
        std::fs::write(&path, b"beat 2").unwrap();
        assert!(!record.is_unchanged().unwrap());
        std::fs::write(&path, b"beat 1 and more").unwrap();
        assert!(!record.is_unchanged().unwrap());
    }
}
