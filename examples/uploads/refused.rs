//! What a client is told when it does not get what it wants.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

/// A status, and a sentence.
pub(crate) struct Refused {
    status: StatusCode,
    why: String,
}

impl Refused {
    pub(crate) fn because(status: StatusCode, why: impl ToString) -> Refused {
        Refused {
            status,
            why: why.to_string(),
        }
    }
}

/// Held for longer than we wait: later. No daemon, or the lock lost: later too, and not the client's fault.
impl From<tenure::Error> for Refused {
    fn from(error: tenure::Error) -> Refused {
        let status = match error {
            tenure::Error::Busy(_) | tenure::Error::TimedOut(_) => StatusCode::LOCKED,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        Refused::because(status, error)
    }
}

impl From<std::io::Error> for Refused {
    fn from(error: std::io::Error) -> Refused {
        // Two that remove it: the second finds nothing.
        let status = match error.kind() {
            std::io::ErrorKind::NotFound => StatusCode::NOT_FOUND,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Refused::because(status, error)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.status, self.why).into_response()
    }
}
