//! Wait edges and cycles (R107–R114).

use tenure_core::deadlock::Detection;
use tenure_core::value::OwnerId;
use tenure_node::{Answer, ClientRequest};
use tenure_wire::v1;

use super::{Call, Handlers, mismatch};
use crate::convert;
use crate::status::{Code, Failure};

impl Handlers {
    /// Follows wait edges from an owner.
    pub async fn detect_cycle(
        &self,
        call: Call,
        request: v1::DetectCycleRequest,
    ) -> Result<v1::DetectCycleResponse, Failure> {
        let detect = ClientRequest::DetectCycle {
            start: convert::owner(&request.start_owner_id)?,
            max_depth: request.max_depth,
        };
        let Answer::DetectCycle(detection) = self.ask(call, detect).await? else {
            return Err(mismatch(&Answer::Done));
        };
        let (kind, chain) = match detection {
            Detection::None => (v1::CycleKind::None, Vec::new()),
            Detection::Found(chain) => (v1::CycleKind::Found, chain),
            Detection::Truncated(chain) => (v1::CycleKind::Truncated, chain),
        };
        Ok(v1::DetectCycleResponse {
            kind: kind.into(),
            chain: names(&chain),
        })
    }

    /// Does this conflict still exist?
    pub async fn is_blocking(
        &self,
        call: Call,
        request: v1::IsBlockingRequest,
    ) -> Result<v1::IsBlockingResponse, Failure> {
        let blocking = ClientRequest::IsBlocking {
            path: convert::path(&request.conflict_path)?,
            owner: convert::owner(&request.conflict_owner)?,
            reason: convert::block_reason(request.reason)?,
        };
        match self.ask(call, blocking).await? {
            Answer::Truth(blocking) => Ok(v1::IsBlockingResponse { blocking }),
            other => Err(mismatch(&other)),
        }
    }

    /// Records whom an owner waits for.
    pub async fn set_wait_edge(
        &self,
        call: Call,
        request: v1::SetWaitEdgeRequest,
    ) -> Result<v1::SetWaitEdgeResponse, Failure> {
        // R16: both or neither.
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
        let edge = ClientRequest::SetWaitEdge {
            owner: convert::owner(&request.owner_id)?,
            blocker: convert::owner(&request.conflict_owner)?,
            ttl: convert::ttl(request.ttl_ms)?,
            key: convert::key(&request.idempotency_key)?,
            why,
        };
        self.done(call, edge).await?;
        Ok(v1::SetWaitEdgeResponse {})
    }

    /// Forgets whom an owner waits for.
    pub async fn clear_wait_edge(
        &self,
        call: Call,
        request: v1::ClearWaitEdgeRequest,
    ) -> Result<v1::ClearWaitEdgeResponse, Failure> {
        let clear = ClientRequest::ClearWaitEdge {
            owner: convert::owner(&request.owner_id)?,
            key: convert::key(&request.idempotency_key)?,
        };
        self.done(call, clear).await?;
        Ok(v1::ClearWaitEdgeResponse {})
    }
}

pub(super) fn names(owners: &[OwnerId]) -> Vec<String> {
    owners
        .iter()
        .map(|owner| owner.as_str().to_owned())
        .collect()
}
