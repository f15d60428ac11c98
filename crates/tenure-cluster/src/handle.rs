//! How the transports reach the node: calls, subscriptions, watches, status.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tenure_core::event::Event;
use tenure_core::path::Namespace;
use tenure_core::value::OwnerId;
use tenure_node::{
    Answer, ClientRequest, EffectCertainty, Failure, GroupId, Input, NodeId, ReplicaId, Status,
    WatchEvent, WatchStart,
};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{oneshot, watch};

use crate::call_batch::CallBatch;
use crate::inbox::{Inbox, Job, LedState, ReplyTo};
use crate::metrics::NodeMetrics;
use crate::node_runner::NodeRunner;
use crate::peers::{self, ClusterMembership, ClusterView, NodeInfo};
use crate::reply_channel;
use crate::status_report::{ClusterReport, NodeReport};
use crate::stream::{self, EventStream, StreamSender};

/// A running node. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) runner: Arc<NodeRunner>,
    pub(crate) stopped: Arc<StopState>,
    pub(crate) registry: Option<UnboundedSender<peers::RegistryEvent>>,
    pub(crate) joined: watch::Sender<ClusterMembership>,
    pub(crate) known: watch::Sender<ClusterView>,
    pub(crate) me: ReplicaId,
    pub(crate) name: Arc<str>,
}

/// Whether a node is to be emptied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draining {
    /// It is.
    Yes,
    /// It may have replicas again.
    No,
}

/// How a node has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeEnd {
    /// Its disk hangs. Nothing can be known about the log before the process has ended and another one has read
    /// it.
    Hung,
    Otherwise,
}

/// Whether the node has ended, and why.
#[derive(Default)]
pub(crate) struct StopState {
    is_set: AtomicBool,
    why: Mutex<Option<String>>,
    hung: watch::Sender<bool>,
}

impl StopState {
    pub(crate) fn set(&self, why: String, how: NodeEnd) {
        self.why
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert(why);
        self.is_set.store(true, Ordering::SeqCst);
        if how == NodeEnd::Hung {
            self.hung.send_replace(true);
        }
    }

    /// Whether it has. Asked with every call, so without a lock.
    pub(crate) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::SeqCst)
    }

    pub(crate) fn is_hung(&self) -> bool {
        *self.hung.borrow()
    }

    pub(crate) fn get(&self) -> Option<String> {
        self.why
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// What a call gets whose node has ended.
pub(crate) fn gone() -> Failure {
    Failure::Unavailable {
        why: "the node has stopped",
        nothing_happened: EffectCertainty::No,
    }
}

impl Handle {
    /// A place to make many calls from; what it hears of owners may be `buffer` events behind.
    pub fn calls(&self, buffer: usize) -> CallBatch {
        let (inbox, runner) = (Arc::clone(&self.inbox), Arc::clone(&self.runner));
        CallBatch::new(inbox, runner, Arc::clone(&self.stopped), buffer)
    }

    /// Does some work on this thread. Calls that it makes reach the node together, when it is done.
    pub fn defer_wake<T>(&self, work: impl FnOnce() -> T) -> T {
        self.inbox.defer_wake(work, || self.runner.serve())
    }

    /// The same, unless the node is busy: then `busy` has to see to it that somebody calls
    /// [`serve`](Handle::serve) soon.
    pub fn defer_wake_unless_busy<T>(&self, work: impl FnOnce() -> T, busy: impl Fn()) -> T {
        self.inbox.defer_wake(work, || {
            if self.runner.is_busy() {
                busy();
            } else {
                self.runner.try_step_inline();
            }
        })
    }

    /// Lets the node see to the calls that were made.
    pub fn serve(&self) {
        self.runner.serve();
    }

    /// Makes a call, before it returns. The node answers before the timeout, or says that it passed.
    pub fn call(
        &self,
        request: Box<ClientRequest>,
        timeout: Duration,
    ) -> impl Future<Output = Result<Answer, Failure>> + Send + use<> {
        let (reply, answer) = reply_channel::pair();
        self.inbox.push(Job::Call {
            request,
            timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
            reply: ReplyTo::One(reply),
        });
        // The node says that it has ended before it empties its inbox a last time: whoever pushes
        // later finds that said here, whoever pushed earlier is answered or dropped.
        let ended = self.stopped.is_set();
        async move {
            if ended {
                return Err(gone());
            }
            answer.await
        }
    }

    /// The events of an owner from now on; the reader may be `buffer` events behind.
    pub fn subscribe(&self, owner: OwnerId, buffer: usize) -> EventStream<Event> {
        let id = stream::number();
        let (stream, sender, end) = stream::pair(&self.inbox, id, buffer);
        self.inbox.push(Job::Listen {
            id,
            input: Input::Subscribe { id, owner },
            listener: StreamSender::Events(sender, end),
        });
        stream
    }

    /// The changes under a prefix; the reader may be `buffer` changes behind.
    pub fn watch(
        &self,
        prefix: Namespace,
        start: WatchStart,
        buffer: usize,
    ) -> EventStream<WatchEvent> {
        let id = stream::number();
        let (stream, sender, end) = stream::pair(&self.inbox, id, buffer);
        self.inbox.push(Job::Listen {
            id,
            input: Input::Watch { id, prefix, start },
            listener: StreamSender::Changes(sender, end),
        });
        stream
    }

    /// Waits until streams that were begun before this are heard of. What happened before, streams that
    /// were there have got by then.
    pub async fn reached(&self) {
        let (reply, reached) = oneshot::channel();
        self.inbox.push(Job::Reached(reply));
        if self.stopped.get().is_none() {
            // Dropped by a node that ends, whose streams end, too.
            let _ = reached.await;
        }
    }

    /// How the node is. `None`: it has ended.
    pub async fn vitals(&self) -> Option<NodeMetrics> {
        let (reply, report) = oneshot::channel();
        self.inbox.push(Job::Vitals(reply));
        if self.stopped.get().is_some() {
            return None;
        }
        report.await.ok()
    }

    /// Waits until the node belongs to a cluster. Says why, if it never will (R161, R167).
    pub async fn joined(&self) -> Result<(), String> {
        let mut joined = self.joined.subscribe();
        let state = joined
            .wait_for(|joined| *joined != ClusterMembership::NotYet)
            .await;
        match state.as_deref() {
            Ok(ClusterMembership::Excluded(why)) => Err(why.clone()),
            Ok(ClusterMembership::Yes | ClusterMembership::NotYet) | Err(_) => Ok(()),
        }
    }

    /// The whole cluster, as far as its nodes answer within a second.
    pub async fn cluster_report(&self) -> Option<ClusterReport> {
        let (nodes, reports) = match &self.registry {
            Some(registry) => {
                let (reply, nodes) = oneshot::channel();
                registry.send(peers::RegistryEvent::Inspect(reply)).ok()?;
                let (reply, reports) = oneshot::channel();
                registry
                    .send(peers::RegistryEvent::StatusRequest(reply))
                    .ok()?;
                (nodes.await.ok()?, reports.await.ok()?)
            }
            None => (
                vec![NodeInfo::alone(self.me, &self.name)],
                vec![NodeReport::new(self.me, self.status().await?)],
            ),
        };
        Some(ClusterReport {
            asked: self.me,
            nodes,
            reports,
        })
    }

    /// What the node says about its replicas.
    pub async fn status(&self) -> Option<Status> {
        let (reply, answer) = oneshot::channel();
        self.inbox.push(Job::Inspect(reply));
        if self.stopped.get().is_some() {
            return None;
        }
        answer.await.ok()
    }

    /// The state of a group as a snapshot holds it, and the entry it is at: everything that was
    /// answered before this call is in it. `None`: this node does not lead the group, or cannot show
    /// that it still does.
    pub async fn state(&self, group: GroupId, timeout: Duration) -> Option<(u64, Bytes)> {
        let term = self
            .ask(|reply| Job::LedTerm(group, reply))
            .await
            .flatten()?;
        let confirm = ClientRequest::Confirm { group };
        self.call(Box::new(confirm), timeout).await.ok()?;
        // A leader that was deposed never leads in the same term again. So a node that leads before
        // and after in one term led all the while, and the round was its own.
        let led = self.ask(|reply| Job::State(group, reply)).await.flatten()?;
        let LedState { index, state, .. } = led;
        (led.term == term).then_some((index, state))
    }

    /// Asks the node thread. `None`: the node has ended.
    async fn ask<T>(&self, job: impl FnOnce(oneshot::Sender<T>) -> Job) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.inbox.push(job(reply));
        if self.stopped.get().is_some() {
            return None;
        }
        answer.await.ok()
    }

    /// Which cluster the node belongs to, once it does.
    pub fn cluster(&self) -> Option<u64> {
        self.known.borrow().cluster
    }

    /// Other clusters with the same token that were met, in sentences for an operator.
    pub fn rivals(&self) -> Vec<String> {
        self.known.borrow().rivals.clone()
    }

    /// Nodes that are refused because of their data directory, or this node's own, in sentences for an
    /// operator.
    pub fn problems(&self) -> Vec<String> {
        self.known.borrow().problems.values().cloned().collect()
    }

    /// Moves everything off a node, or lets it have replicas again (R166).
    pub async fn drain(&self, node: NodeId, wanted: Draining) -> Result<(), String> {
        let wanted = wanted == Draining::Yes;
        self.order(|done| peers::RegistryEvent::Drain { node, wanted, done })
            .await
    }

    /// Takes a node out of the cluster for good: its incarnation is over, its replicas are replaced.
    pub async fn remove(&self, node: NodeId) -> Result<(), String> {
        self.order(|done| peers::RegistryEvent::Remove { node, done })
            .await
    }

    async fn order(
        &self,
        event: impl FnOnce(oneshot::Sender<Result<(), String>>) -> peers::RegistryEvent,
    ) -> Result<(), String> {
        let alone = "this node has no peers: internal_auth_token is not set";
        let registry = self.registry.as_ref().ok_or(alone)?;
        let (done, answer) = oneshot::channel();
        let gone = || "the node has stopped".to_owned();
        registry.send(event(done)).map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Waits until the node has ended because its disk hangs, and says so. The process should end then: a
    /// supervisor starts it again, and a client connects to another node.
    pub async fn hung(&self) -> String {
        let mut hung = self.stopped.hung.subscribe();
        if hung.wait_for(|hung| *hung).await.is_err() {
            // The sender is in `self`.
            std::future::pending::<()>().await;
        }
        self.stopped().unwrap_or_default()
    }

    /// Why the node has ended, if it has (R145).
    pub fn stopped(&self) -> Option<String> {
        self.stopped.get()
    }
}
