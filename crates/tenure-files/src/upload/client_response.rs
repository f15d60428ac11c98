//! What the clients of an upload server are told (fixed by the protocol, so that they retry rightly).

use crate::error::Class;

/// Status, code and text of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAnswer {
    /// The HTTP status. Clients repeat a request on 5xx, and usually not on 4xx.
    pub status: u16,
    /// The code in the body.
    pub code: &'static str,
    /// The text in the body, where there is one.
    pub text: Option<&'static str>,
}

/// Whether a request takes the upload's lock before it reads any state (U9). Reading needs it too: the
/// protocol has no shared mode. A `POST` takes it after the upload was created, if it has a body.
pub fn takes_lock(method: &str, has_body: bool) -> bool {
    match method {
        "HEAD" | "PATCH" | "GET" | "DELETE" => true,
        "POST" => has_body,
        _ => false,
    }
}

impl ClientAnswer {
    /// Another request asked for the upload, and this one gave way.
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
    /// Waited longer than `acquire_timeout`; 500, so that the client tries again.
    pub const LOCK_TIMEOUT: ClientAnswer = ClientAnswer {
        status: 500,
        code: "ERR_LOCK_TIMEOUT",
        text: Some("failed to acquire lock before timeout"),
    };
    /// No such upload, or no such directory.
    pub const NOT_FOUND: ClientAnswer = ClientAnswer {
        status: 404,
        code: "ERR_UPLOAD_NOT_FOUND",
        text: Some("upload not found"),
    };
    /// Old servers, which do not wait.
    pub const LOCKED: ClientAnswer = ClientAnswer {
        status: 423,
        code: "ERR_UPLOAD_LOCKED",
        text: Some("file currently locked"),
    };

    /// The answer for a lock that could not be had, where the protocol fixes one.
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

    /// U9: everything that touches an upload takes its lock, reading included.
    #[test]
    fn reading_takes_the_lock_too() {
        for method in ["HEAD", "PATCH", "GET", "DELETE"] {
            assert!(takes_lock(method, false), "{method}");
        }
        assert!(takes_lock("POST", true));
        assert!(!takes_lock("POST", false));
        assert!(!takes_lock("OPTIONS", false));
    }

    /// Clients repeat on 5xx, so a time-out must be one; giving way must not.
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
