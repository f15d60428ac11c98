//! The handlers: two pure functions per RPC, under every transport.
//!
//!   message ──parse──▶ what is asked of the node ──▶ node ──▶ its answer ──respond──▶ message
//!
//! What depends on state is decided by the node. `rpc.rs` says which functions belong to which RPC.

use std::fmt::Display;
use std::time::Duration;

use tenure_cluster::Handle;
use tenure_node::{Answer, ClientRequest, EffectCertainty, Failure as NodeFailure};

use crate::rpc::Outcome;
use crate::status::{Code, Failure};

pub(crate) mod acquire;
pub(crate) mod admin_release;
pub(crate) mod deadlock;
pub(crate) mod explain;
pub(crate) mod fence;
pub(crate) mod inspect;
pub(crate) mod policy;
pub(crate) mod release;
pub(crate) mod renew;

pub(crate) use inspect::HEALTH_TIMEOUT;

/// Asks the node. It has the request when this returns; its answer is waited for.
pub(crate) fn ask(
    node: &Handle,
    request: ClientRequest,
    timeout: Duration,
) -> impl Future<Output = Result<Answer, Failure>> + use<> {
    let answer = node.call(request.into(), timeout);
    async { answer.await.map_err(failure) }
}

/// The message of a call that succeeds without a word.
pub(crate) fn done<M: Default>(outcome: Outcome<'_>) -> Result<M, Failure> {
    match outcome.answer? {
        Answer::Done => Ok(M::default()),
        other => Err(mismatch(&other)),
    }
}

/// The code and text of what could not be decided.
pub(crate) fn failure(failure: NodeFailure) -> Failure {
    let text = failure.to_string();
    match failure {
        NodeFailure::InvalidArgument(_) => Failure::new(Code::InvalidArgument, text),
        NodeFailure::Aborted => Failure::new(Code::Aborted, text),
        NodeFailure::FailedPrecondition(_) => Failure::new(Code::FailedPrecondition, text),
        NodeFailure::ResourceExhausted(_) => Failure::new(Code::ResourceExhausted, text),
        NodeFailure::Unavailable {
            nothing_happened, ..
        } => {
            let advice = match nothing_happened {
                EffectCertainty::Yes => "nothing has changed: try again",
                EffectCertainty::No => {
                    "it may have happened: repeat it under the same idempotency key"
                }
            };
            Failure::new(Code::Unavailable, format!("{text}; {advice}"))
        }
        NodeFailure::DeadlineExceeded => Failure::new(Code::DeadlineExceeded, text),
    }
}

/// An answer of another kind than its request: a bug of ours, never the client's business.
pub(crate) fn mismatch(answer: &Answer) -> Failure {
    internal(&format_args!("an answer of the wrong kind: {answer:?}"))
}

/// A bug of ours: the log has the details.
pub(crate) fn internal(error: &dyn Display) -> Failure {
    tracing::error!(%error, "internal error");
    Failure::new(Code::Internal, "internal error: see the daemon's log")
}
