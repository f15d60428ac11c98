//! Bounded streams of subscriptions and watches: they end with a reason and never skip an item
//! (R119 (Subscribe delivers from now on), R123 (slow subscribers are closed), E8 (Watch lock
//! changes)).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use tenure_core::event::Event;
use tenure_node::{Failure, Input, StreamId, WatchEvent};
use tokio::sync::mpsc;

use crate::call_batch::CompletionQueue;
use crate::driver::Runner;
use crate::job::Job;

/// Reason why a stream ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// The reader was too slow and has lost items (R123).
    Overflow,
    /// The node cannot continue the stream.
    Failed(Failure),
    /// The node has stopped.
    Stopped,
}

/// Items of a subscription or a watch.
pub struct EventStream<T> {
    id: StreamId,
    items: mpsc::Receiver<T>,
    end: Arc<OnceLock<StreamEnd>>,
    runner: Arc<Runner>,
}

impl<T> EventStream<T> {
    /// Returns the next item, or the reason why the stream ended.
    pub async fn next(&mut self) -> Result<T, StreamEnd> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Polls for the next item. See [`EventStream::next`].
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, StreamEnd>> {
        let ended = || self.end.get().cloned().unwrap_or(StreamEnd::Stopped);
        let item = self.items.poll_recv(cx);
        item.map(|item| item.ok_or_else(ended))
    }

    /// Returns the next item if one is buffered.
    pub fn try_next(&mut self) -> Option<T> {
        self.items.try_recv().ok()
    }
}

impl EventStream<WatchEvent> {
    /// Tells the node that the reader has taken a [`WatchEvent::Present`]. Without it the node sends
    /// no more than some pages of a snapshot.
    pub fn present_taken(&self) {
        let taken = Input::WatchRead { id: self.id };
        self.runner.push(Job::Input(taken));
    }
}

impl<T> Drop for EventStream<T> {
    fn drop(&mut self) {
        self.runner.push(Job::Unlisten { id: self.id });
    }
}

/// The node's side of a stream.
pub(crate) enum StreamSender {
    Events(mpsc::Sender<Event>, Arc<OnceLock<StreamEnd>>),
    /// Events that go to the completion queue of a call batch.
    Heard(Arc<CompletionQueue>),
    Changes(mpsc::Sender<WatchEvent>, Arc<OnceLock<StreamEnd>>),
}

impl StreamSender {
    /// Delivers an event and adds the waker of the task that waits to `wakers`. Fails if the stream
    /// must be closed.
    pub(crate) fn event(&self, event: Event, wakers: &mut Vec<Waker>) -> Result<(), StreamFull> {
        match self {
            StreamSender::Events(sender, end) => {
                let passed = pass(sender, event, end);
                if passed { Ok(()) } else { Err(StreamFull) }
            }
            StreamSender::Heard(completion_queue) => {
                wakers.extend(completion_queue.event(event));
                Ok(())
            }
            StreamSender::Changes(..) => Ok(()),
        }
    }

    /// Delivers a change. Returns whether the stream can continue.
    pub(crate) fn change(&self, change: WatchEvent) -> bool {
        match self {
            StreamSender::Changes(sender, end) => pass(sender, change, end),
            StreamSender::Events(..) | StreamSender::Heard(_) => true,
        }
    }

    /// Sets the reason of the end. Dropping the sender afterwards ends the stream.
    pub(crate) fn end(&self, why: StreamEnd) {
        match self {
            StreamSender::Heard(completion_queue) => completion_queue.end(why),
            StreamSender::Events(_, end) | StreamSender::Changes(_, end) => {
                let _ = end.set(why);
            }
        }
    }
}

/// The reader is too slow or gone: the stream is closed.
pub(crate) struct StreamFull;

fn pass<T>(sender: &mpsc::Sender<T>, item: T, end: &OnceLock<StreamEnd>) -> bool {
    let sent = sender.try_send(item);
    if matches!(sent, Err(mpsc::error::TrySendError::Full(_))) {
        let _ = end.set(StreamEnd::Overflow);
    }
    sent.is_ok()
}

/// Returns a stream id that is unique in this process.
pub(crate) fn number() -> StreamId {
    StreamId(NEXT.fetch_add(1, Ordering::Relaxed))
}

static NEXT: AtomicU64 = AtomicU64::new(1);

/// Creates a stream, its sender, and the cell for the reason of its end. Up to `buffer` items are
/// buffered.
pub(crate) fn pair<T>(
    runner: &Arc<Runner>,
    id: StreamId,
    buffer: usize,
) -> (EventStream<T>, mpsc::Sender<T>, Arc<OnceLock<StreamEnd>>) {
    let (sender, items) = mpsc::channel(buffer.max(1));
    let end = Arc::new(OnceLock::new());
    let stream = EventStream {
        id,
        items,
        end: Arc::clone(&end),
        runner: Arc::clone(runner),
    };
    (stream, sender, end)
}
