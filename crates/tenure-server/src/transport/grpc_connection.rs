//! gRPC connections directly on `h2`: unary calls without a task, future or channel of their own.
//!
//! ```text
//!   socket ──▶ h2 ──unary call──▶ calls in flight ──all of one read──▶ CallBatch ──▶ node
//!               │ └─▶ a future that waits for its body or a call limit ─▲
//!               └──stream, other service──▶ a future of its own
//!   socket ◀── h2 ◀──all of one step── calls in flight ◀──one wake-up per step── node
//! ```
//!
//! A unary call in flight is an entry in the connection's slab, and the task of the connection does
//! all the work. The node answers many calls in one *step* and then wakes the task once.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::Body;
use bytes::Bytes;
use futures_util::Stream;
use futures_util::stream::FuturesUnordered;
use h2::server::{Connection, SendResponse};
use h2::{Ping, PingPong, RecvStream};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use tenure_cluster::{CallBatch, Completion};
use tenure_node::Answer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::Sleep;
use tonic::Status;

use super::connection::{
    Client, GrpcConnection, GrpcPort, OpKind, Permits, grpc_response, kind_of,
};
use super::h2_body::{self, RequestBody};
use super::memory_budget::{Charge, ConnectionBudget};
use super::preface_timeout::PrefaceTimeout;
use super::tcp::{self, HANDSHAKE, PING_ANSWER, PING_EVERY, PlaintextPolicy, stopped};
use crate::auth::{Caller, Origin};
use crate::handlers;
use crate::in_flight::InFlight;
use crate::rpc::{Facts, Outcome, Unary};
use crate::status::Failure;
use crate::telemetry::{Span, Transport};

/// Maximum concurrent streams per connection: waiting calls and open subscriptions. A client with
/// more in flight uses a Session, or several connections.
const STREAMS: u32 = 1024;
/// Flow-control windows: bytes that a client may send before they are read, per stream and in
/// total.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Maximum size of a request's head in bytes.
const HEAD: u32 = 16 << 10;
/// Maximum bytes per stream that wait to be sent.
const SEND_BUFFER: usize = 400 << 10;

/// Serves a client until it disconnects. When the daemon stops, calls in flight are finished first.
pub(crate) async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    port: Arc<GrpcPort>,
    stop: watch::Receiver<bool>,
) {
    let Some(memory) = ConnectionBudget::open(&port.memory) else {
        return tracing::debug!(%peer, "closed: the memory for clients is used up");
    };
    let Some(stream) = tcp::open(stream, port.tls.grpc()).await else {
        return;
    };
    let client = Client {
        origin: Origin::certified(peer, stream.certificate().as_ref()),
        plain: if stream.is_encrypted() {
            PlaintextPolicy::Served
        } else {
            port.plain
        },
    };
    serve_stream(stream, client, memory, port, stop).await;
}

/// Serves a client of the Unix socket. The kernel has identified it, and nothing leaves the machine.
pub(crate) async fn serve_local(
    stream: UnixStream,
    uid: u32,
    port: Arc<GrpcPort>,
    stop: watch::Receiver<bool>,
) {
    let Some(memory) = ConnectionBudget::open(&port.memory) else {
        return tracing::debug!(uid, "closed: the memory for clients is used up");
    };
    let client = Client {
        origin: Origin::Unix { uid },
        plain: PlaintextPolicy::Served,
    };
    serve_stream(stream, client, memory, port, stop).await;
}

async fn serve_stream<I>(
    stream: I,
    client: Client,
    memory: Arc<ConnectionBudget>,
    port: Arc<GrpcPort>,
    stop: watch::Receiver<bool>,
) where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let handshake = h2::server::Builder::new()
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEAD)
        .initial_window_size(STREAM_WINDOW)
        .max_send_buffer_size(SEND_BUFFER)
        .handshake(PrefaceTimeout::new(stream, HANDSHAKE));
    let mut connection = match handshake.await {
        Ok(connection) => connection,
        Err(error) => return tracing::debug!(%error, "connection ended"),
    };
    if memory.widen(CONNECTION_WINDOW as usize) {
        connection.set_target_window_size(CONNECTION_WINDOW);
    }
    let client = GrpcConnection::new(&port, client, memory);
    let mut served = ServedConnection::new(connection, client);
    // `biased`: the connection is polled before `stop`, so a request that has arrived is still
    // served.
    tokio::select! {
        biased;
        () = poll_fn(|cx| served.poll(cx)) => return,
        () = stopped(stop) => served.connection.graceful_shutdown(),
    }
    poll_fn(|cx| served.poll(cx)).await;
}

/// A unary call that is not submitted to the node yet.
struct Arrived {
    caller: Caller,
    unary: &'static Unary,
    headers: HeaderMap,
    deadline: Duration,
    charge: Charge,
    respond: SendResponse<Bytes>,
}

/// A unary call that is submitted to the node.
struct PendingCall {
    /// The memory of the call, until it is answered: a node that hangs must not collect calls
    /// without a limit.
    _charge: Charge,
    unary: &'static Unary,
    caller: Caller,
    facts: Facts,
    begun: Instant,
    span: Span,
    permits: Permits,
    respond: SendResponse<Bytes>,
}

/// A unary call whose permits and message have arrived after a wait.
type Waited = (Arrived, Permits, Bytes);

/// A future of this connection: a waiting unary call, a stream, or another service.
type OtherCall = Pin<Box<dyn Future<Output = Option<Waited>> + Send>>;

/// A gRPC connection with its calls in flight.
struct ServedConnection<I> {
    connection: Connection<PrefaceTimeout<I>, Bytes>,
    client: GrpcConnection,
    calls: CallBatch,
    under_way: InFlight<PendingCall>,
    /// Buffer for completions; kept to reuse its memory.
    heard: Vec<Completion>,
    others: FuturesUnordered<OtherCall>,
    ping: Option<KeepAlivePing>,
}

impl<I: AsyncRead + AsyncWrite + Unpin> ServedConnection<I> {
    fn new(
        mut connection: Connection<PrefaceTimeout<I>, Bytes>,
        client: GrpcConnection,
    ) -> ServedConnection<I> {
        ServedConnection {
            ping: connection.ping_pong().map(KeepAlivePing::new),
            connection,
            // The event buffer is not used: unary calls listen to no owner.
            calls: client.port().node.calls(1),
            client,
            under_way: InFlight::default(),
            heard: Vec::new(),
            others: FuturesUnordered::new(),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let port = Arc::clone(self.client.port());
        port.coalescer.with(|| self.turn(cx))
    }

    /// One poll: answers the calls that the node has decided, reads and writes the socket, submits
    /// the calls that were read.
    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.hear(cx);
        let now = Instant::now();
        self.go_on(now, cx);
        loop {
            match self.connection.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, respond)))) => self.begin(request, respond, now, cx),
                Poll::Ready(Some(Err(error))) => {
                    tracing::debug!(%error, "connection ended");
                    return Poll::Ready(());
                }
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => break,
            }
        }
        // A request that is answered here queues its response in `h2`, which wakes this task.
        self.go_on(now, cx);
        // One flush for all calls of this poll: the node gets them as one batch.
        self.calls.flush();
        match &mut self.ping {
            Some(ping) => ping.poll(cx),
            None => Poll::Pending,
        }
    }

    fn hear(&mut self, cx: &mut Context<'_>) {
        let mut heard = std::mem::take(&mut self.heard);
        while self.calls.poll(cx, &mut heard).is_ready() {
            let now = Instant::now();
            for heard in heard.drain(..) {
                let Completion::Answer { tag, answer, .. } = heard else {
                    continue;
                };
                if let Some(call) = self.under_way.give_back(tag) {
                    self.answer(call, answer.map_err(handlers::failure), now);
                }
            }
        }
        self.heard = heard;
    }

    fn go_on(&mut self, now: Instant, cx: &mut Context<'_>) {
        while let Poll::Ready(Some(done)) = Pin::new(&mut self.others).poll_next(cx) {
            if let Some((arrived, permits, message)) = done {
                self.enter(arrived, permits, &message, now);
            }
        }
    }

    fn begin(
        &mut self,
        request: Request<RecvStream>,
        mut respond: SendResponse<Bytes>,
        now: Instant,
        cx: &mut Context<'_>,
    ) {
        let request = request.map(RequestBody::new);
        // Authentication comes first, for known and unknown RPCs alike.
        let (caller, deadline, charge) = match self.client.admit(&request) {
            Ok(admitted) => admitted,
            Err(refused) => return self.other(async move { refused }, respond),
        };
        let unary = match kind_of(&request) {
            Ok(OpKind::Unary(unary)) => unary,
            Ok(kind) => {
                let client = self.client.clone();
                let served = client.serve(caller, kind, request, deadline, charge);
                return self.other(served, respond);
            }
            Err(status) => {
                let _ = refuse(&mut respond, status);
                return;
            }
        };
        let (head, body) = request.into_parts();
        let mut body = match self.client.limited(body, deadline) {
            Ok(body) => body,
            Err(status) => {
                let _ = refuse(&mut respond, status);
                return;
            }
        };
        let mut arrived = Arrived {
            caller,
            unary,
            headers: head.headers,
            deadline,
            charge,
            respond,
        };
        // Polled once and dropped: `read` keeps its progress in `body`, so `wait` continues from
        // there.
        let _ = pin!(body.read()).poll(cx);
        // Fast path: the message is complete and permits are free. All else waits in a future.
        if let Some(message) = body.message()
            && let Some(permits) = self.client.permits_at_once(unary)
        {
            return self.enter(arrived, permits, message, now);
        }
        let waiting = self.client.clone().wait(unary, deadline, body);
        self.push(async move {
            match h2_body::unless_reset(waiting, &mut arrived.respond).await? {
                Ok((permits, message, left)) => {
                    arrived.deadline = left;
                    Some((arrived, permits, message))
                }
                Err(status) => {
                    let _ = refuse(&mut arrived.respond, status);
                    None
                }
            }
        });
    }

    /// Submits a unary call to the node. A message that is invalid is answered without the node.
    fn enter(&mut self, arrived: Arrived, permits: Permits, message: &[u8], now: Instant) {
        let Arrived {
            caller,
            unary,
            headers,
            deadline,
            mut charge,
            mut respond,
        } = arrived;
        if let Err(full) = charge.grow(message.len()) {
            let _ = refuse(&mut respond, full);
            return;
        }
        let asked = match (unary.parse)(&caller, message) {
            Ok(asked) => asked,
            Err(error) => {
                let _ = refuse(&mut respond, Status::internal(error.to_string()));
                return;
            }
        };
        let mut call = PendingCall {
            _charge: charge,
            unary,
            caller,
            facts: Facts::default(),
            begun: now,
            span: self.client.telemetry().span(unary.rpc, &headers),
            permits,
            respond,
        };
        match asked {
            Ok(asked) => {
                call.facts = asked.facts;
                if let Some(record) = &mut call.facts.audit {
                    record.peer = self.client.peer();
                }
                let tag = self.under_way.take(call);
                self.calls.push(tag, asked.request, unary.timeout(deadline));
            }
            Err(failure) => self.refuse(call, failure),
        }
    }

    /// Refuses a call that the node did not get. Its row is not asked for an answer: to Health a
    /// failure of the node is an answer.
    fn refuse(&self, mut call: PendingCall, failure: Failure) {
        let mut code = failure.code.grpc();
        if refuse(&mut call.respond, failure.into()).is_err() {
            code = tonic::Code::Cancelled;
        }
        let telemetry = self.client.telemetry();
        let took = call.begun.elapsed();
        telemetry.end(Transport::Grpc, call.unary.rpc, code, took, call.span);
    }

    fn other(
        &mut self,
        answer: impl Future<Output = Response<Body>> + Send + 'static,
        respond: SendResponse<Bytes>,
    ) {
        self.push(async move {
            h2_body::answer(answer, respond).await;
            None
        });
    }

    fn push(&self, other: impl Future<Output = Option<Waited>> + Send + 'static) {
        // Hundreds of requests share one task, and tokio's cooperative budget is per task: without
        // this they would be suspended in the middle. Reads from the socket still use the budget.
        let other = tokio::task::unconstrained(other);
        self.others.push(Box::pin(other));
    }

    fn answer(&self, call: PendingCall, answer: Result<Answer, Failure>, now: Instant) {
        let PendingCall {
            _charge,
            unary,
            caller,
            facts,
            begun,
            span,
            permits,
            mut respond,
        } = call;
        let outcome = Outcome {
            answer,
            facts,
            caller: &caller,
            node: &self.client.port().node,
        };
        let mut code = tonic::Code::Ok;
        let sent = match ((unary.respond)(outcome), permits.unread) {
            (Ok(message), None) => send(&mut respond, message),
            (Ok(message), Some(unread)) => {
                // Long responses obey the client's flow control, and keep their permit until they
                // are sent: their number bounds the memory that a slow reader can occupy.
                self.push(async move {
                    let body = Full::new(message).with_trailers(async { Some(Ok(all_is_well())) });
                    h2_body::send(grpc_response(Body::new(body)), respond).await;
                    drop(unread);
                    None
                });
                Ok(())
            }
            (Err(failure), _) => {
                code = failure.code.grpc();
                refuse(&mut respond, failure.into())
            }
        };
        if sent.is_err() {
            // The client has reset the stream or disconnected.
            code = tonic::Code::Cancelled;
        }
        let took = now.saturating_duration_since(begun);
        let telemetry = self.client.telemetry();
        telemetry.end(Transport::Grpc, unary.rpc, code, took, span);
    }
}

impl<I> Drop for ServedConnection<I> {
    fn drop(&mut self) {
        let telemetry = self.client.telemetry();
        for call in self.under_way.drain() {
            let took = call.begun.elapsed();
            let code = tonic::Code::Cancelled;
            telemetry.end(Transport::Grpc, call.unary.rpc, code, took, call.span);
        }
    }
}

/// Sends one message and the trailers with status OK. Does not wait for flow control: the message
/// is short.
fn send(respond: &mut SendResponse<Bytes>, message: Bytes) -> Result<(), h2::Error> {
    let mut stream = respond.send_response(grpc_response(()), false)?;
    stream.send_data(message, false)?;
    stream.send_trailers(all_is_well())
}

fn all_is_well() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
    trailers
}

/// Sends a status instead of a message.
fn refuse(respond: &mut SendResponse<Bytes>, status: Status) -> Result<(), h2::Error> {
    let refused = status.into_http::<()>();
    respond.send_response(refused, true).map(drop)
}

/// HTTP/2 keep-alive: detects clients that have vanished without closing the connection.
struct KeepAlivePing {
    pings: PingPong,
    /// When the next ping is due, or, while one is outstanding, when its answer is.
    at: Pin<Box<Sleep>>,
    is_asked: bool,
}

impl KeepAlivePing {
    fn new(pings: PingPong) -> KeepAlivePing {
        KeepAlivePing {
            pings,
            at: Box::pin(tokio::time::sleep(PING_EVERY)),
            is_asked: false,
        }
    }

    /// Ready when the client has not answered in time.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.is_asked
                && let Poll::Ready(pong) = self.pings.poll_pong(cx)
            {
                if pong.is_err() {
                    return Poll::Ready(());
                }
                self.is_asked = false;
                self.at
                    .as_mut()
                    .reset(tokio::time::Instant::now() + PING_EVERY);
            }
            if self.at.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if self.is_asked || self.pings.send_ping(Ping::opaque()).is_err() {
                tracing::debug!("connection ended: the client does not answer");
                return Poll::Ready(());
            }
            self.is_asked = true;
            self.at
                .as_mut()
                .reset(tokio::time::Instant::now() + PING_ANSWER);
        }
    }
}
