//! Disk abstraction, so that a real and a simulated disk run the same log code.
//!
//! A disk is one flat directory. The log assumes only this:
//!
//! - Written bytes survive a crash once a sync that began after the write has finished. Before
//!   that, any part of them may survive, in any order.
//! - A write next to durable bytes does not damage them.
//! - Names changed by create, rename and remove survive a crash once the directory is synced.
//!   Before that, some first part of the changes may survive.

use std::fmt::Debug;
use std::io;

mod directory;
mod real;
mod sim;

pub use directory::create_directory;
pub use real::RealDisk;
pub use sim::{SilentFault, SimDisk, SimFile, SimLock};

/// A flat directory of files. Clones are handles to the same directory.
pub trait Disk: Clone + Debug + Send + 'static {
    /// An open file.
    type File: DiskFile;
    /// The lock on the directory. Dropping it or the death of the process releases it.
    type Lock: Debug + Send + Sync + 'static;

    /// Returns the location, for messages.
    fn place(&self) -> String;

    /// Locks the directory for this process. Returns `None` if another process has locked it.
    fn lock(&self) -> io::Result<Option<Self::Lock>>;

    /// Returns the names of all files, in any order.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Creates an empty file, or truncates an existing one.
    fn create(&self, name: &str) -> io::Result<Self::File>;

    /// Opens a file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Self::File>;

    /// Opens a file of an earlier process so that reads return what the disk holds.
    ///
    /// Bytes that are only in the page cache are made durable first. Pages that a failed sync left
    /// in the cache are dropped.
    fn open_durable(&self, name: &str) -> io::Result<Self::File>;

    /// Renames a file, replacing an existing one.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes all changes of names durable.
    fn sync_dir(&self) -> io::Result<()>;

    /// Returns the boot id of the operating system, which changes when the machine restarts. `None`
    /// if it is unknown.
    fn boot(&self) -> Option<u128>;

    /// Returns an unpredictable number. A simulated disk derives it from its seed.
    fn random(&self) -> u64;
}

/// A file on a [`Disk`].
///
/// A sync has two halves, so that a simulator can let time pass between them. It makes durable what
/// was written before it *began*. On a real disk all the work is in the second half.
pub trait DiskFile: Debug + Send + 'static {
    /// Returns the length of the file in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Returns `true` if the file is empty.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills `bytes` from `offset`. Returns an error if the file is too short.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bytes` at `offset` and extends the file if necessary.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Starts a sync of everything written so far.
    fn begin_sync(&mut self) -> SyncPoint;

    /// Waits until everything written before `point` is durable.
    fn finish_sync(&mut self, point: SyncPoint) -> io::Result<()>;

    /// Runs both halves of a sync.
    fn sync(&mut self) -> io::Result<()> {
        let point = self.begin_sync();
        self.finish_sync(point)
    }
}

/// The point in time at which a sync began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SyncPoint(pub(crate) u64);
