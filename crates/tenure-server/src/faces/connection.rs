//! The services of one connection: what belongs to it, and what its requests go through first.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use http::header::ALT_SVC;
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use tenure_wire::v1::path_lock_server::PathLockServer;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::Service;

use super::admission::Admission;
use super::body::{Budget, Limited};
use super::grpc::{self, Grpc};

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

/// Calls that go on receiving after they have begun.
const LONG_REQUESTS: [&str; 3] = [
    "/pathlockd.v1.PathLock/Session",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// Long answers of one connection that may wait to be read.
const UNREAD: usize = 8;

/// A connection of the gRPC port. Calls beyond its limits wait their turn, until their deadline.
#[derive(Clone)]
pub(crate) struct GrpcConnection {
    direct: Option<PathLockServer<Grpc>>,
    routes: Router,
    calls: Arc<Semaphore>,
    long_answers: Arc<Semaphore>,
    bodies: Arc<Budget>,
    timeout: Duration,
    peer: SocketAddr,
}

/// What all connections of the gRPC port have in common.
#[derive(Clone)]
pub(crate) struct GrpcPort {
    /// The service itself, where nobody has to be asked for credentials first: its calls need no
    /// router.
    pub(crate) direct: Option<PathLockServer<Grpc>>,
    /// Everything that is served.
    pub(crate) routes: Router,
    /// Calls of one connection that are handled at once.
    pub(crate) calls: usize,
    pub(crate) bodies: Arc<Budget>,
    /// The longest that a call may take.
    pub(crate) timeout: Duration,
}

impl GrpcPort {
    /// A client has connected.
    pub(crate) fn connection(&self, peer: SocketAddr) -> GrpcConnection {
        GrpcConnection {
            direct: self.direct.clone(),
            routes: self.routes.clone(),
            calls: Arc::new(Semaphore::new(self.calls)),
            long_answers: Arc::new(Semaphore::new(UNREAD)),
            bodies: Arc::clone(&self.bodies),
            timeout: self.timeout,
            peer,
        }
    }
}

impl Service<Request<Incoming>> for GrpcConnection {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Answering {
        let mut connection = self.clone();
        Box::pin(async move { Ok(connection.answer(request).await) })
    }
}

impl GrpcConnection {
    async fn answer(&mut self, mut request: Request<Incoming>) -> Response<Body> {
        let deadline = grpc::deadline(request.headers(), self.timeout);
        let Some(_place) = place(&self.calls, deadline).await else {
            return too_late();
        };
        name_peer(&mut request, self.peer);
        let path = request.uri().path();
        let is_long = LONG_ANSWERS.contains(&path);
        if !is_long {
            return self.serve(request, deadline).await;
        }
        let Some(place) = place(&self.long_answers, deadline).await else {
            return too_late();
        };
        let response = self.serve(request, deadline).await;
        response.map(|body| {
            Body::new(Placed {
                body,
                _place: place,
            })
        })
    }

    async fn serve(&mut self, request: Request<Incoming>, deadline: Duration) -> Response<Body> {
        let path = request.uri().path();
        let goes_on = LONG_REQUESTS.contains(&path);
        let direct = self.direct.as_mut().filter(|_| path.starts_with(PATH_LOCK));
        let limited = |body| Limited::new(body, &self.bodies, deadline);
        match (direct, goes_on) {
            (Some(service), true) => {
                let Ok(response) = service.call(request).await;
                response.map(Body::new)
            }
            (Some(service), false) => {
                let Ok(response) = service.call(request.map(limited)).await;
                response.map(Body::new)
            }
            (None, true) => {
                let Ok(response) = self.routes.call(request.map(Body::new)).await;
                response
            }
            (None, false) => {
                let request = request.map(|body| Body::new(limited(body)));
                let Ok(response) = self.routes.call(request).await;
                response
            }
        }
    }
}

/// A place, now or before the deadline.
async fn place(places: &Arc<Semaphore>, deadline: Duration) -> Option<OwnedSemaphorePermit> {
    if let Ok(place) = Arc::clone(places).try_acquire_owned() {
        return Some(place);
    }
    let waiting = Arc::clone(places).acquire_owned();
    // The semaphore is never closed.
    tokio::time::timeout(deadline, waiting).await.ok()?.ok()
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

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Incoming>) -> Answering {
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
