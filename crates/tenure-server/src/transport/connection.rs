//! Per-connection services: limits, authentication and dispatch for connections of the gRPC port
//! and of the web port.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use bytes::Bytes;
use http::header::{ALT_SVC, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::service::Service;
use tenure_cluster::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;
use tower::Service as _;

use super::admission::Admission;
use super::auth;
use super::body_limit::{BodyBudget, LimitedBody};
use super::coalesce::Coalescer;
use super::grpc::{self, Grpc};
use super::h2_body::RequestBody;
use super::unary::PeekedBody;
use crate::auth::{AccessControl, Caller, Origin, service_verb};
use crate::rpc::{Length, Rpc, Unary};
use crate::telemetry::Telemetry;

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

/// One connection of the gRPC port. Calls beyond its limits wait until their deadline.
#[derive(Clone)]
pub(crate) struct GrpcConnection {
    port: Arc<GrpcPort>,
    calls: Arc<Semaphore>,
    long_answers: Arc<Semaphore>,
    origin: Origin,
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
    pub(crate) bodies: Arc<BodyBudget>,
    /// Time limit of one call.
    pub(crate) timeout: Duration,
}

impl GrpcConnection {
    /// Creates the state of a new connection.
    pub(crate) fn new(port: &Arc<GrpcPort>, origin: Origin) -> GrpcConnection {
        GrpcConnection {
            port: Arc::clone(port),
            calls: Arc::new(Semaphore::new(port.calls)),
            long_answers: Arc::new(Semaphore::new(UNREAD)),
            origin,
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
        self.origin.peer()
    }

    /// Authenticates a request. Returns its caller and its deadline, or the response that refuses
    /// it.
    #[allow(
        clippy::result_large_err,
        reason = "the error is the response, created once and sent"
    )]
    pub(super) fn admit<B>(
        &self,
        request: &Request<B>,
    ) -> Result<(Caller, Duration), Response<Body>> {
        let caller = auth::admit(&self.port.access, &self.origin, request.headers())?;
        let deadline = grpc::deadline(request.headers(), self.port.timeout);
        Ok((caller, deadline))
    }

    /// Wraps a body with the size and time limits of the port.
    pub(super) fn limited(&self, body: RequestBody, time_limit: Duration) -> UnaryBody {
        PeekedBody::new(LimitedBody::new(body, &self.port.bodies, time_limit))
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
    ) -> Response<Body> {
        let begun = Instant::now();
        let _place = match place(&self.calls, deadline).await {
            Ok(place) => place,
            Err(late) => return late.into_http(),
        };
        let deadline = left(deadline, begun);
        let service = &self.port.service;
        let limited = |body| LimitedBody::new(body, &self.port.bodies, deadline);
        match kind {
            OpKind::Session => {
                let (head, body) = request.into_parts();
                grpc_response(Body::new(service.session_of(&caller, &head.headers, body)))
            }
            OpKind::Stream(rpc) => {
                let request = request.map(limited);
                let response = service.stream(&caller, rpc, request, deadline).await;
                response.map(Body::new)
            }
            OpKind::Unary(_) | OpKind::Other => {
                if let Err(denied) = service_verb(&caller, request.uri().path()) {
                    return auth::refused(&denied, request.headers());
                }
                let mut request = request;
                request.extensions_mut().insert(caller);
                let request = if LONG_REQUESTS.contains(&request.uri().path()) {
                    request.map(Body::new)
                } else {
                    request.map(|body| Body::new(limited(body)))
                };
                let Ok(response) = self.port.routes.clone().call(request).await;
                response
            }
        }
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

/// One connection of the web port.
#[derive(Clone)]
pub(crate) struct WebConnection {
    pub(crate) routes: Router,
    pub(crate) admission: Admission,
    pub(crate) peer: SocketAddr,
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
            peer,
            alt_svc,
        } = self.clone();
        Box::pin(async move {
            // The permit is released when the response headers are ready: an SSE stream does not
            // keep it.
            let mut response = match admission.admit() {
                Ok(_place) => {
                    // The audit log records the client's address.
                    request.extensions_mut().insert(ConnectInfo(peer));
                    let timeout = admission.timeout;
                    let request = request
                        .map(|body| Body::new(LimitedBody::new(body, &admission.bodies, timeout)));
                    admission.serve(routes, request).await
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
