//! JSON over HTTP: `POST /v1/<rpc>`, the same bodies on HTTP/1.1, 2 and 3.
//!
//! Every response contains all fields. All errors have the same shape, including those that occur
//! before a handler runs.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, Method, Request, StatusCode};
use serde_json::json;
use tenure_cluster::Handle;
use tenure_node::ClientRequest;

use super::json_names;
use crate::auth::{self, Caller};
use crate::handlers::{self, HEALTH_TIMEOUT, inspect};
use crate::rpc::{Effect, Facts, Outcome, Rpc, Unary, ValidCall};
use crate::status::{Code, Failure};
use crate::telemetry::{Telemetry, Transport};

/// Maximum size of a request body, in bytes.
const BODY: usize = 4 << 20;

/// Shared state of the JSON routes.
#[derive(Clone)]
pub struct JsonApi {
    /// The node that answers the calls.
    pub node: Handle,
    /// Counts the calls.
    pub telemetry: Telemetry,
    /// Time limit of one call.
    pub timeout: Duration,
}

/// Returns whether a request may run before the handshake is confirmed (early data). Everything
/// that is not known to be read-only counts as a mutation.
pub fn is_read_only(method: &Method, path: &str) -> bool {
    let is_get = method == Method::GET || method == Method::HEAD;
    let reads = || Rpc::at(path).is_some_and(|unary| unary.effect == Effect::Reads);
    is_get || (method == Method::POST && reads())
}

/// Builds one route per unary RPC of the table. Health is also a GET, and its HTTP status says
/// whether the node is ready.
pub fn router(facade: JsonApi) -> Router {
    let mut router = Router::new();
    for unary in Rpc::unary() {
        let route = match unary.rpc {
            Rpc::Health => get(health_get).post(health_post),
            _ => post(
                move |State(facade): State<JsonApi>, request: Request<Body>| async move {
                    call(&facade, unary, request).await
                },
            ),
        };
        router = router.route(unary.url, route);
    }
    router
        .fallback(no_such_url)
        .method_not_allowed_fallback(wrong_method)
        .with_state(facade)
}

async fn call(facade: &JsonApi, unary: &Unary, request: Request<Body>) -> Response {
    let names_enums = request
        .uri()
        .query()
        .is_some_and(|query| query.split('&').any(|one| one == "enums=names"));
    let telemetry = &facade.telemetry;
    let measured = telemetry.begin(Transport::Http, unary.rpc, request.headers());
    let answer = answer(facade, unary, request).await;
    measured.end_with(
        answer
            .as_ref()
            .map_or_else(RefusedRequest::grpc, |_| tonic::Code::Ok),
    );
    match answer {
        Ok(body) => {
            let body = match names_enums {
                true => with_names(unary.messages.1, body),
                false => body,
            };
            ([(CONTENT_TYPE, "application/json")], body).into_response()
        }
        Err(refused) => refused.into_response(),
    }
}

/// Returns a body with the names of enum values instead of their numbers.
fn with_names(message: &str, body: Vec<u8>) -> Vec<u8> {
    let Ok(mut value) = serde_json::from_slice(&body) else {
        return body;
    };
    json_names::name_enums(message, &mut value);
    serde_json::to_vec(&value).unwrap_or(body)
}

async fn answer(
    facade: &JsonApi,
    unary: &Unary,
    request: Request<Body>,
) -> Result<Vec<u8>, RefusedRequest> {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    let peer = peer.map(|peer| peer.0);
    let caller = caller_of(&request)?;
    let ValidCall { request, mut facts } = parse(&caller, unary, &read(request).await?)?;
    if let Some(record) = &mut facts.audit {
        record.peer = peer;
    }
    let node = &facade.node;
    let answer = handlers::ask(node, request, unary.timeout(facade.timeout)).await;
    let outcome = Outcome {
        answer,
        facts,
        caller: &caller,
        node,
    };
    Ok((unary.respond_json)(outcome)?)
}

/// Returns the caller that `transport/auth.rs` has put into the request.
fn caller_of(request: &Request<Body>) -> Result<Caller, Failure> {
    let caller = request.extensions().get::<Caller>().cloned();
    caller.ok_or_else(|| handlers::internal(&"a request without a caller"))
}

/// Judges a request for the node's health.
fn may_ask_for_health(request: &Request<Body>) -> Result<Caller, Failure> {
    let caller = caller_of(request)?;
    auth::judge(&caller, Rpc::Health.row().verb, &ClientRequest::Health)?;
    Ok(caller)
}

async fn health_get(State(facade): State<JsonApi>, request: Request<Body>) -> Response {
    match may_ask_for_health(&request) {
        Ok(caller) => health(&facade, &caller, request.headers()).await,
        Err(failure) => error(&failure),
    }
}

async fn health_post(State(facade): State<JsonApi>, request: Request<Body>) -> Response {
    let headers = request.headers().clone();
    let caller = may_ask_for_health(&request);
    // The body is read in any case: HTTP/2 resets a stream whose body was not read.
    let body = read(request).await;
    let caller = match caller {
        Ok(caller) => caller,
        Err(failure) => return error(&failure),
    };
    let parsed = match (&Rpc::Health.row().unary, body) {
        (Some(unary), Ok(body)) => parse(&caller, unary, &body).map(drop),
        (_, body) => body.map(drop),
    };
    match parsed {
        Ok(()) => health(&facade, &caller, &headers).await,
        Err(refused) => refused.into_response(),
    }
}

async fn health(facade: &JsonApi, caller: &Caller, headers: &HeaderMap) -> Response {
    let measured = facade
        .telemetry
        .begin(Transport::Http, Rpc::Health, headers);
    let timeout = facade.timeout.min(HEALTH_TIMEOUT);
    let node = &facade.node;
    let health = inspect::healthy(Outcome {
        answer: handlers::ask(node, Box::new(ClientRequest::Health), timeout).await,
        facts: Facts::default(),
        caller,
        node,
    });
    measured.end(&health);
    match health {
        Ok(health) if health.ok => Json(health).into_response(),
        Ok(health) => {
            let body = json!({
                "ok": false,
                "detail": health.detail,
                "error": { "code": Code::Unavailable.name(), "message": health.detail },
            });
            (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
        }
        Err(failure) => error(&failure),
    }
}

/// A refused request: HTTP status and failure.
pub(crate) struct RefusedRequest {
    status: StatusCode,
    failure: Failure,
}

impl RefusedRequest {
    fn new(status: StatusCode, code: Code, message: impl Into<String>) -> RefusedRequest {
        RefusedRequest {
            status,
            failure: Failure::new(code, message),
        }
    }

    fn grpc(&self) -> tonic::Code {
        self.failure.code.grpc()
    }
}

impl From<Failure> for RefusedRequest {
    fn from(failure: Failure) -> RefusedRequest {
        RefusedRequest {
            status: failure.code.http(),
            failure,
        }
    }
}

impl IntoResponse for RefusedRequest {
    fn into_response(self) -> Response {
        refuse_failure(self.status, &self.failure)
    }
}

/// Reads the body of a request. Fails if the content type is not JSON.
async fn read(request: Request<Body>) -> Result<Bytes, RefusedRequest> {
    if !is_json(request.headers()) {
        return Err(RefusedRequest::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Code::InvalidArgument,
            "the content type must be application/json",
        ));
    }
    let body = to_bytes(request.into_body(), BODY).await;
    body.map_err(|error| unreadable(&error))
}

/// Decodes and validates a JSON body. Malformed JSON is 400, well-formed JSON with wrong types is
/// 422.
fn parse(caller: &Caller, unary: &Unary, body: &[u8]) -> Result<ValidCall, RefusedRequest> {
    match (unary.parse_json)(caller, body) {
        Ok(asked) => asked.map_err(|mut failure| {
            if failure.code == Code::InvalidArgument
                && let Some(unknown) = json_names::unknown_fields(unary.messages.0, body)
            {
                failure.message = format!("{}; {unknown}", failure.message);
            }
            RefusedRequest::from(failure)
        }),
        Err(error) => {
            let status = match error.classify() {
                serde_json::error::Category::Data => StatusCode::UNPROCESSABLE_ENTITY,
                serde_json::error::Category::Io
                | serde_json::error::Category::Syntax
                | serde_json::error::Category::Eof => StatusCode::BAD_REQUEST,
            };
            Err(RefusedRequest::new(
                status,
                Code::InvalidArgument,
                error.to_string(),
            ))
        }
    }
}

/// Converts an error of reading a body: too large, too slow, or broken off.
fn unreadable(error: &axum::Error) -> RefusedRequest {
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
        return RefusedRequest::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            Code::ResourceExhausted,
            format!("the request body is too large: the limit is {BODY} bytes"),
        );
    }
    // Errors of `body_limit` are gRPC statuses.
    if let Some(status) = causes
        .iter()
        .find_map(|cause| cause.downcast_ref::<tonic::Status>())
    {
        let code = match status.code() {
            tonic::Code::DeadlineExceeded => Code::DeadlineExceeded,
            _ => Code::Unavailable,
        };
        return RefusedRequest::from(Failure::new(code, status.message()));
    }
    RefusedRequest::new(
        StatusCode::BAD_REQUEST,
        Code::InvalidArgument,
        format!("the request body cannot be read: {error}"),
    )
}

/// Returns whether the type is `application/json` or `application/*+json`, with or without
/// parameters.
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

/// Makes the error response of a failure.
pub(crate) fn error(failure: &Failure) -> Response {
    refuse_failure(failure.code.http(), failure)
}

fn refuse_failure(status: StatusCode, failure: &Failure) -> Response {
    let mut response = refuse(status, failure.code, &failure.message);
    if let Some(wait) = failure.retry_after {
        // The header has whole seconds.
        let seconds = wait.as_millis().div_ceil(1000).max(1).to_string();
        if let Ok(seconds) = seconds.parse() {
            response.headers_mut().insert(RETRY_AFTER, seconds);
        }
    }
    response
}

pub(crate) fn refuse(status: StatusCode, code: Code, message: &str) -> Response {
    let body = json!({ "error": { "code": code.name(), "message": message } });
    (status, Json(body)).into_response()
}

async fn no_such_url() -> Response {
    refuse(
        StatusCode::NOT_FOUND,
        Code::Unimplemented,
        "unknown URL: see /v1/openapi.json",
    )
}

pub(crate) async fn wrong_method(request: Request<Body>) -> Response {
    let allowed = match request.uri().path() {
        "/v1/health" => "GET, HEAD, POST",
        path if Rpc::at(path).is_some() => "POST",
        "/v1/cluster/drain" | "/v1/cluster/remove" => "POST",
        "/console/session" => "POST, DELETE",
        _ => "GET, HEAD",
    };
    let text = format!("use {allowed}");
    let mut response = refuse(StatusCode::METHOD_NOT_ALLOWED, Code::Unimplemented, &text);
    response
        .headers_mut()
        .insert(ALLOW, http::HeaderValue::from_static(allowed));
    response
}
