//! Failures of calls, shared by all transports: a gRPC code and a message for people.
//!
//! A logical result (CONFLICT, QUEUED, LOST, …) is a response, not a failure.

use std::fmt;
use std::time::Duration;

use http::StatusCode;
use tenure_core::limits::LimitKind;
use tenure_wire::v1::ErrorDetail;

/// The gRPC codes that this daemon uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The request breaks a rule, independent of the state.
    InvalidArgument,
    /// A limit is exceeded.
    ResourceExhausted,
    /// The namespace still has live locks, or the hold is not the one that was named.
    FailedPrecondition,
    /// The policy changed twice while the request was handled.
    Aborted,
    /// Temporarily impossible: no leader, no quorum, limit reached, or stopping.
    Unavailable,
    /// The message is too large.
    OutOfRange,
    /// The deadline passed.
    DeadlineExceeded,
    /// Credentials are missing or wrong.
    Unauthenticated,
    /// The credentials do not allow it.
    PermissionDenied,
    /// No such RPC.
    Unimplemented,
    /// A bug or corruption. The text is fixed; details are in the log.
    Internal,
}

impl Code {
    /// Returns the name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Code::InvalidArgument => "INVALID_ARGUMENT",
            Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Code::FailedPrecondition => "FAILED_PRECONDITION",
            Code::Aborted => "ABORTED",
            Code::Unavailable => "UNAVAILABLE",
            Code::OutOfRange => "OUT_OF_RANGE",
            Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Code::Unauthenticated => "UNAUTHENTICATED",
            Code::PermissionDenied => "PERMISSION_DENIED",
            Code::Unimplemented => "UNIMPLEMENTED",
            Code::Internal => "INTERNAL",
        }
    }

    /// Returns the HTTP status of the JSON transport.
    pub fn http(self) -> StatusCode {
        match self {
            Code::InvalidArgument | Code::OutOfRange => StatusCode::BAD_REQUEST,
            Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Code::FailedPrecondition => StatusCode::PRECONDITION_FAILED,
            Code::Aborted => StatusCode::CONFLICT,
            Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Code::Unauthenticated => StatusCode::UNAUTHORIZED,
            Code::PermissionDenied => StatusCode::FORBIDDEN,
            Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Returns the gRPC code.
    pub fn grpc(self) -> tonic::Code {
        match self {
            Code::InvalidArgument => tonic::Code::InvalidArgument,
            Code::ResourceExhausted => tonic::Code::ResourceExhausted,
            Code::FailedPrecondition => tonic::Code::FailedPrecondition,
            Code::Aborted => tonic::Code::Aborted,
            Code::Unavailable => tonic::Code::Unavailable,
            Code::OutOfRange => tonic::Code::OutOfRange,
            Code::DeadlineExceeded => tonic::Code::DeadlineExceeded,
            Code::Unauthenticated => tonic::Code::Unauthenticated,
            Code::PermissionDenied => tonic::Code::PermissionDenied,
            Code::Unimplemented => tonic::Code::Unimplemented,
            Code::Internal => tonic::Code::Internal,
        }
    }
}

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// For programs.
    pub code: Code,
    /// For people: what happened and what to do next.
    pub message: String,
    /// For programs: what to do next, if the code does not say it.
    pub detail: ErrorDetail,
    /// When a call that exceeded a rate may be tried again.
    pub retry_after: Option<Duration>,
    /// The quota that the call would exceed.
    pub quota: Option<LimitKind>,
}

impl Failure {
    /// Creates a failure.
    pub fn new(code: Code, message: impl Into<String>) -> Failure {
        Failure {
            code,
            message: message.into(),
            detail: ErrorDetail::Unspecified,
            retry_after: None,
            quota: None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.name(), self.message)
    }
}

impl std::error::Error for Failure {}

impl From<tenure_core::value::Invalid> for Failure {
    fn from(invalid: tenure_core::value::Invalid) -> Failure {
        Failure::new(Code::InvalidArgument, invalid.to_string())
    }
}

impl From<Failure> for tonic::Status {
    fn from(failure: Failure) -> tonic::Status {
        let mut status = tonic::Status::new(failure.code.grpc(), failure.message);
        // The header by which gRPC servers tell clients when to retry.
        if let Some(wait) = failure.retry_after
            && let Ok(millis) = wait.as_millis().max(1).to_string().parse()
        {
            let metadata = status.metadata_mut();
            metadata.insert("grpc-retry-pushback-ms", millis);
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of the wire contract: name, gRPC number, HTTP status.
    #[test]
    fn every_code_has_one_status() {
        for (code, name, grpc, http) in [
            (Code::InvalidArgument, "INVALID_ARGUMENT", 3, 400),
            (Code::DeadlineExceeded, "DEADLINE_EXCEEDED", 4, 504),
            (Code::PermissionDenied, "PERMISSION_DENIED", 7, 403),
            (Code::ResourceExhausted, "RESOURCE_EXHAUSTED", 8, 429),
            (Code::FailedPrecondition, "FAILED_PRECONDITION", 9, 412),
            (Code::Aborted, "ABORTED", 10, 409),
            (Code::OutOfRange, "OUT_OF_RANGE", 11, 400),
            (Code::Unimplemented, "UNIMPLEMENTED", 12, 501),
            (Code::Internal, "INTERNAL", 13, 500),
            (Code::Unavailable, "UNAVAILABLE", 14, 503),
            (Code::Unauthenticated, "UNAUTHENTICATED", 16, 401),
        ] {
            assert_eq!(code.name(), name);
            assert_eq!(i32::from(code.grpc()), grpc, "{name}");
            assert_eq!(code.http().as_u16(), http, "{name}");
        }
    }
}
