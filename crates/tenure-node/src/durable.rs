//! Mapping between a node's write batches and the items of its log. Used by real drivers and by the
//! simulator.
//!
//! ```text
//!   WriteBatch ──append──▶ WrittenBatches ──sync, or begin and finish──▶ Synced: the durable mark
//!   log, snapshots ──replay──▶ Recovery
//! ```
//!
//! A mark can be read only from [`Synced`], and only a sync creates one, so a driver cannot report
//! a batch too early. The exception is explicit: a node that is configured not to wait for its disk
//! uses [`WrittenBatches::trusted`].

mod replay;
mod suspects;

use std::collections::BTreeSet;

use tenure_core::codec::DecodeError;

use crate::{
    Base, Entry, GroupId, HardState, LogWrite, Mark, Membership, ReplicaId, Snapshot, WriteBatch,
};
use tenure_log::{
    Disk, FileLog, Limit, Log as _, LogError, SnapshotError, SnapshotId, Snapshots, SyncTicket,
    TooLong,
};

pub use replay::{ReplayError, replay};
pub use suspects::{SUSPECTS, note_suspects, suspects, suspects_value};

// A batch of a node is one record of the log, behind at most a megabyte that was gathered before it. It is longer than
// its limit by at most one entry and a hard state.
const _: () = assert!(
    crate::MAX_BATCH_BYTES + tenure_log::MAX_ENTRY + (2 << 20) <= tenure_log::MAX_BATCH_BYTES
);

/// Why a batch cannot be written. After a failure of the log or of a snapshot the node stops:
/// nothing is retried.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The log cannot be written or synced.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A snapshot cannot be saved.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// One item or batch is longer than the log accepts. Nothing of it was written and the log is
    /// intact. The batches of a node never cause this error.
    #[error(transparent)]
    TooLong(#[from] TooLong),
}

/// The batches that were written since the last sync began.
#[derive(Debug, Default)]
pub struct WrittenBatches {
    mark: Option<Mark>,
    has_notes: bool,
    retire: Vec<SnapshotId>,
    forget: BTreeSet<GroupId>,
}

impl WrittenBatches {
    /// Writes a batch, after the snapshots that it depends on. `items` is a reusable buffer.
    pub fn append<D: Disk>(
        &mut self,
        log: &mut FileLog<D>,
        snapshots: &Snapshots<D>,
        items: &mut tenure_log::Batch,
        batch: &WriteBatch,
    ) -> Result<(), WriteError> {
        self.gather(log, snapshots, items, batch)?;
        log.append(items)?;
        Ok(())
    }

    /// Adds a batch to `items`, which its caller appends to the log before it syncs: several
    /// batches may become one record. The snapshots that it depends on are written immediately.
    ///
    /// A batch is never divided: a crash leaves all of it or nothing. The node keeps its batches
    /// short enough for that ([`crate::MAX_BATCH_BYTES`]). If `items` has no room for it, the items
    /// gathered so far are appended first.
    pub fn gather<D: Disk>(
        &mut self,
        log: &mut FileLog<D>,
        snapshots: &Snapshots<D>,
        items: &mut tenure_log::Batch,
        batch: &WriteBatch,
    ) -> Result<(), WriteError> {
        for snapshot in &batch.snapshots {
            save(snapshots, snapshot)?;
        }
        let before = items.bytes();
        match put_all(items, &batch.records) {
            Err(error) if error.exceeds == Limit::Batch && before > 0 => {
                items.take_back(before);
                log.append(items)?;
                put_all(items, &batch.records)?;
            }
            put => put?,
        }
        for (group, record) in &batch.records {
            match record {
                LogWrite::Cut(base) | LogWrite::Installed(base) => {
                    self.retire.push(snapshot_id(*group, base.place.index));
                    // The replica was removed and added again before the sync: its new snapshot
                    // must stay.
                    self.forget.remove(group);
                }
                LogWrite::Removed => self.forget(*group),
                LogWrite::Born(_) | LogWrite::Entries(_) | LogWrite::HardState(_) => {}
            }
        }
        self.mark = Some(batch.mark);
        Ok(())
    }

    /// Adds a note about the node itself to `items`.
    pub fn note(
        &mut self,
        items: &mut tenure_log::Batch,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), WriteError> {
        items.node(key, value)?;
        self.has_notes = true;
        Ok(())
    }

    fn is_something(&self) -> bool {
        self.mark.is_some() || self.has_notes
    }

    /// Schedules the snapshots of a removed replica for deletion, once the removal is durable.
    fn forget(&mut self, group: GroupId) {
        self.forget.insert(group);
    }

    /// Makes the batches durable. Does nothing if none were written.
    pub fn sync<D: Disk>(self, log: &mut FileLog<D>) -> Result<Synced, WriteError> {
        if self.is_something() {
            log.sync()?;
        }
        Ok(Synced(self))
    }

    /// Starts a sync. Meanwhile further batches may be written to another [`WrittenBatches`].
    pub fn begin<D: Disk>(self, log: &mut FileLog<D>) -> Result<Syncing, WriteError> {
        let ticket = if self.is_something() {
            Some(log.begin_sync()?)
        } else {
            None
        };
        Ok(Syncing {
            ticket,
            written: self,
        })
    }

    /// Treats the batches as durable without a sync, because the operator configured that their
    /// loss is acceptable.
    pub fn trusted(self) -> Synced {
        Synced(self)
    }
}

/// A running sync.
#[derive(Debug)]
pub struct Syncing {
    ticket: Option<SyncTicket>,
    written: WrittenBatches,
}

impl Syncing {
    /// Waits until the sync ends.
    pub fn finish<D: Disk>(self, log: &mut FileLog<D>) -> Result<Synced, WriteError> {
        if let Some(ticket) = self.ticket {
            log.finish_sync(ticket)?;
        }
        Ok(Synced(self.written))
    }
}

/// The result of a sync.
#[derive(Debug)]
pub struct Synced(WrittenBatches);

impl Synced {
    /// Returns the durable mark, to be reported to the node.
    pub fn mark(&self) -> Option<Mark> {
        self.0.mark
    }

    /// Deletes the snapshots that the sync made obsolete. A failure only leaves a file behind.
    pub fn clean<D: Disk>(self, snapshots: &Snapshots<D>) -> Result<(), SnapshotError> {
        let mut cleaned = Ok(());
        for keep in self.0.retire {
            cleaned = snapshots.retire_before(keep).and(cleaned);
        }
        for group in self.0.forget {
            cleaned = snapshots.remove_group(u64::from(group.0)).and(cleaned);
        }
        cleaned
    }
}

/// Returns the groups that still need the oldest file of a log with more than `most` files.
/// Snapshots of these groups allow the log to delete the file.
pub fn held_back<D: Disk>(log: &FileLog<D>, most: usize) -> Vec<GroupId> {
    let usage = log.usage();
    if usage.files <= most {
        return Vec::new();
    }
    let groups = usage.held_back_by.into_iter();
    groups
        .filter_map(|id| u32::try_from(id).ok().map(GroupId))
        .collect()
}

/// Makes a snapshot durable beside the log.
pub fn save<D: Disk>(snapshots: &Snapshots<D>, snapshot: &Snapshot) -> Result<(), SnapshotError> {
    let mut file = snapshots.create(snapshot_id(snapshot.group, snapshot.index))?;
    file.write(&snapshot.data)?;
    file.commit()?;
    Ok(())
}

/// Writes the state of a group for a cluster that goes on from it with one voter: every number that
/// the state gives out is raised by `lift` ([`crate::lift`]). `index` is that of the last entry in
/// the state.
pub fn write_restored<D: Disk>(
    log: &mut FileLog<D>,
    snapshots: &Snapshots<D>,
    voter: ReplicaId,
    group: GroupId,
    index: u64,
    state: &[u8],
    lift: u64,
) -> Result<(), RestoreError> {
    let membership = Membership {
        voters: vec![voter],
        ..Membership::default()
    };
    // At least 1: a state without entries after it needs a snapshot, also that of a new group at index
    // 0.
    let index = index + 1;
    let data = crate::lift(state, lift)?;
    let snapshot = Snapshot { group, index, data };
    save(snapshots, &snapshot).map_err(WriteError::from)?;
    let hard_state = HardState {
        term: 1,
        commit: index,
        ..HardState::default()
    };
    let id = u64::from(group.0);
    let mut batch = tenure_log::Batch::new();
    batch
        .snapshot_installed(id, index, 1, &membership.to_bytes())
        .and_then(|()| batch.state(id, &hard_state.to_bytes()))
        .map_err(WriteError::from)?;
    log.append(&mut batch).map_err(WriteError::from)?;
    Ok(())
}

/// Why a group cannot be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The state cannot be read, or its numbers cannot be raised so far.
    #[error(transparent)]
    State(#[from] DecodeError),
    /// It cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

fn snapshot_id(group: GroupId, index: u64) -> SnapshotId {
    SnapshotId {
        group: u64::from(group.0),
        index,
    }
}

fn put_all(items: &mut tenure_log::Batch, records: &[(GroupId, LogWrite)]) -> Result<(), TooLong> {
    let mut records = records.iter();
    records.try_for_each(|(group, record)| put(items, *group, record))
}

/// One record of a node as items of its log.
fn put(items: &mut tenure_log::Batch, group: GroupId, record: &LogWrite) -> Result<(), TooLong> {
    let id = u64::from(group.0);
    let note = |base: &Base| {
        let (index, term) = (base.place.index, base.place.term);
        (index, term, base.membership.to_bytes())
    };
    match record {
        LogWrite::Born(base) => {
            let (index, term, note) = note(base);
            items.begin(id, index, term, &note)
        }
        LogWrite::Cut(base) => {
            let (index, term, note) = note(base);
            items.snapshot_taken(id, index, term, &note)
        }
        LogWrite::Installed(base) => {
            let (index, term, note) = note(base);
            items.snapshot_installed(id, index, term, &note)
        }
        LogWrite::Entries(entries) => {
            let mut entries = entries.iter();
            entries.try_for_each(|entry| put_entry(items, group, entry))
        }
        LogWrite::HardState(state) => items.state(id, &state.to_bytes()),
        LogWrite::Removed => items.remove(id),
    }
}

fn put_entry(items: &mut tenure_log::Batch, group: GroupId, entry: &Entry) -> Result<(), TooLong> {
    let (index, term) = (entry.place.index, entry.place.term);
    items.entry(u64::from(group.0), index, term, &entry.payload_bytes())
}
