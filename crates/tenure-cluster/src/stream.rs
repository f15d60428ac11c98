//! Subscriptions and watches: bounded, ended with a reason, never with a hole (R119, R123, E8).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use tenure_core::event::Event;
use tenure_node::{Failure, StreamId, WatchEvent};
use tokio::sync::mpsc;

use crate::call_batch::CompletionQueue;
use crate::inbox::{Inbox, Job};

/// Why a stream ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// The reader was too slow; what it missed is lost to it (R123).
    Overflow,
    /// The node cannot go on with it.
    Failed(Failure),
    /// The node has stopped.
    Stopped,
}

/// What a subscription or a watch yields, until it ends.
pub struct EventStream<T> {
    id: StreamId,
    items: mpsc::Receiver<T>,
    end: Arc<OnceLock<StreamEnd>>,
    inbox: Arc<Inbox>,
}

impl<T> EventStream<T> {
    /// The next item, or why there is none any more.
    pub async fn next(&mut self) -> Result<T, StreamEnd> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// See [`EventStream::next`].
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, StreamEnd>> {
        let ended = || self.end.get().cloned().unwrap_or(StreamEnd::Stopped);
        let item = self.items.poll_recv(cx);
        item.map(|item| item.ok_or_else(ended))
    }

    /// The next item, if it is there.
    pub fn try_next(&mut self) -> Option<T> {
        self.items.try_recv().ok()
    }
}

impl<T> Drop for EventStream<T> {
    fn drop(&mut self) {
        self.inbox.push(Job::Unlisten { id: self.id });
    }
}

/// The node thread's side of a stream.
pub(crate) enum StreamSender {
    Events(mpsc::Sender<Event>, Arc<OnceLock<StreamEnd>>),
    /// Events among much else that is heard there.
    Heard(Arc<CompletionQueue>),
    Changes(mpsc::Sender<WatchEvent>, Arc<OnceLock<StreamEnd>>),
}

impl StreamSender {
    /// Passes an event on; who sleeps is to be woken. Says so if no more are wanted here.
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

    /// Passes a change on. Says whether the stream can go on.
    pub(crate) fn change(&self, change: WatchEvent) -> bool {
        match self {
            StreamSender::Changes(sender, end) => pass(sender, change, end),
            StreamSender::Events(..) | StreamSender::Heard(_) => true,
        }
    }

    /// Says why nothing more comes; dropping the listener then ends the stream.
    pub(crate) fn end(&self, why: StreamEnd) {
        match self {
            StreamSender::Heard(completion_queue) => completion_queue.end(why),
            StreamSender::Events(_, end) | StreamSender::Changes(_, end) => {
                let _ = end.set(why);
            }
        }
    }
}

/// The reader is too slow, or gone: no more goes there.
pub(crate) struct StreamFull;

fn pass<T>(sender: &mpsc::Sender<T>, item: T, end: &OnceLock<StreamEnd>) -> bool {
    let sent = sender.try_send(item);
    if matches!(sent, Err(mpsc::error::TrySendError::Full(_))) {
        let _ = end.set(StreamEnd::Overflow);
    }
    sent.is_ok()
}

/// A number that no stream of this process had.
pub(crate) fn number() -> StreamId {
    StreamId(NEXT.fetch_add(1, Ordering::Relaxed))
}

static NEXT: AtomicU64 = AtomicU64::new(1);

/// A stream, and the two ends of its other side; they may be `buffer` items apart.
pub(crate) fn pair<T>(
    inbox: &Arc<Inbox>,
    id: StreamId,
    buffer: usize,
) -> (EventStream<T>, mpsc::Sender<T>, Arc<OnceLock<StreamEnd>>) {
    let (sender, items) = mpsc::channel(buffer.max(1));
    let end = Arc::new(OnceLock::new());
    let stream = EventStream {
        id,
        items,
        end: Arc::clone(&end),
        inbox: Arc::clone(inbox),
    };
    (stream, sender, end)
}
