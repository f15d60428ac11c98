//! Release and ReleaseAll (R97–R100).

use tenure_node::{Answer, ClientRequest, ReleaseRequest, WaitEdge};
use tenure_wire::v1;

use super::{Call, Handlers, mismatch};
use crate::convert::{self, MAX_ENTRIES};
use crate::status::Failure;

impl Handlers {
    /// Drops the listed holds.
    pub async fn release(
        &self,
        call: Call,
        request: v1::ReleaseLocksRequest,
    ) -> Result<v1::ReleaseResponse, Failure> {
        let owner = convert::owner(&request.owner_id)?;
        let key = convert::key(&request.idempotency_key)?;
        convert::count(request.requests.len(), MAX_ENTRIES)?;
        let mut holds = convert::holds(&request.requests)?;
        convert::hold_enums(&mut holds, &request.requests)?;
        let edge = edge(request.del_wait_key);
        let release = ClientRequest::Release(ReleaseRequest {
            owner,
            holds,
            edge,
            key,
        });
        self.done(call, release).await?;
        Ok(v1::ReleaseResponse {})
    }

    /// Drops everything the owner has in the named namespaces.
    pub async fn release_all(
        &self,
        call: Call,
        request: v1::ReleaseAllRequest,
    ) -> Result<v1::ReleaseResponse, Failure> {
        let release = ClientRequest::ReleaseAll {
            owner: convert::owner(&request.owner_id)?,
            key: convert::key(&request.idempotency_key)?,
            domains: convert::domains(&request.domains)?,
            edge: edge(request.del_wait_key),
        };
        self.done(call, release).await?;
        Ok(v1::ReleaseResponse {})
    }

    /// A call that succeeds without a word.
    pub(super) async fn done(&self, call: Call, request: ClientRequest) -> Result<(), Failure> {
        match self.ask(call, request).await? {
            Answer::Done => Ok(()),
            other => Err(mismatch(&other)),
        }
    }
}

fn edge(remove: bool) -> WaitEdge {
    if remove {
        WaitEdge::Remove
    } else {
        WaitEdge::Keep
    }
}
