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
