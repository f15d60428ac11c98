//! TCP connections: connection limit, with and without TLS on one port, bounded shutdown.
//!
//! ```text
//!   accept ──▶ full? close ──▶ first byte ──0x16──▶ TLS handshake ──▶ HTTP
//!                                  └──else──▶ may the port serve it? ──▶ HTTP
//! ```
//!
//! The first byte of a TLS connection is always 0x16, and no HTTP request starts with that byte.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
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

use super::client_stream::ClientStream;
use super::inline_executor::InlineExecutor;
use super::preface_timeout::PrefaceTimeout;
use super::tls::{ClientCertificate, ServerTls};
use crate::config::PlaintextConsent;

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
pub(crate) struct TcpListenerConfig {
    /// The TLS settings.
    pub(crate) tls: Arc<ServerTls>,
    /// Whether connections without TLS are served.
    pub(crate) plain: PlaintextPolicy,
    /// Maximum concurrent HTTP/2 streams per connection.
    pub(crate) streams: u32,
    /// Bytes that a client may send over HTTP/2 before they are read.
    pub(crate) window: u32,
    /// The node that answers the requests.
    pub(crate) node: Handle,
}

/// Whether connections without TLS are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaintextPolicy {
    /// They are served: on loopback addresses, and by explicit setting.
    Served,
    /// Requests without credentials are served. Credentials must not be sent in clear.
    Anonymous,
    /// Every request is refused with the advice to use TLS.
    Refused,
}

impl PlaintextPolicy {
    /// Returns the policy of a port that is bound to `address`. `others` applies beyond loopback
    /// without the explicit consent to plaintext.
    pub(crate) fn of(
        address: SocketAddr,
        consent: PlaintextConsent,
        others: PlaintextPolicy,
    ) -> PlaintextPolicy {
        if address.ip().is_loopback() || consent == PlaintextConsent::Given {
            PlaintextPolicy::Served
        } else {
            others
        }
    }
}

/// Open connections of each address beyond loopback: one stranger must not take all of them.
#[derive(Debug)]
pub(crate) struct AddressLimit {
    limit: usize,
    open: Mutex<HashMap<IpAddr, usize>>,
}

impl AddressLimit {
    pub(crate) fn new(limit: usize) -> Arc<AddressLimit> {
        Arc::new(AddressLimit {
            limit,
            open: Mutex::default(),
        })
    }

    /// Counts a connection, or returns `None` if its address has too many.
    fn take(self: &Arc<Self>, address: IpAddr) -> Option<AddressPlace> {
        let address = site(address);
        if address.is_loopback() {
            return Some(AddressPlace(None));
        }
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(address).or_default();
        if *count >= self.limit {
            return None;
        }
        *count += 1;
        Some(AddressPlace(Some((Arc::clone(self), address))))
    }
}

/// Returns what one client can easily choose freely: an IPv4 address, or a network of 64 bits.
fn site(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            IpAddr::V6((u128::from(address) >> 64 << 64).into())
        }
        address => address,
    }
}

/// A counted connection.
struct AddressPlace(Option<(Arc<AddressLimit>, IpAddr)>);

impl Drop for AddressPlace {
    fn drop(&mut self) {
        let Some((limit, address)) = self.0.take() else {
            return;
        };
        let mut open = limit.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&address);
            }
        }
    }
}

/// Accepts connections until `stop` is set, then gives the open ones time to finish and aborts the
/// rest.
///
/// `connections` has one permit per open connection. Without a free permit, a new connection is
/// closed at once, and so is one whose address has too many.
pub(crate) async fn serve<F, C>(
    listener: TcpListener,
    connections: Arc<Semaphore>,
    addresses: Arc<AddressLimit>,
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
        let Some(of_address) = addresses.take(peer.ip()) else {
            tracing::debug!(%peer, "closed: too many connections of this address");
            continue;
        };
        let connection = connection(stream, peer);
        open.spawn(async {
            connection.await;
            drop((permit, of_address));
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

/// Completes the handshake of a new connection. Returns `None` if the client sends nothing in time
/// or TLS fails.
pub(super) async fn open(stream: TcpStream, tls: TlsAcceptor) -> Option<ClientStream> {
    // Responses are small and the client waits for each: Nagle's algorithm would only delay them.
    let _ = stream.set_nodelay(true);
    keep_alive(&stream);
    // The byte is only peeked: TLS and HTTP both need it.
    let mut first = [0u8; 1];
    match timeout(HANDSHAKE, stream.peek(&mut first)).await {
        Ok(Ok(1)) if first[0] == 0x16 => match timeout(HANDSHAKE, tls.accept(stream)).await {
            Ok(Ok(stream)) => Some(ClientStream::Tls(Box::new(stream))),
            Ok(Err(error)) => {
                tracing::debug!(%error, "the TLS handshake failed");
                None
            }
            Err(_) => {
                tracing::debug!("the TLS handshake took too long");
                None
            }
        },
        Ok(Ok(1)) => Some(ClientStream::Plain(stream)),
        _ => None,
    }
}

/// Serves a connection of the web port. `service` makes the service of a client with or without a
/// certificate.
pub(crate) async fn web<S, B>(
    stream: TcpStream,
    listen_endpoint: TcpListenerConfig,
    service: impl FnOnce(Option<ClientCertificate>) -> S,
    stop: watch::Receiver<bool>,
) where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Send + 'static,
    S::Future: Send,
    B: Body<Data = Bytes, Error = axum::Error> + Send + 'static,
{
    let Some(stream) = open(stream, listen_endpoint.tls.web()).await else {
        return;
    };
    let is_served = stream.is_encrypted() || listen_endpoint.plain == PlaintextPolicy::Served;
    let served = if is_served {
        let service = service(stream.certificate());
        http(stream, &listen_endpoint, service, stop).await
    } else {
        use_https(stream).await
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
        .initial_stream_window_size(256 << 10)
        .initial_connection_window_size(listen_endpoint.window);
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

async fn use_https(mut stream: ClientStream) -> ConnectionEnd {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_number_of_connections_and_loopback_has_not() {
        let limit = AddressLimit::new(2);
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let first = limit.take(ip("10.0.0.1")).unwrap();
        let _second = limit.take(ip("::ffff:10.0.0.1")).unwrap();
        assert!(limit.take(ip("10.0.0.1")).is_none());
        assert!(limit.take(ip("10.0.0.2")).is_some());
        drop(first);
        assert!(limit.take(ip("10.0.0.1")).is_some());
        // A client of IPv6 has a whole network of addresses.
        let _six = [1, 2].map(|last| limit.take(ip(&format!("2001:db8::{last}"))).unwrap());
        assert!(limit.take(ip("2001:db8::3")).is_none());
        assert!(limit.take(ip("2001:db8:0:1::3")).is_some());
        let _local: Vec<_> = (0..5).map(|_| limit.take(ip("::1")).unwrap()).collect();
        assert_eq!(
            limit.open.lock().unwrap().len(),
            2,
            "no count is left behind"
        );
    }
}
