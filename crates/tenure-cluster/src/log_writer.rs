//! The log writer thread: what the node wants written goes to the log, one sync for all that waits.
//!
//! While a sync runs, the node keeps stepping and batches pile up; the next sync takes them all.
//! The slower the disk, the bigger the batch, never the longer the queue.
//!
//! Votes and acknowledgements wait here for what they rest on, and leave from here.

use std::collections::VecDeque;
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
use crate::inbox::{Inbox, Job};
use crate::metrics::LogGauges;
use crate::node_runner::NodeRunner;
use crate::peers::{FrameWriter, OutboundMessage};

pub use tenure_node::durable::ReplayError;
pub(crate) use tenure_node::durable::{replay, save};

/// Log files in use before groups are asked to let the oldest go.
const MOST_FILES: usize = 3;
/// Batches that wait together become one record until it is this long.
const RECORD_IS_FULL: usize = 1 << 20;
/// How often that is looked at, in turns.
const LOOK_EVERY: u64 = 256;
/// How often others are told how large the log is, in turns.
const PUBLISH_EVERY: u64 = 16;

/// A log that has had nothing to write for so long confirms its end, once: so that damage to its last
/// records is noticed also if the process never ends in order. Long enough that a node with a little to
/// do does not pay for it with every batch.
const IDLE: Duration = Duration::from_secs(1);

/// What the log writer is asked to do.
pub(crate) enum LogJob {
    /// Write this, and let go what rests on it, or on something before it, when that is durable.
    Turn(Option<WriteBatch>, Vec<HeldFrame>),
    /// Something about the node itself; told when it is durable.
    Note(MetaRecord),
    /// The log's next file is ready, or could not be made.
    Spare(SpareDone),
    /// Nothing more comes. (The background thread has a sender too, so the channel does not end by itself.)
    End,
}

/// See [`LogJob::Note`].
pub(crate) struct MetaRecord {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    pub(crate) done: Option<oneshot::Sender<()>>,
}

/// A frame that waits for the disk.
pub(crate) struct HeldFrame {
    pub(crate) after: Mark,
    pub(crate) to: NodeId,
    pub(crate) channel: Channel,
    pub(crate) frame_writer: FrameWriter,
    pub(crate) frame: Bytes,
}

pub(crate) struct LogWriter {
    pub(crate) log: FileLog<RealDisk>,
    pub(crate) snapshots: Snapshots<RealDisk>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) runner: Arc<NodeRunner>,
    pub(crate) background: Sender<BackgroundJob>,
    /// Whether batches wait for the disk at all (R152).
    pub(crate) durable: SyncPolicy,
    /// Frames that wait, in the order of what they wait for.
    pub(crate) held: VecDeque<HeldFrame>,
    /// Up to here everything is durable.
    pub(crate) synced: Mark,
    /// How often it has written.
    pub(crate) turns: u64,
    /// What others may know about the log.
    pub(crate) gauges: Arc<LogGauges>,
    /// Where the log is, for tests in which its disk hangs.
    #[cfg(test)]
    pub(crate) place: std::path::PathBuf,
    /// When the end of the log is confirmed, unless something is written before. None: it is.
    pub(crate) confirm_at: Option<Instant>,
}

/// Whether answers wait for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncPolicy {
    /// They do.
    Yes,
    /// They do not, by the operator's word.
    No,
}

impl LogWriter {
    /// Writes until the node is gone, or the disk fails: then the node is over (R145).
    pub(crate) fn run(mut self, writes: &Receiver<LogJob>) {
        self.publish();
        if let Err(error) = self.serve(writes) {
            let why = error.to_string();
            tracing::error!(why, "the log failed: this node stops");
            self.inbox.push(Job::Input(Input::WriteFailed { why }));
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
            for write in std::iter::once(first).chain(writes.try_iter()) {
                match write {
                    LogJob::Turn(batch, held) => {
                        self.held.extend(held);
                        if let Some(batch) = batch {
                            self.make_room(&mut items)?;
                            written.gather(&mut self.log, &self.snapshots, &mut items, &batch)?;
                        } else {
                            // It may have been synced while the frames were on their way here.
                            self.let_go();
                        }
                    }
                    LogJob::Note(note) => {
                        self.make_room(&mut items)?;
                        match written.note(&mut items, &note.key, &note.value) {
                            Ok(()) => notes.extend(note.done),
                            // Nothing was written and the log is sound, so the node goes on with the
                            // note it had. `done` is dropped: its sender learns that it failed.
                            Err(WriteError::TooLong(error)) => {
                                let key = String::from_utf8_lossy(&note.key);
                                tracing::error!(%key, %error, "a note of this node is not written");
                            }
                            Err(error) => return Err(error),
                        }
                    }
                    LogJob::Spare(done) => self.log.spare_done(done),
                    LogJob::End => end = true,
                }
            }
            // A batch that may wait is still reported only when it is durable; nothing waits for
            // it, so syncing it at once does no harm and keeps marks simple.
            // All that came together is one record, one write and one sync.
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
                // Whoever does not wait any more does not mind.
                let _ = done.send(());
            }
            let mark = synced.mark();
            if let Some(mark) = mark {
                // The node hears of the sync before anybody can answer to what rested on it: a
                // candidate that is elected must know that its log is durable. It wakes afterwards.
                self.inbox.leave(Job::Input(Input::Persisted { mark }));
                self.synced = mark;
                self.let_go();
            }
            next = writes.try_recv().ok();
            match (mark, &next) {
                (None, _) => {}
                // There is nothing to write, perhaps until the node has had its turn.
                (Some(_), None) => self.runner.try_step_inline(),
                (Some(_), Some(_)) => self.inbox.wake(),
            }
            self.clean(synced);
            if end {
                break;
            }
            if self.log.appended() != before && self.durable == SyncPolicy::Yes {
                self.confirm_at = Some(Instant::now() + IDLE);
            }
        }
        // Nothing comes behind it: later damage to the last records cannot pass for a torn write.
        self.log.confirm_end()?;
        Ok(())
    }

    /// Waits for something to write, and confirms the end of the log if nothing comes for a while.
    fn wait(&mut self, writes: &Receiver<LogJob>) -> Result<Option<LogJob>, WriteError> {
        while let Some(at) = self.confirm_at {
            // What is not written does not put it off: a report may be asked for every second.
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

    /// Sends the frames that waited for what is durable now.
    fn let_go(&mut self) {
        while let Some(held) = self.held.pop_front_if(|held| held.after <= self.synced) {
            let HeldFrame {
                to: node,
                channel,
                frame_writer,
                frame,
                ..
            } = held;
            if frame_writer.send(OutboundMessage::Frame(frame)).is_err() {
                self.inbox.push(Job::Lost {
                    node,
                    channel,
                    frame_writer,
                });
            }
        }
    }

    /// What is only tidying.
    fn clean(&mut self, synced: Synced) {
        if let Err(error) = synced.clean(&self.snapshots) {
            tracing::warn!(%error, "a superfluous snapshot stays");
        }
        if self.turns.is_multiple_of(PUBLISH_EVERY) {
            self.publish();
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
            let _ = self.background.send(BackgroundJob::Spare(job));
        }
    }
}

impl LogWriter {
    /// Tells others how large the log is.
    fn publish(&self) {
        let usage = self.log.usage();
        self.gauges
            .files
            .store(usage.files as u64, Ordering::Relaxed);
        self.gauges.bytes.store(usage.bytes, Ordering::Relaxed);
    }

    /// What has been gathered goes to the log before it could grow longer than a record may be.
    fn make_room(&mut self, items: &mut tenure_log::Batch) -> Result<(), WriteError> {
        if items.bytes() > RECORD_IS_FULL {
            self.log.append(items)?;
        }
        Ok(())
    }
}
