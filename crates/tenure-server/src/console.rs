//! The web console: embedded assets, sessions, and the calls of administration as JSON.
//!
//! ```text
//!   /            index with links              /console       the page and its assets
//!   /healthz     the process answers           /console/session   sign in (POST), sign out (DELETE)
//!   /readyz      the node serves calls
//! ```
//!
//! These need no credentials: they contain nothing of the locks. Everything that the page shows comes
//! from the calls that every client uses, with the rights of the session.

mod operate;

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http::header::{
    ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY,
    CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY, SET_COOKIE, VARY,
};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Deserialize;
use serde_json::json;
use tenure_cluster::Handle;
use tenure_node::{Answer, ClientRequest};

use crate::auth::{SessionCaller, Sessions};
use crate::handlers::{self, HEALTH_TIMEOUT};
use crate::status::{Code, Failure};
use crate::transport::json::{error, refuse, wrong_method};

pub(crate) use operate::{Operators, router as operate_router};

/// No inline script or style, nothing from elsewhere, no frame around the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Longest body of a sign-in.
const SIGN_IN: usize = 4096;

/// An embedded file.
struct Asset {
    name: &'static str,
    kind: &'static str,
    plain: &'static [u8],
    gzip: &'static [u8],
}

macro_rules! assets {
    ($($name:literal $kind:literal),+ $(,)?) => {
        [$(Asset {
            name: $name,
            kind: $kind,
            plain: include_bytes!(concat!("../assets/console/", $name)),
            gzip: include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".gz")),
        }),+]
    };
}

static ASSETS: [Asset; 4] = assets![
    "index.html" "text/html; charset=utf-8",
    "app.js" "text/javascript; charset=utf-8",
    "app.css" "text/css; charset=utf-8",
    "icon.svg" "image/svg+xml",
];

/// Shared state of the routes without credentials.
#[derive(Clone)]
pub(crate) struct Console {
    pub(crate) node: Handle,
    pub(crate) sessions: Sessions,
}

/// Builds the routes that need no credentials.
pub(crate) fn public_router(console: Console) -> Router {
    let mut router = Router::new()
        .route("/", get(index))
        .route("/healthz", get(alive))
        .route("/readyz", get(ready))
        .route("/console/session", post(sign_in).delete(sign_out));
    // The page has one document for all its views: the address behind `#` selects one.
    for url in ["/console", "/console/"] {
        router = router.route(
            url,
            get(|headers: HeaderMap| async move { document(&headers) }),
        );
    }
    for asset in &ASSETS {
        let url = format!("/console/{}", asset.name);
        router = router.route(
            &url,
            get(move |headers: HeaderMap| async move { served(asset, &headers) }),
        );
    }
    router
        .method_not_allowed_fallback(wrong_method)
        .with_state(console)
}

/// Adds the sessions of the console in front of authentication.
pub(crate) fn wrap(sessions: &Sessions, routes: Router) -> Router {
    routes.layer(middleware::from_fn_with_state(
        sessions.clone(),
        with_session,
    ))
}

async fn with_session(
    State(sessions): State<Sessions>,
    mut request: Request,
    next: Next,
) -> Response {
    match sessions.caller(request.headers()) {
        None => next.run(request).await,
        Some(Ok(caller)) => {
            request.extensions_mut().insert(SessionCaller(caller));
            next.run(request).await
        }
        Some(Err(failure)) => error(&failure),
    }
}

fn document(headers: &HeaderMap) -> Response {
    served(&ASSETS[0], headers)
}

fn served(asset: &Asset, headers: &HeaderMap) -> Response {
    let tag = format!(
        "\"{:08x}-{:x}\"",
        crc32fast::hash(asset.plain),
        asset.plain.len()
    );
    let is_known = headers
        .get(IF_NONE_MATCH)
        .is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let takes_gzip = headers
        .get(ACCEPT_ENCODING)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.split(',').any(|one| one.trim().starts_with("gzip")));
    let mut response = match (is_known, takes_gzip) {
        (true, _) => StatusCode::NOT_MODIFIED.into_response(),
        (false, true) => Body::from(asset.gzip).into_response(),
        (false, false) => Body::from(asset.plain).into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(asset.kind));
    if takes_gzip && !is_known {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Ok(tag) = HeaderValue::try_from(tag) {
        headers.insert(ETAG, tag);
    }
    secure(headers);
    response
}

fn secure(headers: &mut HeaderMap) {
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
}

/// The index: what this port serves, for people in a browser and at a command line.
const LINKS: [(&str, &str); 7] = [
    ("/console", "the web console: see every lock, live"),
    ("/v1/openapi.json", "the calls as JSON: OpenAPI 3.1"),
    ("/v1/health", "the health of this node"),
    ("/healthz", "the process answers; needs no credentials"),
    ("/readyz", "the node serves calls; needs no credentials"),
    ("/v1/cluster/status", "nodes, groups and leaders"),
    ("/metrics", "metrics for Prometheus"),
];

async fn index(headers: HeaderMap) -> Response {
    let wants_html = headers
        .get(ACCEPT)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.contains("text/html"));
    let mut response = if wants_html {
        let links: String = LINKS
            .iter()
            .map(|(url, what)| format!("<li><a href=\"{url}\">{url}</a> {what}</li>"))
            .collect();
        let page = format!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Tenure</title>\
             <meta name=\"viewport\" content=\"width=device-width\">\
             <link rel=\"icon\" href=\"/console/icon.svg\"><link rel=\"stylesheet\" href=\"/console/app.css\">\
             </head><body class=\"index\"><main><h1>Tenure {}</h1>\
             <p><a class=\"button\" href=\"/console\">Open the console</a></p><ul>{links}</ul></main></body></html>",
            env!("CARGO_PKG_VERSION")
        );
        ([(CONTENT_TYPE, "text/html; charset=utf-8")], page).into_response()
    } else {
        let links: serde_json::Map<_, _> = LINKS
            .iter()
            .map(|(url, what)| ((*url).to_owned(), json!(what)))
            .collect();
        let example = "curl -H 'content-type: application/json' -d '{\"prefix\":\"\"}' http://HOST:PORT/v1/listChildren";
        Json(json!({
            "name": "tenure",
            "version": env!("CARGO_PKG_VERSION"),
            "links": links,
            "example": example,
        }))
        .into_response()
    };
    response
        .headers_mut()
        .insert(VARY, HeaderValue::from_static("accept"));
    secure(response.headers_mut());
    response
}

async fn alive() -> Response {
    Json(json!({ "ok": true })).into_response()
}

/// Says whether the node serves calls, without the details that `/v1/health` has for callers with
/// the verb `status`.
async fn ready(State(console): State<Console>) -> Response {
    let asked = handlers::ask(
        &console.node,
        Box::new(ClientRequest::Health),
        HEALTH_TIMEOUT.min(Duration::from_secs(2)),
    );
    match asked.await {
        Ok(Answer::Ready) => Json(json!({ "ok": true })).into_response(),
        _ => {
            let text = "this node is not ready: it has no quorum, or it is starting or stopping";
            refuse(StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable, text)
        }
    }
}

#[derive(Deserialize)]
struct SignIn {
    key: String,
}

async fn sign_in(State(console): State<Console>, request: Request) -> Response {
    let is_local = is_local(&request);
    // A form of another page cannot send this header.
    if !request.headers().contains_key(crate::auth::SESSION_HEADER) {
        let text = format!("send the header {}: 1", crate::auth::SESSION_HEADER);
        return refuse(StatusCode::BAD_REQUEST, Code::InvalidArgument, &text);
    }
    let body = to_bytes(request.into_body(), SIGN_IN).await;
    let Some(asked) = body
        .ok()
        .and_then(|body| serde_json::from_slice::<SignIn>(&body).ok())
    else {
        let failure = Failure::new(
            Code::InvalidArgument,
            "the body must be {\"key\": \"tnr_…\"}",
        );
        return error(&failure);
    };
    match console.sessions.open(&asked.key, is_local) {
        Ok((caller, cookie)) => {
            let body = json!({ "principal": caller.principal().as_str() });
            ([(SET_COOKIE, cookie)], Json(body)).into_response()
        }
        Err(failure) => error(&failure),
    }
}

async fn sign_out(request: Request) -> Response {
    let cookie = Sessions::close(is_local(&request));
    ([(SET_COOKIE, cookie)], Json(json!({}))).into_response()
}

fn is_local(request: &Request) -> bool {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    peer.is_some_and(|peer| peer.0.ip().to_canonical().is_loopback())
}
