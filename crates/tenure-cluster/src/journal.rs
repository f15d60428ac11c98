//! The journal thread: what the node wants written goes to the log, one sync for all that waits.
//!
//! While a sync runs, the node keeps stepping and batches pile up; the next sync takes them all.
//! The slower the disk, the bigger the batch, never the longer the queue.
//!
//! Votes and acknowledgements wait here for what they rest on, and leave from here.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Instant;

use bytes::Bytes;
use tenure_journal::{Synced, WriteError, Written, held_back};
use tenure_log::{FileLog, Log as _, RealDisk, Snapshots, SpareDone};
use tenure_node::{Batch, Input, Lane, Mark, NodeId, Status};
use tokio::sync::oneshot;

use crate::chores::Chore;
use crate::inbox::{Inbox, Job};
use crate::measure::{Histogram, Vitals};
use crate::peers::{Outlet, Parcel};
use crate::seat::Seat;

pub use tenure_journal::ReplayError;
pub(crate) use tenure_journal::{replay, save};

/// Log files in use before groups are asked to let the oldest go.
const MOST_FILES: usize = 3;
/// Batches that wait together become one record until it is this long.
const RECORD_IS_FULL: usize = 1 << 20;
/// How often that is looked at, in turns.
const LOOK_EVERY: u64 = 256;

/// What the journal is asked to do.
pub(crate) enum Write {
    /// Write this, and let go what rests on it, or on something before it, when that is durable.
    Turn(Option<Batch>, Vec<Held>),
    /// Something about the node itself; told when it is durable.
    Note(Note),
    /// The log's next file is ready, or could not be made.
    Spare(SpareDone),
    /// Complete a report and hand it over.
    Vitals(Status, oneshot::Sender<Vitals>),
    /// Nothing more comes. (The chores thread has a sender too, so the channel does not end by itself.)
    End,
}

/// See [`Write::Note`].
pub(crate) struct Note {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    pub(crate) done: Option<oneshot::Sender<()>>,
}

/// A frame that waits for the disk.
pub(crate) struct Held {
    pub(crate) after: Mark,
    pub(crate) to: NodeId,
    pub(crate) lane: Lane,
    pub(crate) outlet: Outlet,
    pub(crate) frame: Bytes,
}

pub(crate) struct Journal {
    pub(crate) log: FileLog<RealDisk>,
    pub(crate) snapshots: Snapshots<RealDisk>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) seat: Arc<Seat>,
    pub(crate) chores: Sender<Chore>,
    /// Whether batches wait for the disk at all (R152).
    pub(crate) durable: Durable,
    /// Frames that wait, in the order of what they wait for.
    pub(crate) held: VecDeque<Held>,
    /// Up to here everything is durable.
    pub(crate) synced: Mark,
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

impl Journal {
    /// Writes until the node is gone, or the disk fails: then the node is over (R145).
    pub(crate) fn run(mut self, writes: &Receiver<Write>) {
        if let Err(error) = self.serve(writes) {
            let why = error.to_string();
            tracing::error!(why, "the log failed: this node stops");
            self.inbox.push(Job::Input(Input::WriteFailed { why }));
        }
    }

    fn serve(&mut self, writes: &Receiver<Write>) -> Result<(), WriteError> {
        let mut items = tenure_log::Batch::new();
        let mut notes = Vec::new();
        let mut next = None;
        while let Some(first) = next.take().or_else(|| writes.recv().ok()) {
            let mut written = Written::default();
            let mut end = false;
            for write in std::iter::once(first).chain(writes.try_iter()) {
                match write {
                    Write::Turn(batch, held) => {
                        self.held.extend(held);
                        if let Some(batch) = batch {
                            self.make_room(&mut items)?;
                            written.gather(&self.snapshots, &mut items, &batch)?;
                        } else {
                            // It may have been synced while the frames were on their way here.
                            self.let_go();
                        }
                    }
                    Write::Note(note) => {
                        self.make_room(&mut items)?;
                        written.note(&mut items, &note.key, &note.value)?;
                        notes.extend(note.done);
                    }
                    Write::Spare(done) => self.log.spare_done(done),
                    Write::Vitals(status, reply) => self.report(status, reply),
                    Write::End => end = true,
                }
            }
            // A batch that may wait is still reported only when it is durable; nothing waits for
            // it, so syncing it at once does no harm and keeps marks simple.
            // All that came together is one record, one write and one sync.
            self.log.append(&mut items)?;
            let synced = match self.durable {
                Durable::Yes => {
                    let begun = Instant::now();
                    let synced = written.sync(&mut self.log)?;
                    if synced.mark().is_some() {
                        self.syncs.record(begun.elapsed());
                    }
                    synced
                }
                Durable::No => written.trusted(),
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
                (Some(_), None) => self.seat.stand_in(),
                (Some(_), Some(_)) => self.inbox.wake(),
            }
            self.clean(synced);
            if end {
                break;
            }
        }
        Ok(())
    }

    /// Sends the frames that waited for what is durable now.
    fn let_go(&mut self) {
        while let Some(held) = self.held.pop_front_if(|held| held.after <= self.synced) {
            let Held {
                to: node,
                lane,
                outlet,
                frame,
                ..
            } = held;
            if outlet.send(Parcel::Frame(frame)).is_err() {
                self.inbox.push(Job::Lost { node, lane, outlet });
            }
        }
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

impl Journal {
    fn report(&self, status: Status, reply: oneshot::Sender<Vitals>) {
        let usage = self.log.usage();
        // Whoever asked may have left.
        let _ = reply.send(Vitals {
            status,
            log_files: usage.files as u64,
            log_bytes: usage.bytes,
            syncs: self.syncs.read(),
        });
    }

    /// What has been gathered goes to the log before it could grow longer than a record may be.
    fn make_room(&mut self, items: &mut tenure_log::Batch) -> Result<(), WriteError> {
        if items.bytes() > RECORD_IS_FULL {
            self.log.append(items)?;
        }
        Ok(())
    }
}
