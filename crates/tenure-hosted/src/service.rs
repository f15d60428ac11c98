//! The daemon's protocol, `pathlockd.v1`, served from a shared log inside of the process.
//!
//! A client of a daemon is a client of an engine by this: leases, renewals, waiting and failures are
//! those of the one client that there is. [`connect`] returns the channel that leads here.

mod acquire;
mod convert;
mod inspect;
mod owners;
mod session;

use std::pin::Pin;

use tenure_wire::v1;
use tenure_wire::v1::path_lock_server::{PathLock, PathLockServer};
use tokio::io::DuplexStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status, Streaming};

use crate::driver::LogDriver;
use crate::engine::Engine;

/// Room for bytes between the client and the service.
const PIPE: usize = 256 << 10;
/// Maximum size of a message.
const LONGEST_MESSAGE: usize = 256 << 20;

/// Serves the protocol from an engine.
struct Service<D: LogDriver> {
    engine: Engine<D>,
}

impl<D: LogDriver> Clone for Service<D> {
    fn clone(&self) -> Service<D> {
        Service {
            engine: self.engine.clone(),
        }
    }
}

/// Returns a channel to the engine, which speaks the daemon's protocol. The service ends with the
/// last clone of the channel.
///
/// # Errors
///
/// A [`Status`] if the channel cannot be opened.
pub async fn connect<D: LogDriver>(engine: Engine<D>) -> Result<Channel, Status> {
    let (near, far) = tokio::io::duplex(PIPE);
    let service = PathLockServer::new(Service { engine })
        .max_decoding_message_size(LONGEST_MESSAGE)
        .max_encoding_message_size(LONGEST_MESSAGE);
    // The stream stays open after its one connection: the server ends with the connection.
    let incoming = tokio_stream::once(Ok::<DuplexStream, std::io::Error>(far));
    tokio::spawn(async move {
        let served = Server::builder().add_service(service);
        // It fails only when the client has gone.
        let _ = served.serve_with_incoming(incoming).await;
    });
    let mut near = Some(near);
    let connector = tower::service_fn(move |_| {
        let near = near.take().map(hyper_util::rt::TokioIo::new);
        async move {
            near.ok_or_else(|| std::io::Error::other("the channel of the engine is used once"))
        }
    });
    let target = Endpoint::from_static("http://engine");
    let opened = target.connect_with_connector(connector).await;
    opened.map_err(|error| Status::unavailable(error.to_string()))
}

/// A call of the console, which a daemon serves.
fn only_daemon(call: &str) -> Status {
    Status::unimplemented(format!(
        "{call} needs a daemon: an engine does not answer it"
    ))
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Answered<T> = Result<Response<T>, Status>;

/// Makes the methods that only pass their message on.
macro_rules! pass_on {
    ($($rpc:ident($request:ident) -> $response:ident = $call:ident;)+) => {
        // What `async_trait` makes of an async method; it does not look into macros.
        $(fn $rpc<'life0, 'async_trait>(
            &'life0 self,
            request: Request<v1::$request>,
        ) -> Pin<Box<dyn Future<Output = Answered<v1::$response>> + Send + 'async_trait>>
        where
            'life0: 'async_trait,
            Self: 'async_trait,
        {
            Box::pin(async move {
                self.$call(request.into_inner()).await.map(Response::new)
            })
        })+
    };
}

#[tonic::async_trait]
impl<D: LogDriver> PathLock for Service<D> {
    type SubscribeStream = Answers<v1::Event>;
    type WatchStream = Answers<v1::LockChange>;
    type SessionStream = Answers<v1::SessionResponse>;

    pass_on! {
        acquire(AcquireRequest) -> AcquireResponse = acquire_one;
        release(ReleaseLocksRequest) -> ReleaseResponse = release_holds;
        release_all(ReleaseAllRequest) -> ReleaseResponse = release_owner;
        renew(RenewRequest) -> RenewResponse = renew_owner;
        force_release(ForceReleaseRequest) -> ForceReleaseResponse = kill_owner;
        assert_fencing(AssertFencingRequest) -> AssertFencingResponse = check_fence;
        detect_cycle(DetectCycleRequest) -> DetectCycleResponse = find_cycle;
        is_blocking(IsBlockingRequest) -> IsBlockingResponse = does_block;
        incr_fencing_token(IncrFencingTokenRequest) -> IncrFencingTokenResponse = next_number;
        set_wait_edge(SetWaitEdgeRequest) -> SetWaitEdgeResponse = set_edge;
        clear_wait_edge(ClearWaitEdgeRequest) -> ClearWaitEdgeResponse = clear_edge;
        is_owner_alive(IsOwnerAliveRequest) -> IsOwnerAliveResponse = lives;
        request_revoke(RequestRevokeRequest) -> RequestRevokeResponse = ask_owner;
        inspect_path(InspectPathRequest) -> InspectPathResponse = inspect;
        list_owner_locks(ListOwnerLocksRequest) -> ListOwnerLocksResponse = locks_of;
        dump_locks(DumpLocksRequest) -> DumpLocksResponse = dump;
        health(HealthRequest) -> HealthResponse = is_ready;
        explain(ExplainRequest) -> ExplainResponse = explain_path;
        r#break(BreakRequest) -> BreakResponse = break_hold;
        set_namespace_policy(SetNamespacePolicyRequest) -> SetNamespacePolicyResponse = set_row;
        get_namespace_policy(GetNamespacePolicyRequest) -> GetNamespacePolicyResponse = get_row;
        delete_namespace_policy(DeleteNamespacePolicyRequest) -> DeleteNamespacePolicyResponse =
            delete_row;
        list_namespace_policies(ListNamespacePoliciesRequest) -> ListNamespacePoliciesResponse =
            list_rows;
    }

    async fn list_children(
        &self,
        _: Request<v1::ListChildrenRequest>,
    ) -> Answered<v1::ListChildrenResponse> {
        Err(only_daemon("ListChildren"))
    }

    async fn list_waits(
        &self,
        _: Request<v1::ListWaitsRequest>,
    ) -> Answered<v1::ListWaitsResponse> {
        Err(only_daemon("ListWaits"))
    }

    async fn history(&self, _: Request<v1::HistoryRequest>) -> Answered<v1::HistoryResponse> {
        Err(only_daemon("History"))
    }

    async fn acquire_stream(
        &self,
        _: Request<Streaming<v1::AcquireRequest>>,
    ) -> Answered<v1::AcquireResponse> {
        Err(Status::unimplemented(
            "an engine takes an acquire in one message: use Acquire",
        ))
    }

    async fn subscribe(
        &self,
        request: Request<v1::SubscribeRequest>,
    ) -> Answered<Self::SubscribeStream> {
        let owner = convert::owner(&request.into_inner().owner_id)?;
        let mut events = self.engine.subscribe();
        self.engine.uses(&owner);
        let standing = self.engine.read(|state| {
            let now = state.now();
            state.replica.space().standing_grants(&owner, now)
        });
        let standing: Vec<_> = standing.await?;
        let (sender, answers) = tokio::sync::mpsc::channel(64);
        tokio::spawn(async move {
            for event in standing {
                let _ = sender.send(Ok(convert::event_out(&event))).await;
            }
            while let Some(event) = events.recv().await {
                if event.owner == owner
                    && sender.send(Ok(convert::event_out(&event))).await.is_err()
                {
                    return;
                }
            }
        });
        let answers = tokio_stream::wrappers::ReceiverStream::new(answers);
        Ok(Response::new(Box::pin(answers)))
    }

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Answered<Self::WatchStream> {
        self.watch_below(request.into_inner()).await
    }

    async fn session(
        &self,
        request: Request<Streaming<v1::SessionRequest>>,
    ) -> Answered<Self::SessionStream> {
        let requests = request.into_inner();
        let requests = requests.take_while(Result::is_ok).filter_map(Result::ok);
        Ok(Response::new(session::run(
            self.clone(),
            Box::pin(requests),
        )))
    }
}
