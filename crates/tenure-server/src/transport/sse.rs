//! Server-Sent Events: resumable events of an owner, and the changes of a watch.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use axum::response::Response;
use axum::routing::get;
use futures_util::Stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Deserialize;
use serde_json::json;
use std::time::{SystemTime, UNIX_EPOCH};
use tenure_core::event::{Event, EventKind};
use tenure_core::limits::LimitKind;
use tokio::sync::watch;
use tokio_stream::StreamExt;

use super::json::{error, refuse, wrong_method};
use crate::auth::{self, AccessControl, Caller, OpenPlace};
use crate::convert;
use crate::events::EventHub;
use crate::status::{Code, Failure};

/// A comment line is sent after this time without output, so that proxies keep the connection open.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Shared state of the SSE routes.
#[derive(Clone)]
pub struct Sse {
    /// Subscriptions to owner events.
    pub events: EventHub,
    /// Authenticates clients; a stream ends with its caller's right to it.
    pub access: AccessControl,
    /// Ends all streams when the daemon stops (R169 shutdown within 10 s).
    pub stop: watch::Receiver<bool>,
}

/// Builds the SSE routes.
pub fn router(sse: Sse) -> Router {
    Router::new()
        .route("/v1/events/sse", get(owner_events))
        .route("/v1/watch/sse", get(watch_changes))
        .method_not_allowed_fallback(wrong_method)
        .with_state(sse)
}

#[derive(Deserialize)]
struct EventsQuery {
    #[serde(default)]
    owner_id: String,
    after: Option<String>,
    details: Option<String>,
}

/// Returns the query of a URL, or the refusal in the form of all others.
#[allow(
    clippy::result_large_err,
    reason = "the error is the response, created once and sent"
)]
fn parsed<Q>(query: Result<Query<Q>, QueryRejection>) -> Result<Q, Response> {
    query.map(|Query(query)| query).map_err(|rejection| {
        let text = rejection.body_text();
        refuse(StatusCode::BAD_REQUEST, Code::InvalidArgument, &text)
    })
}

async fn owner_events(
    State(sse): State<Sse>,
    Extension(caller): Extension<Caller>,
    query: Result<Query<EventsQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Response {
    let query = match parsed(query) {
        Ok(query) => query,
        Err(refused) => return refused,
    };
    let owner = match caller.other_owner(&query.owner_id) {
        Ok(owner) => owner,
        Err(_) => {
            let text = "owner_id is required: 1 to 1024 bytes without U+0000";
            return refuse(StatusCode::BAD_REQUEST, Code::InvalidArgument, text);
        }
    };
    if let Err(denied) = auth::judge_owner(&caller, &owner) {
        caller.record_denied("/v1/events/sse", &denied);
        return error(&denied);
    }
    let after = match query.after.as_deref().map(str::parse::<u64>).transpose() {
        Ok(after) => after,
        Err(_) => {
            let text = "after must be a number of 0 or more";
            return refuse(StatusCode::BAD_REQUEST, Code::InvalidArgument, text);
        }
    };
    // An invalid Last-Event-ID is ignored.
    let last = headers
        .get("last-event-id")
        .and_then(|value| value.to_str().ok()?.parse().ok());
    // A position in the future is not an id of this cluster. It is treated as absent; otherwise
    // every buffered event would count as seen.
    let position = last
        .or(after)
        .filter(|position| *position <= newest_possible_id());
    let details = query.details.as_deref() == Some("1");
    let refused = sse.access.follow(&caller).refused({
        let owner = owner.clone();
        move |caller| auth::judge_owner(caller, &owner)
    });
    let open = match caller.limits().open(LimitKind::Streams) {
        Ok(open) => open,
        Err(failure) => return error(&failure),
    };
    let (old, live) = match sse.events.resume(&caller, owner, position).await {
        Ok(resumed) => resumed,
        Err(failure) => return error(&failure),
    };
    let lines =
        tokio_stream::iter(old.into_iter().map(Ok))
            .chain(live)
            .map(move |event| match event {
                Ok(event) => SseLine::Text(event_text(&caller, &event, details)),
                Err(_) => SseLine::End,
            });
    stream(lines, refused, sse.stop, open)
}

/// Ids are milliseconds times 1024. One minute of clock difference between nodes is tolerated.
fn newest_possible_id() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(now.as_millis())
        .unwrap_or(u64::MAX / 2048)
        .saturating_add(60_000)
        * 1024
}

/// Formats an event as exactly two field lines and a blank line.
fn event_text(caller: &Caller, event: &Event, details: bool) -> String {
    let kind = match event.kind {
        EventKind::Grant { .. } => "grant",
        EventKind::Killed => "killed",
        EventKind::Revoke => "revoke",
    };
    let mut data = json!({ "id": event.id, "type": kind, "ownerId": caller.shown(&event.owner) });
    if details {
        let wire = convert::event_out(caller, event);
        data["namespace"] = wire.namespace.into();
        data["fence"] = wire.fence.into();
    }
    format!("id: {}\ndata: {data}\n\n", event.id)
}

#[derive(Deserialize)]
struct WatchQuery {
    #[serde(default)]
    prefix: String,
    snapshot: Option<String>,
}

async fn watch_changes(
    State(sse): State<Sse>,
    Extension(caller): Extension<Caller>,
    query: Result<Query<WatchQuery>, QueryRejection>,
) -> Response {
    let query = match parsed(query) {
        Ok(query) => query,
        Err(refused) => return refused,
    };
    let prefix = match convert::namespace(&query.prefix) {
        Ok(prefix) => prefix,
        Err(failure) => return error(&failure),
    };
    if let Err(denied) = auth::judge_watch(&caller, &prefix) {
        caller.record_denied("/v1/watch/sse", &denied);
        return error(&denied);
    }
    let refused = sse.access.follow(&caller).refused({
        let prefix = prefix.clone();
        move |caller| auth::judge_watch(caller, &prefix)
    });
    let live = sse.access.follow(&caller);
    let open = match caller.limits().open(LimitKind::Streams) {
        Ok(open) => open,
        Err(failure) => return error(&failure),
    };
    let snapshot = matches!(query.snapshot.as_deref(), Some("1" | "true"));
    let changes = match sse.events.watch(live, prefix, snapshot) {
        Ok(changes) => changes,
        Err(failure) => return error(&failure),
    };
    let changes = changes.map(|change| match change {
        Ok(change) => {
            let id = change.id;
            match serde_json::to_string(&change) {
                Ok(data) => SseLine::Text(format!("id: {id}\ndata: {data}\n\n")),
                Err(_) => SseLine::End,
            }
        }
        Err(failure) => SseLine::Last(error_text(&failure)),
    });
    stream(changes, refused, sse.stop, open)
}

/// Formats the final event of a watch with the error. A watch has no position to resume from, so
/// the client needs the reason.
fn error_text(failure: &Failure) -> String {
    let data = json!({ "error": { "code": failure.code.name(), "message": failure.message } });
    format!("event: error\ndata: {data}\n\n")
}

enum SseLine {
    Text(String),
    Last(String),
    End,
}

/// Sends events, and keep-alive comments between them, until the source ends or the daemon stops.
fn stream(
    lines: impl Stream<Item = SseLine> + Send + 'static,
    refused: impl Future<Output = Failure> + Send + 'static,
    stop: watch::Receiver<bool>,
    place: OpenPlace,
) -> Response {
    let lines = Box::pin(lines);
    let state = (Some((lines, Box::pin(refused), place)), stop);
    let body = futures_util::stream::unfold(state, |(open, mut stop)| async move {
        let (mut lines, mut refused, place) = open?;
        let next = tokio::select! {
            // A stream that always has lines must still end when its caller is refused.
            biased;
            failure = &mut refused => Some(SseLine::Last(error_text(&failure))),
            next = lines.next() => next,
            () = tokio::time::sleep(KEEP_ALIVE) => Some(SseLine::Text(": keep-alive\n\n".into())),
            _ = stop.wait_for(|stop| *stop) => None,
        };
        match next {
            Some(SseLine::Text(text)) => Some((ok(text), (Some((lines, refused, place)), stop))),
            Some(SseLine::Last(text)) => Some((ok(text), (None, stop))),
            Some(SseLine::End) | None => None,
        }
    });
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

fn ok(text: String) -> Result<Bytes, Infallible> {
    Ok(Bytes::from(text))
}
