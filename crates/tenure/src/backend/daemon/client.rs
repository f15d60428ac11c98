//! Failover and retries: calls go to one node of the cluster, to another one after it failed, and are
//! repeated under one idempotency key until they are answered or time is up.
//!
//! ```text
//!   call ──▶ open connection? ──yes──▶ session
//!                  └──no──▶ one search for all callers: a node, 200 ms later the next beside it, …
//!                                the first that opens a session serves all
//!   heartbeat: a node that answers no ping in time is left, whatever is in flight
//! ```

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tenure_base::Token;
use tenure_core::path::Path;
use tenure_wire::v1;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::{Code, Status};

use super::candidates::{Candidate, KnownNodes, resolve};
pub(super) use super::connection::{Answer, Op};
use super::connection::{Connection, ConnectionEvent, EventHandler, NoAnswer, refused};
use super::connection_messages::{self, NO_MAJORITY};
use super::credentials::Credentials;
use super::owner::{Owner, OwnerKind};
use super::rpc_table::RpcCall;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::runtime;
use crate::tenure::DaemonAccess;
use tenure_base::Lease;

/// How long a call without a lease is retried.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for one try, unless a lease sets another.
const EACH_TRY: Duration = Duration::from_secs(4);
/// An owner id that holds nothing, so that Explain reports every blocker.
pub(super) const NO_OWNER: &str = "?";
/// Delays between tries, and between searches for a node.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// A connection that lasted so long was no part of a series of failures.
const LASTED: Duration = Duration::from_secs(5);
/// When the next node is dialled while the connection to the one before is pending (RFC 8305 has 250
/// ms; leases may be short).
const STAGGER: Duration = Duration::from_millis(200);
/// Acquires in flight per client. The rest waits here and not in the daemon, which refuses what
/// exceeds its limit per group.
const ACQUIRES: usize = 256;
/// Limits of the interval between pings, which is a sixth of the shortest ttl.
const SHORTEST_BEAT: Duration = Duration::from_millis(250);
const LONGEST_BEAT: Duration = Duration::from_secs(5);
/// Time limit for a node's answer about its health or the members, and the pause between two checks.
const CHECK: Duration = Duration::from_secs(1);

/// How long a single call waits for a daemon that may be restarting.
const RESTART: Duration = Duration::from_secs(2);
/// How often a call checks whether it is hopeless.
const HOPE: Duration = Duration::from_millis(100);

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
        let delay = tenure_base::jittered(self.next);
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
    access: DaemonAccess,
    links: Mutex<LinkState>,
    owners: Mutex<HashMap<String, Arc<Owner>>>,
    acquires: Semaphore,
}

/// The connection and the search for one. The mutex is never held across an await.
struct LinkState {
    link: Option<Arc<Connection>>,
    /// The running search. Its result goes to all callers.
    search: Option<watch::Receiver<SearchResult>>,
    nodes: KnownNodes,
    /// The delay before the next search.
    backoff: Backoff,
    /// Whether the next search must wait for the delay: the last one failed, or its connection did
    /// not last.
    is_unsteady: bool,
    credentials: Credentials,
    /// The id of the cluster, if the daemon reports it.
    cluster: Option<String>,
    /// Why the last search found no node.
    trouble: Option<String>,
}

/// `None` while the search runs.
type SearchResult = Option<Result<Arc<Connection>, CallFailure>>;

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
        let links = LinkState {
            link: None,
            search: None,
            credentials: Credentials::new(&nodes, access)?,
            nodes: KnownNodes::new(nodes),
            backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
            is_unsteady: false,
            cluster: None,
            trouble: None,
        };
        Ok(DaemonClient(Arc::new(ClientInner {
            access: access.clone(),
            links: Mutex::new(links),
            owners: Mutex::default(),
            acquires: Semaphore::new(ACQUIRES),
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
        self.ask_and_date(op, until, each_try).await.1
    }

    /// Like [`ask`](DaemonClient::ask); also returns when the first try was sent.
    ///
    /// All tries share a key, and the first of them may be the one that was applied. So a lease
    /// counts from before the first.
    pub(super) async fn ask_and_date(
        &self,
        op: Op,
        until: Duration,
        each_try: Duration,
    ) -> (Duration, Result<Answer, CallFailure>) {
        let mut first_sent = None;
        let answer = self.repeat(op, until, each_try, &mut first_sent).await;
        (first_sent.unwrap_or_else(Lease::now), answer)
    }

    async fn repeat(
        &self,
        op: Op,
        until: Duration,
        each_try: Duration,
        first_sent: &mut Option<Duration>,
    ) -> Result<Answer, CallFailure> {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut is_first = true;
        loop {
            // Held for one try, not while this call pauses: other groups may be able to serve.
            let permit = match &op {
                Op::Acquire(_) => {
                    let left = until.saturating_sub(Lease::now()).max(FIRST_PAUSE);
                    match timeout(left, self.0.acquires.acquire()).await {
                        Ok(permit) => permit.ok(),
                        Err(_) => {
                            let what = "too many acquires of this process are in flight";
                            return Err(CallFailure::Unreachable(what.into()));
                        }
                    }
                }
                _ => None,
            };
            first_sent.get_or_insert_with(Lease::now);
            let each_try = left_of(each_try, until);
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
            drop(permit);
            if !backoff.pause(until).await {
                return Err(CallFailure::Unreachable(trouble));
            }
            is_first = false;
        }
    }

    /// Tries once, within the time limit. This includes the time for a connection.
    pub(super) async fn ask_once(&self, op: Op, each_try: Duration) -> Result<Answer, CallFailure> {
        self.try_once(each_try, |link| async move { link.call(op).await })
            .await
    }

    /// Runs a call on the open connection, or on a new one.
    ///
    /// No failure of a call closes the connection, because it serves all owners. The heartbeat
    /// leaves a node that does not answer.
    async fn try_once<T, F>(
        &self,
        limit: Duration,
        call: impl FnOnce(Arc<Connection>) -> F,
    ) -> Result<T, CallFailure>
    where
        F: Future<Output = Result<T, NoAnswer>>,
    {
        let began = Instant::now();
        let no_answer = || CallFailure::Unreachable("no answer in time".into());
        let link = timeout(limit, self.link()).await;
        let link = link.unwrap_or_else(|_| Err(no_answer()))?;
        let left = limit.saturating_sub(began.elapsed());
        match timeout(left, call(Arc::clone(&link))).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(NoAnswer::Broken(what))) => Err(CallFailure::Unreachable(what)),
            Ok(Err(NoAnswer::RefusedKey(what))) => Err(CallFailure::RefusedKey(what)),
            Ok(Err(NoAnswer::Refused(code, what))) => {
                if code == Code::Unavailable {
                    self.doubt(&link);
                }
                Err(CallFailure::Refused(code, what))
            }
            Err(_) => {
                self.doubt(&link);
                Err(no_answer())
            }
        }
    }

    /// Calls [`ask`](DaemonClient::ask) from a thread other than the runtime thread.
    pub(super) async fn ask_from_anywhere(&self, op: Op) -> Result<Answer, CallFailure> {
        let client = self.clone();
        let asked = runtime::run(async move {
            let asked = client.ask(op, Lease::now() + CALL_TIMEOUT, EACH_TRY);
            client.unless_hopeless(asked, RESTART).await
        });
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
    pub(super) async fn call<Q: RpcCall>(
        &self,
        message: Q,
        until: Duration,
        each_try: Duration,
    ) -> Result<Q::Answer, CallFailure> {
        Ok(self.call_on(message, until, each_try).await?.0)
    }

    /// Makes a single call and also returns the connection that carried it.
    pub(super) async fn call_on<Q: RpcCall>(
        &self,
        message: Q,
        until: Duration,
        each_try: Duration,
    ) -> Result<(Q::Answer, Arc<Connection>), CallFailure> {
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            let tried = self.call_once(message.clone(), left_of(each_try, until));
            let what = match tried.await {
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
    ) -> Result<(Q::Answer, Arc<Connection>), CallFailure> {
        self.try_once(each_try, |link| async move {
            let called = tokio::select! {
                called = Q::call(link.calls.clone(), link.sign(message)) => called,
                () = link.broken() => Err(Status::unavailable("the connection broke")),
            };
            match called {
                Ok(answer) => Ok((answer.into_inner(), link)),
                Err(status) => Err(refused(&status)),
            }
        })
        .await
    }

    /// Makes a single call from a thread other than the runtime thread.
    pub(super) async fn call_from_anywhere<Q: RpcCall>(
        &self,
        message: Q,
    ) -> Result<Q::Answer, CallFailure> {
        let client = self.clone();
        let called = runtime::run(async move {
            let called = client.call(message, Lease::now() + CALL_TIMEOUT, EACH_TRY);
            client.unless_hopeless(called, RESTART).await
        });
        called
            .await
            .unwrap_or_else(|| Err(CallFailure::Unreachable("the runtime has ended".into())))
    }

    /// Runs a call, and gives up early if it is hopeless: the address cannot be right, or the cluster
    /// has no majority. A person waits for nothing otherwise.
    ///
    /// A port where no daemon listens may be that of a daemon that restarts, so it counts as hopeless
    /// only after `patience`.
    pub(super) async fn unless_hopeless<T>(
        &self,
        call: impl Future<Output = Result<T, CallFailure>>,
        patience: Duration,
    ) -> Result<T, CallFailure> {
        let began = Instant::now();
        let mut call = std::pin::pin!(call);
        let mut next_check = CHECK;
        loop {
            if let Ok(answer) = timeout(HOPE, &mut call).await {
                return answer.map_err(|failure| match (failure, self.links().trouble.clone()) {
                    // The last try had no time; the last search knows why there is no connection.
                    (CallFailure::Unreachable(_), Some(trouble)) => {
                        CallFailure::Unreachable(trouble)
                    }
                    (failure, _) => failure,
                });
            }
            let trouble = self.links().trouble.clone();
            if let Some(what) = trouble
                && (connection_messages::is_lasting(&what) || began.elapsed() > patience)
            {
                return Err(CallFailure::Unreachable(what));
            }
            if began.elapsed() >= next_check {
                next_check += CHECK;
                if let Some(what) = self.lost_majority().await {
                    return Err(CallFailure::Unreachable(what));
                }
            }
        }
    }

    /// Names the nodes that are down, if these are so many that no majority is up.
    async fn lost_majority(&self) -> Option<String> {
        let link = self.links().link.clone().filter(|link| link.is_open())?;
        let nodes = timeout(CHECK, link.member_states()).await.ok().flatten()?;
        let up = nodes.iter().filter(|(_, is_up)| *is_up).count();
        if up * 2 > nodes.len() {
            return None;
        }
        let down = nodes.iter().filter(|(_, is_up)| !is_up);
        let down: Vec<&str> = down.map(|(name, _)| name.as_str()).collect();
        Some(format!(
            "{NO_MAJORITY}: {up} of {} nodes are up, so no lock can be granted or shown; down: {}",
            nodes.len(),
            down.join(", ")
        ))
    }

    /// Returns the open connection, or waits for the search for one. The search belongs to no
    /// caller: it continues when this future is dropped.
    async fn link(&self) -> Result<Arc<Connection>, CallFailure> {
        let mut search = {
            let mut links = self.links();
            if let Some(link) = links.link.as_ref().filter(|link| link.is_open()) {
                return Ok(Arc::clone(link));
            }
            match &links.search {
                Some(search) => search.clone(),
                None => {
                    let (done, search) = watch::channel(None);
                    links.search = Some(search.clone());
                    tokio::spawn(self.clone().search(done));
                    search
                }
            }
        };
        match search.wait_for(Option::is_some).await {
            Ok(result) => match &*result {
                Some(result) => result.clone(),
                None => Err(CallFailure::Unreachable("the search has ended".into())),
            },
            Err(_) => Err(CallFailure::Unreachable("the runtime has ended".into())),
        }
    }

    /// Searches for a node, publishes the connection, and starts its heartbeat.
    async fn search(self, done: watch::Sender<SearchResult>) {
        // Not more than one lap within the delay, however many callers there are.
        let delay = {
            let mut links = self.links();
            links.is_unsteady.then(|| links.backoff.delay())
        };
        if let Some(delay) = delay {
            tokio::time::sleep(delay).await;
        }
        let found = self.dial().await;
        {
            let mut links = self.links();
            links.search = None;
            links.link = found.as_ref().ok().cloned();
            links.trouble = match &found {
                Err(CallFailure::Unreachable(what)) => Some(what.clone()),
                _ => None,
            };
            links.is_unsteady = true;
        }
        if let Ok(link) = &found {
            tokio::spawn(heartbeat(Arc::downgrade(&self.0), Arc::downgrade(link)));
            tokio::spawn(learn(Arc::downgrade(&self.0), Arc::downgrade(link)));
        }
        let _ = done.send(Some(found));
    }

    /// Tries all candidates once: the next one as soon as one fails, or a moment later beside it.
    /// The first session that opens wins.
    ///
    /// A refusal (credentials) by one node does not end the search: during a change of the token the
    /// nodes differ.
    async fn dial(&self) -> Result<Arc<Connection>, CallFailure> {
        let to_resolve = self.links().nodes.to_resolve();
        let mut resolved = resolve(to_resolve).await;
        let (mut waiting, credentials) = {
            let mut links = self.links();
            links.nodes.store(&mut resolved);
            if let Ok(fresh) = Credentials::new(links.nodes.configured(), &self.0.access) {
                links.credentials = fresh;
            }
            let waiting: VecDeque<Candidate> = links.nodes.in_order().into();
            (waiting, links.credentials.clone())
        };
        let mut troubles = resolved.troubles;
        let mut refusal: Option<(Code, String)> = None;
        let mut tries = JoinSet::new();
        loop {
            match waiting.pop_front() {
                Some(candidate) => {
                    let client = self.clone();
                    let credentials = credentials.clone();
                    tries.spawn(async move { client.open(candidate, credentials).await });
                }
                None if tries.is_empty() => break,
                None => {}
            }
            let has_more = !waiting.is_empty();
            let opened = tokio::select! {
                Some(opened) = tries.join_next() => opened,
                () = tokio::time::sleep(STAGGER), if has_more => continue,
            };
            match opened {
                Ok((_, Ok(link))) => return Ok(Arc::new(link)),
                Ok((address, Err(failure))) => {
                    self.links().nodes.failed(address);
                    match failure {
                        NoAnswer::Refused(code, what) => {
                            refusal.get_or_insert((code, what));
                        }
                        NoAnswer::Broken(what) | NoAnswer::RefusedKey(what) => troubles.push(what),
                    }
                }
                Err(_) => troubles.push("the runtime has ended".into()),
            }
        }
        match refusal {
            // All that could be asked refuse.
            Some((code, what)) if troubles.is_empty() => Err(CallFailure::Refused(code, what)),
            refusal => {
                troubles.extend(refusal.map(|(_, what)| what));
                Err(CallFailure::Unreachable(troubles.join("; ")))
            }
        }
    }

    /// Opens a connection. A node that the configuration does not name must belong to the cluster
    /// that named it.
    async fn open(
        &self,
        candidate: Candidate,
        credentials: Credentials,
    ) -> (SocketAddr, Result<Connection, NoAnswer>) {
        let address = candidate.address;
        let opened = Connection::connect(&candidate, credentials, self.on_update(address)).await;
        let link = match opened {
            Ok(link) if candidate.is_learned => link,
            other => return (address, other),
        };
        let members = timeout(CHECK, link.members()).await.ok().flatten();
        let expected = self.links().cluster.clone();
        let is_member = members.is_some_and(|(cluster, _)| Some(cluster) == expected);
        let node = &candidate.node;
        let what = format!("{node}: it does not belong to the cluster of the configured nodes");
        let opened = is_member.then_some(link).ok_or(NoAnswer::Broken(what));
        (address, opened)
    }

    /// Checks the health of a node that could not do an operation, and leaves it if it cannot serve:
    /// it stops, or has no quorum.
    fn doubt(&self, link: &Arc<Connection>) {
        let has_another = self.links().nodes.has_another(link.address);
        if !has_another || link.is_doubted.swap(true, Ordering::Relaxed) {
            return;
        }
        let link = Arc::clone(link);
        tokio::spawn(async move {
            let mut calls = link.calls.clone();
            let health = timeout(CHECK, calls.health(link.sign(v1::HealthRequest {}))).await;
            let serves = matches!(health, Ok(Ok(health)) if health.get_ref().ok);
            if !serves {
                link.close();
            }
            tokio::time::sleep(CHECK).await;
            link.is_doubted.store(false, Ordering::Relaxed);
        });
    }

    /// Leaves the node because a lease that only it should renew is in danger. Nothing happens if the
    /// connection is younger than `age`, or if there is no other node.
    pub(super) fn leave_node(&self, age: Duration) {
        let link = {
            let links = self.links();
            let link = links
                .link
                .as_ref()
                .filter(|link| link.opened.elapsed() > age);
            let link = link.filter(|link| links.nodes.has_another(link.address));
            link.cloned()
        };
        if let Some(link) = link {
            link.close();
        }
    }

    /// Returns the interval between pings: several of them fit into the shortest lease.
    fn beat(&self) -> Duration {
        let owners = self.owners();
        let shortest = owners.values().map(|owner| owner.ttl() / 6).min();
        let beat = shortest.unwrap_or(LONGEST_BEAT);
        beat.clamp(SHORTEST_BEAT, LONGEST_BEAT)
    }

    fn on_update(&self, address: SocketAddr) -> EventHandler {
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
                ConnectionEvent::Broken => client.broke(address),
            }
        })
    }

    /// Handles the end of a connection, which is reported once.
    fn broke(&self, address: SocketAddr) {
        {
            let mut links = self.links();
            links.nodes.failed(address);
            // The connection may be one of a search that another candidate has won.
            match links.link.take() {
                Some(link) if link.is_open() => {
                    links.link = Some(link);
                    return;
                }
                Some(link) if link.opened.elapsed() > LASTED => {
                    links.is_unsteady = false;
                    links.backoff.reset();
                }
                Some(_) | None => {}
            }
        }
        // Events of an owner arrive on the session that it uses. So every owner sends a renewal on
        // the next connection at once.
        let owners: Vec<Arc<Owner>> = self.owners().values().cloned().collect();
        owners.iter().for_each(|owner| owner.link_broke());
    }

    fn links(&self) -> MutexGuard<'_, LinkState> {
        self.0.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn owners(&self) -> MutexGuard<'_, HashMap<String, Arc<Owner>>> {
        self.0.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pings the node until the connection ends. A node that does not answer within the interval is left:
/// with a sixth of the shortest ttl, this happens before the next renewal is due.
///
/// Keeps neither the client nor the connection alive.
async fn heartbeat(client: Weak<ClientInner>, link: Weak<Connection>) {
    loop {
        let Some(beat) = client.upgrade().map(|inner| DaemonClient(inner).beat()) else {
            return;
        };
        tokio::time::sleep(beat).await;
        let Some(link) = link.upgrade().filter(|link| link.is_open()) else {
            return;
        };
        if timeout(beat, link.ping()).await.is_err() {
            return link.close();
        }
    }
}

/// Learns the members of the cluster, so that the client survives the loss of all configured nodes.
async fn learn(client: Weak<ClientInner>, link: Weak<Connection>) {
    let Some(link) = link.upgrade() else {
        return;
    };
    let Ok(Some((cluster, members))) = timeout(CHECK, link.members()).await else {
        return;
    };
    // A single daemon has no other members, and its address may be a default.
    if let Some(client) = client.upgrade().map(DaemonClient)
        && members.len() > 1
        && !cluster.is_empty()
    {
        let mut links = client.links();
        links.nodes.learn(members, link.address);
        links.cluster = Some(cluster);
    }
}

/// Returns the time limit of one try before `until`. The last try gets some time in any case.
fn left_of(each_try: Duration, until: Duration) -> Duration {
    each_try.min(until.saturating_sub(Lease::now()).max(FIRST_PAUSE))
}

/// Returns whether a retry may succeed.
fn passes(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable | Code::Aborted | Code::DeadlineExceeded | Code::Cancelled
    )
}
