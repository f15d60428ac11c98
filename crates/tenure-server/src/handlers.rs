//! The handlers: one method per RPC, under every face. Wire types in, wire types out.
//!
//!   face ──▶ handler: validate, convert ──▶ node ──▶ convert ──▶ face
//!
//! Whatever depends on state is decided behind [`Handle::call`]; here is only the door.

use std::net::SocketAddr;
use std::time::Duration;

use tenure_cluster::Handle;
use tenure_node::{Answer, Certain, ClientRequest, Failure as NodeFailure};

use crate::status::{Code, Failure};

mod acquire;
mod deadlock;
mod explain;
mod fence;
mod force;
mod inspect;
mod policy;
mod release;
mod renew;

pub(crate) use acquire::Chunks;

/// Messages to requests and answers to messages, for those who wait for many answers at once.
pub(crate) mod wire {
    pub(crate) use super::acquire::{acquire, acquired};
    pub(crate) use super::fence::{assert_fencing, asserted, check_fencing};
    pub(crate) use super::release::{release, release_all, released};
    pub(crate) use super::renew::{renew, renewed};
}

/// What a call brings along beside its message.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// How long its client waits.
    pub timeout: Duration,
    /// Where it comes from, if that matters: forced actions are written down with it.
    pub peer: Option<SocketAddr>,
}

impl Call {
    /// A call that matters to nobody but its client.
    pub fn within(timeout: Duration) -> Call {
        Call {
            timeout,
            peer: None,
        }
    }
}

/// The handlers of all faces.
#[derive(Clone)]
pub struct Handlers {
    node: Handle,
}

impl Handlers {
    /// Handlers over a running node.
    pub fn new(node: Handle) -> Handlers {
        Handlers { node }
    }

    /// The node behind.
    pub fn node(&self) -> &Handle {
        &self.node
    }

    /// The node has the request when this returns; its answer is waited for.
    pub(crate) fn ask<R: Into<Box<ClientRequest>>>(
        &self,
        call: Call,
        request: R,
    ) -> impl Future<Output = Result<Answer, Failure>> + use<R> {
        let answer = self.node.call(request.into(), call.timeout);
        async { answer.await.map_err(failure) }
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
                Certain::Yes => "nothing has changed: try again",
                Certain::No => "it may have happened: repeat it under the same idempotency key",
            };
            Failure::new(Code::Unavailable, format!("{text}; {advice}"))
        }
        NodeFailure::DeadlineExceeded => Failure::new(Code::DeadlineExceeded, text),
    }
}

/// An answer of another kind than its request: a bug of ours, never the client's business.
pub(crate) fn mismatch(answer: &Answer) -> Failure {
    tracing::error!(?answer, "an answer of the wrong kind");
    Failure::new(Code::Internal, "internal error: see the daemon's log")
}
