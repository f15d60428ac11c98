//! gRPC: the contract. Each method hands its message to the handler of the same name.

use std::pin::Pin;
use std::time::Duration;

use futures_util::Stream;
use tenure_wire::v1;
use tenure_wire::v1::path_lock_server::PathLock;
use tokio_stream::StreamExt;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use crate::convert;
use crate::events::{self, Events};
use crate::handlers::{Call, Chunks, Handlers};
use crate::session::Session;

/// The service over the handlers.
#[derive(Clone)]
pub struct Grpc {
    handlers: Handlers,
    events: Events,
    timeout: Duration,
}

impl Grpc {
    /// A service that gives a call at most `timeout`.
    pub fn new(handlers: Handlers, events: Events, timeout: Duration) -> Grpc {
        Grpc {
            handlers,
            events,
            timeout,
        }
    }

    /// Whether the node can serve (R145).
    pub(crate) async fn is_ready(&self) -> bool {
        self.handlers
            .health(Call {
                timeout: self.timeout,
            })
            .await
            .ok
    }

    /// The shorter of the client's deadline and ours.
    fn call(&self, metadata: &MetadataMap) -> Call {
        let asked = metadata
            .get("grpc-timeout")
            .and_then(|value| deadline(value.to_str().ok()?));
        Call {
            timeout: asked.map_or(self.timeout, |asked| asked.min(self.timeout)),
        }
    }
}

/// A duration as gRPC writes it: up to eight digits and a unit.
fn deadline(text: &str) -> Option<Duration> {
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
        $($name:ident => $handler:ident : $request:ident -> $response:ident),+ ;
        $($others:tt)+
    ) => {
        #[tonic::async_trait]
        impl PathLock for Grpc {
            $(async fn $name(
                &self,
                request: Request<v1::$request>,
            ) -> Result<Response<v1::$response>, Status> {
                let call = self.call(request.metadata());
                Ok(Response::new(self.handlers.$handler(call, request.into_inner()).await?))
            })+

            $($others)+
        }
    };
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

service! {
        acquire => acquire: AcquireRequest -> AcquireResponse,
        set_namespace_policy => set_namespace_policy:
            SetNamespacePolicyRequest -> SetNamespacePolicyResponse,
        get_namespace_policy => get_namespace_policy:
            GetNamespacePolicyRequest -> GetNamespacePolicyResponse,
        delete_namespace_policy => delete_namespace_policy:
            DeleteNamespacePolicyRequest -> DeleteNamespacePolicyResponse,
        release => release: ReleaseLocksRequest -> ReleaseResponse,
        release_all => release_all: ReleaseAllRequest -> ReleaseResponse,
        renew => renew: RenewRequest -> RenewResponse,
        force_release => force_release: ForceReleaseRequest -> ForceReleaseResponse,
        assert_fencing => assert_fencing: AssertFencingRequest -> AssertFencingResponse,
        detect_cycle => detect_cycle: DetectCycleRequest -> DetectCycleResponse,
        is_blocking => is_blocking: IsBlockingRequest -> IsBlockingResponse,
        incr_fencing_token => incr_fencing_token:
            IncrFencingTokenRequest -> IncrFencingTokenResponse,
        set_wait_edge => set_wait_edge: SetWaitEdgeRequest -> SetWaitEdgeResponse,
        clear_wait_edge => clear_wait_edge: ClearWaitEdgeRequest -> ClearWaitEdgeResponse,
        is_owner_alive => is_owner_alive: IsOwnerAliveRequest -> IsOwnerAliveResponse,
        request_revoke => request_revoke: RequestRevokeRequest -> RequestRevokeResponse,
        inspect_path => inspect_path: InspectPathRequest -> InspectPathResponse,
        list_owner_locks => list_owner_locks: ListOwnerLocksRequest -> ListOwnerLocksResponse,
        dump_locks => dump_locks: DumpLocksRequest -> DumpLocksResponse,
        explain => explain: ExplainRequest -> ExplainResponse,
        r#break => break_hold: BreakRequest -> BreakResponse,
        list_namespace_policies => list_namespace_policies:
            ListNamespacePoliciesRequest -> ListNamespacePoliciesResponse;

    type SubscribeStream = Answers<v1::Event>;
    type WatchStream = Answers<v1::LockChange>;
    type SessionStream = Answers<v1::SessionResponse>;

    async fn health(
        &self,
        request: Request<v1::HealthRequest>,
    ) -> Result<Response<v1::HealthResponse>, Status> {
        let call = self.call(request.metadata());
        Ok(Response::new(self.handlers.health(call).await))
    }

    /// R18: all chunks are collected first; a stream that breaks off has no effect.
    async fn acquire_stream(
        &self,
        request: Request<Streaming<v1::AcquireRequest>>,
    ) -> Result<Response<v1::AcquireResponse>, Status> {
        let call = self.call(request.metadata());
        let mut stream = request.into_inner();
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
        Ok(Response::new(self.handlers.acquire_chunks(call, chunks).await?))
    }

    async fn subscribe(
        &self,
        request: Request<v1::SubscribeRequest>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let owner = convert::owner(&request.into_inner().owner_id)?;
        let events = self.events.subscribe(owner);
        let stream = events.map(|event| match event {
            Ok(event) => Ok(convert::event_out(&event)),
            Err(failure) => Err(failure.into()),
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn watch(
        &self,
        request: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let request = request.into_inner();
        let prefix = convert::namespace(&request.prefix)?;
        let changes = events::watch(self.handlers.node(), prefix, request.snapshot);
        Ok(Response::new(Box::pin(changes.map(|change| change.map_err(Status::from)))))
    }

    async fn session(
        &self,
        request: Request<Streaming<v1::SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let call = self.call(request.metadata());
        let session =
            Session::new(&self.handlers, call, self.events.buffer(), request.into_inner());
        Ok(Response::new(Box::pin(session)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_read_as_grpc_writes_them() {
        assert_eq!(deadline("250m"), Some(Duration::from_millis(250)));
        assert_eq!(deadline("2S"), Some(Duration::from_secs(2)));
        assert_eq!(deadline("1H"), Some(Duration::from_secs(3600)));
        for bad in ["", "S", "123456789S", "-1S", "1x", "1.5S"] {
            assert_eq!(deadline(bad), None, "{bad}");
        }
    }
}
