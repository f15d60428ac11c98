//! One connection to one node: a session stream with many operations in flight, which also carries
//! events. E10 (Session stream).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_wire::v1;
use tenure_wire::v1::path_lock_client::PathLockClient;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint as Target};
use tonic::{Code, Status, Streaming};

pub(super) use v1::session_request::Op;
pub(super) use v1::session_response::Result as Answer;

use super::credentials::Credentials;
use crate::endpoint::Endpoint;

/// Time limit for a TCP connection.
const CONNECT: Duration = Duration::from_secs(2);
/// HTTP/2 keep-alive: interval of pings, and time limit for the answer.
const PING: Duration = Duration::from_secs(10);
const PONG: Duration = Duration::from_secs(5);
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
    /// The node at the other end.
    pub(super) node: Endpoint,
    /// For calls that the session does not carry.
    pub(super) calls: PathLockClient<Channel>,
    requests: mpsc::Sender<v1::SessionRequest>,
    open: PendingReplies,
    next: AtomicU64,
    on_update: EventHandler,
    reader: tokio::task::AbortHandle,
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
        node: &Endpoint,
        credentials: &Credentials,
        on_update: EventHandler,
    ) -> Result<Connection, NoAnswer> {
        let broken = |what: String| NoAnswer::Broken(format!("{node}: {what}"));
        let target = Target::from_shared(format!("http://{node}"))
            .map_err(|error| broken(error.to_string()))?
            .connect_timeout(CONNECT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(PING)
            .keep_alive_timeout(PONG)
            .keep_alive_while_idle(true);
        let opening = async {
            let channel = credentials
                .connect(node, target)
                .await
                .map_err(|error| broken(words(&error)))?;
            let mut calls = PathLockClient::new(channel).max_decoding_message_size(LONGEST_ANSWER);
            let (requests, outgoing) = mpsc::channel(BUFFER);
            let stream = credentials.sign(node, ReceiverStream::new(outgoing));
            let answers = calls
                .session(stream)
                .await
                .map_err(|status| match refused(&status) {
                    NoAnswer::Refused(Code::Unauthenticated, why) => {
                        let advice = credentials.advice(node);
                        NoAnswer::Refused(Code::Unauthenticated, format!("{why}{advice}"))
                    }
                    other => other,
                })?;
            Ok((calls, requests, answers.into_inner()))
        };
        // The node may accept the connection and then not answer.
        let (calls, requests, answers) = match tokio::time::timeout(2 * CONNECT, opening).await {
            Ok(opened) => opened?,
            Err(_) => return Err(broken("no answer in time".into())),
        };
        let open: PendingReplies = Arc::new(Mutex::new(Some(HashMap::new())));
        let reader = tokio::spawn(read(answers, Arc::clone(&open), Arc::clone(&on_update)));
        Ok(Connection {
            node: node.clone(),
            calls,
            requests,
            open,
            next: AtomicU64::new(1),
            on_update,
            reader: reader.abort_handle(),
        })
    }

    pub(super) fn is_open(&self) -> bool {
        lock(&self.open).is_some()
    }

    /// Closes the connection. All waiting calls fail.
    pub(super) fn close(&self) {
        self.reader.abort();
        break_off(&self.open, &self.on_update);
    }

    /// Sends one operation. A timeout closes the connection, because other calls on it would time
    /// out, too.
    pub(super) async fn call(&self, op: Op, time: Duration) -> Result<Answer, NoAnswer> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        match lock(&self.open).as_mut() {
            Some(open) => drop(open.insert(id, sender)),
            None => return Err(NoAnswer::Broken("the connection broke".into())),
        }
        let request = v1::SessionRequest { id, op: Some(op) };
        let exchange = async {
            self.requests.send(request).await.ok()?;
            answer.await.ok()
        };
        match tokio::time::timeout(time, exchange).await {
            Ok(Some(Answer::Error(error)))
                if error.detail() == v1::ErrorDetail::RetryWithoutKey =>
            {
                Err(NoAnswer::RefusedKey(error.message))
            }
            Ok(Some(Answer::Error(error))) => {
                let code = Code::from(i32::try_from(error.code).unwrap_or(2));
                Err(NoAnswer::Refused(code, error.message))
            }
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(NoAnswer::Broken("the connection broke".into())),
            Err(_) => {
                self.close();
                Err(NoAnswer::Broken("no answer in time".into()))
            }
        }
    }
}

/// Delivers answers to the waiting calls until the stream ends.
async fn read(
    mut answers: Streaming<v1::SessionResponse>,
    open: PendingReplies,
    on_update: EventHandler,
) {
    while let Ok(Some(response)) = answers.message().await {
        match (response.id, response.result) {
            (0, Some(Answer::Event(event))) => on_update(ConnectionEvent::Event(event)),
            // Id 0 is reserved for events. Anything else with it ends the session.
            (0, _) => break,
            (id, Some(answer)) => {
                let waiting = lock(&open).as_mut().and_then(|open| open.remove(&id));
                if let Some(waiting) = waiting {
                    let _ = waiting.send(answer);
                }
            }
            (_, None) => {}
        }
    }
    break_off(&open, &on_update);
}

/// Fails all waiting calls and reports the break once, whether the reader or `close` comes first.
fn break_off(open: &PendingReplies, on_update: &EventHandler) {
    let was_open = lock(open).take().is_some();
    if was_open {
        on_update(ConnectionEvent::Broken);
    }
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
            NoAnswer::Broken(status.message().to_owned())
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
