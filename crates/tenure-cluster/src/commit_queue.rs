//! Order of a group commit: frames that depend on a write leave after its sync, in order, and after
//! the node's queue contains the notice that the write is durable.
//!
//! The notice comes first because a frame can cause an answer at once: a candidate could otherwise
//! be elected by the answers before it knows that its own log is durable. The node's queue is
//! first-in, first-out, so a job that is enqueued after the notice is also stepped after it.
//!
//! Only the log thread uses this type; the channel to that thread orders the writes.

use std::collections::VecDeque;

/// Frames that wait for a sync.
pub(crate) struct CommitQueue<M, F> {
    /// In ascending order of the marks.
    held: VecDeque<(M, F)>,
    /// The log is durable up to this mark.
    synced: M,
}

impl<M: Copy + Ord, F> CommitQueue<M, F> {
    pub(crate) fn new(synced: M) -> CommitQueue<M, F> {
        CommitQueue {
            held: VecDeque::new(),
            synced,
        }
    }

    /// Adds frames. Each one must not leave before the log is durable up to its mark.
    pub(crate) fn hold(&mut self, frames: impl IntoIterator<Item = (M, F)>) {
        self.held.extend(frames);
    }

    /// The log is durable up to `mark`: enqueues the notice for the node, then sends the frames
    /// that have waited for it.
    pub(crate) fn synced(&mut self, mark: M, notice: impl FnOnce(M), send: impl FnMut(F)) {
        notice(mark);
        self.synced = mark;
        self.release(send);
    }

    /// Sends the frames that need no further sync.
    pub(crate) fn release(&mut self, mut send: impl FnMut(F)) {
        while let Some((_, frame)) = self.held.pop_front_if(|(after, _)| *after <= self.synced) {
            send(frame);
        }
    }
}
