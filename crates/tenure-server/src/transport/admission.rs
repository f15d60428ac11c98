//! Admission control of the web transports: a limit of requests in flight, and a time limit until
//! the response starts.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{Request, Response, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::ServiceExt;

use super::json::refuse;
use super::memory_budget::MemoryBudget;
use crate::status::Code;

/// Maximum number of requests in flight over all web transports.
const IN_FLIGHT: usize = 4096;

/// Limits that all web transports share.
#[derive(Clone)]
pub struct Admission {
    in_flight: Arc<Semaphore>,
    /// Memory budget of all clients.
    pub(crate) memory: Arc<MemoryBudget>,
    /// Time limit until the response starts.
    pub(crate) timeout: Duration,
}

impl Admission {
    /// Creates the limits of a daemon. `timeout` is the limit until a response starts, `memory` the
    /// number of bytes that all clients may occupy.
    pub fn new(timeout: Duration, memory: usize) -> Admission {
        Admission {
            in_flight: Arc::new(Semaphore::new(IN_FLIGHT)),
            memory: MemoryBudget::new(memory),
            timeout,
        }
    }

    /// Takes a permit for one request, or returns the response 503.
    #[allow(
        clippy::result_large_err,
        reason = "the error is the response, created once and sent"
    )]
    pub(crate) fn admit(&self) -> Result<OwnedSemaphorePermit, Response<Body>> {
        Arc::clone(&self.in_flight)
            .try_acquire_owned()
            .map_err(|_| {
                let text = "too many requests in flight: try again";
                refuse(StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable, text)
            })
    }

    /// Serves an admitted request. Returns 504 if the response does not start in time.
    pub(crate) async fn serve(&self, router: Router, request: Request<Body>) -> Response<Body> {
        match tokio::time::timeout(self.timeout, router.oneshot(request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(never)) => match never {},
            Err(_) => {
                let text = "timed out: the call took too long";
                refuse(StatusCode::GATEWAY_TIMEOUT, Code::DeadlineExceeded, text)
            }
        }
    }
}
