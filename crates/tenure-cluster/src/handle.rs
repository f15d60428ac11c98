//! Client interface of a running node: calls, subscriptions, watches, status, operator commands.

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

/// Handle of a running node. Cheap to clone.
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

/// Whether a node should give away its replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draining {
    /// The node gives its replicas away.
    Yes,
    /// The node may have replicas again.
    No,
}

/// How a node has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeEnd {
    /// The disk hangs. The state of the log is unknown until this process has exited and a new one
    /// has read it.
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

    /// Returns whether the node has ended. Called for every call, so it takes no lock.
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

/// Failure of a call whose node has ended. The call may have taken effect.
pub(crate) fn gone() -> Failure {
    Failure::Unavailable {
        why: "the node has stopped",
        nothing_happened: EffectCertainty::No,
    }
}

impl Handle {
    /// Creates a call batch. Its reader may be up to `buffer` events behind.
    pub fn calls(&self, buffer: usize) -> CallBatch {
        let (inbox, runner) = (Arc::clone(&self.inbox), Arc::clone(&self.runner));
        CallBatch::new(inbox, runner, Arc::clone(&self.stopped), buffer)
    }

    /// Runs `work` on this thread and submits the calls that it makes as one batch at the end.
    pub fn defer_wake<T>(&self, work: impl FnOnce() -> T) -> T {
        self.inbox.defer_wake(work, || self.runner.serve())
    }

    /// Like [`defer_wake`](Handle::defer_wake), but calls `busy` instead of stepping a busy node.
    /// `busy` must arrange that [`serve`](Handle::serve) is called soon.
    pub fn defer_wake_unless_busy<T>(&self, work: impl FnOnce() -> T, busy: impl Fn()) -> T {
        self.inbox.defer_wake(work, || {
            if self.runner.is_busy() {
                busy();
            } else {
                self.runner.try_step_inline();
            }
        })
    }

    /// Makes the node handle the enqueued calls: steps it on this thread, or wakes its thread if it
    /// is busy.
    pub fn serve(&self) {
        self.runner.serve();
    }

    /// Submits a call before this function returns. The future yields the answer, or a failure when
    /// the timeout has passed or the node has ended.
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
        // The node sets the stop state before it empties its inbox for the last time. The inbox
        // mutex orders our push and that: either our job is still in the inbox and dropping it
        // answers the call, or this load reads the stop state.
        let ended = self.stopped.is_set();
        async move {
            if ended {
                return Err(gone());
            }
            answer.await
        }
    }

    /// Subscribes to the events of an owner from now on. The reader may be up to `buffer` events
    /// behind.
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

    /// Watches the changes below a prefix. The reader may be up to `buffer` changes behind.
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

    /// Waits until the node has registered all streams that were started before this call. Events
    /// that happened earlier have been delivered to the older streams by then.
    pub async fn reached(&self) {
        let (reply, reached) = oneshot::channel();
        self.inbox.push(Job::Reached(reply));
        if self.stopped.get().is_none() {
            // A node that ends drops the sender; its streams end as well.
            let _ = reached.await;
        }
    }

    /// Returns the node's metrics. `None`: the node has ended.
    pub async fn vitals(&self) -> Option<NodeMetrics> {
        let (reply, report) = oneshot::channel();
        self.inbox.push(Job::Vitals(reply));
        if self.stopped.get().is_some() {
            return None;
        }
        report.await.ok()
    }

    /// Waits until the node belongs to a cluster. Returns the reason if it cannot join (R161
    /// (settings fixed per cluster), R167 (bootstrap decision)).
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

    /// Returns the status of all nodes that answer within a second. `None`: this node has ended.
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

    /// Returns the status of this node's replicas. `None`: the node has ended.
    pub async fn status(&self) -> Option<Status> {
        let (reply, answer) = oneshot::channel();
        self.inbox.push(Job::Inspect(reply));
        if self.stopped.get().is_some() {
            return None;
        }
        answer.await.ok()
    }

    /// Returns the state of a group in the snapshot format and the index of its last entry. The
    /// state contains everything that was answered before this call. `None`: this node does not
    /// lead the group, or cannot confirm its leadership.
    pub async fn state(&self, group: GroupId, timeout: Duration) -> Option<(u64, Bytes)> {
        let term = self
            .ask(|reply| Job::LedTerm(group, reply))
            .await
            .flatten()?;
        let confirm = ClientRequest::Confirm { group };
        self.call(Box::new(confirm), timeout).await.ok()?;
        // A deposed leader never leads again in the same term. So a node that leads in one term
        // before and after the round led throughout, and the round confirmed this leadership.
        let led = self.ask(|reply| Job::State(group, reply)).await.flatten()?;
        let LedState { index, state, .. } = led;
        (led.term == term).then_some((index, state))
    }

    /// Sends a query to the node thread. `None`: the node has ended.
    async fn ask<T>(&self, job: impl FnOnce(oneshot::Sender<T>) -> Job) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.inbox.push(job(reply));
        if self.stopped.get().is_some() {
            return None;
        }
        answer.await.ok()
    }

    /// Returns the id of the node's cluster. `None`: it has not joined one yet.
    pub fn cluster(&self) -> Option<u64> {
        self.known.borrow().cluster
    }

    /// Returns sentences for the operator about other clusters that use the same token.
    pub fn rivals(&self) -> Vec<String> {
        self.known.borrow().rivals.clone()
    }

    /// Returns sentences for the operator about nodes that are refused because of their data
    /// directory, this node included.
    pub fn problems(&self) -> Vec<String> {
        self.known.borrow().problems.values().cloned().collect()
    }

    /// Moves all replicas off a node, or allows it to have replicas again (R166 (draining a node)).
    pub async fn drain(&self, node: NodeId, wanted: Draining) -> Result<(), String> {
        let wanted = wanted == Draining::Yes;
        self.order(|done| peers::RegistryEvent::Drain { node, wanted, done })
            .await
    }

    /// Removes a node from the cluster permanently: its incarnation ends and its replicas are
    /// replaced.
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

    /// Waits until the node has ended because of a hung disk and returns the reason. The process
    /// should exit then: a supervisor restarts it, and clients connect to another node.
    pub async fn hung(&self) -> String {
        let mut hung = self.stopped.hung.subscribe();
        if hung.wait_for(|hung| *hung).await.is_err() {
            // Not reached: `self` owns the sender.
            std::future::pending::<()>().await;
        }
        self.stopped().unwrap_or_default()
    }

    /// Returns why the node has ended. `None`: it runs (R145 (Health needs a working quorum)).
    pub fn stopped(&self) -> Option<String> {
        self.stopped.get()
    }
}
