//! Deadlock detection: wait edges and cycles (R107–R114).

use tenure_core::deadlock::Detection;
use tenure_core::value::OwnerId;
use tenure_node::{Answer, ClientRequest};
use tenure_wire::v1;

use super::mismatch;
use crate::auth::Caller;
use crate::convert;
use crate::rpc::Outcome;
use crate::status::{Code, Failure};

/// Parses a DetectCycle: follows wait edges from an owner.
pub(crate) fn detect_cycle(
    caller: &Caller,
    request: v1::DetectCycleRequest,
) -> Result<ClientRequest, Failure> {
    Ok(ClientRequest::DetectCycle {
        start: caller.other_owner(&request.start_owner_id)?,
        max_depth: request.max_depth,
    })
}

pub(crate) fn detected(outcome: Outcome<'_>) -> Result<v1::DetectCycleResponse, Failure> {
    let (answer, caller) = outcome.open()?;
    let (kind, chain) = match answer {
        Answer::DetectCycle(Detection::None) => (v1::CycleKind::None, Vec::new()),
        Answer::DetectCycle(Detection::Found(chain)) => (v1::CycleKind::Found, chain),
        Answer::DetectCycle(Detection::Truncated(chain)) => (v1::CycleKind::Truncated, chain),
        other => return Err(mismatch(&other)),
    };
    Ok(v1::DetectCycleResponse {
        kind: kind.into(),
        chain: names(caller, &chain),
    })
}

/// Parses a query whether a conflict still exists.
pub(crate) fn is_blocking(
    caller: &Caller,
    request: v1::IsBlockingRequest,
) -> Result<ClientRequest, Failure> {
    Ok(ClientRequest::IsBlocking {
        path: convert::path(&request.conflict_path)?,
        owner: caller.other_owner(&request.conflict_owner)?,
        reason: convert::block_reason(request.reason)?,
    })
}

pub(crate) fn blocking(outcome: Outcome<'_>) -> Result<v1::IsBlockingResponse, Failure> {
    match outcome.answer? {
        Answer::Truth(blocking) => Ok(v1::IsBlockingResponse { blocking }),
        other => Err(mismatch(&other)),
    }
}

/// Parses a SetWaitEdge: records which owner an owner waits for.
pub(crate) fn set_wait_edge(
    caller: &Caller,
    request: v1::SetWaitEdgeRequest,
) -> Result<ClientRequest, Failure> {
    // R16 (SetWaitEdge path and reason): both or neither.
    let why = match (request.conflict_path.as_str(), request.reason) {
        ("", 0) => None,
        ("", _) | (_, 0) => {
            return Err(Failure::new(
                Code::InvalidArgument,
                "conflict_path and reason go together: both or neither",
            ));
        }
        (path, reason) => Some((convert::path(path)?, convert::block_reason(reason)?)),
    };
    Ok(ClientRequest::SetWaitEdge {
        owner: caller.owner(&request.owner_id)?,
        blocker: caller.other_owner(&request.conflict_owner)?,
        ttl: convert::ttl(request.ttl_ms)?,
        key: caller.key(&request.idempotency_key)?,
        why,
    })
}

/// Parses a ClearWaitEdge: removes the record of what an owner waits for.
pub(crate) fn clear_wait_edge(
    caller: &Caller,
    request: v1::ClearWaitEdgeRequest,
) -> Result<ClientRequest, Failure> {
    Ok(ClientRequest::ClearWaitEdge {
        owner: caller.owner(&request.owner_id)?,
        key: caller.key(&request.idempotency_key)?,
    })
}

pub(super) fn names(caller: &Caller, owners: &[OwnerId]) -> Vec<String> {
    owners
        .iter()
        .map(|owner| caller.shown(owner).into_owned())
        .collect()
}
