//! Write-ahead log of a node, shared by all its Raft groups, and the snapshots beside it.
//!
//! All writes of all groups become one [`Batch`], one write and at most one `fdatasync`. A batch is
//! atomic: after a crash it is complete or absent, and no later batch survives without it. The log
//! is read only at start: [`open`] returns its content.
//!
//! ```text
//!   groups ──▶ Batch ──append──▶ FileLog ──▶ log-7 ──▶ sync ──▶ BatchNumber: durable up to here
//!                                   ├── rotate: checkpoint into the next file, free the oldest
//!                                   └── DiskUsage: groups that hold back the oldest file snapshot
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
//! # Guarantees
//!
//! - Everything up to the durable mark survives any crash.
//! - A crash never leaves a part of a batch.
//! - [`open`] refuses durable bytes that are damaged; it never repairs them. Only the last batch of
//!   an end that was not confirmed may be cut off instead, which is reported ([`Truncation`]).
//! - After a failed write or sync the log is [`Poisoned`](LogError::Poisoned) and the node must
//!   end.
//!
//! Deliberately absent: Raft (a group is a number, a payload is bytes), threads, clocks, and reads
//! while running. `docs/formats/log.md` describes the files and argues every crash case.

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
pub use disk::{
    Disk, DiskFile, RealDisk, SilentFault, SimDisk, SimFile, SimLock, SyncPoint, create_directory,
};
pub use error::{LogError, OpenError};
pub use index::{LogBase, LogBaseKind, Misuse};
pub use log::{BatchNumber, DiskUsage, FileLog, Log, Options, SyncTicket};
pub use open::{Opened, open};
pub use recover::{Recovered, RecoveredEntry, RecoveredGroup, Truncation, TruncationKind};
pub use snapshot::{SnapshotError, SnapshotId, SnapshotReader, SnapshotWriter, Snapshots};
pub use spare::{SpareDone, SpareJob};
