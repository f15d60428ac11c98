//! Client authentication: one bearer token for all clients, if one is configured. Default: none
//! (R182 (zero configuration)).

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use http::HeaderMap;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use subtle::ConstantTimeEq;

use super::json;
use crate::config::Secret;
use crate::status::{Code, Failure};

/// Checks the bearer token of every request, if one is configured.
#[derive(Clone)]
pub struct Authenticator {
    token: Option<Arc<str>>,
}

impl Authenticator {
    /// Creates an authenticator for this token. With `None` every request is admitted.
    pub fn new(token: Option<&Secret>) -> Authenticator {
        Authenticator {
            token: token.map(|token| Arc::from(token.reveal())),
        }
    }

    /// Admits a request, or returns the response that refuses it.
    #[allow(
        clippy::result_large_err,
        reason = "the error is the response, created once and sent"
    )]
    pub(crate) fn admit<B>(&self, request: &http::Request<B>) -> Result<(), Response> {
        match &self.token {
            None => Ok(()),
            Some(token) => admit(token, request.headers()),
        }
    }

    /// Adds the check in front of routes.
    pub fn wrap(&self, routes: Router) -> Router {
        match &self.token {
            None => routes,
            Some(token) => routes.layer(middleware::from_fn_with_state(Arc::clone(token), check)),
        }
    }
}

async fn check(State(token): State<Arc<str>>, request: Request, next: Next) -> Response {
    match admit(&token, request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused,
    }
}

#[allow(
    clippy::result_large_err,
    reason = "the error is the response, created once and sent"
)]
fn admit(token: &str, headers: &HeaderMap) -> Result<(), Response> {
    let shown = headers.get(AUTHORIZATION).map(|value| value.as_bytes());
    let shown = shown.and_then(|value| {
        let (scheme, rest) = value.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(rest)
    });
    // Constant time, so that response times do not reveal how many bytes were right.
    if shown.is_some_and(|shown| bool::from(shown.ct_eq(token.as_bytes()))) {
        return Ok(());
    }
    let failure = Failure::new(
        Code::Unauthenticated,
        "credentials are missing or wrong: send `authorization: Bearer <client_auth_token>`",
    );
    let is_grpc = headers
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    Err(if is_grpc {
        tonic::Status::from(failure)
            .into_http::<Body>()
            .into_response()
    } else {
        json::error(&failure)
    })
}
