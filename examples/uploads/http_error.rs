//! Error responses of the upload server.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

/// A status and a message.
pub(crate) struct HttpError {
    status: StatusCode,
    why: String,
}

impl HttpError {
    pub(crate) fn because(status: StatusCode, why: impl ToString) -> HttpError {
        HttpError {
            status,
            why: why.to_string(),
        }
    }
}

/// A busy lock, an unreachable daemon and a lost lock are temporary: the client may retry.
impl From<tenure::Error> for HttpError {
    fn from(error: tenure::Error) -> HttpError {
        let status = match error {
            tenure::Error::Busy(_) | tenure::Error::TimedOut(_) => StatusCode::LOCKED,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        HttpError::because(status, error)
    }
}

impl From<std::io::Error> for HttpError {
    fn from(error: std::io::Error) -> HttpError {
        // Of two concurrent removals, the second finds no file.
        let status = match error.kind() {
            std::io::ErrorKind::NotFound => StatusCode::NOT_FOUND,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        HttpError::because(status, error)
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        (self.status, self.why).into_response()
    }
}
