//! The one durable log of a node, and the snapshots beside it.
//!
//! A node has many groups and one log. What all groups want to have written becomes one [`Batch`],
//! one write and at most one `fdatasync`; after a crash the batch is there or it is not, and no
//! later one is there without it. The log is read only at start: [`open`] returns what it held.
//!
//! ```text
//!   groups ──▶ Batch ──append──▶ FileLog ──▶ log-7 ──▶ sync ──▶ Mark: durable up to here
//!                                   ├── rotate: checkpoint into the next file, free the oldest
//!                                   └── Usage: who holds back the oldest file? they snapshot
//!   state of a group ──▶ SnapshotWriter ──commit──▶ snapshot-3-4711 ──▶ Batch::snapshot_taken
//! ```
//!
//! The loop of a driver, on a thread of its own:
//!
//! ```
//! use tenure_log::{Batch, Log, Options, RealDisk, SnapshotId, open};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("data");
//! let opened = open(RealDisk::open(&path)?, Options::default())?;
//! let (mut log, snapshots) = (opened.log, opened.snapshots);
//! for (group, held) in &opened.recovered.groups {
//!     // Start the group from its hard state, its snapshot and the entries behind that.
//! #   let _ = (group, held);
//! }
//!
//! let mut batch = Batch::new();
//! // 1. Everything that came together while the last sync ran becomes one batch.
//! batch.state(7, b"term 1, vote 2")?;
//! batch.entry(7, 1, 1, b"a command")?;
//! batch.entry(9, 1, 1, b"a command of another group")?;
//! let mark = log.append(&mut batch)?;
//! // 2. One sync for all of them. A batch with nothing but a commit index needs none.
//! assert_eq!(log.sync()?, mark);
//! // 3. Only now: tell the groups what is durable, send their votes and append replies.
//! // 4. Make the next file ahead of need, on another thread.
//! if let Some(job) = log.spare_wanted() {
//!     log.spare_done(job.run());
//! }
//! // 5. Ask groups that hold back the oldest file for a snapshot.
//! for group in log.usage().held_back_by {
//!     let mut snapshot = snapshots.create(SnapshotId { group, index: 1 })?;
//!     snapshot.write(b"the state of the group")?;
//!     let id = snapshot.commit()?;
//!     batch.snapshot_taken(group, id.index, 1, b"members at that point")?;
//!     // …append, sync, and when the mark is durable:
//!     snapshots.retire_before(id)?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! What it promises: everything up to the durable mark survives any crash; a crash never leaves
//! half a batch; damage to what was durable is refused at start, not guessed around; after a
//! failed write or sync the log is [`Poisoned`](LogError::Poisoned) and the node must end.
//!
//! What is deliberately absent: Raft (a group is a number, a payload is bytes), threads, clocks,
//! and reading while running. docs/formats/log.md draws the files and argues every crash.

mod batch;
mod disk;
mod end_marker;
mod error;
mod file_names;
mod index;
mod log;
mod open;
mod reader;
mod record;
mod recover;
mod snapshot;
mod spare;

pub use batch::{
    Batch, GroupId, Limit, MAX_BATCH_BYTES, MAX_ENTRY, MAX_KEY, MAX_NOTE, MAX_STATE, MAX_VALUE,
    TooLong,
};
pub use disk::{Disk, DiskFile, RealDisk, SimDisk, SimFile, SimLock, SyncPoint, create_directory};
pub use error::{LogError, OpenError};
pub use index::{LogBase, LogBaseKind, Misuse};
pub use log::{BatchNumber, DiskUsage, FileLog, Log, Options, SyncTicket};
pub use open::{Opened, open};
pub use recover::{Recovered, RecoveredEntry, RecoveredGroup, Truncation, TruncationKind};
pub use snapshot::{SnapshotError, SnapshotId, SnapshotReader, SnapshotWriter, Snapshots};
pub use spare::{SpareDone, SpareJob};
