//! How the faces reach the node: calls, subscriptions, watches, status.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::event::Event;
use tenure_core::path::Namespace;
use tenure_core::value::OwnerId;
use tenure_node::{Answer, Certain, ClientRequest, Failure, WatchEvent, WatchStart};
use tokio::sync::oneshot;

use crate::inbox::{Inbox, Job};
use crate::measure::Report;
use crate::stream::{self, Stream, Wants};

/// A running node. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) stopped: Arc<Stopped>,
}

/// Whether the node has ended, and why.
#[derive(Default)]
pub(crate) struct Stopped(Mutex<Option<String>>);

impl Stopped {
    pub(crate) fn set(&self, why: String) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert(why);
    }

    pub(crate) fn get(&self) -> Option<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Handle {
    /// Makes a call. The node answers before the timeout, or says that it passed.
    pub async fn call(&self, request: ClientRequest, timeout: Duration) -> Result<Answer, Failure> {
        let (reply, answer) = oneshot::channel();
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        self.inbox.push(Job::Call {
            request: Box::new(request),
            timeout_ms,
            reply,
        });
        let gone = Failure::Unavailable {
            why: "the node has stopped",
            nothing_happened: Certain::No,
        };
        // The node says that it has ended before it empties its inbox a last time: whoever pushes
        // later finds that said here, whoever pushed earlier is answered or dropped.
        if self.stopped.get().is_some() {
            return Err(gone);
        }
        answer.await.unwrap_or(Err(gone)).map(|answer| *answer)
    }

    /// The events of an owner from now on; the reader may be `buffer` events behind.
    pub fn subscribe(&self, owner: OwnerId, buffer: usize) -> Stream<Event> {
        let (stream, listener) =
            stream::pair(&self.inbox, buffer, |sender| Wants::Events(owner, sender));
        self.inbox.push(Job::Listen(listener));
        stream
    }

    /// The changes under a prefix; the reader may be `buffer` changes behind.
    pub fn watch(&self, prefix: Namespace, start: WatchStart, buffer: usize) -> Stream<WatchEvent> {
        let (stream, listener) = stream::pair(&self.inbox, buffer, |sender| {
            Wants::Changes(prefix, start, sender)
        });
        self.inbox.push(Job::Listen(listener));
        stream
    }

    /// How the node is. `None`: it has ended.
    pub async fn report(&self) -> Option<Report> {
        let (reply, report) = oneshot::channel();
        self.inbox.push(Job::Report(reply));
        if self.stopped.get().is_some() {
            return None;
        }
        report.await.ok()
    }

    /// Why the node has ended, if it has (R145).
    pub fn stopped(&self) -> Option<String> {
        self.stopped.get()
    }
}
