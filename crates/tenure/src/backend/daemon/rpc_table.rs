//! The RPC table of the client: one typed call per RPC of `pathlockd.v1`.
//!
//! The table makes an [`RpcCall`] of each request message, for the backend, and a method of
//! [`Calls`], for programs.

use std::future::Future;
use std::sync::Arc;

use tenure_wire::v1;
use tenure_wire::v1::path_lock_client::PathLockClient;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

use super::client::{CallFailure, DaemonClient, new_key};
use super::{failed, inspect};
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::tenure::Tenure;

/// A request message with its RPC. A stream of responses counts as one answer.
pub(super) trait RpcCall: Clone + Send + Sync + 'static {
    /// The response message, or the stream of them.
    type Answer: Send + 'static;
    /// Sets an idempotency key if the message can have one and has none: then the call may be
    /// repeated.
    fn set_key(&mut self) {}
    /// Makes the call.
    fn call(
        calls: PathLockClient<Channel>,
        request: Request<Self>,
    ) -> impl Future<Output = Result<Response<Self::Answer>, Status>> + Send;
}

/// The calls of the daemon's protocol, one method per RPC, with the messages of the protocol
/// ([`messages`](crate::calls::messages)).
///
/// Most programs need [`Tenure::lock`] and the other calls of [`Tenure`], which keep leases and wait
/// in line. These methods are for tools that speak the protocol itself. They use the connection, the
/// credentials and the failover of their [`Tenure`]; a call is repeated for up to 10 s, and gets an
/// idempotency key if its message has none.
#[derive(Clone)]
pub struct Calls {
    client: DaemonClient,
}

impl std::fmt::Debug for Calls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Calls").finish_non_exhaustive()
    }
}

impl Tenure {
    /// Returns the calls of the configured daemon.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] if the credentials cannot be read.
    pub fn calls(&self) -> Result<Calls, Error> {
        Ok(Calls {
            client: self.client(&[])?,
        })
    }

    /// Returns the calls of the daemon at these nodes. Empty: the configured nodes.
    pub fn calls_of(&self, nodes: &[Endpoint]) -> Result<Calls, Error> {
        Ok(Calls {
            client: self.client(nodes)?,
        })
    }
}

/// Makes an [`RpcCall`] of a request message. After the request stands its idempotency key, if it has
/// one.
macro_rules! rpc_call {
    ($name:ident($request:ident $(, $key:ident)?) -> $answer:ty) => {
        impl RpcCall for v1::$request {
            type Answer = $answer;

            $(fn set_key(&mut self) {
                if self.$key.is_empty() {
                    self.$key = new_key();
                }
            })?

            async fn call(
                mut calls: PathLockClient<Channel>,
                request: Request<Self>,
            ) -> Result<Response<$answer>, Status> {
                calls.$name(request).await
            }
        }
    };
}

/// The table: RPCs with one response, then RPCs with a stream of them.
macro_rules! rpcs {
    (
        $($(#[$doc:meta])* $rpc:literal $name:ident($request:ident $(, $key:ident)?) -> $answer:ident;)+
        streams:
        $($(#[$sdoc:meta])* $srpc:literal $sname:ident($srequest:ident) -> $sanswer:ident;)+
    ) => {
        $(rpc_call!($name($request $(, $key)?) -> v1::$answer);)+
        $(rpc_call!($sname($srequest) -> Streaming<v1::$sanswer>);)+

        impl Calls {
            $($(#[$doc])*
            pub async fn $name(&self, request: v1::$request) -> Result<v1::$answer, Error> {
                self.make(request).await
            })+

            $($(#[$sdoc])*
            pub async fn $sname(
                &self,
                request: v1::$srequest,
            ) -> Result<MessageStream<v1::$sanswer>, Error> {
                self.make(request).await.map(MessageStream)
            })+

            /// The names of the RPCs that have a method.
            pub const RPCS: &[&str] = &["AcquireStream", "Session", $($rpc,)+ $($srpc),+];
        }
    };
}

rpcs! {
    /// Acquires, re-validates and releases paths of one namespace atomically. Does not wait and does
    /// not renew.
    "Acquire" acquire(AcquireRequest, idempotency_key) -> AcquireResponse;
    /// Releases the listed holds.
    "Release" release(ReleaseLocksRequest, idempotency_key) -> ReleaseResponse;
    /// Releases everything that an owner has.
    "ReleaseAll" release_all(ReleaseAllRequest, idempotency_key) -> ReleaseResponse;
    /// Renews the leases of an owner. Gets no key: a repeat only extends the lease.
    "Renew" renew(RenewRequest) -> RenewResponse;
    /// Ends all holds and queued requests of another owner.
    "ForceRelease" force_release(ForceReleaseRequest, idempotency_key) -> ForceReleaseResponse;
    /// Checks that an owner holds these paths and that its fencing token is current.
    "AssertFencing" assert_fencing(AssertFencingRequest) -> AssertFencingResponse;
    /// Follows wait edges from an owner.
    "DetectCycle" detect_cycle(DetectCycleRequest) -> DetectCycleResponse;
    /// Returns whether a conflict still exists.
    "IsBlocking" is_blocking(IsBlockingRequest) -> IsBlockingResponse;
    /// Returns a number greater than all that it returned before.
    "IncrFencingToken" incr_fencing_token(IncrFencingTokenRequest, idempotency_key) -> IncrFencingTokenResponse;
    /// Records which owner an owner waits for.
    "SetWaitEdge" set_wait_edge(SetWaitEdgeRequest, idempotency_key) -> SetWaitEdgeResponse;
    /// Removes the record of what an owner waits for.
    "ClearWaitEdge" clear_wait_edge(ClearWaitEdgeRequest, idempotency_key) -> ClearWaitEdgeResponse;
    /// Returns whether an owner has a live lease or a queued request.
    "IsOwnerAlive" is_owner_alive(IsOwnerAliveRequest) -> IsOwnerAliveResponse;
    /// Asks an owner to release.
    "RequestRevoke" request_revoke(RequestRevokeRequest) -> RequestRevokeResponse;
    /// Returns the holders of exactly one path.
    "InspectPath" inspect_path(InspectPathRequest) -> InspectPathResponse;
    /// Returns the holds of an owner.
    "ListOwnerLocks" list_owner_locks(ListOwnerLocksRequest) -> ListOwnerLocksResponse;
    /// Returns one page of all holds.
    "DumpLocks" dump_locks(DumpLocksRequest) -> DumpLocksResponse;
    /// Returns whether a node is ready.
    "Health" health(HealthRequest) -> HealthResponse;
    /// Returns whether an acquire would succeed now, and what blocks it otherwise.
    "Explain" explain(ExplainRequest) -> ExplainResponse;
    /// Ends one hold if path, owner and fence still match.
    "Break" r#break(BreakRequest) -> BreakResponse;
    /// Sets the lock algorithm of a namespace.
    "SetNamespacePolicy" set_namespace_policy(SetNamespacePolicyRequest, idempotency_key) -> SetNamespacePolicyResponse;
    /// Returns the policy row of exactly one namespace.
    "GetNamespacePolicy" get_namespace_policy(GetNamespacePolicyRequest) -> GetNamespacePolicyResponse;
    /// Removes the policy row of a namespace.
    "DeleteNamespacePolicy" delete_namespace_policy(DeleteNamespacePolicyRequest, idempotency_key) -> DeleteNamespacePolicyResponse;
    /// Returns one page of the policy rows of all explicit namespaces.
    "ListNamespacePolicies" list_namespace_policies(ListNamespacePoliciesRequest) -> ListNamespacePoliciesResponse;
    /// Returns one page of the children of a prefix, with what is held and waited for below them.
    "ListChildren" list_children(ListChildrenRequest) -> ListChildrenResponse;
    /// Returns the waiters that have waited longest, and what they wait for.
    "ListWaits" list_waits(ListWaitsRequest) -> ListWaitsResponse;
    /// Returns the recent holds and waits at a path.
    "History" history(HistoryRequest) -> HistoryResponse;
    streams:
    /// Streams the events of one owner, from now on.
    "Subscribe" subscribe(SubscribeRequest) -> Event;
    /// Streams all changes below a prefix. Ends if its node fails; [`Tenure::watch`] continues.
    "Watch" watch(WatchRequest) -> LockChange;
}

impl Calls {
    /// Sends one acquire in chunks, for more paths than one message may have.
    pub async fn acquire_stream(
        &self,
        chunks: Vec<v1::AcquireRequest>,
    ) -> Result<v1::AcquireResponse, Error> {
        self.make(AcquireChunks(chunks)).await
    }

    /// Opens a session: many operations at a time on one stream.
    pub async fn session(
        &self,
    ) -> Result<(SessionSender, MessageStream<v1::SessionResponse>), Error> {
        let (sender, requests) = mpsc::channel(SESSION_BUFFER);
        let requests = Arc::new(std::sync::Mutex::new(Some(requests)));
        let answers = self.make(OpenSession(requests)).await?;
        Ok((SessionSender(sender), MessageStream(answers)))
    }

    async fn make<Q: RpcCall>(&self, mut request: Q) -> Result<Q::Answer, Error> {
        request.set_key();
        let answer = self.client.call_from_anywhere(request).await;
        answer.map_err(|trouble| failed(&inspect::everything(&[]), trouble))
    }
}

/// Requests of a [session](Calls::session) that may wait to be sent.
const SESSION_BUFFER: usize = 256;

/// The sending side of a [session](Calls::session). Dropping it ends the session after its last
/// answer.
#[derive(Clone, Debug)]
pub struct SessionSender(mpsc::Sender<v1::SessionRequest>);

impl SessionSender {
    /// Sends one operation. Its answer has the same `id`.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if the session has ended.
    pub async fn send(&self, request: v1::SessionRequest) -> Result<(), Error> {
        let sent = self.0.send(request).await;
        let ended = |_| CallFailure::Unreachable("the session has ended".into());
        sent.map_err(ended)
            .map_err(|trouble| failed(&inspect::everything(&[]), trouble))
    }
}

/// A stream of messages of the daemon.
#[derive(Debug)]
pub struct MessageStream<T>(Streaming<T>);

impl<T> MessageStream<T> {
    /// Returns the next message, or `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<Result<T, Error>> {
        let message = self.0.message().await;
        let ended = |status: Status| {
            let trouble = CallFailure::Unreachable(status.message().to_owned());
            failed(&inspect::everything(&[]), trouble)
        };
        message.map_err(ended).transpose()
    }
}

/// The chunks of one AcquireStream.
#[derive(Clone)]
struct AcquireChunks(Vec<v1::AcquireRequest>);

impl RpcCall for AcquireChunks {
    type Answer = v1::AcquireResponse;

    fn set_key(&mut self) {
        if let [first, rest @ ..] = &mut self.0[..]
            && rest.iter().all(|chunk| chunk.idempotency_key.is_empty())
        {
            first.set_key();
        }
    }

    async fn call(
        mut calls: PathLockClient<Channel>,
        request: Request<AcquireChunks>,
    ) -> Result<Response<v1::AcquireResponse>, Status> {
        let request = request.map(|chunks| tokio_stream::iter(chunks.0));
        calls.acquire_stream(request).await
    }
}

/// The requests of one session. Only the first try gets them.
#[derive(Clone)]
struct OpenSession(Arc<std::sync::Mutex<Option<mpsc::Receiver<v1::SessionRequest>>>>);

impl RpcCall for OpenSession {
    type Answer = Streaming<v1::SessionResponse>;

    async fn call(
        mut calls: PathLockClient<Channel>,
        request: Request<OpenSession>,
    ) -> Result<Response<Streaming<v1::SessionResponse>>, Status> {
        let (metadata, extensions, open) = request.into_parts();
        let requests = open
            .0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .take();
        let gone = || Status::failed_precondition("the session could not be opened: try again");
        let requests = ReceiverStream::new(requests.ok_or_else(gone)?);
        calls
            .session(Request::from_parts(metadata, extensions, requests))
            .await
    }
}
