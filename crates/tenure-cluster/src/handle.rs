//! Client interface of a running node: calls, subscriptions, watches, status, operator commands.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_core::auth::AuthTable;
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
use crate::driver::Runner;
use crate::job::{Job, LedState, ReplyTo};
use crate::metrics::NodeMetrics;
use crate::node_runner::{Drive, Driven};
use crate::peers::{self, ClusterMembership, ClusterView, NodeInfo};
use crate::reply_channel;
use crate::status_report::{ClusterReport, NodeReport};
use crate::stream::{self, EventStream, StreamSender};

/// Handle of a running node. Cheap to clone.
#[derive(Clone)]
pub struct Handle {
    pub(crate) runner: Arc<Runner>,
    pub(crate) stopped: watch::Sender<Option<StopReason>>,
    pub(crate) auth: watch::Sender<Option<Arc<AuthTable>>>,
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

/// Why a node has ended.
#[derive(Clone, Debug)]
pub(crate) struct StopReason {
    pub(crate) why: String,
    /// The disk hangs. The state of the log is unknown until this process has exited and a new one
    /// has read it.
    pub(crate) is_hung: bool,
}

thread_local! {
    /// The node whose wake-ups this thread defers, and whether one was requested meanwhile.
    static DEFERRED: Cell<Option<(*const Runner, bool)>> = const { Cell::new(None) };
}

/// Returns whether this thread defers the wake-ups of the node. Then one follows at the end of the
/// deferral.
pub(crate) fn is_deferred(runner: &Arc<Runner>) -> bool {
    let is_ours = matches!(DEFERRED.get(), Some((ours, _)) if ours == Arc::as_ptr(runner));
    if is_ours {
        DEFERRED.set(Some((Arc::as_ptr(runner), true)));
    }
    is_ours
}

/// Guard of [`Handle::defer_wake`]: performs the deferred wake-up on drop, also after a panic.
struct DeferredWakeUp<F: Fn()> {
    wake: F,
    outer: Option<(*const Runner, bool)>,
}

impl<F: Fn()> Drop for DeferredWakeUp<F> {
    fn drop(&mut self) {
        if let Some((_, true)) = DEFERRED.replace(self.outer) {
            (self.wake)();
        }
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
        CallBatch::new(Arc::clone(&self.runner), buffer)
    }

    /// Runs `work` on this thread and submits the calls that it makes as one batch at the end.
    pub fn defer_wake<T>(&self, work: impl FnOnce() -> T) -> T {
        self.defer(work, || self.serve())
    }

    /// Like [`defer_wake`](Handle::defer_wake), but calls `busy` instead of stepping a busy node.
    /// `busy` must arrange that [`serve`](Handle::serve) is called soon.
    pub fn defer_wake_unless_busy<T>(&self, work: impl FnOnce() -> T, busy: impl Fn()) -> T {
        self.defer(work, || {
            if self.runner.drive(Drive::InlineUnlessBusy) == Driven::NotYet {
                busy();
            }
        })
    }

    fn defer<T>(&self, work: impl FnOnce() -> T, wake: impl Fn()) -> T {
        let outer = DEFERRED.replace(Some((Arc::as_ptr(&self.runner), false)));
        let _at_the_end = DeferredWakeUp { wake, outer };
        work()
    }

    /// Enqueues a job and wakes the node, at the end of [`defer_wake`](Handle::defer_wake) if this
    /// thread is inside of it.
    fn push(&self, job: Job) {
        if is_deferred(&self.runner) {
            self.runner.submit([job], Drive::Later);
        } else {
            self.runner.push(job);
        }
    }

    /// Makes the node handle the enqueued calls: steps it on this thread, or wakes its thread if it
    /// is busy.
    pub fn serve(&self) {
        if self.runner.drive(Drive::InlineUnlessBusy) == Driven::NotYet {
            self.runner.drive(Drive::Wake);
        }
    }

    /// Submits a call before this function returns. The future yields the answer, or a failure when
    /// the timeout has passed or the node has ended.
    pub fn call(
        &self,
        request: Box<ClientRequest>,
        timeout: Duration,
    ) -> impl Future<Output = Result<Answer, Failure>> + Send + use<> {
        let (reply, answer) = reply_channel::pair();
        self.push(Job::Call {
            request,
            timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
            reply: ReplyTo::One(reply),
        });
        async move {
            answer
                .await
                .map_or_else(|| Err(gone()), |reply| reply.answer)
        }
    }

    /// Subscribes to the events of an owner from now on. The reader may be up to `buffer` events
    /// behind.
    pub fn subscribe(&self, owner: OwnerId, buffer: usize) -> EventStream<Event> {
        let id = stream::number();
        let (stream, sender, end) = stream::pair(&self.runner, id, buffer);
        self.push(Job::Listen {
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
        let (stream, sender, end) = stream::pair(&self.runner, id, buffer);
        self.push(Job::Listen {
            id,
            input: Input::Watch { id, prefix, start },
            listener: StreamSender::Changes(sender, end),
        });
        stream
    }

    /// Waits until the node has registered all streams that were started before this call. Events
    /// that happened earlier have been delivered to the older streams by then.
    pub async fn reached(&self) {
        // A node that ends drops the job; its streams end as well.
        self.ask(Job::Reached).await.unwrap_or_default();
    }

    /// Returns the node's metrics. `None`: the node has ended.
    pub async fn vitals(&self) -> Option<NodeMetrics> {
        self.ask(Job::Vitals).await
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

    /// Returns the nodes that this node knows, without asking them. `None`: the node has ended.
    pub async fn members(&self) -> Option<Vec<NodeInfo>> {
        let Some(registry) = &self.registry else {
            return Some(vec![NodeInfo::alone(self.me, &self.name)]);
        };
        let (reply, nodes) = oneshot::channel();
        registry.send(peers::RegistryEvent::Inspect(reply)).ok()?;
        nodes.await.ok()
    }

    /// Returns the status of this node's replicas. `None`: the node has ended.
    pub async fn status(&self) -> Option<Status> {
        self.ask(Job::Inspect).await
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
        let LedState { state, .. } = led;
        if led.term != term {
            return None;
        }
        // Encoding a large state takes long, and this thread serves connections.
        let encoded = tokio::task::spawn_blocking(move || state.encode()).await;
        let snapshot = encoded.ok()?;
        Some((snapshot.index, snapshot.data))
    }

    /// Sends a query to the node thread. `None`: the node has ended.
    async fn ask<T>(&self, job: impl FnOnce(oneshot::Sender<T>) -> Job) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.push(job(reply));
        answer.await.ok()
    }

    /// Returns the access control table that this node judges by, and its changes. `None` until it
    /// was read from the cluster once. A change of the table is answered after every reachable node
    /// has the new one here.
    pub fn auth(&self) -> watch::Receiver<Option<Arc<AuthTable>>> {
        self.auth.subscribe()
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

    /// Waits until the node has ended and returns the reason. Without an order to stop, the process
    /// should exit: a supervisor restarts it, and clients connect to another node.
    pub async fn ended(&self) -> String {
        let mut stopped = self.stopped.subscribe();
        if stopped.wait_for(Option::is_some).await.is_err() {
            // Not reached: `self` owns the sender.
            std::future::pending::<()>().await;
        }
        self.stopped().unwrap_or_default()
    }

    /// Returns why the node has ended. `None`: it runs (R145 (Health needs a working quorum)).
    pub fn stopped(&self) -> Option<String> {
        let reason = self.stopped.borrow();
        reason.as_ref().map(|reason| reason.why.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll, Wake, Waker};
    use std::thread::{self, ThreadId};
    use std::time::Instant;

    use super::*;
    use crate::sync::{Mutex, lock};
    use crate::test_support;

    const LONG: Duration = Duration::from_secs(60);

    /// Records the thread on which it was woken.
    #[derive(Default)]
    struct WakingThread(Mutex<Option<ThreadId>>);

    impl Wake for WakingThread {
        fn wake(self: Arc<Self>) {
            *lock(&self.0) = Some(thread::current().id());
        }
    }

    fn health(handle: &Handle) -> impl Future<Output = Result<Answer, Failure>> + Send + use<> {
        handle.call(Box::new(ClientRequest::Health), LONG)
    }

    /// If the node thread sleeps, the caller steps the node, and its answer is ready when the
    /// deferral ends. Calls to another node are not deferred.
    #[test]
    fn a_caller_steps_a_node_whose_thread_sleeps() {
        let data = tempfile::tempdir().unwrap();
        let [node, other] =
            ["node", "other"].map(|name| test_support::start_lone(&data.path().join(name), 4));
        let handle = node.handle();
        let is_stepped_inline = || {
            let woken = Arc::new(WakingThread::default());
            let waker = Waker::from(Arc::clone(&woken));
            let mut cx = Context::from_waker(&waker);
            let mut answer = handle.defer_wake(|| {
                let mut answer = Box::pin(health(handle));
                assert!(answer.as_mut().poll(&mut cx).is_pending());
                wait(Box::pin(health(other.handle())));
                answer
            });
            let is_ready = matches!(answer.as_mut().poll(&mut cx), Poll::Ready(Ok(_)));
            if !is_ready {
                // The node must be done before the next attempt, or its thread would never sleep.
                wait(answer);
            }
            is_ready && *lock(&woken.0) == Some(thread::current().id())
        };
        // The node thread does not sleep right after the start.
        let begun = Instant::now();
        while !is_stepped_inline() {
            assert!(begun.elapsed() < LONG, "no call was stepped inline");
            thread::yield_now();
        }
        node.stop();
        other.stop();
    }

    fn wait(mut answer: Pin<Box<impl Future<Output = Result<Answer, Failure>>>>) {
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(answer) = answer.as_mut().poll(&mut cx) {
                assert!(answer.is_ok(), "{answer:?}");
                return;
            }
            thread::yield_now();
        }
    }

    /// Every way to ask a node that has ended returns at once.
    #[tokio::test]
    async fn a_node_that_has_ended_answers_at_once() {
        let data = tempfile::tempdir().unwrap();
        let node = test_support::start_lone(data.path(), 4);
        let handle = node.handle().clone();
        let mut batch = handle.calls(1);
        tokio::task::spawn_blocking(move || node.stop())
            .await
            .unwrap();
        assert!(handle.stopped().is_some());
        assert_eq!(health(&handle).await, Err(gone()));
        assert_eq!(handle.defer_wake(|| health(&handle)).await, Err(gone()));
        batch.push(7, Box::new(ClientRequest::Health), LONG);
        batch.flush();
        let mut answers = Vec::new();
        std::future::poll_fn(|cx| batch.poll(cx, &mut answers)).await;
        assert_eq!(answers.len(), 1);
        assert!(handle.vitals().await.is_none() && handle.status().await.is_none());
        handle.reached().await;
    }
}
