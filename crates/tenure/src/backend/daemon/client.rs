//! Failover and retries: calls go to one of several nodes, to the next one after a failure, and are
//! repeated under one idempotency key until they are answered or time is up.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tenure_core::path::Path;
use tenure_files::Token;
use tenure_wire::v1;
use tenure_wire::v1::path_lock_client::PathLockClient;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

pub(super) use super::connection::{Answer, Op};
use super::connection::{Connection, ConnectionEvent, EventHandler, NoAnswer, refused};
use super::credentials::Credentials;
use super::owner::{Owner, OwnerKind};
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::runtime;
use crate::tenure::DaemonAccess;
use tenure_files::Lease;

/// How long a call without a lease is retried.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for one try, unless a lease sets another.
const EACH_TRY: Duration = Duration::from_secs(4);
/// An owner id that holds nothing, so that Explain reports every blocker.
pub(super) const NO_OWNER: &str = "?";
/// Delays between tries.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Exponential backoff with jitter.
pub(super) struct Backoff {
    first: Duration,
    next: Duration,
    longest: Duration,
}

impl Backoff {
    pub(super) fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff {
            first,
            next: first,
            longest,
        }
    }

    /// Returns the delay before the next try.
    pub(super) fn delay(&mut self) -> Duration {
        let delay = tenure_files::internal::jittered(self.next);
        self.next = (self.next * 2).min(self.longest);
        delay
    }

    /// Starts again after a success.
    pub(super) fn reset(&mut self) {
        self.next = self.first;
    }

    /// Sleeps before the next try. Returns `false` at once if that would be after `until`.
    async fn pause(&mut self, until: Duration) -> bool {
        let delay = self.delay();
        let is_in_time = Lease::now() + delay < until;
        if is_in_time {
            tokio::time::sleep(delay).await;
        }
        is_in_time
    }
}

/// A client of a list of nodes. Connects at its first call; clones share the connection.
#[derive(Clone)]
pub(crate) struct DaemonClient(Arc<ClientInner>);

struct ClientInner {
    nodes: Vec<Endpoint>,
    credentials: Credentials,
    link: tokio::sync::Mutex<ConnectionState>,
    owners: Mutex<HashMap<String, Arc<Owner>>>,
}

#[derive(Default)]
struct ConnectionState {
    link: Option<Arc<Connection>>,
    /// Index of the node to try next, modulo the number of nodes.
    node: usize,
}

/// Why a call has no answer.
#[derive(Clone, Debug)]
pub(super) enum CallFailure {
    /// No node answered in time.
    Unreachable(String),
    /// The daemon refused the call, and would refuse a repeat.
    Refused(Code, String),
    /// The daemon refused the call because it cannot remember its answer, and would accept it
    /// without its key.
    RefusedKey(String),
}

/// Removes the idempotency key. The result must not be retried.
fn without_key(mut op: Op) -> Op {
    match &mut op {
        Op::Acquire(acquire) => acquire.idempotency_key.clear(),
        Op::Release(release) => release.idempotency_key.clear(),
        _ => {}
    }
    op
}

/// Returns a random idempotency key: R102 (keyed requests apply once).
pub(super) fn new_key() -> String {
    Token::random().to_string()
}

impl DaemonClient {
    pub(crate) fn new(nodes: Vec<Endpoint>, access: &DaemonAccess) -> Result<DaemonClient, Error> {
        let credentials = Credentials::new(&nodes, access)?;
        Ok(DaemonClient(Arc::new(ClientInner {
            nodes,
            credentials,
            link: tokio::sync::Mutex::default(),
            owners: Mutex::default(),
        })))
    }

    /// Returns the owner with this id, or creates it.
    pub(super) fn owner(&self, id: &str, ttl: Duration, kind: OwnerKind) -> Arc<Owner> {
        let mut owners = self.owners();
        // Only the map refers to these owners, so they hold nothing and wait for nothing. Spoiled
        // owners stay: their ids must not be used again.
        owners.retain(|_, owner| Arc::strong_count(owner) > 1 || owner.is_spoiled());
        let owner = owners
            .entry(id.to_owned())
            .or_insert_with(|| Owner::new(id, ttl, kind));
        Arc::clone(owner)
    }

    /// Retries until there is an answer or `until` has passed (a time of [`Lease::now`]).
    ///
    /// An operation with an effect carries a key, so that a repeat has no second effect.
    pub(super) async fn ask(
        &self,
        op: Op,
        until: Duration,
        each_try: Duration,
    ) -> Result<Answer, CallFailure> {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut is_first = true;
        loop {
            let trouble = match self.ask_once(op.clone(), each_try).await {
                Ok(answer) => return Ok(answer),
                // The daemon cannot store more answers (R102): try once without a key. A second try
                // could apply the operation twice. If an earlier try may still be on its way, the
                // key must stay.
                Err(CallFailure::RefusedKey(_)) if is_first => {
                    return self.ask_once(without_key(op), each_try).await;
                }
                Err(CallFailure::Refused(code, what)) if !passes(code) => {
                    return Err(CallFailure::Refused(code, what));
                }
                Err(
                    CallFailure::Refused(_, what)
                    | CallFailure::RefusedKey(what)
                    | CallFailure::Unreachable(what),
                ) => what,
            };
            if !backoff.pause(until).await {
                return Err(CallFailure::Unreachable(trouble));
            }
            is_first = false;
        }
    }

    /// Tries once. After a failure, the next try uses the next node.
    pub(super) async fn ask_once(&self, op: Op, each_try: Duration) -> Result<Answer, CallFailure> {
        let link = self.link().await?;
        match link.call(op, each_try).await {
            Ok(answer) => Ok(answer),
            Err(NoAnswer::Broken(what)) => {
                self.turn_away_from(&link).await;
                Err(CallFailure::Unreachable(what))
            }
            Err(NoAnswer::Refused(code, what)) => {
                if code == Code::Unavailable && self.0.nodes.len() > 1 {
                    self.turn_away_from(&link).await;
                }
                Err(CallFailure::Refused(code, what))
            }
            Err(NoAnswer::RefusedKey(what)) => {
                if self.0.nodes.len() > 1 {
                    self.turn_away_from(&link).await;
                }
                Err(CallFailure::RefusedKey(what))
            }
        }
    }

    /// Calls [`ask`](DaemonClient::ask) from a thread other than the runtime thread.
    pub(super) async fn ask_from_anywhere(&self, op: Op) -> Result<Answer, CallFailure> {
        let client = self.clone();
        let asked =
            runtime::run(
                async move { client.ask(op, Lease::now() + CALL_TIMEOUT, EACH_TRY).await },
            );
        asked
            .await
            .unwrap_or_else(|| Err(CallFailure::Unreachable("the runtime has ended".into())))
    }

    /// Returns the locks of an owner, a linearizable read: R142 (ListOwnerLocks lists live holds).
    pub(super) async fn owner_locks(
        &self,
        owner: &str,
        until: Duration,
        each_try: Duration,
    ) -> Result<Vec<v1::OwnedLock>, CallFailure> {
        let request = v1::ListOwnerLocksRequest {
            owner_id: owner.to_owned(),
            domains: Vec::new(),
            read_tree: true,
        };
        Ok(self.call(request, until, each_try).await?.locks)
    }

    /// Returns the namespace of a path and its blockers: E7 (Explain a lock request).
    pub(super) async fn explain(
        &self,
        path: &Path,
        until: Duration,
    ) -> Result<v1::ExplainResponse, CallFailure> {
        let request = v1::ExplainRequest {
            path: path.as_str().to_owned(),
            mode: v1::Mode::Write.into(),
            owner_id: NO_OWNER.to_owned(),
        };
        self.call(request, until, EACH_TRY).await
    }

    /// Makes a single call that is safe to repeat.
    async fn call<Q: RpcCall>(
        &self,
        message: Q,
        until: Duration,
        each_try: Duration,
    ) -> Result<Q::Answer, CallFailure> {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            let what = match self.call_once(message.clone(), each_try).await {
                Err(CallFailure::Unreachable(what)) => what,
                Err(CallFailure::Refused(code, what)) if passes(code) => what,
                other => return other,
            };
            if !backoff.pause(until).await {
                return Err(CallFailure::Unreachable(what));
            }
        }
    }

    async fn call_once<Q: RpcCall>(
        &self,
        message: Q,
        each_try: Duration,
    ) -> Result<Q::Answer, CallFailure> {
        let link = self.link().await?;
        let request = self.0.credentials.sign(&link.node, message);
        let call = Q::call(link.calls.clone(), request);
        let status = match tokio::time::timeout(each_try, call).await {
            Ok(Ok(answer)) => return Ok(answer.into_inner()),
            Ok(Err(status)) => status,
            Err(_) => Status::deadline_exceeded("no answer in time"),
        };
        match refused(&status) {
            NoAnswer::Broken(what) => {
                self.turn_away_from(&link).await;
                Err(CallFailure::Unreachable(what))
            }
            NoAnswer::Refused(code, what) => Err(CallFailure::Refused(code, what)),
            NoAnswer::RefusedKey(what) => Err(CallFailure::RefusedKey(what)),
        }
    }

    /// Makes a single call from a thread other than the runtime thread.
    pub(super) async fn call_from_anywhere<Q: RpcCall>(
        &self,
        message: Q,
    ) -> Result<Q::Answer, CallFailure> {
        let client = self.clone();
        let called = runtime::run(async move {
            client
                .call(message, Lease::now() + CALL_TIMEOUT, EACH_TRY)
                .await
        });
        called
            .await
            .unwrap_or_else(|| Err(CallFailure::Unreachable("the runtime has ended".into())))
    }

    /// Returns the open connection, or opens one: first to the node that served last, then to the
    /// others in turn.
    async fn link(&self) -> Result<Arc<Connection>, CallFailure> {
        let mut linked = self.0.link.lock().await;
        if let Some(link) = linked.link.as_ref().filter(|link| link.is_open()) {
            return Ok(Arc::clone(link));
        }
        let mut troubles = Vec::new();
        for _ in &self.0.nodes {
            let node = &self.0.nodes[linked.node % self.0.nodes.len()];
            match Connection::connect(node, &self.0.credentials, self.on_update()).await {
                Ok(link) => {
                    let link = Arc::new(link);
                    linked.link = Some(Arc::clone(&link));
                    return Ok(link);
                }
                // A refusal (credentials) would be the same on all nodes.
                Err(NoAnswer::Refused(code, what)) => return Err(CallFailure::Refused(code, what)),
                Err(NoAnswer::RefusedKey(what)) => return Err(CallFailure::RefusedKey(what)),
                Err(NoAnswer::Broken(what)) => {
                    linked.node = linked.node.wrapping_add(1);
                    troubles.push(what);
                }
            }
        }
        Err(CallFailure::Unreachable(troubles.join("; ")))
    }

    async fn turn_away_from(&self, link: &Arc<Connection>) {
        link.close();
        let mut linked = self.0.link.lock().await;
        if linked
            .link
            .as_ref()
            .is_some_and(|current| Arc::ptr_eq(current, link))
        {
            linked.node = linked.node.wrapping_add(1);
        }
    }

    fn on_update(&self) -> EventHandler {
        let inner: Weak<ClientInner> = Arc::downgrade(&self.0);
        Arc::new(move |update| {
            let Some(client) = inner.upgrade().map(DaemonClient) else {
                return;
            };
            match update {
                ConnectionEvent::Event(event) => {
                    let owner = client.owners().get(&event.owner_id).cloned();
                    if let Some(owner) = owner {
                        owner.hear(&client, &event);
                    }
                }
                // Events of an owner arrive on the session that it uses. So every owner sends a
                // renewal on the next connection at once.
                ConnectionEvent::Broken => {
                    let owners: Vec<Arc<Owner>> = client.owners().values().cloned().collect();
                    owners.iter().for_each(|owner| owner.link_broke());
                }
            }
        })
    }

    fn owners(&self) -> MutexGuard<'_, HashMap<String, Arc<Owner>>> {
        self.0.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request message with its unary RPC.
pub(super) trait RpcCall: Clone + Send + Sync + 'static {
    /// The response message.
    type Answer: Send + 'static;
    /// Makes the call.
    fn call(
        calls: PathLockClient<Channel>,
        request: Request<Self>,
    ) -> impl Future<Output = Result<Response<Self::Answer>, Status>> + Send;
}

macro_rules! calls {
    ($($request:ident => $name:ident -> $answer:ty;)+) => {
        $(impl RpcCall for v1::$request {
            type Answer = $answer;

            async fn call(
                mut calls: PathLockClient<Channel>,
                request: Request<Self>,
            ) -> Result<Response<$answer>, Status> {
                calls.$name(request).await
            }
        })+
    };
}

calls! {
    ExplainRequest => explain -> v1::ExplainResponse;
    DumpLocksRequest => dump_locks -> v1::DumpLocksResponse;
    ListOwnerLocksRequest => list_owner_locks -> v1::ListOwnerLocksResponse;
    RequestRevokeRequest => request_revoke -> v1::RequestRevokeResponse;
    BreakRequest => r#break -> v1::BreakResponse;
    WatchRequest => watch -> tonic::Streaming<v1::LockChange>;
    SetNamespacePolicyRequest => set_namespace_policy -> v1::SetNamespacePolicyResponse;
    GetNamespacePolicyRequest => get_namespace_policy -> v1::GetNamespacePolicyResponse;
    DeleteNamespacePolicyRequest => delete_namespace_policy -> v1::DeleteNamespacePolicyResponse;
    ListNamespacePoliciesRequest => list_namespace_policies -> v1::ListNamespacePoliciesResponse;
    HealthRequest => health -> v1::HealthResponse;
}

/// Returns whether a retry may succeed.
fn passes(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable | Code::Aborted | Code::DeadlineExceeded | Code::Cancelled
    )
}
