//! Subscriptions and watches: bounded, ended with a reason, never with a hole (R119, R123, E8).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use tenure_core::event::Event;
use tenure_core::path::Namespace;
use tenure_core::value::OwnerId;
use tenure_node::{Failure, WatchEvent, WatchStart};
use tokio::sync::mpsc;

use crate::calls::Ear;
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
pub struct Stream<T> {
    id: u64,
    items: mpsc::Receiver<T>,
    end: Arc<OnceLock<StreamEnd>>,
    inbox: Arc<Inbox>,
}

impl<T> Stream<T> {
    /// The next item, or why there is none any more.
    pub async fn next(&mut self) -> Result<T, StreamEnd> {
        match self.items.recv().await {
            Some(item) => Ok(item),
            None => Err(self.end.get().cloned().unwrap_or(StreamEnd::Stopped)),
        }
    }
}

impl<T> Drop for Stream<T> {
    fn drop(&mut self) {
        self.inbox.push(Job::Unlisten(self.id));
    }
}

/// The node thread's side of a stream.
pub(crate) struct Listener {
    pub(crate) id: u64,
    pub(crate) wants: Wants,
    end: Arc<OnceLock<StreamEnd>>,
}

/// What a listener wants to hear.
pub(crate) enum Wants {
    Events(OwnerId, mpsc::Sender<Event>),
    /// The same, among much else that is heard there.
    Heard(OwnerId, Arc<Ear>),
    Changes(Namespace, WatchStart, mpsc::Sender<WatchEvent>),
}

impl Listener {
    /// Passes an item on. Says whether the stream can go on; who sleeps is to be woken.
    pub(crate) fn event(&self, event: Event, wakers: &mut Vec<Waker>) -> bool {
        let sender = match &self.wants {
            Wants::Events(_, sender) => sender,
            Wants::Heard(_, ear) => {
                let heard = ear.event(event);
                if let Ok(waker) = &heard {
                    wakers.extend(waker.clone());
                } else {
                    ear.end(StreamEnd::Overflow);
                }
                return heard.is_ok();
            }
            Wants::Changes(..) => return true,
        };
        self.passed(
            sender
                .try_send(event)
                .map_err(|error| matches!(error, mpsc::error::TrySendError::Full(_))),
        )
    }

    /// See [`Listener::event`].
    pub(crate) fn change(&self, change: WatchEvent) -> bool {
        let Wants::Changes(_, _, sender) = &self.wants else {
            return true;
        };
        self.passed(
            sender
                .try_send(change)
                .map_err(|error| matches!(error, mpsc::error::TrySendError::Full(_))),
        )
    }

    fn passed(&self, sent: Result<(), bool>) -> bool {
        if sent == Err(true) {
            let _ = self.end.set(StreamEnd::Overflow);
        }
        sent.is_ok()
    }

    /// Says why nothing more comes; dropping the listener then ends the stream.
    pub(crate) fn end(&self, why: StreamEnd) {
        if let Wants::Heard(_, ear) = &self.wants {
            ear.end(why);
            return;
        }
        let _ = self.end.set(why);
    }
}

/// The events of an owner, to be heard among much else.
pub(crate) fn into_ear(owner: OwnerId, ear: Arc<Ear>) -> Listener {
    Listener {
        id: NEXT.fetch_add(1, Ordering::Relaxed),
        wants: Wants::Heard(owner, ear),
        end: Arc::default(),
    }
}

static NEXT: AtomicU64 = AtomicU64::new(1);

/// A stream and its other side, which may be `buffer` items apart.
pub(crate) fn pair<T>(
    inbox: &Arc<Inbox>,
    buffer: usize,
    wants: impl FnOnce(mpsc::Sender<T>) -> Wants,
) -> (Stream<T>, Listener) {
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    let (sender, items) = mpsc::channel(buffer.max(1));
    let end = Arc::new(OnceLock::new());
    let stream = Stream {
        id,
        items,
        end: Arc::clone(&end),
        inbox: Arc::clone(inbox),
    };
    (
        stream,
        Listener {
            id,
            wants: wants(sender),
            end,
        },
    )
}
