//! RPC handlers: two pure functions per RPC, shared by all transports.
//!
//! ```text
//!   message ──parse──▶ ClientRequest ──▶ node ──▶ Answer ──respond──▶ message
//! ```
//!
//! Parsing checks everything that depends on the message alone; the node decides everything that
//! depends on state. `rpc.rs` assigns the functions to the RPCs.

use std::fmt::Display;
use std::time::Duration;

use tenure_cluster::Handle;
use tenure_node::{Answer, ClientRequest, EffectCertainty, Failure as NodeFailure};
use tenure_wire::v1::ErrorDetail;

use crate::rpc::Outcome;
use crate::status::{Code, Failure};

pub(crate) mod acquire;
pub(crate) mod admin_release;
pub(crate) mod browse;
pub(crate) mod deadlock;
pub(crate) mod explain;
pub(crate) mod fence;
pub(crate) mod inspect;
pub(crate) mod policy;
pub(crate) mod release;
pub(crate) mod renew;

pub(crate) use inspect::HEALTH_TIMEOUT;

/// Submits a request to the node. The request is submitted when this function returns; the future
/// waits for the answer.
pub(crate) fn ask(
    node: &Handle,
    request: Box<ClientRequest>,
    timeout: Duration,
) -> impl Future<Output = Result<Answer, Failure>> + use<> {
    let answer = node.call(request, timeout);
    async { answer.await.map_err(failure) }
}

/// Makes the empty message of a call that succeeds without a result.
pub(crate) fn done<M: Default>(outcome: Outcome<'_>) -> Result<M, Failure> {
    match outcome.answer? {
        Answer::Done => Ok(M::default()),
        other => Err(mismatch(&other)),
    }
}

/// Converts a failure of the node to a status.
pub(crate) fn failure(failure: NodeFailure) -> Failure {
    let text = failure.to_string();
    match failure {
        NodeFailure::InvalidArgument(_) => Failure::new(Code::InvalidArgument, text),
        NodeFailure::Aborted => Failure::new(Code::Aborted, text),
        NodeFailure::FailedPrecondition(_) => Failure::new(Code::FailedPrecondition, text),
        NodeFailure::ResourceExhausted(_) => Failure::new(Code::ResourceExhausted, text),
        NodeFailure::OverQuota { limit, .. } => Failure {
            quota: Some(limit),
            ..Failure::new(Code::ResourceExhausted, text)
        },
        NodeFailure::Unavailable {
            nothing_happened, ..
        } => {
            let advice = match nothing_happened {
                EffectCertainty::Yes => "the request was not applied: try again",
                EffectCertainty::No => {
                    "the request may have been applied: repeat it with the same idempotency key"
                }
            };
            Failure::new(Code::Unavailable, format!("{text}; {advice}"))
        }
        NodeFailure::AnswersFull => Failure {
            detail: ErrorDetail::RetryWithoutKey,
            ..Failure::new(
                Code::Unavailable,
                format!("{text}; nothing has changed: try again"),
            )
        },
        NodeFailure::DeadlineExceeded => Failure::new(Code::DeadlineExceeded, text),
    }
}

/// An answer that does not fit its request: a bug in the daemon.
pub(crate) fn mismatch(answer: &Answer) -> Failure {
    internal(&format_args!("unexpected kind of answer: {answer:?}"))
}

/// A bug in the daemon. The details go to the log, not to the client.
pub(crate) fn internal(error: &dyn Display) -> Failure {
    tracing::error!(%error, "internal error");
    Failure::new(Code::Internal, "internal error: see the daemon's log")
}
