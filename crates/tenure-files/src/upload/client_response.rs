//! HTTP responses of an upload server to its clients. The protocol fixes them, because clients
//! decide by them whether to retry.

use crate::error::Class;

/// Status, code and text of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAnswer {
    /// The HTTP status. Clients retry after 5xx, and usually not after 4xx.
    pub status: u16,
    /// The error code in the body.
    pub code: &'static str,
    /// The text in the body, if any.
    pub text: Option<&'static str>,
}

/// Returns whether a request must acquire the upload's lock before it reads any state (U9 (lock
/// every upload request)).
///
/// Reads need the lock, too: the protocol has no shared mode. A `POST` with a body acquires it
/// after the upload was created.
pub fn takes_lock(method: &str, has_body: bool) -> bool {
    match method {
        "HEAD" | "PATCH" | "GET" | "DELETE" => true,
        "POST" => has_body,
        _ => false,
    }
}

impl ClientAnswer {
    /// This request released the lock because another request asked for it.
    pub const INTERRUPTED: ClientAnswer = ClientAnswer {
        status: 400,
        code: "ERR_UPLOAD_INTERRUPTED",
        text: Some("upload has been interrupted by another request for this upload resource"),
    };
    /// The server is shutting down.
    pub const SHUTDOWN: ClientAnswer = ClientAnswer {
        status: 503,
        code: "ERR_SERVER_SHUTDOWN",
        text: None,
    };
    /// The lock was not released within `acquire_timeout`; status 500, so that the client retries.
    pub const LOCK_TIMEOUT: ClientAnswer = ClientAnswer {
        status: 500,
        code: "ERR_LOCK_TIMEOUT",
        text: Some("failed to acquire lock before timeout"),
    };
    /// The upload or its directory does not exist.
    pub const NOT_FOUND: ClientAnswer = ClientAnswer {
        status: 404,
        code: "ERR_UPLOAD_NOT_FOUND",
        text: Some("upload not found"),
    };
    /// The lock is held; used by old servers, which do not wait.
    pub const LOCKED: ClientAnswer = ClientAnswer {
        status: 423,
        code: "ERR_UPLOAD_LOCKED",
        text: Some("file currently locked"),
    };

    /// Returns the response for an acquisition that failed with `class`, if the protocol fixes one.
    pub fn for_class(class: Class) -> Option<ClientAnswer> {
        match class {
            Class::Timeout | Class::Foreign => Some(ClientAnswer::LOCK_TIMEOUT),
            Class::Held => Some(ClientAnswer::LOCKED),
            Class::NotFound => Some(ClientAnswer::NOT_FOUND),
            Class::Stale
            | Class::Malformed
            | Class::Unreadable
            | Class::NotALock
            | Class::TooLarge
            | Class::LostRace
            | Class::Compromised
            | Class::NotHeld
            | Class::BadInput
            | Class::Unsupported
            | Class::Io => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// U9: every request for an upload takes its lock, also a read.
    #[test]
    fn reading_takes_the_lock_too() {
        for method in ["HEAD", "PATCH", "GET", "DELETE"] {
            assert!(takes_lock(method, false), "{method}");
        }
        assert!(takes_lock("POST", true));
        assert!(!takes_lock("POST", false));
        assert!(!takes_lock("OPTIONS", false));
    }

    /// Clients retry after 5xx, so a timeout must be 5xx, and an interruption must not.
    #[test]
    fn a_timeout_is_repeated_and_an_interruption_is_not() {
        let answer =
            |class| ClientAnswer::for_class(class).map(|answer| (answer.status, answer.code));
        assert_eq!(answer(Class::Timeout), Some((500, "ERR_LOCK_TIMEOUT")));
        assert_eq!(answer(Class::NotFound), Some((404, "ERR_UPLOAD_NOT_FOUND")));
        assert_eq!(answer(Class::Held), Some((423, "ERR_UPLOAD_LOCKED")));
        assert_eq!(answer(Class::Io), None);
        assert_eq!(ClientAnswer::INTERRUPTED.status, 400);
        assert_eq!(ClientAnswer::SHUTDOWN.status, 503);
    }
}
