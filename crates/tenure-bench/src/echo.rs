//! Echo server: a gRPC baseline that decodes the same requests, decides nothing, and answers with
//! messages of the same size. Its rate is the upper bound that gRPC has on this machine.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use prost::Message;
use tenure_wire::v1;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::BenchError;

/// Serves until the process ends. Calls `ready` with the bound address.
pub fn serve(ready: impl FnOnce(SocketAddr)) -> Result<(), BenchError> {
    // As many threads as the daemon's transports have.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.saturating_sub(1).max(1))
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        ready(listener.local_addr()?);
        tonic::transport::Server::builder()
            .tcp_nodelay(true)
            .add_service(Echo)
            .serve_with_incoming(TcpListenerStream::new(listener))
            .await?;
        Ok(())
    })
}

/// Answers under the daemon's service name, so that the same client can call both.
#[derive(Clone)]
struct Echo;

impl NamedService for Echo {
    const NAME: &'static str = "pathlockd.v1.PathLock";
}

impl tower::Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let method = request.uri().path().rsplit('/').next().unwrap_or_default();
        match method {
            "Acquire" => Box::pin(echo(request, |acquire: v1::AcquireRequest| {
                let path = acquire.requests.first();
                v1::AcquireResponse {
                    fencing_token: 1_000_000,
                    // As long as the namespace in the daemon's response.
                    namespace: path
                        .map_or_else(String::new, |one| one.path.chars().take(24).collect()),
                    ..Default::default()
                }
            })),
            "Release" => Box::pin(echo(request, |_: v1::ReleaseLocksRequest| {
                v1::ReleaseResponse {}
            })),
            "Renew" => Box::pin(echo(request, |_: v1::RenewRequest| {
                v1::RenewResponse::default()
            })),
            "AssertFencing" => Box::pin(echo(request, |_: v1::AssertFencingRequest| {
                v1::AssertFencingResponse::default()
            })),
            _ => Box::pin(ready(Ok(
                Status::unimplemented("this server only echoes").into_http()
            ))),
        }
    }
}

async fn echo<Q, A>(
    request: http::Request<Body>,
    answer: fn(Q) -> A,
) -> Result<http::Response<Body>, Infallible>
where
    Q: Message + Default + Send + 'static,
    A: Message + Default + Send + 'static,
{
    let mut grpc = Grpc::new(ProstCodec::<A, Q>::default());
    Ok(grpc.unary(EchoResponse(answer), request).await)
}

struct EchoResponse<Q, A>(fn(Q) -> A);

impl<Q, A> UnaryService<Q> for EchoResponse<Q, A> {
    type Response = A;
    type Future = Ready<Result<Response<A>, Status>>;

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        ready(Ok(Response::new((self.0)(request.into_inner()))))
    }
}
