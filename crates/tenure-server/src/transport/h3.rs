//! HTTP/3: the web router over QUIC, with early data (0-RTT) for reads only.
//!
//! A request is *early* if its stream was accepted before the handshake was confirmed: it may be a
//! replay. Early reads are served; all other early requests get `425 Too Early` and are not
//! dispatched. Whether a request is early is decided when it is accepted, not when it runs.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use bytes::{Buf, Bytes, BytesMut};
use futures_util::FutureExt;
use h3::server::RequestStream;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use rustls::pki_types::CertificateDer;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::admission::Admission;
use super::body_limit::FIRST_BYTE;
use super::connection::exhausted;
use super::json::refuse;
use super::memory_budget::{Charge, ConnectionBudget, STREAM, head_bytes};
use super::tcp::stopped;
use super::tls::ClientCertificate;
use crate::auth::{ConnectionSlots, Origin};
use crate::status::Code;

/// Bytes that a client may send before they are read; counted in the memory budget.
pub(crate) const RECEIVE_WINDOW: u32 = 256 << 10;
/// Time limit for the head of a request whose stream is open.
const HEAD: Duration = Duration::from_secs(30);
/// Maximum concurrent requests per connection; further ones wait.
pub(crate) const REQUESTS: u32 = 256;
/// Maximum size of a request body in bytes, as on the other transports.
const BODY: usize = 4 << 20;
/// Maximum size of a request's head in bytes.
const FIELD_SECTION: u64 = 16 << 10;
/// With fewer free connection permits than this, clients must prove their address by a QUIC retry.
const CROWDED: usize = 1024;
/// Time that open requests have to finish when the daemon stops; part of the 10 s of R169 (shutdown
/// within 10 s).
const FAREWELL: Duration = Duration::from_secs(5);

/// Configuration of the HTTP/3 listener.
pub struct H3Listener {
    /// The bound endpoint.
    pub endpoint: quinn::Endpoint,
    /// One permit per open connection; shared with the TCP listener.
    pub connections: Arc<Semaphore>,
    /// Limits of requests and memory; shared with the TCP listener.
    pub admission: Admission,
    /// Returns whether a request may run before the handshake is confirmed.
    pub is_read_only: fn(&Method, &str) -> bool,
}

/// Accepts connections until `stop` is set, then gives the open ones time to finish.
pub async fn serve(listen_endpoint: H3Listener, router: Router, stop: watch::Receiver<bool>) {
    let listen_endpoint = Arc::new(listen_endpoint);
    let mut open = JoinSet::new();
    loop {
        let incoming = tokio::select! {
            incoming = listen_endpoint.endpoint.accept() => incoming,
            () = stopped(stop.clone()) => None,
            Some(_) = open.join_next() => continue,
        };
        let Some(incoming) = incoming else { break };
        let Ok(permit) = Arc::clone(&listen_endpoint.connections).try_acquire_owned() else {
            incoming.refuse();
            continue;
        };
        // When permits run low, spoofed source addresses must not take the last ones.
        let crowded = listen_endpoint.connections.available_permits() < CROWDED;
        if crowded && !incoming.remote_address_validated() {
            let _ = incoming.retry();
            continue;
        }
        let memory = ConnectionBudget::open(&listen_endpoint.admission.memory)
            .and_then(|memory| Some((memory.charge(RECEIVE_WINDOW as usize).ok()?, memory)));
        let Some((window, memory)) = memory else {
            incoming.refuse();
            continue;
        };
        let (listen_endpoint, router, stop) =
            (Arc::clone(&listen_endpoint), router.clone(), stop.clone());
        open.spawn(async move {
            let _held = (permit, window);
            let peer = incoming.remote_address();
            let served = connection(incoming, &listen_endpoint, router, memory, stop);
            if let Err(error) = served.await {
                tracing::debug!(%peer, %error, "HTTP/3 connection ended");
            }
        });
    }
    // New connections are refused; open ones may finish.
    listen_endpoint.endpoint.set_server_config(None);
    let _ = timeout(FAREWELL, async {
        while open.join_next().await.is_some() {}
    })
    .await;
    open.abort_all();
    listen_endpoint.endpoint.close(0u32.into(), b"stopping");
    let _ = timeout(Duration::from_secs(1), listen_endpoint.endpoint.wait_idle()).await;
}

type H3Fault = Box<dyn std::error::Error + Send + Sync>;
type ConnectionEnd = Result<(), H3Fault>;

async fn connection(
    incoming: quinn::Incoming,
    listen_endpoint: &Arc<H3Listener>,
    router: Router,
    memory: Arc<ConnectionBudget>,
    stop: watch::Receiver<bool>,
) -> ConnectionEnd {
    let mut connecting = incoming.accept()?;
    // The client's ClientHello may take two datagrams. Before it is complete, the client's limits of
    // streams are not known: HTTP/3 would wait to open its control streams, and quinn does not wake
    // such a wait when the limits arrive.
    connecting.handshake_data().await?;
    match connecting.into_0rtt() {
        Ok((connection, confirmed)) => {
            let handshake = Handshake(Some(confirmed));
            requests(connection, listen_endpoint, router, memory, handshake, stop).await
        }
        // quinn always grants 0.5-RTT to incoming connections; this branch only completes the
        // match.
        Err(connecting) => {
            let connection = connecting.await?;
            let handshake = Handshake(None);
            requests(connection, listen_endpoint, router, memory, handshake, stop).await
        }
    }
}

/// Whether the handshake is confirmed. Before that, requests may be replays.
///
/// Polled when a request is accepted, not in a separate task: a request in the same packet as the
/// end of the handshake must not count as early.
struct Handshake(Option<quinn::ZeroRttAccepted>);

impl Handshake {
    fn is_confirmed(&mut self) -> bool {
        if let Some(confirmed) = &mut self.0
            && confirmed.now_or_never().is_some()
        {
            self.0 = None;
        }
        self.0.is_none()
    }
}

async fn requests(
    connection: quinn::Connection,
    listen_endpoint: &Arc<H3Listener>,
    router: Router,
    memory: Arc<ConnectionBudget>,
    mut handshake: Handshake,
    stop: watch::Receiver<bool>,
) -> ConnectionEnd {
    let peer = connection.remote_address();
    let quic = connection.clone();
    let mut connection = h3::server::builder()
        .max_field_section_size(FIELD_SECTION)
        .build::<_, Bytes>(h3_quinn::Connection::new(connection))
        .await?;
    let slots = Arc::new(Semaphore::new(REQUESTS as usize));
    let principals = ConnectionSlots::default();
    let mut running = JoinSet::new();
    loop {
        let resolver = tokio::select! {
            accepted = connection.accept() => match accepted? {
                Some(resolver) => resolver,
                None => break,
            },
            Some(_) = running.join_next() => continue,
            () = stopped(stop.clone()) => {
                connection.shutdown(0).await?;
                break;
            }
        };
        // Decided before anything else: the wait for a slot must not turn an early request into a
        // late one.
        let early = !handshake.is_confirmed();
        let slot = Arc::clone(&slots).acquire_owned().await?;
        let (listen_endpoint, router) = (Arc::clone(listen_endpoint), router.clone());
        let (memory, principals) = (Arc::clone(&memory), principals.clone());
        // A client proves its certificate in the handshake, so an early request has none yet.
        let certificate = if early { None } else { certificate(&quic) };
        running.spawn(async move {
            let _slot = slot;
            let served = async {
                let head = timeout(HEAD, resolver.resolve_request());
                let (mut request, stream) = head.await??;
                request.extensions_mut().insert(ConnectInfo(peer));
                let origin = Origin::certified(peer, certificate.as_ref());
                request.extensions_mut().insert(origin);
                request.extensions_mut().insert(principals);
                respond(request, stream, &listen_endpoint, router, &memory, early).await
            };
            if let Err(error) = served.await {
                tracing::debug!(%peer, %error, "HTTP/3 request ended");
            }
        });
    }
    while running.join_next().await.is_some() {}
    Ok(())
}

/// Returns the certificate that the client has proved.
fn certificate(connection: &quinn::Connection) -> Option<ClientCertificate> {
    let chain = connection.peer_identity()?;
    let chain = chain.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    Some(ClientCertificate(chain.first()?.clone()))
}

type H3Exchange = RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>;

async fn respond(
    request: Request<()>,
    mut stream: H3Exchange,
    listen_endpoint: &H3Listener,
    router: Router,
    memory: &Arc<ConnectionBudget>,
    early: bool,
) -> ConnectionEnd {
    if early && !(listen_endpoint.is_read_only)(request.method(), request.uri().path()) {
        let mut too_early = Response::new(Body::empty());
        *too_early.status_mut() = StatusCode::TOO_EARLY;
        return send(too_early, &mut stream).await;
    }
    let place = match listen_endpoint.admission.admit() {
        Ok(place) => place,
        Err(full) => return send(full, &mut stream).await,
    };
    let head = STREAM + head_bytes(request.headers(), request.uri());
    // The charge of the head lasts until the whole response is sent.
    let charges = memory
        .charge(head)
        .and_then(|head| Ok((head, memory.charge(0)?)));
    let (_head, mut share) = match charges {
        Ok(charges) => charges,
        Err(full) => return send(exhausted(&full), &mut stream).await,
    };
    let body = match timeout(
        listen_endpoint.admission.timeout,
        gather(&mut stream, &mut share),
    )
    .await
    {
        Ok(Ok(GatheredBody::Body(body))) => body,
        Ok(Ok(GatheredBody::Refused(response))) => return send(response, &mut stream).await,
        Ok(Err(error)) => return Err(error),
        Err(_) => {
            let text = "timed out: the request body did not arrive in time";
            let late = refuse(StatusCode::REQUEST_TIMEOUT, Code::DeadlineExceeded, text);
            return send(late, &mut stream).await;
        }
    };
    let (head, ()) = request.into_parts();
    let request = Request::from_parts(head, Body::from(body));
    let response = listen_endpoint.admission.serve(router, request).await;
    // The body is consumed; only the response is still to be sent. As on the other transports, a
    // stream of events does not keep the permit.
    drop((share, place));
    send(response, &mut stream).await
}

async fn send(response: Response<Body>, stream: &mut H3Exchange) -> ConnectionEnd {
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

/// A complete body, or the response that refuses it.
enum GatheredBody {
    Body(Bytes),
    Refused(Response<Body>),
}

async fn gather(stream: &mut H3Exchange, share: &mut Charge) -> Result<GatheredBody, H3Fault> {
    let mut body = BytesMut::new();
    let mut first = Some(timeout(FIRST_BYTE, stream.recv_data()).await??);
    loop {
        let next = match first.take() {
            Some(first) => first,
            None => stream.recv_data().await?,
        };
        let Some(mut chunk) = next else { break };
        if body.len() + chunk.remaining() > BODY {
            let text = format!("the request body is too large: the limit is {BODY} bytes");
            let code = Code::ResourceExhausted;
            let response = refuse(StatusCode::PAYLOAD_TOO_LARGE, code, &text);
            return Ok(GatheredBody::Refused(response));
        }
        if let Err(full) = share.grow(chunk.remaining()) {
            return Ok(GatheredBody::Refused(exhausted(&full)));
        }
        body.extend_from_slice(&chunk.copy_to_bytes(chunk.remaining()));
    }
    Ok(GatheredBody::Body(body.freeze()))
}
