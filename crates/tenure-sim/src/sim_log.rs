//! Log of a simulated node: the real log (`tenure-log`) and the mapping of write batches to
//! it (`tenure_node::durable`) on a simulated disk.

use std::collections::BTreeMap;

use bytes::Bytes;
use tenure_log::{FileLog, OpenError, Options, SimDisk, Snapshots, TruncationKind, open};
use tenure_node::durable::{self, Syncing, WriteError, WrittenBatches, held_back, replay, save};
use tenure_node::{GroupId, Mark, Recovery, ReplicaId, Snapshot, WriteBatch};

/// Small files, so that a run of minutes rotates, frees and reuses them.
const FILES: Options = Options {
    first_file: 16 << 10,
    file: 128 << 10,
    spares: 1,
};

/// Number of log files above which groups are asked to truncate their log.
const MOST_FILES: usize = 2;

/// Writes the states of all groups to an empty disk, for a cluster that goes on from them with one
/// voter.
pub(crate) fn write_restored(
    disk: &SimDisk,
    voter: ReplicaId,
    states: &BTreeMap<GroupId, (u64, Bytes)>,
    lift: u64,
) -> Result<(), String> {
    let mut opened = open(disk.clone(), FILES).map_err(|error| error.to_string())?;
    for (group, (index, state)) in states {
        let log = &mut opened.log;
        durable::write_restored(log, &opened.snapshots, voter, *group, *index, state, lift)
            .map_err(|error| format!("{group} cannot be restored: {error}"))?;
    }
    opened.log.close().map_err(|error| error.to_string())
}

/// An open log with its snapshots.
pub(crate) struct SimLog {
    log: FileLog<SimDisk>,
    snapshots: Snapshots<SimDisk>,
    written: WrittenBatches,
    syncs: u64,
    /// What was cut off from its end when it was opened.
    pub(crate) cut: Option<TruncationKind>,
}

/// Why a disk cannot be used.
pub(crate) enum Unusable {
    /// The disk fails or is full. A restart may succeed.
    Later(String),
    /// Durable data is damaged. The node must return empty, in a new incarnation.
    Never(String),
}

/// Whether a disk held no group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EmptyDisk {
    Yes,
    No,
}

/// The result of a finished sync.
pub(crate) struct SyncEnd {
    /// The durable mark.
    pub(crate) mark: Option<Mark>,
    /// The groups whose entries keep the oldest file from being removed.
    pub(crate) held_back: Vec<GroupId>,
}

impl SimLog {
    /// Opens the log and reads its contents.
    pub(crate) fn open(disk: SimDisk) -> Result<(SimLog, Recovery, EmptyDisk), Unusable> {
        let opened = open(disk, FILES).map_err(|error| match error {
            OpenError::Io { .. } | OpenError::Locked { .. } => Unusable::Later(error.to_string()),
            OpenError::Damaged { .. }
            | OpenError::Missing { .. }
            | OpenError::NoLog { .. }
            | OpenError::Version { .. } => Unusable::Never(error.to_string()),
        })?;
        let blank = if opened.recovered.groups.is_empty() {
            EmptyDisk::Yes
        } else {
            EmptyDisk::No
        };
        let cut = opened.recovered.cut.as_ref().map(|cut| cut.kind);
        let recovery = replay(opened.recovered, &opened.snapshots)
            .map_err(|error| Unusable::Never(error.to_string()))?;
        let sim_log = SimLog {
            log: opened.log,
            snapshots: opened.snapshots,
            written: WrittenBatches::default(),
            syncs: 0,
            cut,
        };
        Ok((sim_log, recovery, blank))
    }

    /// Saves a snapshot beside the log. It is durable when this returns.
    pub(crate) fn save(&mut self, snapshot: &Snapshot) -> Result<(), WriteError> {
        Ok(save(&self.snapshots, snapshot)?)
    }

    /// Writes a batch. It is durable when a sync that starts later has ended.
    pub(crate) fn append(&mut self, batch: &WriteBatch) -> Result<(), WriteError> {
        let mut items = tenure_log::Batch::new();
        self.written
            .append(&mut self.log, &self.snapshots, &mut items, batch)
    }

    /// Confirms the end of the log, as an orderly end of the process does.
    pub(crate) fn confirm_end(&mut self) -> Result<(), WriteError> {
        Ok(self.log.confirm_end()?)
    }

    pub(crate) fn begin_sync(&mut self) -> Result<Syncing, WriteError> {
        std::mem::take(&mut self.written).begin(&mut self.log)
    }

    /// Ends a sync, then removes superseded snapshots and prepares a spare file.
    pub(crate) fn finish_sync(&mut self, syncing: Syncing) -> Result<SyncEnd, WriteError> {
        let synced = syncing.finish(&mut self.log)?;
        let mark = synced.mark();
        // A file that cannot be removed only wastes space.
        let _ = synced.clean(&self.snapshots);
        if let Some(job) = self.log.spare_wanted() {
            self.log.spare_done(job.run());
        }
        self.syncs += 1;
        let held_back = if self.syncs.is_multiple_of(16) {
            held_back(&self.log, MOST_FILES)
        } else {
            Vec::new()
        };
        Ok(SyncEnd { mark, held_back })
    }
}
