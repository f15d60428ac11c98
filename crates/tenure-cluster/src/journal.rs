//! The journal thread: what the node wants written goes to the log, one sync for all that waits.
//!
//! While a sync runs, the node keeps stepping and batches pile up; the next sync takes them all.
//! The slower the disk, the bigger the batch, never the longer the queue.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use tenure_journal::{Synced, Written, held_back};
use tenure_log::{FileLog, RealDisk, Snapshots, SpareDone};
use tenure_node::{Batch, GroupId, Input};

use crate::chores::Chore;
use crate::inbox::{Inbox, Job};

pub use tenure_journal::ReplayError;
pub(crate) use tenure_journal::{replay, save};

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
    /// The log's next file is ready, or could not be made.
    Spare(SpareDone),
    /// Nothing more comes. (The chores thread has a sender too, so the channel does not end by itself.)
    End,
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
}

/// Whether answers wait for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durable {
    /// They do.
    Yes,
    /// They do not, by the operator's word.
    No,
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
        let mut items = tenure_log::Batch::new();
        while let Ok(first) = writes.recv() {
            let mut written = Written::default();
            let mut end = false;
            for write in std::iter::once(first).chain(writes.try_iter()) {
                match write {
                    Write::Batch(batch) => written
                        .append(&mut self.log, &self.snapshots, &mut items, &batch)
                        .map_err(|error| error.to_string())?,
                    Write::Forget(group) => written.forget(group),
                    Write::Spare(done) => self.log.spare_done(done),
                    Write::End => end = true,
                }
            }
            // A batch that may wait is still reported only when it is durable; nothing waits for
            // it, so syncing it at once does no harm and keeps marks simple.
            let synced = match self.durable {
                Durable::Yes => written
                    .sync(&mut self.log)
                    .map_err(|error| error.to_string())?,
                Durable::No => written.trusted(),
            };
            if let Some(mark) = synced.mark() {
                self.inbox.push(Job::Input(Input::Persisted { mark }));
            }
            self.clean(synced);
            if end {
                break;
            }
        }
        Ok(())
    }

    /// What is only tidying.
    fn clean(&mut self, synced: Synced) {
        if let Err(error) = synced.clean(&self.snapshots) {
            tracing::warn!(%error, "a superfluous snapshot stays");
        }
        self.turns += 1;
        if self.turns.is_multiple_of(LOOK_EVERY) {
            // Whoever holds back the oldest file is asked for a snapshot, so that it can be reused.
            for group in held_back(&self.log, MOST_FILES) {
                self.inbox.push(Job::Input(Input::CutLog { group }));
            }
        }
        if let Some(job) = self.log.spare_wanted() {
            // Zero-filling the next file takes a while; the log does not wait for it.
            let _ = self.chores.send(Chore::Spare(job));
        }
    }
}
