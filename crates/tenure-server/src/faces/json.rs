//! JSON over HTTP: `POST /v1/<rpc>`, the same bodies on HTTP/1.1, 2 and 3.
//!
//! Every answer has every field, every error the same shape, also those that never reach a handler.

use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router};
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderMap, Method, Request, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tenure_wire::v1;

use crate::handlers::{Call, Handlers};
use crate::status::{Code, Failure};

/// The longest request body.
const BODY: usize = 4 << 20;

/// What the routes share.
#[derive(Clone)]
pub struct Facade {
    /// The handlers of all faces.
    pub handlers: Handlers,
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
    ($($url:literal $effect:ident $handler:ident : $request:ident -> $response:ident),+ $(,)?) => {
        &[$(Rpc {
            url: $url,
            messages: (stringify!($request), stringify!($response)),
            effect: Effect::$effect,
            route: || post(|State(facade): State<Facade>, request: Request<Body>| async move {
                let call = Call { timeout: facade.timeout };
                match read::<v1::$request>(request).await {
                    Ok(message) => answer(
                        facade.timeout,
                        facade.handlers.$handler(call, message),
                    ).await,
                    Err(refused) => refused,
                }
            }),
        }),+]
    };
}

/// Every RPC with a JSON form, except Health, which is also a GET.
pub const RPCS: &[Rpc] = rpcs![
    "/v1/acquire" Writes acquire: AcquireRequest -> AcquireResponse,
    "/v1/release" Writes release: ReleaseLocksRequest -> ReleaseResponse,
    "/v1/releaseAll" Writes release_all: ReleaseAllRequest -> ReleaseResponse,
    "/v1/renew" Writes renew: RenewRequest -> RenewResponse,
    "/v1/forceRelease" Writes force_release: ForceReleaseRequest -> ForceReleaseResponse,
    "/v1/assertFencing" Reads assert_fencing: AssertFencingRequest -> AssertFencingResponse,
    "/v1/detectCycle" Reads detect_cycle: DetectCycleRequest -> DetectCycleResponse,
    "/v1/isBlocking" Reads is_blocking: IsBlockingRequest -> IsBlockingResponse,
    "/v1/incrFencingToken" Writes incr_fencing_token:
        IncrFencingTokenRequest -> IncrFencingTokenResponse,
    "/v1/setWaitEdge" Writes set_wait_edge: SetWaitEdgeRequest -> SetWaitEdgeResponse,
    "/v1/clearWaitEdge" Writes clear_wait_edge: ClearWaitEdgeRequest -> ClearWaitEdgeResponse,
    "/v1/isOwnerAlive" Reads is_owner_alive: IsOwnerAliveRequest -> IsOwnerAliveResponse,
    "/v1/requestRevoke" Writes request_revoke: RequestRevokeRequest -> RequestRevokeResponse,
    "/v1/setNamespacePolicy" Writes set_namespace_policy:
        SetNamespacePolicyRequest -> SetNamespacePolicyResponse,
    "/v1/getNamespacePolicy" Reads get_namespace_policy:
        GetNamespacePolicyRequest -> GetNamespacePolicyResponse,
    "/v1/deleteNamespacePolicy" Writes delete_namespace_policy:
        DeleteNamespacePolicyRequest -> DeleteNamespacePolicyResponse,
    "/v1/inspectPath" Reads inspect_path: InspectPathRequest -> InspectPathResponse,
    "/v1/listOwnerLocks" Reads list_owner_locks: ListOwnerLocksRequest -> ListOwnerLocksResponse,
    "/v1/dumpLocks" Reads dump_locks: DumpLocksRequest -> DumpLocksResponse,
    "/v1/explain" Reads explain: ExplainRequest -> ExplainResponse,
    "/v1/break" Writes break_hold: BreakRequest -> BreakResponse,
    "/v1/listNamespacePolicies" Reads list_namespace_policies:
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
        .route("/v1/health", get(health).post(health_post))
        .fallback(no_such_url)
        .method_not_allowed_fallback(wrong_method)
        .with_state(facade)
}

async fn health(State(facade): State<Facade>) -> Response {
    let health = facade
        .handlers
        .health(Call {
            timeout: facade.timeout,
        })
        .await;
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

async fn health_post(state: State<Facade>, request: Request<Body>) -> Response {
    match read::<v1::HealthRequest>(request).await {
        Ok(_) => health(state).await,
        Err(refused) => refused,
    }
}

/// The message in a request's body, or the answer that says what is wrong with it.
async fn read<T: DeserializeOwned>(request: Request<Body>) -> Result<T, Response> {
    if !is_json(request.headers()) {
        let text = "the content type must be application/json";
        return Err(refuse(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Code::InvalidArgument,
            text,
        ));
    }
    let body = to_bytes(request.into_body(), BODY).await.map_err(|_| {
        let text = format!("a request body has at most {BODY} bytes");
        refuse(
            StatusCode::PAYLOAD_TOO_LARGE,
            Code::ResourceExhausted,
            &text,
        )
    })?;
    parse(&body)
}

#[allow(
    clippy::result_large_err,
    reason = "the error is the answer, made once and sent"
)]
fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, Response> {
    serde_json::from_slice(body).map_err(|error| {
        let status = match error.classify() {
            serde_json::error::Category::Data => StatusCode::UNPROCESSABLE_ENTITY,
            serde_json::error::Category::Io
            | serde_json::error::Category::Syntax
            | serde_json::error::Category::Eof => StatusCode::BAD_REQUEST,
        };
        refuse(status, Code::InvalidArgument, &error.to_string())
    })
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

async fn answer<T: Serialize>(
    timeout: Duration,
    handler: impl Future<Output = Result<T, Failure>>,
) -> Response {
    match tokio::time::timeout(timeout, handler).await {
        Ok(Ok(message)) => Json(message).into_response(),
        Ok(Err(failure)) => error(&failure),
        Err(_) => error(&Failure::new(
            Code::DeadlineExceeded,
            "the call took too long",
        )),
    }
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
