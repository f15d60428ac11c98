//! Authentication at the edge of HTTP: every request gets its `Caller`, or is refused before its
//! body is read.

use std::net::SocketAddr;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use http::HeaderMap;
use http::header::{AUTHORIZATION, CONTENT_TYPE};

use super::json;
use crate::auth::{AccessControl, Caller, ConnectionSlots, Origin, SessionCaller, service_verb};
use crate::status::{Code, Failure};

/// Bytes of a refused request's body that are read before it is answered.
const SHORT_BODY: usize = 64 << 10;

/// Authenticates a request of this origin, or returns the response that refuses it.
#[allow(
    clippy::result_large_err,
    reason = "the error is the response, created once and sent"
)]
pub(crate) fn admit(
    access: &AccessControl,
    origin: &Origin,
    headers: &HeaderMap,
) -> Result<Caller, Response> {
    let shown = headers.get(AUTHORIZATION).map(|value| value.as_bytes());
    let caller = access.authenticate(origin, shown);
    caller.map_err(|failure| refused(&failure, headers))
}

/// Adds authentication in front of the routes of the web port. Routes that are not in the RPC table
/// are judged here too.
pub(crate) fn wrap(access: &AccessControl, routes: Router) -> Router {
    routes.layer(middleware::from_fn_with_state(access.clone(), check))
}

async fn check(State(access): State<AccessControl>, mut request: Request, next: Next) -> Response {
    let extensions = request.extensions();
    let origin = extensions.get::<Origin>().cloned().or_else(|| {
        let peer = extensions.get::<ConnectInfo<SocketAddr>>();
        peer.map(|peer| Origin::network(peer.0))
    });
    let Some(origin) = origin else {
        let failure = Failure::new(Code::Unauthenticated, "the client's address is unknown");
        return refused(&failure, request.headers());
    };
    let shown = request.headers().get(AUTHORIZATION);
    let shown = shown.map(|value| value.as_bytes());
    let session = request.extensions().get::<SessionCaller>();
    let caller = match session {
        Some(session) => Ok(session.0.clone()),
        None => access.authenticate(&origin, shown),
    };
    let admitted = caller.and_then(|caller| {
        if let Some(slots) = request.extensions().get::<ConnectionSlots>() {
            slots.take(&caller)?;
        }
        service_verb(&caller, request.uri().path())?;
        Ok(caller)
    });
    match admitted {
        Ok(caller) => {
            request.extensions_mut().insert(caller);
            next.run(request).await
        }
        Err(failure) => {
            let refused = refused(&failure, request.headers());
            // A short body is read first: HTTP/2 resets a stream whose body was not read, and curl
            // then reports the reset instead of the answer.
            let _ = to_bytes(request.into_body(), SHORT_BODY).await;
            refused
        }
    }
}

/// Makes the response of a refused request, in the protocol of the request.
pub(crate) fn refused(failure: &Failure, headers: &HeaderMap) -> Response {
    let is_grpc = headers
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    if is_grpc {
        tonic::Status::from(failure.clone())
            .into_http::<Body>()
            .into_response()
    } else {
        json::error(failure)
    }
}
