//! Directory handle of a lock: opened once and used for every step (K29 (open the directory once)),
//! with the type of its file system (K31 (local file systems)).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, fstat, fstatfs, openat, statat};
use rustix::io::Errno;

use crate::error::{Class, Error, Result};

/// An open directory. If its path is renamed later, all steps of an acquisition still use the same
/// directory.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    path: PathBuf,
    file_system: FileSystem,
    device: u64,
    sharing: Sharing,
    has_mandatory_locks: OnceLock<bool>,
}

/// The group that shares a directory: its members may create and remove files there, so they may
/// also judge and remove each other's locks (K32 (file modes and symlinks)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sharing {
    /// The group, if it may write the directory.
    pub(crate) group: Option<u32>,
}

impl Dir {
    /// Opens an existing directory.
    ///
    /// # Errors
    ///
    /// `NotFound` if it does not exist or is not a directory.
    pub fn open(path: impl AsRef<Path>) -> Result<Dir> {
        let path = path.as_ref();
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = match openat(CWD, path, flags | OFlags::RDONLY, Mode::empty()) {
            // Without read permission, access to files in it may still be allowed.
            Err(Errno::ACCESS) => openat(CWD, path, flags | OFlags::PATH, Mode::empty()),
            other => other,
        }
        .map_err(|errno| match errno {
            Errno::NOENT | Errno::NOTDIR => {
                Error::new(Class::NotFound, path, "no such directory").caused_by(errno)
            }
            _ => Error::io(path, "cannot open the directory", errno),
        })?;
        let file_system = match fstatfs(&fd) {
            Ok(statfs) => FileSystem::from_magic(statfs.f_type as u64 & 0xffff_ffff),
            Err(_) => FileSystem {
                name: "unknown",
                reach: FileSystemReach::Unknown,
            },
        };
        let stat = fstat(&fd).map_err(|errno| Error::io(path, "cannot stat", errno))?;
        let group_writes = Mode::from_raw_mode(stat.st_mode).contains(Mode::WGRP);
        Ok(Dir {
            fd,
            path: path.to_owned(),
            file_system,
            device: FileId::of(&stat).device,
            sharing: Sharing {
                group: group_writes.then_some(stat.st_gid),
            },
            has_mandatory_locks: OnceLock::new(),
        })
    }

    /// Returns the device number of the directory. Another mount of the same files may have another.
    pub(crate) fn device(&self) -> u64 {
        self.device
    }

    /// Returns the group with which the directory is shared.
    pub(crate) fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// Returns whether a lock of one descriptor keeps others from reading the file, as on SMB.
    /// `locked` is a file of this directory with content, locked by us; the answer is tested once.
    pub(crate) fn has_mandatory_locks(&self, locked: &File) -> bool {
        use std::os::fd::AsRawFd;
        if self.is_local() {
            return false;
        }
        *self.has_mandatory_locks.get_or_init(|| {
            let path = format!("/proc/self/fd/{}", locked.as_raw_fd());
            let Ok(reader) = openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            else {
                // Without a second descriptor there is no test. SMB is known to be such a system.
                return self.file_system.name == "smb";
            };
            let read = rustix::io::pread(&reader, &mut [0; 1], 0);
            matches!(
                read,
                Err(Errno::ACCESS | Errno::AGAIN | Errno::BUSY | Errno::DEADLK)
            )
        })
    }

    /// Returns the flags to open an existing file for a lock on it. Off a local file system an
    /// exclusive `flock` may need a descriptor that can write (flock(2), "NFS details").
    pub(crate) fn open_to_lock(&self, name: &OsStr) -> rustix::io::Result<File> {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        if !self.is_local() {
            match openat(self, name, flags | OFlags::RDWR, Mode::empty()) {
                Err(Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::ISDIR | Errno::NXIO) => {}
                other => return other.map(File::from),
            }
        }
        openat(self, name, flags | OFlags::RDONLY, Mode::empty()).map(File::from)
    }

    /// Returns the path with which it was opened.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of `name` in the directory, for messages.
    pub(crate) fn join(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.path.join(name.as_ref())
    }

    /// Returns the type of its file system.
    pub fn file_system(&self) -> FileSystem {
        self.file_system
    }

    /// Returns whether the file system is local, so that `flock` and boot id prove something (K31).
    pub fn is_local(&self) -> bool {
        self.file_system.reach == FileSystemReach::Local
    }

    /// Treats the directory as remote: for tests of what must not be concluded there.
    #[doc(hidden)]
    #[must_use]
    #[cfg(test)]
    pub(crate) fn assume_remote(mut self) -> Dir {
        self.file_system = FileSystem {
            name: "pretended network",
            reach: FileSystemReach::Remote,
        };
        self
    }

    /// Returns the metadata of `name` without following a symlink.
    pub fn stat(&self, name: &OsStr) -> rustix::io::Result<Stat> {
        statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Returns whether `name` refers to `file` now. Meaningful only while a descriptor of the file
    /// is open, because its inode number cannot be reused until then (K22 (keep the judged file
    /// open)).
    pub(crate) fn leads_to(&self, name: &OsStr, file: FileId) -> rustix::io::Result<bool> {
        match self.stat(name) {
            Ok(stat) => Ok(FileId::of(&stat) == file),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno),
        }
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens the parent directory of `path`, and returns it with the last component.
pub(crate) fn open_parent(path: &Path) -> Result<(Dir, OsString)> {
    let name = path
        .file_name()
        .ok_or_else(|| Error::new(Class::BadInput, path, "the path has no file name"))?;
    Ok((
        Dir::open(path.parent().unwrap_or(Path::new(".")))?,
        name.to_owned(),
    ))
}

/// Identity of a file: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// Returns the identity from a `stat` result.
    pub(crate) fn of(stat: &Stat) -> FileId {
        FileId {
            device: stat.st_dev,
            inode: stat.st_ino,
        }
    }

    /// Returns the inode number.
    pub(crate) fn inode(&self) -> u64 {
        self.inode
    }
}

/// Who can write a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystemReach {
    /// Only this kernel.
    Local,
    /// Also other machines, or another program.
    Remote,
    /// Unknown type; treated like [`FileSystemReach::Remote`].
    Unknown,
}

/// A file system type. See [`promise`](FileSystem::promise).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// Its usual name, for messages.
    pub name: &'static str,
    /// Whether it is local.
    pub reach: FileSystemReach,
}

impl FileSystem {
    /// Returns what a lock file promises on this file system, for `tenure doctor` and the table in
    /// `docs/reference/file-systems.md`.
    pub fn promise(&self) -> &'static str {
        match (self.reach, self.name) {
            (FileSystemReach::Local, "overlayfs") => {
                "the kernel's lock proves whether a holder is alive, for processes that use the same \
                 overlay mount; through the layer below, its process decides"
            }
            (FileSystemReach::Local, _) => {
                "the kernel's lock proves whether a holder is alive, in all containers and for all \
                 users; a waiter is woken at once"
            }
            (FileSystemReach::Remote, "nfs") => {
                "one holder on all machines; a dead holder is replaced only by its own machine, \
                 other machines wait or need --reclaim age; a waiter polls"
            }
            (FileSystemReach::Remote, "smb") => {
                "one holder on all machines; no lock is kept on the record, because it would keep \
                 others from reading it; a dead holder is replaced only by its own machine; a \
                 waiter polls"
            }
            (FileSystemReach::Remote, "fuse") => {
                "one holder if the FUSE server creates names atomically (sshfs, bindfs and NFS \
                 gateways do, object stores do not); a dead holder is replaced only by its own \
                 machine; a waiter polls"
            }
            (FileSystemReach::Remote, _) => {
                "one holder on all machines if names are created atomically; a dead holder is \
                 replaced only by its own machine; a waiter polls"
            }
            (FileSystemReach::Unknown, _) => {
                "treated as a network file system: a dead holder is replaced only by its own \
                 machine; a waiter polls"
            }
        }
    }

    /// Returns the type for a magic number of `statfs` (K31).
    pub(crate) fn from_magic(magic: u64) -> FileSystem {
        use FileSystemReach::{Local, Remote, Unknown};
        let (name, reach) = match magic {
            0xef53 => ("ext2/3/4", Local),
            0x5846_5342 => ("xfs", Local),
            0x9123_683e => ("btrfs", Local),
            0xf2f5_2010 => ("f2fs", Local),
            0xca45_1a4e => ("bcachefs", Local),
            0x2fc1_2fc1 => ("zfs", Local),
            0x0102_1994 => ("tmpfs", Local),
            0x8584_58f6 => ("ramfs", Local),
            0x794c_7630 => ("overlayfs", Local),
            0x6969 => ("nfs", Remote),
            0xff53_4d42 | 0xfe53_4d42 | 0x517b => ("smb", Remote),
            0x0102_1997 => ("9p", Remote),
            0x6a65_6a63 => ("virtiofs", Remote),
            0x6573_5546 => ("fuse", Remote),
            0x00c3_6400 => ("ceph", Remote),
            0x0bd0_0bd0 => ("lustre", Remote),
            0x0116_1970 => ("gfs2", Remote),
            0x7461_636f => ("ocfs2", Remote),
            0x5346_414f | 0x6b41_4653 => ("afs", Remote),
            _ => ("unknown", Unknown),
        };
        FileSystem { name, reach }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// K31: only the known local types are local.
    #[test]
    fn only_named_file_systems_are_local() {
        for magic in [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630] {
            assert_eq!(
                FileSystem::from_magic(magic).reach,
                FileSystemReach::Local,
                "{magic:#x}"
            );
        }
        for magic in [
            0x6969,
            0xff53_4d42,
            0x0102_1997,
            0x6573_5546,
            0x00c3_6400,
            0x0116_1970,
        ] {
            assert_eq!(
                FileSystem::from_magic(magic).reach,
                FileSystemReach::Remote,
                "{magic:#x}"
            );
        }
        assert_eq!(
            FileSystem::from_magic(0x1234_5678).reach,
            FileSystemReach::Unknown
        );
        assert!(!Dir::open("/proc").unwrap().is_local());
    }

    /// K29: later steps use the descriptor, so renaming the directory changes nothing.
    #[test]
    fn a_renamed_directory_is_still_the_same_one() {
        let temp = tempfile::tempdir().unwrap();
        let (old, new) = (temp.path().join("old"), temp.path().join("new"));
        std::fs::create_dir(&old).unwrap();
        std::fs::write(old.join("file"), b"x").unwrap();
        let dir = Dir::open(&old).unwrap();
        let id = FileId::of(&dir.stat(OsStr::new("file")).unwrap());
        std::fs::rename(&old, &new).unwrap();
        std::fs::create_dir(&old).unwrap();
        assert!(dir.leads_to(OsStr::new("file"), id).unwrap());
    }

    #[test]
    fn a_missing_directory_is_not_found() {
        let temp = tempfile::tempdir().unwrap();
        let error = Dir::open(temp.path().join("nope")).unwrap_err();
        assert_eq!(error.class(), Class::NotFound);
    }
}
