//! The journal thread: what the node wants written goes to the log, one sync for all that waits.
//!
//! While a sync runs, the node keeps stepping and batches pile up; the next sync takes them all.
//! The slower the disk, the bigger the batch, never the longer the queue.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

use bytes::Bytes;
use tenure_log::{
    FileLog, Log, RealDisk, Recovered, SnapshotError, SnapshotId, Snapshots, SpareDone,
};
use tenure_node::{
    Batch, GroupId, Input, Mark, Place, Record, Recovery, RecoveryError, Remains, Snapshot, Status,
    Sync,
};
use tokio::sync::oneshot;

use crate::chores::Chore;
use crate::inbox::{Inbox, Job};
use crate::measure::{Histogram, Report};

/// Log files in use before groups are asked to let the oldest go.
const MOST_FILES: usize = 3;
/// How often that is looked at, in turns.
const LOOK_EVERY: u64 = 256;

/// What the journal is asked to do.
pub(crate) enum Write {
    /// Write this.
    Batch(Batch),
    /// A replica is gone: its snapshots too, once that is durable.
    Forget(GroupId),
    /// Something about the node itself; told when it is durable.
    Note(Note),
    /// The log's next file is ready, or could not be made.
    Spare(SpareDone),
    /// Complete a report and hand it over.
    Report(Status, oneshot::Sender<Report>),
    /// Nothing more comes. (The chores thread has a sender too, so the channel does not end by itself.)
    End,
}

/// See [`Write::Note`].
pub(crate) struct Note {
    pub(crate) key: &'static [u8],
    pub(crate) value: Vec<u8>,
    pub(crate) done: Option<oneshot::Sender<()>>,
}

pub(crate) struct Journal {
    pub(crate) log: FileLog<RealDisk>,
    pub(crate) snapshots: Snapshots<RealDisk>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) chores: Sender<Chore>,
    /// Whether batches wait for the disk at all (R152).
    pub(crate) durable: Durable,
    /// How often it has written.
    pub(crate) turns: u64,
    /// How long its syncs took.
    pub(crate) syncs: Histogram,
}

/// Whether answers wait for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durable {
    /// They do.
    Yes,
    /// They do not, by the operator's word.
    No,
}

/// What must happen once the next sync is over.
#[derive(Default)]
struct Later {
    mark: Option<Mark>,
    notes: Vec<oneshot::Sender<()>>,
    has_notes: bool,
    retire: Vec<SnapshotId>,
    forget: BTreeSet<GroupId>,
}

impl Journal {
    /// Writes until the node is gone, or the disk fails: then the node is over (R145).
    pub(crate) fn run(mut self, writes: &Receiver<Write>) {
        if let Err(why) = self.serve(writes) {
            tracing::error!(why, "the log failed: this node stops");
            self.inbox.push(Job::Input(Input::WriteFailed { why }));
        }
    }

    fn serve(&mut self, writes: &Receiver<Write>) -> Result<(), String> {
        let mut batch = tenure_log::Batch::new();
        while let Ok(first) = writes.recv() {
            let mut later = Later::default();
            let mut sync = Sync::Lazy;
            let mut end = false;
            for write in std::iter::once(first).chain(writes.try_iter()) {
                match write {
                    Write::Batch(wanted) => {
                        if wanted.sync == Sync::Now {
                            sync = Sync::Now;
                        }
                        self.gather(&mut batch, wanted, &mut later)?;
                    }
                    Write::Forget(group) => {
                        later.forget.insert(group);
                    }
                    Write::Note(note) => {
                        batch
                            .node(note.key, &note.value)
                            .map_err(|error| error.to_string())?;
                        self.log
                            .append(&mut batch)
                            .map_err(|error| error.to_string())?;
                        later.has_notes = true;
                        later.notes.extend(note.done);
                    }
                    Write::Spare(done) => self.log.spare_done(done),
                    Write::Report(status, reply) => self.report(status, reply),
                    Write::End => end = true,
                }
            }
            // All that came together is one record, one write and one sync.
            self.log
                .append(&mut batch)
                .map_err(|error| error.to_string())?;
            // A batch that may wait is still reported only when it is durable; nothing waits for
            // it, so syncing it at once does no harm and keeps marks simple.
            let marked = sync == Sync::Now || later.mark.is_some() || later.has_notes;
            if self.durable == Durable::Yes && marked {
                let begun = Instant::now();
                self.log.sync().map_err(|error| error.to_string())?;
                self.syncs.record(begun.elapsed());
            }
            for done in later.notes.drain(..) {
                // Whoever does not wait any more does not mind.
                let _ = done.send(());
            }
            if let Some(mark) = later.mark {
                self.inbox.push(Job::Input(Input::Persisted { mark }));
            }
            self.clean(later);
            if end {
                break;
            }
        }
        Ok(())
    }

    fn gather(
        &mut self,
        batch: &mut tenure_log::Batch,
        wanted: Batch,
        later: &mut Later,
    ) -> Result<(), String> {
        for snapshot in &wanted.snapshots {
            save(&self.snapshots, snapshot).map_err(|error| error.to_string())?;
        }
        for (group, record) in &wanted.records {
            put(batch, *group, record).map_err(|error| error.to_string())?;
            if let Record::Cut(base) | Record::Installed(base) = record {
                later.retire.push(snapshot_id(*group, base.place.index));
                // A group that went and came back in one turn keeps its new snapshot.
                later.forget.remove(group);
            }
        }
        later.mark = Some(wanted.mark);
        Ok(())
    }

    /// What is only tidying: a failure here leaves a file behind, no more.
    fn clean(&mut self, later: Later) {
        for keep in later.retire {
            if let Err(error) = self.snapshots.retire_before(keep) {
                tracing::warn!(%error, "an old snapshot stays");
            }
        }
        for group in later.forget {
            if let Err(error) = self.snapshots.remove_group(u64::from(group.0)) {
                tracing::warn!(%error, "a removed group's snapshot stays");
            }
        }
        self.turns += 1;
        if self.turns.is_multiple_of(LOOK_EVERY) {
            self.free();
        }
        if let Some(job) = self.log.spare_wanted() {
            // Zero-filling the next file takes a while; the log does not wait for it.
            let _ = self.chores.send(Chore::Spare(job));
        }
    }
}

impl Journal {
    fn report(&self, status: Status, reply: oneshot::Sender<Report>) {
        let usage = self.log.usage();
        // Whoever asked may have left.
        let _ = reply.send(Report {
            status,
            log_files: usage.files as u64,
            log_bytes: usage.bytes,
            syncs: self.syncs.read(),
        });
    }

    /// Asks the groups that hold back the oldest file for a snapshot, so that it can be reused.
    fn free(&mut self) {
        let usage = self.log.usage();
        if usage.files <= MOST_FILES {
            return;
        }
        for group in usage.held_back_by {
            let Ok(number) = u32::try_from(group) else {
                continue;
            };
            self.inbox.push(Job::Input(Input::CutLog {
                group: GroupId(number),
            }));
        }
    }
}

fn snapshot_id(group: GroupId, index: u64) -> SnapshotId {
    SnapshotId {
        group: u64::from(group.0),
        index,
    }
}

/// Makes a snapshot durable beside the log.
pub(crate) fn save(
    snapshots: &Snapshots<RealDisk>,
    snapshot: &Snapshot,
) -> Result<(), SnapshotError> {
    let mut file = snapshots.create(snapshot_id(snapshot.group, snapshot.index))?;
    file.write(&snapshot.data)?;
    file.commit()?;
    Ok(())
}

/// One record of the node as items of the log.
fn put(
    batch: &mut tenure_log::Batch,
    group: GroupId,
    record: &Record,
) -> Result<(), tenure_log::TooLong> {
    let id = u64::from(group.0);
    match record {
        Record::Entries(entries) => {
            for entry in entries {
                let Place { index, term } = entry.place;
                batch.entry(id, index, term, &entry.payload_bytes())?;
            }
            Ok(())
        }
        Record::HardState(state) => batch.state(id, &state.to_bytes()),
        Record::Born(base) => batch.begin(
            id,
            base.place.index,
            base.place.term,
            &base.membership.to_bytes(),
        ),
        Record::Cut(base) => batch.snapshot_taken(
            id,
            base.place.index,
            base.place.term,
            &base.membership.to_bytes(),
        ),
        Record::Installed(base) => {
            let note = base.membership.to_bytes();
            batch.snapshot_installed(id, base.place.index, base.place.term, &note)
        }
        Record::Removed => batch.remove(id),
    }
}

/// Why what the disk holds cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The log's records do not make sense to the node.
    #[error("the log cannot be understood")]
    Records(#[from] RecoveryError),
    /// A snapshot cannot be read.
    #[error("a snapshot cannot be read")]
    Snapshot(#[from] SnapshotError),
    /// The log names a group that cannot be.
    #[error("the log holds group {0}, which cannot be")]
    Group(u64),
}

/// Gives what the log held to the node.
pub(crate) fn replay(
    recovered: Recovered,
    snapshots: &Snapshots<RealDisk>,
) -> Result<Recovery, ReplayError> {
    let mut recovery = Recovery::new();
    for (id, held) in recovered.groups {
        let group = GroupId(u32::try_from(id).map_err(|_| ReplayError::Group(id))?);
        let place = |index, term| Place { index, term };
        let remains = Remains {
            hard_state: Bytes::from(held.state),
            base: held
                .base
                .map(|base| (place(base.index, base.term), Bytes::from(base.note))),
            entries: held
                .entries
                .into_iter()
                .map(|entry| (place(entry.index, entry.term), Bytes::from(entry.payload)))
                .collect(),
        };
        recovery.group(group, remains)?;
    }
    for (group, index) in recovery.snapshots() {
        let mut reader = snapshots.open(snapshot_id(group, index))?;
        let mut data = Vec::new();
        while let Some(chunk) = reader.next_chunk()? {
            data.extend_from_slice(chunk);
        }
        recovery.state(group, Bytes::from(data));
    }
    Ok(recovery)
}
