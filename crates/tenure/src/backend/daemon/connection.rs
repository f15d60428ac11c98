//! One connection to one node: a session stream with many operations in flight, which also carries
//! events. E10 (Session stream).
//!
//! A call that has no answer does not close the connection: the operation may wait for one group, and
//! the connection serves all owners. [`ping`](Connection::ping) tells whether the node answers.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tenure_wire::cluster::MembersRequest;
use tenure_wire::cluster::cluster_client::ClusterClient;
use tenure_wire::v1;
use tenure_wire::v1::path_lock_client::PathLockClient;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};

pub(super) use v1::session_request::Op;
pub(super) use v1::session_response::Result as Answer;

use super::candidates::Candidate;
use super::connection_messages;
use super::credentials::Credentials;
use super::engine;
use crate::endpoint::Endpoint;

/// Time limit for a TCP connection.
const CONNECT: Duration = Duration::from_secs(2);
/// Maximum size of an answer in bytes: a list of locks may be larger than the default of 4 MiB, but
/// a server must not be able to fill the memory of its client.
const LONGEST_ANSWER: usize = 256 << 20;
/// Capacity of the queue of outgoing requests.
const BUFFER: usize = 256;

/// What a connection reports.
pub(super) enum ConnectionEvent {
    /// An event for an owner.
    Event(v1::Event),
    /// The connection is broken.
    Broken,
}

/// A callback for connection events.
pub(super) type EventHandler = Arc<dyn Fn(ConnectionEvent) + Send + Sync>;

/// A session, open or broken.
pub(super) struct Connection {
    pub(super) address: SocketAddr,
    /// The node at the other end.
    candidate: Candidate,
    /// When it was opened.
    pub(super) opened: Instant,
    /// A check of the node's health is running or has just ended.
    pub(super) is_doubted: AtomicBool,
    /// For calls that the session does not carry.
    pub(super) calls: PathLockClient<Channel>,
    channel: Channel,
    credentials: Credentials,
    requests: mpsc::Sender<v1::SessionRequest>,
    open: PendingReplies,
    next: AtomicU64,
    on_update: EventHandler,
    reader: tokio::task::AbortHandle,
    /// Becomes `true` when the connection is broken.
    broken: watch::Sender<bool>,
}

/// Waiting calls by request id; `None` after the connection broke.
type PendingReplies = Arc<Mutex<Option<HashMap<u64, oneshot::Sender<Answer>>>>>;

/// Why an operation has no answer.
#[derive(Clone, Debug)]
pub(super) enum NoAnswer {
    /// The connection is broken, or counts as broken.
    Broken(String),
    /// The node refused the operation.
    Refused(Code, String),
    /// The node refused the operation, but accepts it without its idempotency key.
    RefusedKey(String),
}

impl Connection {
    pub(super) async fn connect(
        candidate: &Candidate,
        credentials: Credentials,
        on_update: EventHandler,
    ) -> Result<Connection, NoAnswer> {
        let (node, address) = (&candidate.node, candidate.address);
        let broken = |what: String| NoAnswer::Broken(format!("{node}: {what}"));
        let opening = async {
            let channel = match node.engine_address() {
                Some(engine) => engine::connect(engine).await.map_err(broken)?,
                None => credentials
                    .connect(candidate)
                    .await
                    .map_err(|error| broken(connection_messages::plain(&words(&error))))?,
            };
            let mut calls =
                PathLockClient::new(channel.clone()).max_decoding_message_size(LONGEST_ANSWER);
            let (requests, outgoing) = mpsc::channel(BUFFER);
            let stream = credentials.sign(candidate, ReceiverStream::new(outgoing));
            let answers = calls.session(stream).await.map_err(|status| {
                let named = |what: String| format!("{node}: {what}");
                match refused(&status) {
                    NoAnswer::Broken(what) => NoAnswer::Broken(named(what)),
                    NoAnswer::Refused(code, what) => {
                        let advice = match code {
                            Code::Unauthenticated => credentials.advice(candidate),
                            _ => "",
                        };
                        NoAnswer::Refused(code, format!("{}{advice}", named(what)))
                    }
                    NoAnswer::RefusedKey(what) => NoAnswer::RefusedKey(named(what)),
                }
            })?;
            // A web server answers with a document, which would fail at the first message only.
            let kind = answers.metadata().get("content-type");
            let is_grpc = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
            if !is_grpc {
                return Err(broken(connection_messages::NOT_GRPC.to_owned()));
            }
            Ok((channel, calls, requests, answers.into_inner()))
        };
        // The node may accept the connection and then not answer.
        let opened = tokio::time::timeout(2 * CONNECT, opening).await;
        let (channel, calls, requests, answers) =
            opened.unwrap_or_else(|_| Err(broken("no answer in time".into())))?;
        let open: PendingReplies = Arc::new(Mutex::new(Some(HashMap::new())));
        let broken = watch::Sender::new(false);
        let breaking = Breaking {
            open: Arc::clone(&open),
            broken: broken.clone(),
            on_update: Arc::clone(&on_update),
        };
        let reader = tokio::spawn(read(answers, breaking));
        Ok(Connection {
            address,
            candidate: candidate.clone(),
            opened: Instant::now(),
            is_doubted: AtomicBool::new(false),
            calls,
            channel,
            credentials,
            requests,
            open,
            next: AtomicU64::new(1),
            on_update,
            reader: reader.abort_handle(),
            broken,
        })
    }

    pub(super) fn is_open(&self) -> bool {
        lock(&self.open).is_some()
    }

    /// Completes when the connection is broken.
    pub(super) async fn broken(&self) {
        // The sender is in `self`, so this cannot fail.
        let _ = self.broken.subscribe().wait_for(|broken| *broken).await;
    }

    /// Closes the connection. All waiting calls fail.
    pub(super) fn close(&self) {
        self.reader.abort();
        let breaking = Breaking {
            open: Arc::clone(&self.open),
            broken: self.broken.clone(),
            on_update: Arc::clone(&self.on_update),
        };
        breaking.break_off();
    }

    /// Adds the credentials to a message.
    pub(super) fn sign<T>(&self, message: T) -> Request<T> {
        self.credentials.sign(&self.candidate, message)
    }

    /// Sends one operation.
    pub(super) async fn call(&self, op: Op) -> Result<Answer, NoAnswer> {
        match self.exchange(Some(op)).await {
            Some(Answer::Error(error)) if error.detail() == v1::ErrorDetail::RetryWithoutKey => {
                Err(NoAnswer::RefusedKey(error.message))
            }
            Some(Answer::Error(error)) => {
                let code = Code::from(i32::try_from(error.code).unwrap_or(2));
                Err(NoAnswer::Refused(code, error.message))
            }
            Some(answer) => Ok(answer),
            None => Err(NoAnswer::Broken("the connection broke".into())),
        }
    }

    /// Completes when the node has answered a request without an operation, or the connection is
    /// broken. The node answers it with an error at once, without the cluster.
    pub(super) async fn ping(&self) {
        let _ = self.exchange(None).await;
    }

    async fn exchange(&self, op: Option<Op>) -> Option<Answer> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        lock(&self.open).as_mut()?.insert(id, sender);
        let _waiting = WaitingCall {
            open: &self.open,
            id,
        };
        let request = v1::SessionRequest { id, op };
        self.requests.send(request).await.ok()?;
        answer.await.ok()
    }

    /// Returns the addresses of the cluster's nodes, and whether each is up.
    pub(super) async fn member_states(&self) -> Option<Vec<(String, bool)>> {
        let mut cluster = ClusterClient::new(self.channel.clone());
        let request = self.sign(MembersRequest {});
        let members = cluster.members(request).await.ok()?.into_inner();
        let nodes = members.nodes.into_iter().map(|node| {
            let name = match node.public_address.split_once("://") {
                Some((_, address)) => address.to_owned(),
                // The digits of a node's name are its number minus one.
                None => format!("node {}", node.number.saturating_sub(1)),
            };
            (name, node.up)
        });
        Some(nodes.collect())
    }

    /// Returns the id of the cluster and its members. `None`: the daemon does not report them.
    pub(super) async fn members(&self) -> Option<(String, Vec<Endpoint>)> {
        let mut cluster = ClusterClient::new(self.channel.clone());
        let request = self.sign(MembersRequest {});
        let members = cluster.members(request).await.ok()?.into_inner();
        let addresses = members
            .nodes
            .iter()
            .filter(|node| !node.public_address.is_empty());
        let nodes = addresses.filter_map(|node| Endpoint::list(&node.public_address).ok());
        Some((members.cluster_id, nodes.flatten().collect()))
    }
}

/// Removes a call that is no longer waited for.
struct WaitingCall<'a> {
    open: &'a PendingReplies,
    id: u64,
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        if let Some(open) = lock(self.open).as_mut() {
            open.remove(&self.id);
        }
    }
}

/// What ends with a connection.
struct Breaking {
    open: PendingReplies,
    broken: watch::Sender<bool>,
    on_update: EventHandler,
}

impl Breaking {
    /// Fails all waiting calls and reports the break once, whether the reader or `close` comes
    /// first.
    fn break_off(&self) {
        let was_open = lock(&self.open).take().is_some();
        if was_open {
            self.broken.send_replace(true);
            (self.on_update)(ConnectionEvent::Broken);
        }
    }
}

/// Delivers answers to the waiting calls until the stream ends.
async fn read(mut answers: Streaming<v1::SessionResponse>, connection: Breaking) {
    while let Ok(Some(response)) = answers.message().await {
        match (response.id, response.result) {
            (0, Some(Answer::Event(event))) => {
                (connection.on_update)(ConnectionEvent::Event(event));
            }
            // Id 0 is reserved for events. Anything else with it ends the session.
            (0, _) => break,
            (id, Some(answer)) => {
                let mut open = lock(&connection.open);
                let waiting = open.as_mut().and_then(|open| open.remove(&id));
                drop(open);
                if let Some(waiting) = waiting {
                    let _ = waiting.send(answer);
                }
            }
            (_, None) => {}
        }
    }
    connection.break_off();
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn refused(status: &Status) -> NoAnswer {
    match status.code() {
        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::DeadlineExceeded => {
            NoAnswer::Broken(connection_messages::plain(status.message()))
        }
        // The transport library reports what is no gRPC as an internal error.
        Code::Internal
            if std::error::Error::source(status).is_some()
                || connection_messages::is_foreign(status.message()) =>
        {
            NoAnswer::Broken(connection_messages::plain(status.message()))
        }
        code => NoAnswer::Refused(code, status.message().to_owned()),
    }
}

/// Returns the message with all causes: the outermost alone says "transport error".
fn words(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}
