//! The disk: the few things a log wants from one, so that a real and a simulated one can stand
//! under the same code.
//!
//! A disk is one flat directory. What the log assumes of it, and nothing more:
//!
//! - bytes written are there after a crash once a sync that began after the write has finished;
//!   before that, any part of them may be there, in any order;
//! - writing bytes next to durable ones leaves those alone;
//! - names made by create, rename and remove are there after a crash once the directory is synced;
//!   before that, some first part of them may be.

use std::fmt::Debug;
use std::io;

mod directory;
mod real;
mod sim;

pub use directory::create_directory;
pub use real::RealDisk;
pub use sim::{SimDisk, SimFile, SimLock};

/// One flat directory of files. Clones are handles to the same directory.
pub trait Disk: Clone + Debug + Send + 'static {
    /// An open file.
    type File: DiskFile;
    /// Keeps other processes out while it lives; the death of the process ends it too.
    type Lock: Debug + Send + Sync + 'static;

    /// Where this is, for messages to people.
    fn place(&self) -> String;

    /// Takes the directory for this process. `None`: another process has it.
    fn lock(&self) -> io::Result<Option<Self::Lock>>;

    /// The names of all files, in any order.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes an empty file; one of that name is emptied.
    fn create(&self, name: &str) -> io::Result<Self::File>;

    /// Opens a file for reading and writing.
    fn open(&self, name: &str) -> io::Result<Self::File>;

    /// Opens a file of an earlier process, after which reads show what the disk holds: bytes that
    /// only the cache has are made durable first, and a page that a failed sync left in the cache
    /// does not count.
    fn open_durable(&self, name: &str) -> io::Result<Self::File>;

    /// Gives a file a new name; a file that had it is gone.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes all names durable.
    fn sync_dir(&self) -> io::Result<()>;

    /// Identifies this run of the operating system: another one means that the machine was started
    /// again in between. `None`: the system does not say.
    fn boot(&self) -> Option<u128>;

    /// A number nobody outside can guess (simulated: one that follows from the seed).
    fn random(&self) -> u64;
}

/// A file on a [`Disk`].
///
/// Sync comes in two halves, so that a simulator can let time pass between them: a sync makes
/// durable what was written before it *began*. On a real disk all the work is in the second half.
pub trait DiskFile: Debug + Send + 'static {
    /// The length of the file.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills `bytes` from `offset` on. A file that ends earlier is an error.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bytes` at `offset`, growing the file if need be.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Begins to make durable what was written so far.
    fn begin_sync(&mut self) -> SyncPoint;

    /// Waits until what was written before `point` is durable.
    fn finish_sync(&mut self, point: SyncPoint) -> io::Result<()>;

    /// Both halves of a sync.
    fn sync(&mut self) -> io::Result<()> {
        let point = self.begin_sync();
        self.finish_sync(point)
    }
}

/// The moment a sync of a file began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SyncPoint(pub(crate) u64);
