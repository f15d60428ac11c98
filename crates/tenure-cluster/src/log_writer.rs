//! Group commit: the log thread writes all queued batches with one sync.
//!
//! Batches share a record until it exceeds 1 MiB. While a sync runs, batches queue up, and the next
//! sync covers them all: a slow disk makes batches larger, not the queue longer.
//!
//! Votes and acknowledgements wait here until the entries that they depend on are durable (only
//! written, with `SyncPolicy::No`); then the log thread sends them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tenure_log::{FileLog, Log as _, RealDisk, Snapshots, SpareDone};
use tenure_node::durable::{Synced, WriteError, WrittenBatches, held_back};
use tenure_node::{Channel, Input, Mark, NodeId, WriteBatch};
use tokio::sync::oneshot;

use crate::background::BackgroundJob;
use crate::commit_queue::CommitQueue;
use crate::driver::Runner;
use crate::job::Job;
use crate::metrics::LogGauges;
use crate::node_runner::Drive;
use crate::peers::{FrameWriter, OutboundMessage};

pub use tenure_node::durable::ReplayError;
pub(crate) use tenure_node::durable::{replay, save};

/// Number of log files in use from which groups are asked for snapshots that release the oldest
/// file.
const MOST_FILES: usize = 3;
/// Queued batches are combined into one record until it has this many bytes.
const RECORD_IS_FULL: usize = 1 << 20;
/// Interval between checks of the number of log files, in turns.
const LOOK_EVERY: u64 = 256;
/// Interval between updates of the log gauges, in turns.
const PUBLISH_EVERY: u64 = 16;

/// Idle time after which the log confirms its end, once. Damage to the last records is then noticed
/// even if the process never shuts down cleanly. Long enough that a lightly loaded node does not
/// pay for it after every batch.
const IDLE: Duration = Duration::from_secs(1);

/// A request to the log thread.
pub(crate) enum LogJob {
    /// Writes the batch. Sends the frames when the marks that they wait for are durable.
    Turn(Option<WriteBatch>, Vec<(Mark, HeldFrame)>),
    /// Writes a record about the node itself and reports when it is durable.
    Note(MetaRecord),
    /// The next log file is ready, or could not be created.
    Spare(SpareDone),
    /// The last job. (The background thread also has a sender, so the channel does not close by
    /// itself.)
    End,
}

/// A record about the node itself. See [`LogJob::Note`].
pub(crate) struct MetaRecord {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    pub(crate) done: Option<oneshot::Sender<()>>,
}

/// A frame that must not be sent before the log is durable up to a mark.
pub(crate) struct HeldFrame {
    pub(crate) to: NodeId,
    pub(crate) channel: Channel,
    pub(crate) frame_writer: FrameWriter,
    pub(crate) frame: Bytes,
}

impl HeldFrame {
    fn send(self, runner: &Runner) {
        let HeldFrame {
            to: node,
            channel,
            frame_writer,
            frame,
        } = self;
        if frame_writer.send(OutboundMessage::Frame(frame)).is_err() {
            runner.push(Job::Lost {
                node,
                channel,
                frame_writer,
            });
        }
    }
}

pub(crate) struct LogWriter {
    pub(crate) log: FileLog<RealDisk>,
    pub(crate) snapshots: Snapshots<RealDisk>,
    pub(crate) runner: Arc<Runner>,
    pub(crate) background: Sender<BackgroundJob>,
    /// Whether writes are synced at all (R152 (acknowledged means durable)).
    pub(crate) durable: SyncPolicy,
    pub(crate) commits: CommitQueue<Mark, HeldFrame>,
    /// Number of turns of this thread.
    pub(crate) turns: u64,
    /// Size and sync times of the log, for readers that must not block on this thread.
    pub(crate) gauges: Arc<LogGauges>,
    /// Directory of the log, for tests with a hung disk.
    #[cfg(test)]
    pub(crate) place: std::path::PathBuf,
    /// When to confirm the end of the log if nothing is written before. `None`: it is confirmed.
    pub(crate) confirm_at: Option<Instant>,
}

/// Whether answers wait until the log is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncPolicy {
    /// Answers wait for the sync.
    Yes,
    /// Answers do not wait: the operator accepts that a crash loses acknowledged locks.
    No,
}

impl LogWriter {
    /// Writes until the node ends or the disk fails. A failed write ends the node (R145 (Health
    /// needs a working quorum)) and is never retried.
    pub(crate) fn run(mut self, writes: &Receiver<LogJob>) {
        self.publish();
        if let Err(error) = self.serve(writes) {
            let why = error.to_string();
            tracing::error!(why, "cannot write the log: this node stops");
            self.runner.push(Job::Input(Input::WriteFailed { why }));
        }
    }

    fn serve(&mut self, writes: &Receiver<LogJob>) -> Result<(), WriteError> {
        let mut items = tenure_log::Batch::new();
        let mut notes = Vec::new();
        let mut next = None;
        loop {
            let first = match next.take() {
                Some(first) => first,
                None => match self.wait(writes)? {
                    Some(first) => first,
                    None => break,
                },
            };
            let before = self.log.appended();
            let mut written = WrittenBatches::default();
            let mut end = false;
            // Takes everything that is queued now: one record and one sync for all of it.
            for write in std::iter::once(first).chain(writes.try_iter()) {
                match write {
                    LogJob::Turn(batch, held) => {
                        self.commits.hold(held);
                        if let Some(batch) = batch {
                            self.make_room(&mut items)?;
                            written.gather(&mut self.log, &self.snapshots, &mut items, &batch)?;
                        } else {
                            // The mark may have been synced while these frames were on their way to
                            // this thread.
                            self.commits.release(|frame| frame.send(&self.runner));
                        }
                    }
                    LogJob::Note(note) => {
                        self.make_room(&mut items)?;
                        match written.note(&mut items, &note.key, &note.value) {
                            Ok(()) => notes.extend(note.done),
                            // The record was too long: nothing was written and the log is intact,
                            // so the node continues with the previous value. Dropping `done`
                            // reports the failure to the sender.
                            Err(WriteError::TooLong(error)) => {
                                let key = String::from_utf8_lossy(&note.key);
                                tracing::error!(%key, %error, "a record about this node was not written, because it is too long");
                            }
                            Err(error) => return Err(error),
                        }
                    }
                    LogJob::Spare(done) => self.log.spare_done(done),
                    LogJob::End => end = true,
                }
            }
            // Batches that need no sync are synced too and reported afterwards: no caller waits for
            // them, and marks stay simple. Everything that was queued is one record, one write and
            // one sync.
            self.log.append(&mut items)?;
            let synced = match self.durable {
                SyncPolicy::Yes => {
                    let begun = Instant::now();
                    #[cfg(test)]
                    crate::disk_stall::wait(&self.place);
                    let synced = written.sync(&mut self.log)?;
                    if synced.mark().is_some() {
                        self.gauges.syncs.record(begun.elapsed());
                    }
                    synced
                }
                SyncPolicy::No => written.trusted(),
            };
            for done in notes.drain(..) {
                // The receiver may have stopped waiting.
                let _ = done.send(());
            }
            let mark = synced.mark();
            if let Some(mark) = mark {
                // The node is woken only below.
                let runner = &self.runner;
                let notice = |mark| {
                    runner.submit([Job::Input(Input::Persisted { mark })], Drive::Later);
                };
                self.commits
                    .synced(mark, notice, |frame| frame.send(runner));
            }
            next = writes.try_recv().ok();
            if mark.is_some() {
                // If no job is queued, perhaps none comes before the node has stepped: step it on
                // this thread.
                let is_idle = next.is_none();
                self.runner
                    .drive(if is_idle { Drive::Inline } else { Drive::Wake });
            }
            self.clean(synced);
            if end {
                break;
            }
            if self.log.appended() != before && self.durable == SyncPolicy::Yes {
                self.confirm_at = Some(Instant::now() + IDLE);
            }
        }
        // Confirms the end: from now on, damage to the last records cannot be mistaken for a torn
        // write.
        self.log.confirm_end()?;
        Ok(())
    }

    /// Waits for the next job. Confirms the end of the log when it has been idle for a while.
    fn wait(&mut self, writes: &Receiver<LogJob>) -> Result<Option<LogJob>, WriteError> {
        while let Some(at) = self.confirm_at {
            // Only a write postpones the deadline, not other jobs: those may arrive every second.
            match writes.recv_timeout(at.saturating_duration_since(Instant::now())) {
                Ok(write) => return Ok(Some(write)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {
                    self.log.confirm_end()?;
                    self.confirm_at = None;
                }
            }
        }
        Ok(writes.recv().ok())
    }

    /// Housekeeping after a sync.
    fn clean(&mut self, synced: Synced) {
        if let Err(error) = synced.clean(&self.snapshots) {
            tracing::warn!(%error, "cannot remove an old snapshot; it is tried again");
        }
        if self.turns.is_multiple_of(PUBLISH_EVERY) {
            self.publish();
        }
        self.turns += 1;
        if self.turns.is_multiple_of(LOOK_EVERY) {
            // Asks the groups that keep the oldest file in use for a snapshot, so that the file can
            // be reused.
            for group in held_back(&self.log, MOST_FILES) {
                self.runner.push(Job::Input(Input::CutLog { group }));
            }
        }
        if let Some(job) = self.log.spare_wanted() {
            // Zero-filling the next file is slow, so the background thread does it.
            let _ = self.background.send(BackgroundJob::Spare(job));
        }
    }
}

impl LogWriter {
    /// Publishes the size of the log.
    fn publish(&self) {
        let usage = self.log.usage();
        self.gauges
            .files
            .store(usage.files as u64, Ordering::Relaxed);
        self.gauges.bytes.store(usage.bytes, Ordering::Relaxed);
    }

    /// Appends the gathered items before the record exceeds its size limit.
    fn make_room(&mut self, items: &mut tenure_log::Batch) -> Result<(), WriteError> {
        if items.bytes() > RECORD_IS_FULL {
            self.log.append(items)?;
        }
        Ok(())
    }
}
