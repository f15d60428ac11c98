//! The directory a lock lives in: opened once, used for every step (K29), and judged for what its
//! file system can promise (K31).

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, fstatfs, openat, statat};
use rustix::io::Errno;

use crate::error::{Class, Error, Result};

/// An open directory. Renaming its path later does not split one acquisition over two places.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    path: PathBuf,
    file_system: FileSystem,
}

impl Dir {
    /// Opens an existing directory. A missing one is `NotFound`.
    pub fn open(path: impl AsRef<Path>) -> Result<Dir> {
        let path = path.as_ref();
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = match openat(CWD, path, flags | OFlags::RDONLY, Mode::empty()) {
            // Without permission to list it, one may still be allowed to work inside.
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
        Ok(Dir {
            fd,
            path: path.to_owned(),
            file_system,
        })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a name in it, for messages.
    pub fn join(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.path.join(name.as_ref())
    }

    /// What it lies on.
    pub fn file_system(&self) -> FileSystem {
        self.file_system
    }

    /// Whether `flock` and boot id prove something here (K31).
    pub fn is_local(&self) -> bool {
        self.file_system.reach == FileSystemReach::Local
    }

    /// The same directory, taken for one on a network: for tests of what must not be concluded
    /// there.
    #[doc(hidden)]
    #[must_use]
    pub fn as_if_remote(mut self) -> Dir {
        self.file_system = FileSystem {
            name: "pretended network",
            reach: FileSystemReach::Remote,
        };
        self
    }

    /// What a name in it leads to, without following a symlink.
    pub fn stat(&self, name: &OsStr) -> rustix::io::Result<Stat> {
        statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Whether the name leads to this very file now. Only meaningful while a descriptor of the
    /// file is open: its inode number cannot be reused until then (K22).
    pub fn leads_to(&self, name: &OsStr, file: FileId) -> rustix::io::Result<bool> {
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

/// A path split into its open directory and its last component.
pub fn open_parent(path: &Path) -> Result<(Dir, OsString)> {
    let name = path
        .file_name()
        .ok_or_else(|| Error::new(Class::BadInput, path, "the path has no file name"))?;
    Ok((
        Dir::open(path.parent().unwrap_or(Path::new(".")))?,
        name.to_owned(),
    ))
}

/// Which file it is: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// The identity in a `stat` answer.
    pub fn of(stat: &Stat) -> FileId {
        FileId {
            device: stat.st_dev,
            inode: stat.st_ino,
        }
    }

    /// The number within its file system.
    pub fn inode(&self) -> u64 {
        self.inode
    }
}

/// How far a file system reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystemReach {
    /// Only this kernel writes it.
    Local,
    /// Other machines or another program may write it too.
    Remote,
    /// Not in our table; treated like [`FileSystemReach::Remote`].
    Unknown,
}

/// A file system type, named for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// Its usual name.
    pub name: &'static str,
    /// Whether it is local.
    pub reach: FileSystemReach,
}

impl FileSystem {
    /// The type behind the magic number of `statfs` (K31).
    pub fn from_magic(magic: u64) -> FileSystem {
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

    /// K31: known local ones are local, everything else is not.
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

    /// K29: later steps use the descriptor, so a renamed parent changes nothing.
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
