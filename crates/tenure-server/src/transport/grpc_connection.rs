//! A connection of the gRPC port, on HTTP/2 itself.
//!
//! ```text
//!   socket ──▶ h2 ──unary call──▶ calls in flight ──all of a read──▶ batch ──▶ node
//!               │ └─▶ a future that waits for its body, or its turn ─▲
//!               └──stream, other service──▶ a future of its own
//!   socket ◀── h2 ◀──all of a turn── calls in flight ◀──one wake-up a turn── node
//! ```
//!
//! A unary call is an entry in a list while it is in flight: no future, no waker and no channel of its
//! own. Everything happens in the task of the connection.

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
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Sleep;
use tonic::Status;

use super::connection::{GrpcConnection, GrpcPort, OpKind, Permits, grpc_response, kind_of};
use super::h2_body::{self, RequestBody};
use super::preface_timeout::PrefaceTimeout;
use super::tcp::{HANDSHAKE, PING_ANSWER, PING_EVERY, keep_alive, stopped};
use crate::handlers;
use crate::in_flight::{InFlight, SpareRequests};
use crate::rpc::{Facts, Outcome, Unary};
use crate::status::Failure;
use crate::telemetry::{Span, Transport};

/// Concurrent streams of one connection: calls that wait and open subscriptions.
const STREAMS: u32 = 65_536;
/// What a client may send on a stream, and on all of them, before it is read.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// The longest head of a request.
const HEAD: u32 = 16 << 10;
/// What waits in the connection to be sent, for one stream.
const SEND_BUFFER: usize = 400 << 10;

/// Serves a client until it leaves. When the daemon stops, what is in flight is finished first.
pub(crate) async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    port: Arc<GrpcPort>,
    stop: watch::Receiver<bool>,
) {
    // Answers are small and awaited: never wait for more to send.
    let _ = stream.set_nodelay(true);
    keep_alive(&stream);
    let handshake = h2::server::Builder::new()
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEAD)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buffer_size(SEND_BUFFER)
        .handshake(PrefaceTimeout::new(stream, HANDSHAKE));
    let connection = match handshake.await {
        Ok(connection) => connection,
        Err(error) => return tracing::debug!(%error, "connection ended"),
    };
    let mut served = ServedCall::new(connection, port, peer);
    tokio::select! {
        biased;
        () = poll_fn(|cx| served.poll(cx)) => return,
        () = stopped(stop) => served.connection.graceful_shutdown(),
    }
    poll_fn(|cx| served.poll(cx)).await;
}

/// A unary call that the node does not have yet.
struct Arrived {
    unary: &'static Unary,
    headers: HeaderMap,
    deadline: Duration,
    respond: SendResponse<Bytes>,
}

/// A unary call that the node has.
struct PendingCall {
    unary: &'static Unary,
    facts: Facts,
    begun: Instant,
    span: Span,
    permits: Permits,
    respond: SendResponse<Bytes>,
}

/// A unary call that has waited for its permits and its message.
type Waited = (Arrived, Permits, Bytes);

/// What has a future of its own.
type OtherCall = Pin<Box<dyn Future<Output = Option<Waited>> + Send>>;

struct ServedCall {
    connection: Connection<PrefaceTimeout<TcpStream>, Bytes>,
    client: GrpcConnection,
    calls: CallBatch,
    under_way: InFlight<PendingCall>,
    /// Where the node puts what it has said, between two looks.
    heard: Vec<Completion>,
    spare: SpareRequests,
    others: FuturesUnordered<OtherCall>,
    ping: Option<KeepAlivePing>,
}

impl ServedCall {
    fn new(
        mut connection: Connection<PrefaceTimeout<TcpStream>, Bytes>,
        port: Arc<GrpcPort>,
        peer: SocketAddr,
    ) -> ServedCall {
        ServedCall {
            ping: connection.ping_pong().map(KeepAlivePing::new),
            connection,
            // Nobody is listened to here.
            calls: port.node.calls(1),
            client: GrpcConnection::new(&port, peer),
            under_way: InFlight::default(),
            heard: Vec::new(),
            spare: SpareRequests::default(),
            others: FuturesUnordered::new(),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let port = Arc::clone(self.client.port());
        port.coalescer.with(|| self.turn(cx))
    }

    /// Answers what the node has decided, then reads and writes, then begins what was read.
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
        // What is answered at once wakes the connection by itself.
        self.go_on(now, cx);
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
                let Completion::Answer {
                    tag,
                    answer,
                    request,
                } = heard
                else {
                    continue;
                };
                self.spare.keep(request);
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
        let deadline = match self.client.admit(&request) {
            Ok(deadline) => deadline,
            Err(refused) => return self.other(async move { refused }, respond),
        };
        let unary = match kind_of(&request) {
            Ok(OpKind::Unary(unary)) => unary,
            Ok(kind) => {
                let served = self.client.clone().serve(kind, request, deadline);
                return self.other(served, respond);
            }
            Err(status) => {
                let _ = refuse(&mut respond, status);
                return;
            }
        };
        let (head, body) = request.into_parts();
        let mut body = self.client.limited(body, deadline);
        let mut arrived = Arrived {
            unary,
            headers: head.headers,
            deadline,
            respond,
        };
        let _ = pin!(body.read()).poll(cx);
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

    /// Hands a unary call to the node, unless its message says nothing that the node could do.
    fn enter(&mut self, arrived: Arrived, permits: Permits, message: &[u8], now: Instant) {
        let Arrived {
            unary,
            headers,
            deadline,
            mut respond,
        } = arrived;
        let asked = match (unary.parse)(message) {
            Ok(asked) => asked,
            Err(error) => {
                let _ = refuse(&mut respond, Status::internal(error.to_string()));
                return;
            }
        };
        let mut call = PendingCall {
            unary,
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
                    record.peer = Some(self.client.peer());
                }
                let tag = self.under_way.take(call);
                let request = self.spare.boxed(asked.request);
                self.calls.push(tag, request, unary.timeout(deadline));
            }
            Err(failure) => self.answer(call, Err(failure), now),
        }
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
        // Hundreds share a task, whose budget is meant for one; reading from the socket still counts.
        let other = tokio::task::unconstrained(other);
        self.others.push(Box::pin(other));
    }

    fn answer(&self, call: PendingCall, answer: Result<Answer, Failure>, now: Instant) {
        let PendingCall {
            unary,
            facts,
            begun,
            span,
            permits,
            mut respond,
        } = call;
        let outcome = Outcome {
            answer,
            facts,
            node: &self.client.port().node,
        };
        let mut code = tonic::Code::Ok;
        let sent = match ((unary.respond)(outcome), permits.unread) {
            (Ok(message), None) => send(&mut respond, message),
            (Ok(message), Some(unread)) => {
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
            // The client has left.
            code = tonic::Code::Cancelled;
        }
        let took = now.saturating_duration_since(begun);
        let telemetry = self.client.telemetry();
        telemetry.end(Transport::Grpc, unary.rpc, code, took, span);
    }
}

impl Drop for ServedCall {
    fn drop(&mut self) {
        let telemetry = self.client.telemetry();
        for call in self.under_way.drain() {
            let took = call.begun.elapsed();
            let code = tonic::Code::Cancelled;
            telemetry.end(Transport::Grpc, call.unary.rpc, code, took, call.span);
        }
    }
}

/// One message, then that all is well.
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

/// A status instead of a message.
fn refuse(respond: &mut SendResponse<Bytes>, status: Status) -> Result<(), h2::Error> {
    let refused = status.into_http::<()>();
    respond.send_response(refused, true).map(drop)
}

/// Notices that a client is gone: it is asked now and then, and has some time to answer.
struct KeepAlivePing {
    pings: PingPong,
    /// When it is asked next, or is taken for gone.
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

    /// Ready when the client is gone.
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
