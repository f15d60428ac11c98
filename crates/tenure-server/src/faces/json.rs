//! JSON over HTTP: `POST /v1/<rpc>`, the same bodies on HTTP/1.1, 2 and 3.
//!
//! Every answer has every field, every error the same shape, also those that never reach a handler.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router};
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderMap, Method, Request, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::json;
use tenure_wire::json::Object;
use tenure_wire::v1;

use crate::handlers::{Call, Handlers};
use crate::status::{Code, Failure};
use crate::telemetry::{self, Face, Telemetry};

/// The longest request body.
const BODY: usize = 4 << 20;

/// What the routes share.
#[derive(Clone)]
pub struct Facade {
    /// The handlers of all faces.
    pub handlers: Handlers,
    /// Counts the calls.
    pub telemetry: Telemetry,
    /// The longest that a call may take.
    pub timeout: Duration,
}

/// One RPC of the facade.
pub struct Rpc {
    /// Its URL.
    pub url: &'static str,
    /// Its request and response messages, as the proto file names them.
    pub messages: (&'static str, &'static str),
    /// Whether it may run in early data.
    pub effect: Effect,
    route: fn() -> MethodRouter<Facade>,
}

/// Whether an RPC changes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It does not.
    Reads,
    /// It may.
    Writes,
}

macro_rules! rpcs {
    ($($url:literal $effect:ident $rpc:ident $handler:ident : $request:ident -> $response:ident),+
     $(,)?) => {
        &[$(Rpc {
            url: $url,
            messages: (stringify!($request), stringify!($response)),
            effect: Effect::$effect,
            route: || post(|State(facade): State<Facade>, request: Request<Body>| async move {
                let measured = facade.telemetry.begin(Face::Http, telemetry::Rpc::$rpc, request.headers());
                let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
                let call = Call { timeout: facade.timeout, peer: peer.map(|peer| peer.0) };
                let answer = match read::<v1::$request>(request).await {
                    Ok(message) => {
                        let answer = facade.handlers.$handler(call, message).await;
                        answer.map_err(Refused::from)
                    }
                    Err(refused) => Err(refused),
                };
                measured.end_with(answer.as_ref().map_or_else(Refused::grpc, |_| tonic::Code::Ok));
                answer.map(Json).into_response()
            }),
        }),+]
    };
}

/// Every RPC with a JSON form, except Health, which is also a GET.
pub const RPCS: &[Rpc] = rpcs![
    "/v1/acquire" Writes Acquire acquire: AcquireRequest -> AcquireResponse,
    "/v1/release" Writes Release release: ReleaseLocksRequest -> ReleaseResponse,
    "/v1/releaseAll" Writes ReleaseAll release_all: ReleaseAllRequest -> ReleaseResponse,
    "/v1/renew" Writes Renew renew: RenewRequest -> RenewResponse,
    "/v1/forceRelease" Writes ForceRelease force_release: ForceReleaseRequest -> ForceReleaseResponse,
    "/v1/assertFencing" Reads AssertFencing assert_fencing: AssertFencingRequest -> AssertFencingResponse,
    "/v1/detectCycle" Reads DetectCycle detect_cycle: DetectCycleRequest -> DetectCycleResponse,
    "/v1/isBlocking" Reads IsBlocking is_blocking: IsBlockingRequest -> IsBlockingResponse,
    "/v1/incrFencingToken" Writes IncrFencingToken incr_fencing_token:
        IncrFencingTokenRequest -> IncrFencingTokenResponse,
    "/v1/setWaitEdge" Writes SetWaitEdge set_wait_edge: SetWaitEdgeRequest -> SetWaitEdgeResponse,
    "/v1/clearWaitEdge" Writes ClearWaitEdge clear_wait_edge: ClearWaitEdgeRequest -> ClearWaitEdgeResponse,
    "/v1/isOwnerAlive" Reads IsOwnerAlive is_owner_alive: IsOwnerAliveRequest -> IsOwnerAliveResponse,
    "/v1/requestRevoke" Writes RequestRevoke request_revoke: RequestRevokeRequest -> RequestRevokeResponse,
    "/v1/setNamespacePolicy" Writes SetNamespacePolicy set_namespace_policy:
        SetNamespacePolicyRequest -> SetNamespacePolicyResponse,
    "/v1/getNamespacePolicy" Reads GetNamespacePolicy get_namespace_policy:
        GetNamespacePolicyRequest -> GetNamespacePolicyResponse,
    "/v1/deleteNamespacePolicy" Writes DeleteNamespacePolicy delete_namespace_policy:
        DeleteNamespacePolicyRequest -> DeleteNamespacePolicyResponse,
    "/v1/inspectPath" Reads InspectPath inspect_path: InspectPathRequest -> InspectPathResponse,
    "/v1/listOwnerLocks" Reads ListOwnerLocks list_owner_locks: ListOwnerLocksRequest -> ListOwnerLocksResponse,
    "/v1/dumpLocks" Reads DumpLocks dump_locks: DumpLocksRequest -> DumpLocksResponse,
    "/v1/explain" Reads Explain explain: ExplainRequest -> ExplainResponse,
    "/v1/break" Writes Break break_hold: BreakRequest -> BreakResponse,
    "/v1/listNamespacePolicies" Reads ListNamespacePolicies list_namespace_policies:
        ListNamespacePoliciesRequest -> ListNamespacePoliciesResponse,
];

/// Whether a request may run before a handshake is confirmed. Anything not listed is a mutation.
pub fn is_read_only(method: &Method, path: &str) -> bool {
    if method == Method::GET || method == Method::HEAD {
        return true;
    }
    method == Method::POST
        && (path == "/v1/health"
            || RPCS
                .iter()
                .any(|rpc| rpc.url == path && rpc.effect == Effect::Reads))
}

/// The routes of the facade.
pub fn router(facade: Facade) -> Router {
    let mut router = Router::new();
    for rpc in RPCS {
        router = router.route(rpc.url, (rpc.route)());
    }
    router
        .route("/v1/health", get(health_get).post(health_post))
        .fallback(no_such_url)
        .method_not_allowed_fallback(wrong_method)
        .with_state(facade)
}

async fn health_get(State(facade): State<Facade>, headers: HeaderMap) -> Response {
    health(&facade, &headers).await
}

async fn health_post(State(facade): State<Facade>, request: Request<Body>) -> Response {
    let headers = request.headers().clone();
    match read::<v1::HealthRequest>(request).await {
        Ok(_) => health(&facade, &headers).await,
        Err(refused) => refused.into_response(),
    }
}

async fn health(facade: &Facade, headers: &HeaderMap) -> Response {
    let measured = facade
        .telemetry
        .begin(Face::Http, telemetry::Rpc::Health, headers);
    let call = Call::within(facade.timeout);
    let health = facade.handlers.health(call).await;
    measured.end_with(tonic::Code::Ok);
    if health.ok {
        return Json(health).into_response();
    }
    let body = json!({
        "ok": false,
        "detail": health.detail,
        "error": { "code": Code::Unavailable.name(), "message": health.detail },
    });
    (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
}

/// A request that is not answered with a message: why, and with which status.
pub(crate) struct Refused {
    status: StatusCode,
    failure: Failure,
}

impl Refused {
    fn new(status: StatusCode, code: Code, message: impl Into<String>) -> Refused {
        Refused {
            status,
            failure: Failure::new(code, message),
        }
    }

    fn grpc(&self) -> tonic::Code {
        self.failure.code.grpc()
    }
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Refused {
        Refused {
            status: failure.code.http(),
            failure,
        }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        refuse(self.status, self.failure.code, &self.failure.message)
    }
}

/// The message in a request's body, or what is wrong with it.
async fn read<T: DeserializeOwned>(request: Request<Body>) -> Result<T, Refused> {
    if !is_json(request.headers()) {
        return Err(Refused::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Code::InvalidArgument,
            "the content type must be application/json",
        ));
    }
    let body = to_bytes(request.into_body(), BODY).await;
    let body = body.map_err(|error| unreadable(&error))?;
    let read: Result<Object<T>, _> = serde_json::from_slice(&body);
    read.map(|Object(message)| message).map_err(|error| {
        let status = match error.classify() {
            serde_json::error::Category::Data => StatusCode::UNPROCESSABLE_ENTITY,
            serde_json::error::Category::Io
            | serde_json::error::Category::Syntax
            | serde_json::error::Category::Eof => StatusCode::BAD_REQUEST,
        };
        Refused::new(status, Code::InvalidArgument, error.to_string())
    })
}

/// A body that is too large, or that did not come.
fn unreadable(error: &axum::Error) -> Refused {
    use std::error::Error;
    let mut causes = Vec::new();
    let mut next = error.source();
    while let Some(cause) = next {
        causes.push(cause);
        next = cause.source();
    }
    if causes
        .iter()
        .any(|cause| cause.is::<http_body_util::LengthLimitError>())
    {
        return Refused::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            Code::ResourceExhausted,
            format!("a request body has at most {BODY} bytes"),
        );
    }
    // The limits of bodies speak gRPC.
    if let Some(status) = causes
        .iter()
        .find_map(|cause| cause.downcast_ref::<tonic::Status>())
    {
        let code = match status.code() {
            tonic::Code::DeadlineExceeded => Code::DeadlineExceeded,
            _ => Code::Unavailable,
        };
        return Refused::from(Failure::new(code, status.message()));
    }
    Refused::new(
        StatusCode::BAD_REQUEST,
        Code::InvalidArgument,
        format!("the body did not come: {error}"),
    )
}

/// `application/json` or any `application/*+json`, with parameters or without.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
    else {
        return false;
    };
    let kind = value
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
}

/// The one shape of an error.
pub(crate) fn error(failure: &Failure) -> Response {
    refuse(failure.code.http(), failure.code, &failure.message)
}

pub(crate) fn refuse(status: StatusCode, code: Code, message: &str) -> Response {
    let body = json!({ "error": { "code": code.name(), "message": message } });
    (status, Json(body)).into_response()
}

async fn no_such_url() -> Response {
    refuse(
        StatusCode::NOT_FOUND,
        Code::Unimplemented,
        "no such URL: see /v1/openapi.json",
    )
}

async fn wrong_method(request: Request<Body>) -> Response {
    let allowed = match request.uri().path() {
        "/v1/health" => "GET, HEAD, POST",
        path if RPCS.iter().any(|rpc| rpc.url == path) => "POST",
        _ => "GET, HEAD",
    };
    let text = format!("use {allowed}");
    let mut response = refuse(StatusCode::METHOD_NOT_ALLOWED, Code::Unimplemented, &text);
    response
        .headers_mut()
        .insert(ALLOW, http::HeaderValue::from_static(allowed));
    response
}
