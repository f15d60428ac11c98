//! HTTP/3: the web router over QUIC, with early data for reads only.
//!
//! A request counts as *early* when its stream was accepted before the handshake was confirmed: it
//! may be a replay. Early reads are served; anything else is answered `425 Too Early` and not
//! dispatched. The mark is set when the request is accepted, not when it runs.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use bytes::{Buf, Bytes, BytesMut};
use h3::server::RequestStream;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tower::ServiceExt;

use super::tcp::stopped;

/// Requests of one connection that are handled at once; further ones wait.
const REQUESTS: usize = 256;
/// The longest request body, as on the other transports.
const BODY: usize = 4 << 20;
/// The longest head of a request.
const FIELD_SECTION: u64 = 16 << 10;

/// What the HTTP/3 listener needs.
pub struct Door {
    /// The bound and configured endpoint.
    pub endpoint: quinn::Endpoint,
    /// Shared with the TCP listener: a permit for every open connection.
    pub connections: Arc<Semaphore>,
    /// How long a request body may take to come in.
    pub body_timeout: Duration,
    /// Which requests may run before the handshake is confirmed.
    pub is_read_only: fn(&Method, &str) -> bool,
}

/// Serves connections until `stop` says so.
pub async fn serve(door: Door, router: Router, stop: watch::Receiver<bool>) {
    let door = Arc::new(door);
    let mut open = JoinSet::new();
    loop {
        let incoming = tokio::select! {
            incoming = door.endpoint.accept() => incoming,
            () = stopped(stop.clone()) => None,
            Some(_) = open.join_next() => continue,
        };
        let Some(incoming) = incoming else { break };
        let Ok(permit) = Arc::clone(&door.connections).try_acquire_owned() else {
            incoming.refuse();
            continue;
        };
        let (door, router, stop) = (Arc::clone(&door), router.clone(), stop.clone());
        open.spawn(async move {
            let _permit = permit;
            let peer = incoming.remote_address();
            tokio::select! {
                ended = connection(incoming, &door, router) => {
                    if let Err(error) = ended {
                        tracing::debug!(%peer, %error, "HTTP/3 connection ended");
                    }
                }
                () = stopped(stop) => {}
            }
        });
    }
    door.endpoint.close(0u32.into(), b"stopping");
    while open.join_next().await.is_some() {}
    door.endpoint.wait_idle().await;
}

type Ended = Result<(), Box<dyn std::error::Error + Send + Sync>>;

async fn connection(incoming: quinn::Incoming, door: &Arc<Door>, router: Router) -> Ended {
    let peer = incoming.remote_address();
    let (connection, confirmed) = match incoming.accept()?.into_0rtt() {
        Ok((connection, confirmed)) => (connection, confirmed),
        // A server can always speak before the handshake is over; without that, wait for it.
        Err(connecting) => {
            let connection = connecting.await?;
            return requests(
                connection,
                door,
                router,
                peer,
                Arc::new(AtomicBool::new(true)),
            )
            .await;
        }
    };
    let handshake_done = Arc::new(AtomicBool::new(false));
    let done = Arc::clone(&handshake_done);
    let watcher = tokio::spawn(async move {
        // Its value tells a client whether early data was accepted; for a server it is the moment that counts.
        let _ = confirmed.await;
        done.store(true, Ordering::Release);
    });
    let ended = requests(connection, door, router, peer, handshake_done).await;
    watcher.abort();
    ended
}

async fn requests(
    connection: quinn::Connection,
    door: &Arc<Door>,
    router: Router,
    peer: SocketAddr,
    handshake_done: Arc<AtomicBool>,
) -> Ended {
    let mut connection = h3::server::builder()
        .max_field_section_size(FIELD_SECTION)
        .build::<_, Bytes>(h3_quinn::Connection::new(connection))
        .await?;
    let slots = Arc::new(Semaphore::new(REQUESTS));
    let mut running = JoinSet::new();
    loop {
        let resolver = tokio::select! {
            accepted = connection.accept() => match accepted? {
                Some(resolver) => resolver,
                None => break,
            },
            Some(_) = running.join_next() => continue,
        };
        // Read before anything else happens to the request.
        let early = !handshake_done.load(Ordering::Acquire);
        let slot = Arc::clone(&slots).acquire_owned().await?;
        let (door, router) = (Arc::clone(door), router.clone());
        running.spawn(async move {
            let _slot = slot;
            let served = async {
                let (request, stream) = resolver.resolve_request().await?;
                respond(request, stream, &door, router, peer, early).await
            };
            if let Err(error) = served.await {
                tracing::debug!(%peer, %error, "HTTP/3 request ended");
            }
        });
    }
    while running.join_next().await.is_some() {}
    Ok(())
}

async fn respond(
    request: Request<()>,
    mut stream: RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>,
    door: &Door,
    router: Router,
    peer: SocketAddr,
    early: bool,
) -> Ended {
    if early && !(door.is_read_only)(request.method(), request.uri().path()) {
        return refuse(&mut stream, StatusCode::TOO_EARLY).await;
    }
    let body = match timeout(door.body_timeout, whole_body(&mut stream)).await {
        Ok(Ok(Some(body))) => body,
        Ok(Ok(None)) => return refuse(&mut stream, StatusCode::PAYLOAD_TOO_LARGE).await,
        Ok(Err(error)) => return Err(error),
        Err(_) => return refuse(&mut stream, StatusCode::REQUEST_TIMEOUT).await,
    };
    let (head, ()) = request.into_parts();
    let mut request = Request::from_parts(head, Body::from(body));
    request
        .extensions_mut()
        .insert(axum::extract::ConnectInfo(peer));
    let response = router.oneshot(request).await?;
    let (head, mut body) = response.into_parts();
    stream.send_response(Response::from_parts(head, ())).await?;
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            stream.send_data(data).await?;
        }
    }
    stream.finish().await?;
    Ok(())
}

/// The body, or `None` if it is too large.
async fn whole_body(
    stream: &mut RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>,
) -> Result<Option<Bytes>, Box<dyn std::error::Error + Send + Sync>> {
    let mut body = BytesMut::new();
    while let Some(mut chunk) = stream.recv_data().await? {
        if body.len() + chunk.remaining() > BODY {
            return Ok(None);
        }
        body.extend_from_slice(&chunk.copy_to_bytes(chunk.remaining()));
    }
    Ok(Some(body.freeze()))
}

async fn refuse(
    stream: &mut RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>,
    status: StatusCode,
) -> Ended {
    let mut response = Response::new(());
    *response.status_mut() = status;
    stream.send_response(response).await?;
    stream.finish().await?;
    Ok(())
}
