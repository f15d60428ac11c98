//! What a node wants written, as items of its log, and back.
//!
//! The mapping is the one that drivers of real machines use; the disk underneath is simulated.

use bytes::Bytes;
use tenure_log::{FileLog, Log as _, OpenError, Options, SimDisk, SnapshotId, Snapshots, open};
use tenure_node::{Base, Batch, GroupId, Mark, Place, Record, Recovery, Remains, Snapshot};

/// Small, so that a run of minutes rotates, frees and reuses files.
const FILES: Options = Options {
    first_file: 16 << 10,
    file: 128 << 10,
    spares: 1,
};

/// An open log with the snapshots beside it.
pub(crate) struct Journal {
    log: FileLog<SimDisk>,
    snapshots: Snapshots<SimDisk>,
    retire: Vec<SnapshotId>,
    forget: Vec<GroupId>,
    syncs: u64,
}

/// Why a disk cannot be used.
pub(crate) enum Unusable {
    /// It fails, or is full: perhaps not for ever.
    Later(String),
    /// What was durable is damaged: the node must come back empty, in a new life.
    Never(String),
}

impl Journal {
    /// Reads everything that is there.
    pub(crate) fn open(disk: SimDisk) -> Result<(Journal, Recovery, Blank), Unusable> {
        let opened = open(disk, FILES).map_err(|error| match error {
            OpenError::Io { .. } | OpenError::Locked { .. } => Unusable::Later(error.to_string()),
            OpenError::Damaged { .. } | OpenError::Missing { .. } | OpenError::Version { .. } => {
                Unusable::Never(error.to_string())
            }
        })?;
        let mut recovery = Recovery::new();
        let mut blank = Blank::Yes;
        let unusable = |error: &dyn std::fmt::Display| Unusable::Never(error.to_string());
        for (id, held) in opened.recovered.groups {
            blank = Blank::No;
            let group = GroupId(u32::try_from(id).map_err(|error| unusable(&error))?);
            let base = held.base.map(|base| {
                let place = Place {
                    term: base.term,
                    index: base.index,
                };
                (place, Bytes::from(base.note))
            });
            let entries = held.entries.into_iter().map(|entry| {
                let place = Place {
                    term: entry.term,
                    index: entry.index,
                };
                (place, Bytes::from(entry.payload))
            });
            let remains = Remains {
                hard_state: Bytes::from(held.state),
                base,
                entries: entries.collect(),
            };
            recovery
                .group(group, remains)
                .map_err(|error| unusable(&error))?;
        }
        for (group, index) in recovery.snapshots() {
            let mut reader = opened
                .snapshots
                .open(snapshot_id(group, index))
                .map_err(|error| unusable(&error))?;
            let mut data = Vec::new();
            while let Some(chunk) = reader.next_chunk().map_err(|error| unusable(&error))? {
                data.extend_from_slice(chunk);
            }
            recovery.state(group, Bytes::from(data));
        }
        let journal = Journal {
            log: opened.log,
            snapshots: opened.snapshots,
            retire: Vec::new(),
            forget: Vec::new(),
            syncs: 0,
        };
        Ok((journal, recovery, blank))
    }

    /// Saves a snapshot beside the log; durable when this returns.
    pub(crate) fn save(&mut self, snapshot: &Snapshot) -> Result<(), String> {
        let id = snapshot_id(snapshot.group, snapshot.index);
        let mut file = self
            .snapshots
            .create(id)
            .map_err(|error| error.to_string())?;
        file.write(&snapshot.data)
            .map_err(|error| error.to_string())?;
        file.commit().map_err(|error| error.to_string())?;
        Ok(())
    }

    /// Writes a batch; it is durable when a sync that begins later has ended.
    pub(crate) fn append(&mut self, batch: &Batch) -> Result<Mark, String> {
        for snapshot in &batch.snapshots {
            self.save(snapshot)?;
        }
        let mut items = tenure_log::Batch::new();
        for (group, record) in &batch.records {
            put(&mut items, *group, record).map_err(|error| error.to_string())?;
            match record {
                Record::Cut(base) | Record::Installed(base) => {
                    self.retire.push(snapshot_id(*group, base.place.index));
                    // Removed and back before the sync: the new snapshot must stay.
                    self.forget.retain(|gone| gone != group);
                }
                Record::Removed => self.forget.push(*group),
                Record::Born(_) | Record::Entries(_) | Record::HardState(_) => {}
            }
        }
        self.log
            .append(&mut items)
            .map_err(|error| error.to_string())?;
        Ok(batch.mark)
    }

    pub(crate) fn begin_sync(&mut self) -> Result<tenure_log::SyncTicket, String> {
        self.log.begin_sync().map_err(|error| error.to_string())
    }

    /// Ends a sync, then tidies up what it made superfluous. Returns the groups that hold back the
    /// oldest file, when the log has grown to several.
    pub(crate) fn finish_sync(
        &mut self,
        ticket: tenure_log::SyncTicket,
    ) -> Result<Vec<GroupId>, String> {
        self.log
            .finish_sync(ticket)
            .map_err(|error| error.to_string())?;
        for id in std::mem::take(&mut self.retire) {
            // A file that stays is only a file.
            let _ = self.snapshots.retire_before(id);
        }
        for group in std::mem::take(&mut self.forget) {
            let _ = self.snapshots.remove_group(u64::from(group.0));
        }
        if let Some(job) = self.log.spare_wanted() {
            self.log.spare_done(job.run());
        }
        self.syncs += 1;
        if !self.syncs.is_multiple_of(16) {
            return Ok(Vec::new());
        }
        let usage = self.log.usage();
        let held_back = if usage.files > 2 {
            usage.held_back_by
        } else {
            Vec::new()
        };
        Ok(held_back
            .into_iter()
            .filter_map(|id| u32::try_from(id).ok().map(GroupId))
            .collect())
    }
}

/// Whether a disk held nothing at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blank {
    Yes,
    No,
}

fn snapshot_id(group: GroupId, index: u64) -> SnapshotId {
    SnapshotId {
        group: u64::from(group.0),
        index,
    }
}

fn put(
    items: &mut tenure_log::Batch,
    group: GroupId,
    record: &Record,
) -> Result<(), tenure_log::TooLong> {
    let id = u64::from(group.0);
    let note = |base: &Base| {
        (
            base.place.index,
            base.place.term,
            base.membership.to_bytes(),
        )
    };
    match record {
        Record::Born(base) => {
            let (index, term, note) = note(base);
            items.begin(id, index, term, &note)
        }
        Record::Cut(base) => {
            let (index, term, note) = note(base);
            items.snapshot_taken(id, index, term, &note)
        }
        Record::Installed(base) => {
            let (index, term, note) = note(base);
            items.snapshot_installed(id, index, term, &note)
        }
        Record::Entries(entries) => entries.iter().try_for_each(|entry| {
            items.entry(
                id,
                entry.place.index,
                entry.place.term,
                &entry.payload_bytes(),
            )
        }),
        Record::HardState(state) => items.state(id, &state.to_bytes()),
        Record::Removed => items.remove(id),
    }
}
