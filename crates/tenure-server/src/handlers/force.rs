//! What is done to somebody else's lock: ForceRelease, RequestRevoke, Break. Each leaves a line in the audit log.

use tenure_core::outcome::BreakOutcome;
use tenure_core::value::Fence;
use tenure_node::{Answer, ClientRequest};
use tenure_wire::v1;

use super::{Call, Handlers, mismatch};
use crate::convert;
use crate::status::{Code, Failure};

impl Handlers {
    /// Takes everything away from an owner (R101).
    pub async fn force_release(
        &self,
        call: Call,
        request: v1::ForceReleaseRequest,
    ) -> Result<v1::ForceReleaseResponse, Failure> {
        let victim = convert::owner(&request.victim_id)?;
        let key = convert::key(&request.idempotency_key)?;
        let name = victim.as_str().to_owned();
        let done = self
            .done(call, ClientRequest::ForceRelease { victim, key })
            .await;
        tracing::warn!(
            target: "audit",
            action = "force_release",
            victim = name,
            peer = peer(call),
            result = result(&done),
        );
        done.map(|()| v1::ForceReleaseResponse {})
    }

    /// Asks an owner to let go (R115).
    pub async fn request_revoke(
        &self,
        call: Call,
        request: v1::RequestRevokeRequest,
    ) -> Result<v1::RequestRevokeResponse, Failure> {
        let owner = convert::owner(&request.owner_id)?;
        let name = owner.as_str().to_owned();
        let done = self
            .done(call, ClientRequest::RequestRevoke { owner })
            .await;
        tracing::info!(
            target: "audit",
            action = "request_revoke",
            victim = name,
            peer = peer(call),
            result = result(&done),
        );
        done.map(|()| v1::RequestRevokeResponse {})
    }

    /// Ends one hold, if it is still the one named (E9).
    pub async fn break_hold(
        &self,
        call: Call,
        request: v1::BreakRequest,
    ) -> Result<v1::BreakResponse, Failure> {
        let path = convert::path(&request.path)?;
        let owner = convert::owner(&request.owner_id)?;
        let fence = u64::try_from(request.fence)
            .ok()
            .and_then(Fence::from_number);
        let outcome = self
            .ask(call, ClientRequest::Break { path, owner, fence })
            .await;
        tracing::warn!(
            target: "audit",
            action = "break",
            path = request.path,
            victim = request.owner_id,
            fence = request.fence,
            actor = request.actor,
            reason = request.reason,
            peer = peer(call),
            result = match &outcome {
                Ok(Answer::Break(outcome)) if matches!(**outcome, BreakOutcome::NotThatHold(_)) => {
                    Code::FailedPrecondition.name()
                }
                other => result(other),
            },
        );
        let outcome = match outcome? {
            Answer::Break(outcome) => *outcome,
            other => return Err(mismatch(&other)),
        };
        match outcome {
            BreakOutcome::Broken => Ok(v1::BreakResponse {}),
            BreakOutcome::NotThatHold(present) => {
                let present = present.map_or_else(
                    || "nobody holds it so".to_owned(),
                    |holder| match holder.fence {
                        Some(fence) => format!("{} holds it at fence {fence}", holder.owner),
                        None => format!("{} holds it", holder.owner),
                    },
                );
                Err(Failure::new(
                    Code::FailedPrecondition,
                    format!("this is not the hold that was named: {present}"),
                ))
            }
            other @ BreakOutcome::Refused(_) => Err(mismatch(&Answer::Break(Box::new(other)))),
        }
    }
}

/// Where a forced action came from.
fn peer(call: Call) -> Option<String> {
    call.peer.map(|peer| peer.to_string())
}

/// How it ended: `OK`, or the code of the failure.
fn result<T>(outcome: &Result<T, Failure>) -> &'static str {
    match outcome {
        Ok(_) => "OK",
        Err(failure) => failure.code.name(),
    }
}
