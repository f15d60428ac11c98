//! Connections over TCP: accepted up to a limit, HTTP or HTTPS on one port, ended in time.
//!
//!   accept ──▶ full? close ──▶ first byte ──0x16──▶ TLS handshake ──▶ HTTP/1.1 or 2
//!                                  └──else, loopback only──────────▶ HTTP/1.1 or 2
//!
//! The first byte of a TLS connection is always 0x16, which no HTTP request starts with.

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

/// A TLS handshake, or the first request of a connection, takes no longer.
pub(super) const HANDSHAKE: Duration = Duration::from_secs(10);
/// HTTP/2 pings a silent client this often, and closes when no answer comes.
pub(super) const PING_EVERY: Duration = Duration::from_secs(20);
pub(super) const PING_ANSWER: Duration = Duration::from_secs(10);
/// TCP looks after a silent client this often.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// HTTP/1 waits this long for the head of a request, also for the next one on an open connection.
const HEAD: Duration = Duration::from_secs(30);
/// How long open connections may finish what they do when the daemon stops (R169).
const FAREWELL: Duration = Duration::from_secs(6);

/// What the web port lets in.
#[derive(Clone)]
pub struct TcpListenerConfig {
    /// TLS.
    pub tls: TlsAcceptor,
    /// Whether connections without TLS are served.
    pub plain: PlaintextPolicy,
    /// Concurrent HTTP/2 streams of one connection.
    pub streams: u32,
    /// Who answers in the end.
    pub node: Handle,
}

/// Whether connections without TLS are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaintextPolicy {
    /// They are.
    Served,
    /// They are told to use https.
    Refused,
}

/// Serves connections until `stop` says so, then lets the open ones finish for a while.
///
/// `connections` has a permit for every open one; none left means that the next is closed at once.
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
                // Out of descriptors, or the client is gone already. Neither lasts.
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
    drop(listener);
    if timeout(FAREWELL, async {
        while open.join_next().await.is_some() {}
    })
    .await
    .is_err()
    {
        tracing::warn!(
            connections = open.len(),
            "ended connections that did not finish"
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
    // Answers are small and awaited: never wait for more to send.
    let _ = stream.set_nodelay(true);
    keep_alive(&stream);
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

/// A client whose machine is gone is noticed, whatever it was doing.
pub(super) fn keep_alive(stream: &TcpStream) {
    use rustix::net::sockopt;
    // A system that cannot do this still has HTTP/2's pings.
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
    // What one read brings goes to the node at once.
    let mut poll = |connection: Pin<&mut _>, cx: &mut Context<'_>| {
        listen_endpoint
            .node
            .defer_wake(|| requests.poll(connection, cx))
    };
    tokio::select! {
        biased;
        ended = poll_fn(|cx| poll(connection.as_mut(), cx)) => return ended,
        () = stopped(stop) => connection.as_mut().graceful_shutdown(),
    }
    poll_fn(|cx| poll(connection.as_mut(), cx)).await
}

/// Resolves when the daemon stops.
pub(crate) async fn stopped(mut stop: watch::Receiver<bool>) {
    // A dropped sender is a stop too.
    let _ = stop.wait_for(|stop| *stop).await;
}

async fn use_https(mut stream: TcpStream) -> ConnectionEnd {
    let body = r#"{"error":{"code":"FAILED_PRECONDITION","message":"this port speaks https"}}"#;
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    Ok(())
}
