//! Disk backed by a directory of the machine. The system calls follow no symbolic links.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags};

use super::{Disk, DiskFile, SyncPoint};

/// A directory of the machine. Files are readable by their owner only.
#[derive(Clone, Debug)]
pub struct RealDisk {
    path: Arc<PathBuf>,
    directory: Arc<File>,
}

impl RealDisk {
    /// Opens the directory and creates it, with its missing parents, if necessary: see
    /// [`create_directory`](crate::create_directory).
    pub fn open(path: impl AsRef<Path>) -> io::Result<RealDisk> {
        let path = path.as_ref();
        super::create_directory(path)?;
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let directory = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        Ok(RealDisk {
            path: Arc::new(path.to_path_buf()),
            directory: Arc::new(directory),
        })
    }

    fn open_with(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(File::from(rustix::fs::openat(
            &self.directory,
            name,
            flags,
            mode,
        )?))
    }
}

impl Disk for RealDisk {
    type File = File;
    type Lock = File;

    fn place(&self) -> String {
        self.path.display().to_string()
    }

    fn lock(&self) -> io::Result<Option<File>> {
        let file = self.open_with("lock", OFlags::CREATE)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(std::fs::TryLockError::WouldBlock) => Ok(None),
            Err(std::fs::TryLockError::Error(error)) => Err(error),
        }
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.directory)? {
            // Names that are not UTF-8 are not ours.
            if let Ok(name) = entry?.file_name().to_str() {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    fn create(&self, name: &str) -> io::Result<File> {
        self.open_with(name, OFlags::CREATE | OFlags::TRUNC)
    }

    fn open(&self, name: &str) -> io::Result<File> {
        self.open_with(name, OFlags::empty())
    }

    fn open_durable(&self, name: &str) -> io::Result<File> {
        let file = self.open_with(name, OFlags::empty())?;
        // A killed process may leave bytes that are only in the page cache: flush them before
        // recovery relies on them. A failed sync may leave pages that look clean but never reached
        // the disk: drop them, so that reads return what the disk holds.
        file.sync_data()?;
        #[cfg(target_os = "linux")]
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        Ok(file)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(
            &self.directory,
            from,
            &self.directory,
            to,
        )?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(
            &self.directory,
            name,
            AtFlags::empty(),
        )?)
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.directory.sync_all()
    }

    fn boot(&self) -> Option<u128> {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()
    }

    fn random(&self) -> u64 {
        // The keys of the standard hasher come from the random generator of the operating system.
        RandomState::new().hash_one(0_u8)
    }
}

impl DiskFile for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(bytes, offset)
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn begin_sync(&mut self) -> SyncPoint {
        SyncPoint(0)
    }

    fn finish_sync(&mut self, _: SyncPoint) -> io::Result<()> {
        self.sync_data()
    }
}
