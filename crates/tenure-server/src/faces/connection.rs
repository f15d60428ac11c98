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

/// Calls whose answers may be long: one that is not read keeps its place.
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

/// A connection of the gRPC port. Calls beyond the limit wait their turn, until their deadline.
#[derive(Clone)]
pub(crate) struct GrpcConnection {
    /// The service itself, where nobody has to be asked for credentials first: its calls need no
    /// router, which costs as much as their decoding.
    pub(crate) direct: Option<PathLockServer<Grpc>>,
    /// Everything that is served.
    pub(crate) routes: Router,
    pub(crate) calls: Arc<Semaphore>,
    pub(crate) bodies: Arc<Budget>,
    pub(crate) timeout: Duration,
    pub(crate) peer: SocketAddr,
}

impl Service<Request<Incoming>> for GrpcConnection {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Incoming>) -> Answering {
        let GrpcConnection {
            direct,
            mut routes,
            calls,
            bodies,
            timeout,
            peer,
        } = self.clone();
        Box::pin(async move {
            let deadline = grpc::deadline(request.headers(), timeout);
            let place = match Arc::clone(&calls).try_acquire_owned() {
                Ok(place) => place,
                Err(_) => match tokio::time::timeout(deadline, calls.acquire_owned()).await {
                    Ok(Ok(place)) => place,
                    _ => return Ok(too_late()),
                },
            };
            name_peer(&mut request, peer);
            let path = request.uri().path();
            let keeps_place = LONG_ANSWERS.contains(&path);
            let is_long = LONG_REQUESTS.contains(&path);
            let limited = |body| Limited::new(body, &bodies, deadline);
            let response = match direct.filter(|_| path.starts_with(PATH_LOCK)) {
                Some(mut service) if is_long => service.call(request).await?.map(Body::new),
                Some(mut service) => service.call(request.map(limited)).await?.map(Body::new),
                None if is_long => routes.call(request.map(Body::new)).await?,
                None => {
                    let request = request.map(|body| Body::new(limited(body)));
                    routes.call(request).await?
                }
            };
            Ok(if keeps_place {
                response.map(|body| {
                    Body::new(Placed {
                        body,
                        _place: place,
                    })
                })
            } else {
                response
            })
        })
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
