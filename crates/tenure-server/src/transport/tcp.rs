//! TCP connections: connection limit, HTTP and HTTPS on one port, bounded shutdown.
//!
//! ```text
//!   accept ──▶ full? close ──▶ first byte ──0x16──▶ TLS handshake ──▶ HTTP/1.1 or 2
//!                                  └──else, loopback only──────────▶ HTTP/1.1 or 2
//! ```
//!
//! The first byte of a TLS connection is always 0x16, and no HTTP request starts with that byte.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tenure_cluster::Handle;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::inline_executor::InlineExecutor;
use super::preface_timeout::PrefaceTimeout;

/// Time limit for the TLS handshake, and for the first bytes of a connection.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(10);
/// Interval of HTTP/2 pings to an idle client.
pub(super) const PING_EVERY: Duration = Duration::from_secs(20);
/// Time limit for the answer to a ping; then the connection is closed.
pub(super) const PING_ANSWER: Duration = Duration::from_secs(10);
/// Idle time before TCP keep-alive probes start.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Time limit for the head of an HTTP/1 request, also for the next request on an open connection.
const HEAD: Duration = Duration::from_secs(30);
/// Time that open connections have to finish when the daemon stops; part of the 10 s of R169
/// (shutdown within 10 s).
const FAREWELL: Duration = Duration::from_secs(6);

/// Settings of the web port's TCP listener.
#[derive(Clone)]
pub struct TcpListenerConfig {
    /// The TLS acceptor.
    pub tls: TlsAcceptor,
    /// Whether connections without TLS are served.
    pub plain: PlaintextPolicy,
    /// Maximum concurrent HTTP/2 streams per connection.
    pub streams: u32,
    /// The node that answers the requests.
    pub node: Handle,
}

/// Whether connections without TLS are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaintextPolicy {
    /// They are served. Used on loopback addresses.
    Served,
    /// They get 400 with a message to use https.
    Refused,
}

/// Accepts connections until `stop` is set, then gives the open ones time to finish and aborts the
/// rest.
///
/// `connections` has one permit per open connection. Without a free permit, a new connection is
/// closed at once.
pub async fn serve<F, C>(
    listener: TcpListener,
    connections: Arc<Semaphore>,
    connection: F,
    mut stop: watch::Receiver<bool>,
) where
    F: Fn(TcpStream, SocketAddr) -> C,
    C: Future<Output = ()> + Send + 'static,
{
    let mut open = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
            Some(_) = open.join_next() => continue,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, or the client has disconnected already. Both pass, so
                // accepting continues; the pause prevents a busy loop.
                tracing::debug!(%error, "accept");
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        let Ok(permit) = Arc::clone(&connections).try_acquire_owned() else {
            tracing::debug!(%peer, "closed: too many connections");
            continue;
        };
        let connection = connection(stream, peer);
        open.spawn(async {
            connection.await;
            drop(permit);
        });
    }
    // Closes the port first, so that new clients connect to another node at once.
    drop(listener);
    if timeout(FAREWELL, async {
        while open.join_next().await.is_some() {}
    })
    .await
    .is_err()
    {
        tracing::warn!(
            connections = open.len(),
            "closed connections that did not end in time"
        );
    }
}

/// Serves a connection of the web port.
pub(crate) async fn web<S, B>(
    stream: TcpStream,
    listen_endpoint: TcpListenerConfig,
    service: S,
    stop: watch::Receiver<bool>,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Send + 'static,
    S::Future: Send,
    B: Body<Data = Bytes, Error = axum::Error> + Send + 'static,
{
    // Responses are small and the client waits for each: Nagle's algorithm would only delay them.
    let _ = stream.set_nodelay(true);
    keep_alive(&stream);
    // The byte is only peeked: TLS and HTTP both need it.
    let mut first = [0u8; 1];
    let served = match timeout(HANDSHAKE, stream.peek(&mut first)).await {
        Ok(Ok(1)) if first[0] == 0x16 => {
            match timeout(HANDSHAKE, listen_endpoint.tls.accept(stream)).await {
                Ok(Ok(stream)) => http(stream, &listen_endpoint, service, stop).await,
                Ok(Err(error)) => Err(error.into()),
                Err(_) => Err("the TLS handshake took too long".into()),
            }
        }
        Ok(Ok(1)) if listen_endpoint.plain == PlaintextPolicy::Served => {
            http(stream, &listen_endpoint, service, stop).await
        }
        Ok(Ok(1)) => use_https(stream).await,
        _ => return,
    };
    if let Err(error) = served {
        tracing::debug!(%error, "connection ended");
    }
}

/// Enables TCP keep-alive, so that a client whose machine is gone is noticed in any state of the
/// connection.
pub(super) fn keep_alive(stream: &TcpStream) {
    use rustix::net::sockopt;
    // Best effort: where the system refuses, HTTP/2 pings remain.
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, KEEP_ALIVE);
    let _ = sockopt::set_tcp_keepintvl(stream, PING_ANSWER);
}

type ConnectionEnd = Result<(), Box<dyn std::error::Error + Send + Sync>>;

async fn http<I, S, B>(
    io: I,
    listen_endpoint: &TcpListenerConfig,
    service: S,
    stop: watch::Receiver<bool>,
) -> ConnectionEnd
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Send + 'static,
    S::Future: Send,
    B: Body<Data = Bytes, Error = axum::Error> + Send + 'static,
{
    let mut requests = InlineExecutor::default();
    let mut builder = auto::Builder::new(requests.executor());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(64 << 10);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_ANSWER)
        .max_concurrent_streams(listen_endpoint.streams)
        .max_header_list_size(16 << 10)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20);
    let io = PrefaceTimeout::new(io, HANDSHAKE);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(io), service));
    // All requests that one poll reads are submitted to the node together.
    let mut poll = |connection: Pin<&mut _>, cx: &mut Context<'_>| {
        listen_endpoint
            .node
            .defer_wake(|| requests.poll(connection, cx))
    };
    tokio::select! {
        // `biased`: the connection is polled before `stop`, so a request that has arrived is still
        // served.
        biased;
        ended = poll_fn(|cx| poll(connection.as_mut(), cx)) => return ended,
        () = stopped(stop) => connection.as_mut().graceful_shutdown(),
    }
    poll_fn(|cx| poll(connection.as_mut(), cx)).await
}

/// Resolves when the daemon stops.
pub(crate) async fn stopped(mut stop: watch::Receiver<bool>) {
    // A dropped sender also means stop.
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn use_https(mut stream: TcpStream) -> ConnectionEnd {
    let body =
        r#"{"error":{"code":"FAILED_PRECONDITION","message":"this port uses TLS: use https"}}"#;
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    Ok(())
}
