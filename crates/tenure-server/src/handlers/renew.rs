//! Renew and IsOwnerAlive (R90–R93, R118 (IsOwnerAlive includes waiters)).

use tenure_node::{Answer, ClientRequest, RenewAnswer};
use tenure_wire::v1;

use super::mismatch;
use crate::auth::Caller;
use crate::convert;
use crate::rpc::Outcome;
use crate::status::Failure;

/// Parses a Renew of the owner's leases.
pub(crate) fn renew(caller: &Caller, request: v1::RenewRequest) -> Result<ClientRequest, Failure> {
    Ok(ClientRequest::Renew {
        owner: caller.owner(&request.owner_id)?,
        ttl: convert::ttl(request.ttl_ms)?,
        key: caller.key(&request.idempotency_key)?,
        domains: convert::domains(&request.domains)?,
    })
}

pub(crate) fn renewed(outcome: Outcome<'_>) -> Result<v1::RenewResponse, Failure> {
    match outcome.answer? {
        Answer::Renew(RenewAnswer::Renewed { asked }) => Ok(v1::RenewResponse {
            status: v1::RenewStatus::Ok.into(),
            revoke_requested: asked,
            ..Default::default()
        }),
        Answer::Renew(RenewAnswer::Lost(missing)) => Ok(v1::RenewResponse {
            status: v1::RenewStatus::Lost.into(),
            reason: convert::missing_number(missing),
            ..Default::default()
        }),
        other => Err(mismatch(&other)),
    }
}

/// Parses a query whether the owner has a live lease or a queued request.
pub(crate) fn is_owner_alive(
    caller: &Caller,
    request: v1::IsOwnerAliveRequest,
) -> Result<ClientRequest, Failure> {
    Ok(ClientRequest::IsOwnerAlive {
        owner: caller.other_owner(&request.owner_id)?,
        domains: convert::domains(&request.domains)?,
    })
}

pub(crate) fn alive(outcome: Outcome<'_>) -> Result<v1::IsOwnerAliveResponse, Failure> {
    match outcome.answer? {
        Answer::Truth(alive) => Ok(v1::IsOwnerAliveResponse { alive }),
        other => Err(mismatch(&other)),
    }
}
