//! A connection of the gRPC port, on HTTP/2 itself.
//!
//! ```text
//!   socket ──▶ h2 ──common call, whole──▶ calls under way ──all of a read──▶ herd ──▶ node
//!               └──anything else──▶ a future of its own
//!   socket ◀── h2 ◀──all of a turn── calls under way ◀──one wake-up a turn── node
//! ```
//!
//! A common call is an entry in a list while it is under way: no future, no waker and no channel of its
//! own. Everything happens in the task of the connection.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use futures_util::Stream;
use futures_util::stream::FuturesUnordered;
use h2::server::{Connection, SendResponse};
use h2::{Ping, PingPong, RecvStream};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Request, Response};
use tenure_cluster::{Calls, Heard};
use tenure_node::{Answer, Failure as NodeFailure};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Sleep;
use tonic::Status;

use super::connection::{GrpcConnection, GrpcPort, Kind, kind_of};
use super::patience::Patient;
use super::streams::{self, Received};
use super::tcp::{HANDSHAKE, PING_ANSWER, PING_EVERY, keep_alive, stopped};
use super::unary::{Answered, Common};
use crate::handlers;
use crate::under_way::{Slots, Spare};

/// Concurrent streams of one connection: calls that wait and open subscriptions.
const STREAMS: u32 = 65_536;
/// What a client may send on a stream, and on all of them, before it is read.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// The longest head of a request.
const HEAD: u32 = 16 << 10;
/// What waits in the connection to be sent, for one stream.
const SEND_BUFFER: usize = 400 << 10;

/// Serves a client until it leaves. When the daemon stops, what is under way is finished first.
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
        .handshake(Patient::new(stream, HANDSHAKE));
    let connection = match handshake.await {
        Ok(connection) => connection,
        Err(error) => return tracing::debug!(%error, "connection ended"),
    };
    let mut served = Served::new(connection, port, peer);
    tokio::select! {
        biased;
        () = poll_fn(|cx| served.poll(cx)) => return,
        () = stopped(stop) => served.connection.graceful_shutdown(),
    }
    poll_fn(|cx| served.poll(cx)).await;
}

/// A common call that the node has.
struct UnderWay {
    common: Common,
    respond: SendResponse<Bytes>,
    begun: Instant,
    _place: OwnedSemaphorePermit,
}

type Other = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Served {
    connection: Connection<Patient<TcpStream>, Bytes>,
    client: GrpcConnection,
    calls: Calls,
    under_way: Slots<UnderWay>,
    /// Where the node puts what it has said, between two looks.
    heard: Vec<Heard>,
    spare: Spare,
    others: FuturesUnordered<Other>,
    pulse: Option<Pulse>,
}

impl Served {
    fn new(
        mut connection: Connection<Patient<TcpStream>, Bytes>,
        port: Arc<GrpcPort>,
        peer: SocketAddr,
    ) -> Served {
        Served {
            pulse: connection.ping_pong().map(Pulse::new),
            connection,
            // Nobody is listened to here.
            calls: port.node.calls(1),
            client: GrpcConnection::new(&port, peer),
            under_way: Slots::default(),
            heard: Vec::new(),
            spare: Spare::default(),
            others: FuturesUnordered::new(),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let port = Arc::clone(self.client.port());
        port.herd.with(|| self.turn(cx))
    }

    /// Answers what the node has decided, then reads and writes, then begins what was read.
    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.hear(cx);
        self.go_on(cx);
        let now = Instant::now();
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
        self.calls.flush();
        // What is answered at once wakes the connection by itself.
        self.go_on(cx);
        match &mut self.pulse {
            Some(pulse) => pulse.poll(cx),
            None => Poll::Pending,
        }
    }

    fn hear(&mut self, cx: &mut Context<'_>) {
        let mut heard = std::mem::take(&mut self.heard);
        while self.calls.poll(cx, &mut heard).is_ready() {
            let now = Instant::now();
            for heard in heard.drain(..) {
                let Heard::Answer {
                    tag,
                    answer,
                    request,
                } = heard
                else {
                    continue;
                };
                self.spare.keep(request);
                if let Some(call) = self.under_way.give_back(tag) {
                    self.answer(call, answer, now);
                }
            }
        }
        self.heard = heard;
    }

    fn go_on(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(Some(())) = Pin::new(&mut self.others).poll_next(cx) {}
    }

    fn begin(
        &mut self,
        request: Request<RecvStream>,
        respond: SendResponse<Bytes>,
        now: Instant,
        cx: &mut Context<'_>,
    ) {
        let request = request.map(Received::new);
        let deadline = match self.client.admit(&request) {
            Ok(deadline) => deadline,
            Err(refused) => return self.other(async move { refused }, respond),
        };
        match kind_of(&request) {
            Kind::Common(common) => {
                let (head, body) = request.into_parts();
                let mut body = self.client.limited(body, deadline);
                let is_read = pin!(body.read()).poll(cx).is_ready();
                let place = self.client.place_at_once().filter(|_| is_read);
                let message = body.message().filter(|_| !self.client.is_traced());
                let asked = message.and_then(|message| common.parse(message));
                let (Some(place), Some(Ok(asked))) = (place, asked) else {
                    // What is unusual has time.
                    let client = self.client.clone();
                    return self.other(client.common(common, deadline, head, body), respond);
                };
                let tag = self.under_way.take(UnderWay {
                    common,
                    respond,
                    begun: now,
                    _place: place,
                });
                self.calls.push(tag, self.spare.boxed(asked), deadline);
            }
            Kind::Session => self.other(self.client.clone().session(request, deadline), respond),
            Kind::Other => self.other(self.client.clone().others(request, deadline), respond),
        }
    }

    fn other(
        &mut self,
        answer: impl Future<Output = Response<Answered>> + Send + 'static,
        respond: SendResponse<Bytes>,
    ) {
        // Hundreds share a task, whose budget is meant for one; reading from the socket still counts.
        let other = tokio::task::unconstrained(streams::answer(answer, respond));
        self.others.push(Box::pin(other));
    }

    fn answer(&self, call: UnderWay, answer: Result<Answer, NodeFailure>, now: Instant) {
        let UnderWay {
            common,
            mut respond,
            begun,
            ..
        } = call;
        let message = answer
            .map_err(handlers::failure)
            .and_then(|answer| common.respond(answer));
        let mut code = tonic::Code::Ok;
        let sent = match message {
            Ok(message) => send(&mut respond, message),
            Err(failure) => {
                code = failure.code.grpc();
                let refused = Status::from(failure).into_http::<()>();
                respond.send_response(refused, true).map(drop)
            }
        };
        if sent.is_err() {
            // The client has left.
            code = tonic::Code::Cancelled;
        }
        let took = now.saturating_duration_since(begun);
        self.client.count(common.rpc(), code, took);
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        for call in self.under_way.drain() {
            let took = call.begun.elapsed();
            let code = tonic::Code::Cancelled;
            self.client.count(call.common.rpc(), code, took);
        }
    }
}

/// One message, then that all is well.
fn send(respond: &mut SendResponse<Bytes>, message: Bytes) -> Result<(), h2::Error> {
    let mut response = Response::new(());
    let grpc = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(CONTENT_TYPE, grpc);
    let mut stream = respond.send_response(response, false)?;
    stream.send_data(message, false)?;
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
    stream.send_trailers(trailers)
}

/// Notices that a client is gone: it is asked now and then, and has some time to answer.
struct Pulse {
    pings: PingPong,
    /// When it is asked next, or is taken for gone.
    at: Pin<Box<Sleep>>,
    is_asked: bool,
}

impl Pulse {
    fn new(pings: PingPong) -> Pulse {
        Pulse {
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
