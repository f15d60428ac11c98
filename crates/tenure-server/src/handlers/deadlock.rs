//! Deadlock detection: wait edges and cycles (R107–R114).

use tenure_core::deadlock::Detection;
use tenure_core::value::OwnerId;
use tenure_node::{Answer, ClientRequest};
use tenure_wire::v1;

use super::mismatch;
use crate::convert;
use crate::rpc::Outcome;
use crate::status::{Code, Failure};

/// Parses a DetectCycle: follows wait edges from an owner.
pub(crate) fn detect_cycle(request: v1::DetectCycleRequest) -> Result<ClientRequest, Failure> {
    Ok(ClientRequest::DetectCycle {
        start: convert::owner(&request.start_owner_id)?,
        max_depth: request.max_depth,
    })
}

pub(crate) fn detected(outcome: Outcome<'_>) -> Result<v1::DetectCycleResponse, Failure> {
    let (kind, chain) = match outcome.answer? {
        Answer::DetectCycle(Detection::None) => (v1::CycleKind::None, Vec::new()),
        Answer::DetectCycle(Detection::Found(chain)) => (v1::CycleKind::Found, chain),
        Answer::DetectCycle(Detection::Truncated(chain)) => (v1::CycleKind::Truncated, chain),
        other => return Err(mismatch(&other)),
    };
    Ok(v1::DetectCycleResponse {
        kind: kind.into(),
        chain: names(&chain),
    })
}

/// Parses a query whether a conflict still exists.
pub(crate) fn is_blocking(request: v1::IsBlockingRequest) -> Result<ClientRequest, Failure> {
    Ok(ClientRequest::IsBlocking {
        path: convert::path(&request.conflict_path)?,
        owner: convert::owner(&request.conflict_owner)?,
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
pub(crate) fn set_wait_edge(request: v1::SetWaitEdgeRequest) -> Result<ClientRequest, Failure> {
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
        owner: convert::owner(&request.owner_id)?,
        blocker: convert::owner(&request.conflict_owner)?,
        ttl: convert::ttl(request.ttl_ms)?,
        key: convert::key(&request.idempotency_key)?,
        why,
    })
}

/// Parses a ClearWaitEdge: removes the record of what an owner waits for.
pub(crate) fn clear_wait_edge(request: v1::ClearWaitEdgeRequest) -> Result<ClientRequest, Failure> {
    Ok(ClientRequest::ClearWaitEdge {
        owner: convert::owner(&request.owner_id)?,
        key: convert::key(&request.idempotency_key)?,
    })
}

pub(super) fn names(owners: &[OwnerId]) -> Vec<String> {
    owners
        .iter()
        .map(|owner| owner.as_str().to_owned())
        .collect()
}
