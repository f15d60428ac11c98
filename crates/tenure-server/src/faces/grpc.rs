//! gRPC: the contract. Each method hands its message to the handler of the same name.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::ConnectInfo;
use futures_util::Stream;
use http::{HeaderMap, HeaderName};
use tenure_node::{Answer, ClientRequest};
use tenure_wire::v1;
use tenure_wire::v1::path_lock_server::PathLock;
use tokio::sync::watch;
use tokio_stream::StreamExt;
use tonic::{Request, Response, Status, Streaming};

use super::streams::Received;
use super::tcp::stopped;
use crate::convert;
use crate::events::{self, Events};
use crate::handlers::{Call, Chunks, Handlers};
use crate::session::{Means, Session};
use crate::status::Failure;
use crate::telemetry::{Face, Measured, Rpc, Telemetry};

/// The service over the handlers.
#[derive(Clone)]
pub struct Grpc {
    handlers: Handlers,
    events: Events,
    telemetry: Telemetry,
    timeout: Duration,
    /// Ends all streams when the daemon stops (R169).
    stop: watch::Receiver<bool>,
}

impl Grpc {
    /// A service that gives a call at most `timeout`.
    pub fn new(
        handlers: Handlers,
        events: Events,
        telemetry: Telemetry,
        timeout: Duration,
        stop: watch::Receiver<bool>,
    ) -> Grpc {
        Grpc {
            handlers,
            events,
            telemetry,
            timeout,
            stop,
        }
    }

    /// A stream that the end of the daemon ends too.
    pub(crate) fn until_stop<T: Send + 'static>(
        &self,
        stream: impl Stream<Item = Result<T, Status>> + Send + 'static,
    ) -> Answers<T> {
        Box::pin(UntilStop {
            stream: Some(Box::pin(stream)),
            stopped: Box::pin(stopped(self.stop.clone())),
        })
    }

    /// A call begins.
    pub(super) fn begin(&self, rpc: Rpc, headers: &HeaderMap) -> Measured<'_> {
        self.telemetry.begin(Face::Grpc, rpc, headers)
    }

    /// Whether calls leave traces.
    pub(super) fn is_traced(&self) -> bool {
        self.telemetry.is_traced()
    }

    /// A call that left no trace is over.
    pub(super) fn count(&self, rpc: Rpc, code: tonic::Code, took: Duration) {
        self.telemetry.count(Face::Grpc, rpc, code, took);
    }

    /// A session over the body of a request (E10).
    pub(super) fn session_of(&self, headers: &HeaderMap, requests: Received) -> Session<Received> {
        self.begin(Rpc::Session, headers).end_with(tonic::Code::Ok);
        let means = Means {
            calls: self.handlers.node().calls(self.events.buffer()),
            telemetry: self.telemetry.clone(),
            timeout: deadline(headers, self.timeout),
            stopped: Box::pin(stopped(self.stop.clone())),
        };
        Session::new(means, requests)
    }

    /// Asks the node.
    pub(super) fn ask(
        &self,
        request: Box<ClientRequest>,
        timeout: Duration,
    ) -> impl Future<Output = Result<Answer, Failure>> + use<> {
        self.handlers.ask(Call::within(timeout), request)
    }

    /// Whether the node can serve (R145).
    pub(crate) async fn is_ready(&self) -> bool {
        self.handlers.health(Call::within(self.timeout)).await.ok
    }

    async fn collect_and_acquire(
        &self,
        call: Call,
        mut stream: Streaming<v1::AcquireRequest>,
    ) -> Result<v1::AcquireResponse, Status> {
        let mut chunks = Chunks::default();
        let collected = async {
            while let Some(chunk) = stream.message().await? {
                chunks.push(chunk)?;
            }
            Ok::<_, Status>(())
        };
        match tokio::time::timeout(call.timeout, collected).await {
            Ok(collected) => collected?,
            Err(_) => return Err(Status::deadline_exceeded("the chunks did not come in time")),
        }
        Ok(self.handlers.acquire_chunks(call, chunks).await?)
    }

    fn call<T>(&self, request: &Request<T>) -> Call {
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
        Call {
            timeout: deadline(request.metadata().as_ref(), self.timeout),
            peer: peer.map(|peer| peer.0),
        }
    }
}

/// How long a client waits.
static GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// The shorter of the client's deadline and ours.
pub(crate) fn deadline(headers: &HeaderMap, ours: Duration) -> Duration {
    let asked = headers.get(&GRPC_TIMEOUT);
    let asked = asked.and_then(|value| duration(value.to_str().ok()?));
    asked.map_or(ours, |asked| asked.min(ours))
}

/// A duration as gRPC writes it: up to eight digits and a unit.
fn duration(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

/// The service: first the methods that do nothing but call their handler, then the others.
///
/// The whole `impl` comes out of the macro because `async_trait` must see the methods written out.
macro_rules! service {
    (
        $($name:ident => $rpc:ident $handler:ident : $request:ident -> $response:ident),+ ;
        $($others:tt)+
    ) => {
        #[tonic::async_trait]
        impl PathLock for Grpc {
            $(async fn $name(
                &self,
                request: Request<v1::$request>,
            ) -> Result<Response<v1::$response>, Status> {
                let call = self.call(&request);
                let headers = request.metadata().as_ref();
                let measured = self.telemetry.begin(Face::Grpc, Rpc::$rpc, headers);
                let answer = self.handlers.$handler(call, request.into_inner()).await;
                measured.end(&answer);
                Ok(Response::new(answer?))
            })+

            $($others)+
        }
    };
}

/// See [`Grpc::until_stop`].
struct UntilStop<S, E> {
    /// Nothing, once it was said that the node stops.
    stream: Option<Pin<Box<S>>>,
    stopped: Pin<Box<E>>,
}

impl<T, S, E> Stream for UntilStop<S, E>
where
    S: Stream<Item = Result<T, Status>>,
    E: Future<Output = ()>,
{
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(stream) = &mut self.stream else {
            return Poll::Ready(None);
        };
        // Whether the daemon stops is asked only when there is nothing else to say.
        if let Poll::Ready(next) = stream.as_mut().poll_next(cx) {
            return Poll::Ready(next);
        }
        self.stopped.as_mut().poll(cx).map(|()| {
            self.stream = None;
            Some(Err(Status::unavailable("the node stops: try another one")))
        })
    }
}

/// What a call streams.
pub(crate) type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

service! {
        acquire => Acquire acquire: AcquireRequest -> AcquireResponse,
        set_namespace_policy => SetNamespacePolicy set_namespace_policy:
            SetNamespacePolicyRequest -> SetNamespacePolicyResponse,
        get_namespace_policy => GetNamespacePolicy get_namespace_policy:
            GetNamespacePolicyRequest -> GetNamespacePolicyResponse,
        delete_namespace_policy => DeleteNamespacePolicy delete_namespace_policy:
            DeleteNamespacePolicyRequest -> DeleteNamespacePolicyResponse,
        release => Release release: ReleaseLocksRequest -> ReleaseResponse,
        release_all => ReleaseAll release_all: ReleaseAllRequest -> ReleaseResponse,
        renew => Renew renew: RenewRequest -> RenewResponse,
        force_release => ForceRelease force_release: ForceReleaseRequest -> ForceReleaseResponse,
        assert_fencing => AssertFencing assert_fencing: AssertFencingRequest -> AssertFencingResponse,
        detect_cycle => DetectCycle detect_cycle: DetectCycleRequest -> DetectCycleResponse,
        is_blocking => IsBlocking is_blocking: IsBlockingRequest -> IsBlockingResponse,
        incr_fencing_token => IncrFencingToken incr_fencing_token:
            IncrFencingTokenRequest -> IncrFencingTokenResponse,
        set_wait_edge => SetWaitEdge set_wait_edge: SetWaitEdgeRequest -> SetWaitEdgeResponse,
        clear_wait_edge => ClearWaitEdge clear_wait_edge: ClearWaitEdgeRequest -> ClearWaitEdgeResponse,
        is_owner_alive => IsOwnerAlive is_owner_alive: IsOwnerAliveRequest -> IsOwnerAliveResponse,
        request_revoke => RequestRevoke request_revoke: RequestRevokeRequest -> RequestRevokeResponse,
        inspect_path => InspectPath inspect_path: InspectPathRequest -> InspectPathResponse,
        list_owner_locks => ListOwnerLocks list_owner_locks: ListOwnerLocksRequest -> ListOwnerLocksResponse,
        dump_locks => DumpLocks dump_locks: DumpLocksRequest -> DumpLocksResponse,
        explain => Explain explain: ExplainRequest -> ExplainResponse,
        r#break => Break break_hold: BreakRequest -> BreakResponse,
        list_namespace_policies => ListNamespacePolicies list_namespace_policies:
            ListNamespacePoliciesRequest -> ListNamespacePoliciesResponse;

    type SubscribeStream = Answers<v1::Event>;
    type WatchStream = Answers<v1::LockChange>;
    type SessionStream = Answers<v1::SessionResponse>;

    async fn health(
        &self,
        request: Request<v1::HealthRequest>,
    ) -> Result<Response<v1::HealthResponse>, Status> {
        let call = self.call(&request);
        let headers = request.metadata().as_ref();
        let measured = self.telemetry.begin(Face::Grpc, Rpc::Health, headers);
        let health = self.handlers.health(call).await;
        measured.end_with(tonic::Code::Ok);
        Ok(Response::new(health))
    }

    /// R18: all chunks are collected first; a stream that breaks off has no effect.
    async fn acquire_stream(
        &self,
        request: Request<Streaming<v1::AcquireRequest>>,
    ) -> Result<Response<v1::AcquireResponse>, Status> {
        let call = self.call(&request);
        let headers = request.metadata().as_ref();
        let measured = self.telemetry.begin(Face::Grpc, Rpc::AcquireStream, headers);
        let answer = self.collect_and_acquire(call, request.into_inner()).await;
        measured.end_with(answer.as_ref().map_or_else(Status::code, |_| tonic::Code::Ok));
        answer.map(Response::new)
    }

    async fn subscribe(
        &self,
        request: Request<v1::SubscribeRequest>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let headers = request.metadata().as_ref();
        let measured = self.telemetry.begin(Face::Grpc, Rpc::Subscribe, headers);
        let owner = convert::owner(&request.get_ref().owner_id);
        measured.end(&owner);
        let events = self.events.subscribe(owner?);
        let stream = events.map(|event| match event {
            Ok(event) => Ok(convert::event_out(&event)),
            Err(failure) => Err(failure.into()),
        });
        Ok(Response::new(self.until_stop(stream)))
    }

    async fn watch(
        &self,
        request: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let headers = request.metadata().as_ref();
        let measured = self.telemetry.begin(Face::Grpc, Rpc::Watch, headers);
        let request = request.get_ref();
        let prefix = convert::namespace(&request.prefix);
        measured.end(&prefix);
        let changes = events::watch(self.handlers.node(), prefix?, request.snapshot);
        Ok(Response::new(self.until_stop(changes.map(|change| change.map_err(Status::from)))))
    }

    /// Only what `session_of` does not take comes here.
    async fn session(
        &self,
        _: Request<Streaming<v1::SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        Err(Status::unimplemented("a session has no encoding"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_read_as_grpc_writes_them() {
        assert_eq!(duration("250m"), Some(Duration::from_millis(250)));
        assert_eq!(duration("2S"), Some(Duration::from_secs(2)));
        assert_eq!(duration("1H"), Some(Duration::from_secs(3600)));
        for bad in ["", "S", "123456789S", "-1S", "1x", "1.5S"] {
            assert_eq!(duration(bad), None, "{bad}");
        }
    }
}
