//! What the web transports take on at once: requests in flight, and the time until an answer begins.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{Request, Response, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::ServiceExt;

use super::body_limit::BodyBudget;
use super::json::refuse;
use crate::status::Code;

/// Requests being processed, over all transports.
const IN_FLIGHT: usize = 4096;
/// Bytes that large request bodies may hold together.
const BODIES: usize = 256 << 20;

/// The limits that all transports of the web share.
#[derive(Clone)]
pub struct Admission {
    in_flight: Arc<Semaphore>,
    /// What large bodies may hold.
    pub(crate) bodies: Arc<BodyBudget>,
    /// The longest that an answer may take to begin.
    pub(crate) timeout: Duration,
}

impl Admission {
    /// Limits of a daemon whose answers begin within `timeout`.
    pub fn new(timeout: Duration) -> Admission {
        Admission {
            in_flight: Arc::new(Semaphore::new(IN_FLIGHT)),
            bodies: BodyBudget::new(BODIES),
            timeout,
        }
    }

    /// A place for one request, or the answer that there is none.
    #[allow(
        clippy::result_large_err,
        reason = "the error is the answer, made once and sent"
    )]
    pub(crate) fn admit(&self) -> Result<OwnedSemaphorePermit, Response<Body>> {
        Arc::clone(&self.in_flight)
            .try_acquire_owned()
            .map_err(|_| {
                let text = "too many requests are under way: try again";
                refuse(StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable, text)
            })
    }

    /// Serves a request that has a place.
    pub(crate) async fn serve(&self, router: Router, request: Request<Body>) -> Response<Body> {
        match tokio::time::timeout(self.timeout, router.oneshot(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(never)) => match never {},
            Err(_) => {
                let text = "the call took too long";
                refuse(StatusCode::GATEWAY_TIMEOUT, Code::DeadlineExceeded, text)
            }
        }
    }
}
