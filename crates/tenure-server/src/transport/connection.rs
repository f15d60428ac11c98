//! Per-connection services: limits, authentication and dispatch for connections of the gRPC port
//! and of the web port.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use bytes::Bytes;
use http::header::{ALT_SVC, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::Service;
use tenure_cluster::Handle;
use tenure_core::limits::LimitKind;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;
use tower::Service as _;

use super::admission::Admission;
use super::auth;
use super::body_limit::LimitedBody;
use super::coalesce::Coalescer;
use super::grpc::{self, Grpc};
use super::h2_body::RequestBody;
use super::json::refuse;
use super::memory_budget::{Charge, ConnectionBudget, MemoryBudget, STREAM, head_bytes};
use super::tcp::PlaintextPolicy;
use super::tls::{ClientCertificate, ServerTls};
use super::unary::PeekedBody;
use super::web_origin::HostNames;
use crate::auth::{AccessControl, Caller, ConnectionSlots, Origin, service_verb};
use crate::rpc::{Length, Rpc, Unary};
use crate::status::Code;
use crate::telemetry::Telemetry;

/// Advice for clients that connect without TLS.
const USE_TLS: &str =
    "this port uses TLS: use an address that starts with tenure+tls:// or https://";
const CREDENTIALS_IN_CLEAR: &str = "credentials are not accepted without TLS: use an address that \
    starts with tenure+tls:// or https://, and replace the credentials that were sent in clear";

type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// Path prefix of the lock service's RPCs.
const PATH_LOCK: &str = "/pathlockd.v1.PathLock/";

/// Other calls whose request body stays open; the body limits do not apply to them.
const LONG_REQUESTS: [&str; 2] = [
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// Maximum number of long responses of one connection that wait to be read by the client.
const UNREAD: usize = 8;

/// Maximum number of open streams of one connection: subscriptions, watches, sessions and the like.
const OPEN_STREAMS: usize = 256;

/// Other services' calls whose response stays open.
const LONG_RESPONSES: [&str; 1] = ["/grpc.health.v1.Health/Watch"];

/// One connection of the gRPC port. Calls beyond its limits wait until their deadline.
#[derive(Clone)]
pub(crate) struct GrpcConnection {
    port: Arc<GrpcPort>,
    calls: Arc<Semaphore>,
    long_answers: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    memory: Arc<ConnectionBudget>,
    client: Client,
    slots: ConnectionSlots,
}

/// The client at the other end of a connection.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) origin: Origin,
    /// What the port serves on this connection: everything, if it is encrypted or local.
    pub(crate) plain: PlaintextPolicy,
}

/// State shared by all connections of the gRPC port.
pub(crate) struct GrpcPort {
    /// The node that answers the calls.
    pub(crate) node: Handle,
    /// Submits calls to the node in batches.
    pub(crate) coalescer: Coalescer,
    /// The streaming RPCs of the lock service.
    pub(crate) service: Grpc,
    /// Routes of the other services.
    pub(crate) routes: Router,
    /// Authenticates clients.
    pub(crate) access: AccessControl,
    /// Maximum number of concurrent calls per connection.
    pub(crate) calls: usize,
    /// Memory budget of all clients.
    pub(crate) memory: Arc<MemoryBudget>,
    /// The TLS settings.
    pub(crate) tls: Arc<ServerTls>,
    /// Whether connections without TLS are served.
    pub(crate) plain: PlaintextPolicy,
    /// Refuses requests that a page of another origin has caused.
    pub(crate) hosts: HostNames,
    /// Time limit of one call.
    pub(crate) timeout: Duration,
}

impl GrpcConnection {
    /// Creates the state of a new connection.
    pub(crate) fn new(
        port: &Arc<GrpcPort>,
        client: Client,
        memory: Arc<ConnectionBudget>,
    ) -> GrpcConnection {
        GrpcConnection {
            port: Arc::clone(port),
            calls: Arc::new(Semaphore::new(port.calls)),
            long_answers: Arc::new(Semaphore::new(UNREAD)),
            streams: Arc::new(Semaphore::new(OPEN_STREAMS)),
            memory,
            client,
            slots: ConnectionSlots::default(),
        }
    }
}

/// How a request is served.
pub(super) enum OpKind {
    Unary(&'static Unary),
    Session,
    Stream(Rpc),
    /// Another service, or an unknown RPC.
    Other,
}

static GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// Classifies a request. The lock service supports no compression: requests with another
/// `grpc-encoding` than `identity` are refused.
pub(super) fn kind_of<B>(request: &Request<B>) -> Result<OpKind, Status> {
    let method = request.uri().path().strip_prefix(PATH_LOCK);
    let Some(rpc) = method.and_then(Rpc::named) else {
        return Ok(OpKind::Other);
    };
    match request.headers().get(&GRPC_ENCODING) {
        Some(encoding) if encoding != "identity" => Err(compressed(encoding)),
        _ => Ok(match &rpc.row().unary {
            Some(unary) => OpKind::Unary(unary),
            None if rpc == Rpc::Session => OpKind::Session,
            None => OpKind::Stream(rpc),
        }),
    }
}

/// Returns the status that tonic returns for an encoding that is not enabled.
fn compressed(encoding: &HeaderValue) -> Status {
    let name = match std::str::from_utf8(encoding.as_bytes()) {
        Ok(name) => name.to_owned(),
        Err(_) => format!("{:?}", encoding.as_bytes()),
    };
    let text = format!("Content is compressed with `{name}` which isn't supported");
    let mut status = Status::unimplemented(text);
    let accepted = tonic::metadata::MetadataValue::from_static("identity");
    status
        .metadata_mut()
        .insert("grpc-accept-encoding", accepted);
    status
}

/// Semaphore permits of a unary call in flight.
pub(super) struct Permits {
    _call: OwnedSemaphorePermit,
    /// Permit of a long response; held until the response is sent.
    pub(super) unread: Option<OwnedSemaphorePermit>,
}

/// The body of a unary call.
pub(super) type UnaryBody = PeekedBody<LimitedBody<RequestBody>>;

impl GrpcConnection {
    /// Returns the state shared by all connections of the port.
    pub(super) fn port(&self) -> &Arc<GrpcPort> {
        &self.port
    }

    /// Returns the telemetry that counts the calls.
    pub(super) fn telemetry(&self) -> &Telemetry {
        &self.port.service.telemetry
    }

    /// Returns the client's address.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.client.origin.peer()
    }

    /// Authenticates a request. Returns its caller, its deadline and its charge, or the response that
    /// refuses
    /// it.
    #[allow(
        clippy::result_large_err,
        reason = "the error is the response, created once and sent"
    )]
    pub(super) fn admit<B>(
        &self,
        request: &Request<B>,
    ) -> Result<(Caller, Duration, Charge), Response<Body>> {
        let headers = request.headers();
        let head = STREAM + head_bytes(headers, request.uri());
        let charge = self.memory.charge(head).map_err(Status::into_http)?;
        // A gRPC client sends no origin; a page in a browser cannot leave it out.
        self.port
            .hosts
            .check_origin(headers, None)
            .map_err(|refusal| Status::permission_denied(refusal.text()).into_http())?;
        let in_clear = match self.client.plain {
            PlaintextPolicy::Served => None,
            PlaintextPolicy::Anonymous if !headers.contains_key(AUTHORIZATION) => None,
            PlaintextPolicy::Anonymous => Some(CREDENTIALS_IN_CLEAR),
            PlaintextPolicy::Refused => Some(USE_TLS),
        };
        if let Some(text) = in_clear {
            return Err(Status::failed_precondition(text).into_http());
        }
        let caller = auth::admit(&self.port.access, &self.client.origin, headers)?;
        let counted = self.slots.take(&caller);
        counted.map_err(|failure| auth::refused(&failure, headers))?;
        let deadline = grpc::deadline(request.headers(), self.port.timeout);
        Ok((caller, deadline, charge))
    }

    /// Wraps a body with the size and time limits of the port.
    pub(super) fn limited(
        &self,
        body: RequestBody,
        time_limit: Duration,
    ) -> Result<UnaryBody, Status> {
        let charge = self.memory.charge(0)?;
        Ok(PeekedBody::new(LimitedBody::new(body, charge, time_limit)))
    }

    /// Returns the permits of a call if all are free now.
    pub(super) fn permits_at_once(&self, unary: &Unary) -> Option<Permits> {
        let permit = |places: &Arc<Semaphore>| Arc::clone(places).try_acquire_owned().ok();
        Some(Permits {
            _call: permit(&self.calls)?,
            unread: match unary.length {
                Length::Short => None,
                Length::Long => Some(permit(&self.long_answers)?),
            },
        })
    }

    /// Waits for the permits of a call, then for its body. Also returns the remaining time of the
    /// deadline.
    pub(super) async fn wait(
        self,
        unary: &Unary,
        deadline: Duration,
        body: UnaryBody,
    ) -> Result<(Permits, Bytes, Duration), Status> {
        let begun = Instant::now();
        let call = place(&self.calls, deadline).await?;
        let unread = match unary.length {
            Length::Short => None,
            Length::Long => Some(place(&self.long_answers, left(deadline, begun)).await?),
        };
        let message = body.wait().await?;
        let permits = Permits {
            _call: call,
            unread,
        };
        Ok((permits, message, left(deadline, begun)))
    }

    /// Serves everything except unary calls.
    pub(super) async fn serve(
        self,
        caller: Caller,
        kind: OpKind,
        request: Request<RequestBody>,
        deadline: Duration,
        charge: Charge,
    ) -> Response<Body> {
        let begun = Instant::now();
        let _place = match place(&self.calls, deadline).await {
            Ok(place) => place,
            Err(late) => return late.into_http(),
        };
        let deadline = left(deadline, begun);
        let service = &self.port.service;
        let path = request.uri().path();
        let is_long = match kind {
            OpKind::Session => true,
            OpKind::Stream(rpc) => rpc != Rpc::AcquireStream,
            OpKind::Unary(_) | OpKind::Other => {
                LONG_REQUESTS.contains(&path) || LONG_RESPONSES.contains(&path)
            }
        };
        let stream = match Arc::clone(&self.streams).try_acquire_owned() {
            Ok(stream) => Some(stream),
            Err(_) if is_long => {
                let text = format!(
                    "this connection has {OPEN_STREAMS} open streams: use another connection"
                );
                return Status::resource_exhausted(text).into_http();
            }
            Err(_) => None,
        };
        // Counted until the client has received all of it.
        let stream = match stream.filter(|_| is_long) {
            Some(stream) => match caller.limits().open(LimitKind::Streams) {
                Ok(own) => Some((stream, own)),
                Err(failure) => return auth::refused(&failure, request.headers()),
            },
            None => None,
        };
        let body = match self.memory.charge(0) {
            Ok(body) => body,
            Err(full) => return full.into_http(),
        };
        let response = match kind {
            OpKind::Session => {
                let (head, requests) = request.into_parts();
                let session = service.session_of(&caller, &head.headers, requests, body);
                grpc_response(Body::new(session))
            }
            OpKind::Stream(rpc) => {
                let request = request.map(|inner| LimitedBody::new(inner, body, deadline));
                let response = service.stream(&caller, rpc, request, deadline).await;
                response.map(Body::new)
            }
            OpKind::Unary(_) | OpKind::Other => {
                if let Err(denied) = service_verb(&caller, request.uri().path()) {
                    return auth::refused(&denied, request.headers());
                }
                let mut request = request;
                request.extensions_mut().insert(caller);
                // The audit log records the client's address.
                if let Some(peer) = self.client.origin.peer() {
                    request.extensions_mut().insert(ConnectInfo(peer));
                }
                let request = if LONG_REQUESTS.contains(&request.uri().path()) {
                    request.map(Body::new)
                } else {
                    request.map(|inner| Body::new(LimitedBody::new(inner, body, deadline)))
                };
                let Ok(response) = self.port.routes.clone().call(request).await;
                response
            }
        };
        // The stream counts until the client has received all of it.
        response.map(|body| {
            Body::new(HeldBody {
                body,
                _held: (stream, charge),
            })
        })
    }
}

/// A body that keeps something until it is dropped.
struct HeldBody<T> {
    body: Body,
    _held: T,
}

impl<T: Unpin> http_body::Body for HeldBody<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

/// Makes a gRPC response with the headers of a successful start; the status follows in the
/// trailers.
pub(super) fn grpc_response<B>(body: B) -> Response<B> {
    let mut response = Response::new(body);
    let grpc = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(CONTENT_TYPE, grpc);
    response
}

/// Acquires a permit. Fails with DEADLINE_EXCEEDED if none is free before the deadline.
async fn place(
    places: &Arc<Semaphore>,
    deadline: Duration,
) -> Result<OwnedSemaphorePermit, Status> {
    if let Ok(place) = Arc::clone(places).try_acquire_owned() {
        return Ok(place);
    }
    let waiting = Arc::clone(places).acquire_owned();
    // Boxed, so that the futures of calls that do not wait stay small.
    let waiting = Box::pin(tokio::time::timeout(deadline, waiting));
    // The semaphore is never closed, so an error is always the timeout.
    let late = || Status::deadline_exceeded("timed out: the call was queued too long");
    waiting.await.ok().and_then(Result::ok).ok_or_else(late)
}

/// Returns the remaining time of a deadline. Waiting for permits and for the body counts: otherwise
/// a call could still run after its client has given up and sent it again.
fn left(deadline: Duration, begun: Instant) -> Duration {
    deadline.saturating_sub(begun.elapsed())
}

/// Returns the response of the web transports when the memory budget is exhausted.
pub(super) fn exhausted(full: &Status) -> Response<Body> {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    refuse(status, Code::Unavailable, full.message())
}

/// One connection of the web port.
#[derive(Clone)]
pub(crate) struct WebConnection {
    pub(crate) routes: Router,
    pub(crate) admission: Admission,
    pub(crate) memory: Arc<ConnectionBudget>,
    pub(crate) peer: SocketAddr,
    pub(crate) slots: ConnectionSlots,
    pub(crate) certificate: Option<ClientCertificate>,
    /// `Alt-Svc` header that advertises HTTP/3.
    pub(crate) alt_svc: Option<HeaderValue>,
}

impl Service<Request<Incoming>> for WebConnection {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn call(&self, mut request: Request<Incoming>) -> ResponseFuture {
        let WebConnection {
            routes,
            admission,
            memory,
            peer,
            slots,
            certificate,
            alt_svc,
        } = self.clone();
        Box::pin(async move {
            // The permit is released when the response headers are ready: an SSE stream does not
            // keep it. The charge lasts as long as the stream.
            let head = STREAM + head_bytes(request.headers(), request.uri());
            let charges = || Ok::<_, Status>((memory.charge(head)?, memory.charge(0)?));
            let admitted = match (admission.admit(), charges()) {
                (Ok(place), Ok((charge, body))) => Ok((place, charge, body)),
                (Ok(_), Err(full)) => Err(exhausted(&full)),
                (Err(full), _) => Err(full),
            };
            let mut response = match admitted {
                Ok((_place, charge, body)) => {
                    // The audit log records the client's address.
                    request.extensions_mut().insert(ConnectInfo(peer));
                    let origin = Origin::certified(peer, certificate.as_ref());
                    request.extensions_mut().insert(origin);
                    request.extensions_mut().insert(slots);
                    let timeout = admission.timeout;
                    let request =
                        request.map(|inner| Body::new(LimitedBody::new(inner, body, timeout)));
                    let response = admission.serve(routes, request).await;
                    response.map(|body| {
                        Body::new(HeldBody {
                            body,
                            _held: charge,
                        })
                    })
                }
                Err(full) => full,
            };
            if let Some(alt_svc) = alt_svc {
                response.headers_mut().insert(ALT_SVC, alt_svc);
            }
            Ok(response)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time that a call has waited is deducted from its deadline.
    #[test]
    fn the_wait_of_a_call_is_part_of_its_deadline() {
        let waited = Duration::from_millis(1_500);
        let begun = Instant::now().checked_sub(waited).unwrap();
        let deadline = Duration::from_secs(2);
        assert!(left(deadline, begun) <= deadline - waited);
        assert_eq!(left(waited, begun), Duration::ZERO);
    }

    #[test]
    fn a_request_goes_the_way_of_its_row() {
        let kind = |path: &str, encoding: Option<&str>| {
            let mut request = Request::post(path);
            if let Some(encoding) = encoding {
                request = request.header(&GRPC_ENCODING, encoding);
            }
            kind_of(&request.body(()).unwrap())
        };
        let of = |rpc: &str| kind(&format!("{PATH_LOCK}{rpc}"), None).unwrap();
        for rpc in Rpc::ALL {
            let is_right = match of(rpc.name()) {
                OpKind::Unary(unary) => unary.rpc == *rpc,
                OpKind::Session => *rpc == Rpc::Session,
                OpKind::Stream(stream) => stream == *rpc && rpc.row().unary.is_none(),
                OpKind::Other => false,
            };
            assert!(is_right, "{rpc:?}");
        }
        assert!(matches!(of("NoSuchCall"), OpKind::Other));
        let health = "/grpc.health.v1.Health/Check";
        // Compressed calls of the lock service are refused; other services decide themselves.
        assert!(matches!(kind(health, Some("gzip")), Ok(OpKind::Other)));
        let acquire = "/pathlockd.v1.PathLock/Acquire";
        assert!(matches!(
            kind(acquire, Some("identity")),
            Ok(OpKind::Unary(_))
        ));
        let refused = kind(acquire, Some("gzip")).err().unwrap();
        assert_eq!(refused.code(), tonic::Code::Unimplemented);
    }
}
