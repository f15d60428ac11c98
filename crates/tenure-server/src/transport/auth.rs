//! Client authentication: one bearer token for all clients, or a client certificate, if they are
//! configured. Default: none (R182 (zero configuration)).

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
use super::tls::ClientCertificate;
use crate::config::Secret;
use crate::status::{Code, Failure};

/// Checks the credentials of every request, if any are configured.
#[derive(Clone)]
pub struct Authenticator {
    token: Option<Arc<str>>,
    /// Whether clients can authenticate by certificate.
    certificates: bool,
}

impl Authenticator {
    /// Creates an authenticator for a token and, if `certificates`, for client certificates. Without
    /// either, every request is admitted.
    pub fn new(token: Option<&Secret>, certificates: bool) -> Authenticator {
        Authenticator {
            token: token.map(|token| Arc::from(token.reveal())),
            certificates,
        }
    }

    /// Admits a request, or returns the response that refuses it.
    #[allow(
        clippy::result_large_err,
        reason = "the error is the response, created once and sent"
    )]
    pub(crate) fn admit<B>(&self, request: &http::Request<B>) -> Result<(), Response> {
        if self.token.is_none() && !self.certificates {
            return Ok(());
        }
        // The TLS layer has checked the certificate against the configured authorities.
        if request.extensions().get::<ClientCertificate>().is_some() {
            return Ok(());
        }
        admit(self.token.as_deref(), request.headers())
    }

    /// Adds the check in front of routes.
    pub fn wrap(&self, routes: Router) -> Router {
        routes.layer(middleware::from_fn_with_state(self.clone(), check))
    }
}

async fn check(State(guard): State<Authenticator>, request: Request, next: Next) -> Response {
    match guard.admit(&request) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused,
    }
}

#[allow(
    clippy::result_large_err,
    reason = "the error is the response, created once and sent"
)]
fn admit(token: Option<&str>, headers: &HeaderMap) -> Result<(), Response> {
    let shown = headers.get(AUTHORIZATION).map(|value| value.as_bytes());
    let shown = shown.and_then(|value| {
        let (scheme, rest) = value.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(rest)
    });
    // Constant time, so that response times do not reveal how many bytes were right.
    let is_right =
        |shown: &[u8]| token.is_some_and(|token| bool::from(shown.ct_eq(token.as_bytes())));
    if shown.is_some_and(is_right) {
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
