//! The services of one connection: what belongs to it, and what its requests go through first.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use http::header::ALT_SVC;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::service::Service;
use tenure_cluster::Handle;
use tenure_wire::v1::path_lock_server::PathLockServer;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::Service as _;

use super::admission::Admission;
use super::auth::Guard;
use super::body::{Budget, Limited};
use super::grpc::{self, Grpc};
use super::herd::Herd;
use super::streams::Received;
use super::unary::{Answered, Common, Peeked};
use crate::telemetry::Rpc;

type Answering = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// The start of every path of the service itself.
const PATH_LOCK: &str = "/pathlockd.v1.PathLock/";

/// Calls whose answers may be long: one that is not read keeps a place of its connection.
const LONG_ANSWERS: [&str; 4] = [
    "/pathlockd.v1.PathLock/DumpLocks",
    "/pathlockd.v1.PathLock/ListOwnerLocks",
    "/pathlockd.v1.PathLock/ListNamespacePolicies",
    "/pathlockd.v1.PathLock/Explain",
];

/// Other calls that go on receiving after they have begun.
const LONG_REQUESTS: [&str; 2] = [
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// Long answers of one connection that may wait to be read.
const UNREAD: usize = 8;

/// A connection of the gRPC port. Calls beyond its limits wait their turn, until their deadline.
#[derive(Clone)]
pub(crate) struct GrpcConnection {
    port: Arc<GrpcPort>,
    calls: Arc<Semaphore>,
    long_answers: Arc<Semaphore>,
    peer: SocketAddr,
}

/// What all connections of the gRPC port have in common.
pub(crate) struct GrpcPort {
    /// Who answers in the end.
    pub(crate) node: Handle,
    /// How calls get there.
    pub(crate) herd: Herd,
    /// The service, for what needs no more than its messages.
    pub(crate) service: Grpc,
    /// The same for all of its calls.
    pub(crate) path_lock: PathLockServer<Grpc>,
    /// Everything that is served.
    pub(crate) routes: Router,
    /// Who may call.
    pub(crate) guard: Guard,
    /// Calls of one connection that are handled at once.
    pub(crate) calls: usize,
    pub(crate) bodies: Arc<Budget>,
    /// The longest that a call may take.
    pub(crate) timeout: Duration,
}

impl GrpcConnection {
    /// A client has connected.
    pub(crate) fn new(port: &Arc<GrpcPort>, peer: SocketAddr) -> GrpcConnection {
        GrpcConnection {
            port: Arc::clone(port),
            calls: Arc::new(Semaphore::new(port.calls)),
            long_answers: Arc::new(Semaphore::new(UNREAD)),
            peer,
        }
    }
}

/// Which way a request goes.
pub(super) enum Kind {
    Common(Common),
    Session,
    Other,
}

static GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
static GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");

/// Which way a request goes. What is encoded goes to tonic, whatever it is.
pub(super) fn kind_of<B>(request: &Request<B>) -> Kind {
    let encoding = request.headers().get(&GRPC_ENCODING);
    let is_plain = encoding.is_none_or(|encoding| encoding == "identity");
    let method = request.uri().path().strip_prefix(PATH_LOCK);
    match method.filter(|_| is_plain) {
        Some("Session") => Kind::Session,
        Some(method) => Common::named(method).map_or(Kind::Other, Kind::Common),
        None => Kind::Other,
    }
}

impl GrpcConnection {
    /// What all of the port's connections have.
    pub(super) fn port(&self) -> &Arc<GrpcPort> {
        &self.port
    }

    /// Lets a request in, for so long, or says why not.
    #[allow(
        clippy::result_large_err,
        reason = "the error is the answer, made once and sent"
    )]
    pub(super) fn admit<B>(&self, request: &Request<B>) -> Result<Duration, Response<Answered>> {
        let admitted = self.port.guard.admit(request);
        admitted.map_err(|refused| refused.map(Answered::Other))?;
        Ok(grpc::deadline(request.headers(), self.port.timeout))
    }

    /// A body under the limits of the port.
    pub(super) fn limited(&self, body: Received, patience: Duration) -> Peeked<Limited<Received>> {
        Peeked::new(Limited::new(body, &self.port.bodies, patience))
    }

    /// A place for a call, if it need not wait for one.
    pub(super) fn place_at_once(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.calls).try_acquire_owned().ok()
    }

    /// Whether calls leave traces.
    pub(super) fn is_traced(&self) -> bool {
        self.port.service.is_traced()
    }

    /// A common call is over.
    pub(super) fn count(&self, rpc: Rpc, code: tonic::Code, took: Duration) {
        self.port.service.count(rpc, code, took);
    }

    pub(super) async fn session(
        self,
        request: Request<Received>,
        deadline: Duration,
    ) -> Response<Answered> {
        let Some(_place) = place(&self.calls, deadline).await else {
            return too_late().map(Answered::Other);
        };
        let (head, body) = request.into_parts();
        let session = self.port.service.session_of(&head.headers, body);
        Answered::Session(Box::new(session)).begin()
    }

    /// A common call that has to wait for its body or its place, or is unusual.
    pub(super) async fn common(
        self,
        common: Common,
        deadline: Duration,
        head: Parts,
        mut body: Peeked<Limited<Received>>,
    ) -> Response<Answered> {
        let begun = Instant::now();
        let Some(_place) = place(&self.calls, deadline).await else {
            return too_late().map(Answered::Other);
        };
        body.read().await;
        let deadline = left(deadline, begun);
        let Some(parsed) = body.message().and_then(|message| common.parse(message)) else {
            let mut request = Request::from_parts(head, body);
            set_deadline(&mut request, deadline);
            let Ok(response) = self.port.path_lock.clone().call(request).await;
            return response.map(Body::new).map(Answered::Other);
        };
        let service = &self.port.service;
        let measured = service.begin(common.rpc(), &head.headers);
        let answer = match parsed {
            Ok(request) => service.ask(Box::new(request), deadline).await,
            Err(failure) => Err(failure),
        };
        let message = answer.and_then(|answer| common.respond(answer));
        measured.end(&message);
        match message {
            Ok(message) => Answered::One(message).begin(),
            Err(failure) => {
                let refused = tonic::Status::from(failure).into_http::<Body>();
                refused.map(Answered::Other)
            }
        }
    }

    /// Serves the calls that are less common.
    pub(super) async fn others(
        self,
        mut request: Request<Received>,
        deadline: Duration,
    ) -> Response<Answered> {
        let begun = Instant::now();
        let Some(_place) = place(&self.calls, deadline).await else {
            return too_late().map(Answered::Other);
        };
        name_peer(&mut request, self.peer);
        if !LONG_ANSWERS.contains(&request.uri().path()) {
            let deadline = left(deadline, begun);
            set_deadline(&mut request, deadline);
            let response = self.serve(request, deadline).await;
            return response.map(Answered::Other);
        }
        let Some(place) = place(&self.long_answers, left(deadline, begun)).await else {
            return too_late().map(Answered::Other);
        };
        let deadline = left(deadline, begun);
        set_deadline(&mut request, deadline);
        let response = self.serve(request, deadline).await;
        response.map(|body| {
            Answered::Other(Body::new(Placed {
                body,
                _place: place,
            }))
        })
    }

    async fn serve(&self, request: Request<Received>, deadline: Duration) -> Response<Body> {
        let path = request.uri().path();
        let limited = |body| Limited::new(body, &self.port.bodies, deadline);
        // The service itself needs no router.
        if path.starts_with(PATH_LOCK) {
            let request = request.map(limited);
            let Ok(response) = self.port.path_lock.clone().call(request).await;
            return response.map(Body::new);
        }
        let request = if LONG_REQUESTS.contains(&path) {
            request.map(Body::new)
        } else {
            request.map(|body| Body::new(limited(body)))
        };
        let Ok(response) = self.port.routes.clone().call(request).await;
        response
    }
}

/// A place, now or before the deadline.
async fn place(places: &Arc<Semaphore>, deadline: Duration) -> Option<OwnedSemaphorePermit> {
    if let Ok(place) = Arc::clone(places).try_acquire_owned() {
        return Some(place);
    }
    let waiting = Arc::clone(places).acquire_owned();
    // Boxed, so that those who need not wait do not carry the room for it.
    let waiting = Box::pin(tokio::time::timeout(deadline, waiting));
    // The semaphore is never closed.
    waiting.await.ok()?.ok()
}

/// What is left of a deadline: the wait for a place, and for the body, is part of it.
fn left(deadline: Duration, begun: Instant) -> Duration {
    deadline.saturating_sub(begun.elapsed())
}

/// Tells the handler of a call how much of the deadline is left. The header says how long the client waits
/// from the moment of sending, and a call that outlives its client is repeated beside itself.
fn set_deadline<B>(request: &mut Request<B>, left: Duration) {
    // The format has room for eight digits; that many milliseconds are more than a day.
    let text = format!("{}m", left.as_millis().min(99_999_999));
    if let Ok(value) = HeaderValue::from_str(&text) {
        request.headers_mut().insert(&GRPC_TIMEOUT, value);
    }
}

fn too_late() -> Response<Body> {
    tonic::Status::deadline_exceeded("the call waited too long for its turn").into_http()
}

/// A connection of the web port.
#[derive(Clone)]
pub(crate) struct WebConnection {
    pub(crate) routes: Router,
    pub(crate) admission: Admission,
    pub(crate) peer: SocketAddr,
    /// Where HTTP/3 is to be had.
    pub(crate) alt_svc: Option<HeaderValue>,
}

impl Service<Request<Incoming>> for WebConnection {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answering;

    fn call(&self, mut request: Request<Incoming>) -> Answering {
        let WebConnection {
            routes,
            admission,
            peer,
            alt_svc,
        } = self.clone();
        Box::pin(async move {
            // A stream of events gives its place back with its headers.
            let mut response = match admission.admit() {
                Ok(_place) => {
                    name_peer(&mut request, peer);
                    let timeout = admission.timeout;
                    let request = request
                        .map(|body| Body::new(Limited::new(body, &admission.bodies, timeout)));
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

/// Says who asks, where that goes to the audit trail. Others are spared the cost.
fn name_peer<B>(request: &mut Request<B>, peer: SocketAddr) {
    let path = request.uri().path();
    let forced = ["orceRelease", "equestRevoke", "reak"];
    if forced.iter().any(|name| path.ends_with(name)) {
        request.extensions_mut().insert(ConnectInfo(peer));
    }
}

/// An answer that keeps its call's place until it is sent.
struct Placed {
    body: Body,
    _place: OwnedSemaphorePermit,
}

impl http_body::Body for Placed {
    type Data = bytes::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<bytes::Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time that a call has waited for its turn is not given to it again.
    #[test]
    fn a_handler_is_told_what_is_left_of_the_deadline() {
        let ours = Duration::from_secs(30);
        let mut request = Request::new(());
        request
            .headers_mut()
            .insert(&GRPC_TIMEOUT, HeaderValue::from_static("2S"));
        let deadline = grpc::deadline(request.headers(), ours);
        assert_eq!(deadline, Duration::from_secs(2));
        let waited = Duration::from_millis(1_500);
        set_deadline(&mut request, deadline.saturating_sub(waited));
        let told = grpc::deadline(request.headers(), ours);
        assert_eq!(told, Duration::from_millis(500));
        set_deadline(&mut request, left(Duration::ZERO, Instant::now()));
        assert_eq!(grpc::deadline(request.headers(), ours), Duration::ZERO);
    }
}
