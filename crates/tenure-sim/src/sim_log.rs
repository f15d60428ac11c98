//! The journal of a node in the simulator: the one of real machines, on a simulated disk.

use tenure_log::{FileLog, OpenError, Options, SimDisk, Snapshots, open};
use tenure_node::durable::{Syncing, WriteError, WrittenBatches, held_back, replay, save};
use tenure_node::{GroupId, Mark, Recovery, Snapshot, WriteBatch};

/// Small, so that a run of minutes rotates, frees and reuses files.
const FILES: Options = Options {
    first_file: 16 << 10,
    file: 128 << 10,
    spares: 1,
};

/// Log files in use before groups are asked to let the oldest go.
const MOST_FILES: usize = 2;

/// An open log with the snapshots beside it.
pub(crate) struct SimLog {
    log: FileLog<SimDisk>,
    snapshots: Snapshots<SimDisk>,
    written: WrittenBatches,
    syncs: u64,
}

/// Why a disk cannot be used.
pub(crate) enum Unusable {
    /// It fails, or is full: perhaps not for ever.
    Later(String),
    /// What was durable is damaged: the node must come back empty, in a new incarnation.
    Never(String),
}

/// Whether a disk held nothing at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EmptyDisk {
    Yes,
    No,
}

/// What a sync that ended has to say.
pub(crate) struct SyncEnd {
    /// The mark that is durable.
    pub(crate) mark: Option<Mark>,
    /// The groups that hold back the oldest file.
    pub(crate) held_back: Vec<GroupId>,
}

impl SimLog {
    /// Reads everything that is there.
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
        let recovery = replay(opened.recovered, &opened.snapshots)
            .map_err(|error| Unusable::Never(error.to_string()))?;
        let sim_log = SimLog {
            log: opened.log,
            snapshots: opened.snapshots,
            written: WrittenBatches::default(),
            syncs: 0,
        };
        Ok((sim_log, recovery, blank))
    }

    /// Saves a snapshot beside the log; durable when this returns.
    pub(crate) fn save(&mut self, snapshot: &Snapshot) -> Result<(), WriteError> {
        Ok(save(&self.snapshots, snapshot)?)
    }

    /// Writes a batch; it is durable when a sync that begins later has ended.
    pub(crate) fn append(&mut self, batch: &WriteBatch) -> Result<(), WriteError> {
        let mut items = tenure_log::Batch::new();
        self.written
            .append(&mut self.log, &self.snapshots, &mut items, batch)
    }

    pub(crate) fn begin_sync(&mut self) -> Result<Syncing, WriteError> {
        std::mem::take(&mut self.written).begin(&mut self.log)
    }

    /// Ends a sync, then tidies up what it made superfluous.
    pub(crate) fn finish_sync(&mut self, syncing: Syncing) -> Result<SyncEnd, WriteError> {
        let synced = syncing.finish(&mut self.log)?;
        let mark = synced.mark();
        // A file that stays is only a file.
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
