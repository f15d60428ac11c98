//! What a node wants written, as items of its log, and back.
//!
//! The mapping is the one that drivers of real machines use; the disk underneath is simulated.

use bytes::Bytes;
use tenure_log::{FileLog, Log as _, OpenError, Options, SimDisk, SnapshotId, Snapshots, open};
use tenure_node::{Base, Batch, GroupId, Mark, Record, RecordKind, Recovery, Snapshot, encode_record};

/// Small, so that a run of minutes rotates, frees and reuses files.
const FILES: Options = Options { first_file: 16 << 10, file: 128 << 10, spares: 1 };

/// An open log with the snapshots beside it.
pub(crate) struct Journal {
    log: FileLog<SimDisk>,
    snapshots: Snapshots<SimDisk>,
    retire: Vec<SnapshotId>,
    forget: Vec<GroupId>,
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
            if let Some(base) = held.base {
                recovery
                    .record(group, RecordKind::Base, Bytes::from(base.note))
                    .map_err(|error| unusable(&error))?;
            }
            if !held.state.is_empty() {
                recovery
                    .record(group, RecordKind::HardState, Bytes::from(held.state))
                    .map_err(|error| unusable(&error))?;
            }
            for entry in held.entries {
                recovery
                    .record(group, RecordKind::Entries, Bytes::from(entry.payload))
                    .map_err(|error| unusable(&error))?;
            }
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
        };
        Ok((journal, recovery, blank))
    }

    /// Saves a snapshot beside the log; durable when this returns.
    pub(crate) fn save(&mut self, snapshot: &Snapshot) -> Result<(), String> {
        let id = snapshot_id(snapshot.group, snapshot.index);
        let mut file = self.snapshots.create(id).map_err(|error| error.to_string())?;
        file.write(&snapshot.data).map_err(|error| error.to_string())?;
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
            let installed = batch.snapshots.iter().any(|one| one.group == *group);
            put(&mut items, *group, record, installed).map_err(|error| error.to_string())?;
            match record {
                Record::Base(base) if base.place.index > Base::BIRTH.index => {
                    self.retire.push(snapshot_id(*group, base.place.index));
                    // Removed and back before the sync: the new snapshot must stay.
                    self.forget.retain(|gone| gone != group);
                }
                Record::Removed => self.forget.push(*group),
                Record::Base(_) | Record::Entries(_) | Record::HardState(_) => {}
            }
        }
        self.log.append(&mut items).map_err(|error| error.to_string())?;
        Ok(batch.mark)
    }

    pub(crate) fn begin_sync(&mut self) -> Result<tenure_log::SyncTicket, String> {
        self.log.begin_sync().map_err(|error| error.to_string())
    }

    /// Ends a sync, then tidies up what it made superfluous.
    pub(crate) fn finish_sync(&mut self, ticket: tenure_log::SyncTicket) -> Result<(), String> {
        self.log.finish_sync(ticket).map_err(|error| error.to_string())?;
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
        Ok(())
    }
}

/// Whether a disk held nothing at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blank {
    Yes,
    No,
}

fn snapshot_id(group: GroupId, index: u64) -> SnapshotId {
    SnapshotId { group: u64::from(group.0), index }
}

fn put(
    items: &mut tenure_log::Batch,
    group: GroupId,
    record: &Record,
    installed: bool,
) -> Result<(), tenure_log::TooLong> {
    let id = u64::from(group.0);
    match record {
        Record::Entries(entries) => {
            for entry in entries {
                let bytes = encode_record(&Record::Entries(vec![entry.clone()])).1;
                items.entry(id, entry.place.index, entry.place.term, &bytes)?;
            }
            Ok(())
        }
        Record::HardState(_) => items.state(id, &encode_record(record).1),
        Record::Base(base) => {
            let note = encode_record(record).1;
            let (index, term) = (base.place.index, base.place.term);
            if installed {
                items.snapshot_installed(id, index, term, &note)
            } else if base.place == Base::BIRTH {
                items.begin(id, index, term, &note)
            } else {
                items.snapshot_taken(id, index, term, &note)
            }
        }
        Record::Removed => items.remove(id),
    }
}
