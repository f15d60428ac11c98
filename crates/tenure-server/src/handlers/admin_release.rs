//! Operations on the holds of another owner: ForceRelease, RequestRevoke, Break. Each call writes a
//! line to the audit log.

use tenure_core::outcome::BreakOutcome;
use tenure_core::value::Fence;
use tenure_node::{Answer, ClientRequest};
use tenure_wire::v1;

use super::mismatch;
use crate::audit::{AuditRecord, NamedHold};
use crate::auth::Caller;
use crate::convert;
use crate::rpc::{Facts, Outcome, ValidCall};
use crate::status::{Code, Failure};

/// Parses a ForceRelease: drops everything that an owner has (R101 ForceRelease always notifies the
/// victim, always notifies the victim).
pub(crate) fn force_release(
    caller: &Caller,
    request: v1::ForceReleaseRequest,
) -> Result<ValidCall, Failure> {
    let force = ClientRequest::ForceRelease {
        victim: caller.other_owner(&request.victim_id)?,
        key: caller.key(&request.idempotency_key)?,
    };
    let record = AuditRecord::new("force_release", request.victim_id);
    Ok(audited(force, record))
}

/// Parses a RequestRevoke: asks an owner to release (R115 RequestRevoke sends an event, sends an
/// event).
pub(crate) fn request_revoke(
    caller: &Caller,
    request: v1::RequestRevokeRequest,
) -> Result<ValidCall, Failure> {
    let owner = caller.other_owner(&request.owner_id)?;
    let record = AuditRecord::new("request_revoke", request.owner_id);
    Ok(audited(ClientRequest::RequestRevoke { owner }, record))
}

/// Parses a Break: ends one hold if path, owner and fence still match (E9 Break one hold, Break one
/// hold).
pub(crate) fn break_hold(caller: &Caller, request: v1::BreakRequest) -> Result<ValidCall, Failure> {
    let path = convert::path(&request.path)?;
    let owner = caller.other_owner(&request.owner_id)?;
    let fence = u64::try_from(request.fence)
        .ok()
        .and_then(Fence::from_number);
    let mut record = AuditRecord::new("break", request.owner_id);
    record.hold = Some(NamedHold {
        path: request.path,
        fence: request.fence,
        actor: request.actor,
        reason: request.reason,
    });
    Ok(audited(ClientRequest::Break { path, owner, fence }, record))
}

pub(crate) fn broken(outcome: Outcome<'_>) -> Result<v1::BreakResponse, Failure> {
    let (outcome, caller) = match outcome.open()? {
        (Answer::Break(outcome), caller) => (*outcome, caller),
        (other, _) => return Err(mismatch(&other)),
    };
    match outcome {
        BreakOutcome::Broken => Ok(v1::BreakResponse {}),
        BreakOutcome::NotThatHold(present) => {
            let present = present.map_or_else(
                || "the path is not held".to_owned(),
                |holder| {
                    let owner = caller.shown(&holder.owner);
                    match holder.fence {
                        Some(fence) => format!("{owner} holds the path with fence {fence}"),
                        None => format!("{owner} holds the path"),
                    }
                },
            );
            Err(Failure::new(
                Code::FailedPrecondition,
                format!("the named hold does not exist: {present}"),
            ))
        }
        other @ BreakOutcome::Refused(_) => Err(mismatch(&Answer::Break(Box::new(other)))),
    }
}

/// Adds an audit record to a call.
pub(super) fn audited(request: ClientRequest, record: AuditRecord) -> ValidCall {
    let facts = Facts {
        audit: Some(Box::new(record)),
        ..Default::default()
    };
    ValidCall {
        request: Box::new(request),
        facts,
    }
}
