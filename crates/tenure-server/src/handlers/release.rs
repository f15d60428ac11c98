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
        released(&self.ask(call, release(request)?).await?)
    }

    /// Drops everything the owner has in the named namespaces.
    pub async fn release_all(
        &self,
        call: Call,
        request: v1::ReleaseAllRequest,
    ) -> Result<v1::ReleaseResponse, Failure> {
        released(&self.ask(call, release_all(request)?).await?)
    }

    /// A call that succeeds without a word.
    pub(super) async fn done(&self, call: Call, request: ClientRequest) -> Result<(), Failure> {
        match self.ask(call, request).await? {
            Answer::Done => Ok(()),
            other => Err(mismatch(&other)),
        }
    }
}

/// What a message of a release asks.
pub(crate) fn release(request: v1::ReleaseLocksRequest) -> Result<ClientRequest, Failure> {
    let owner = convert::owner(&request.owner_id)?;
    let key = convert::key(&request.idempotency_key)?;
    convert::count(request.requests.len(), MAX_ENTRIES)?;
    let mut holds = convert::holds(&request.requests)?;
    convert::hold_enums(&mut holds, &request.requests)?;
    Ok(ClientRequest::Release(ReleaseRequest {
        owner,
        holds,
        edge: edge(request.del_wait_key),
        key,
    }))
}

/// What a message of a release of everything asks.
pub(crate) fn release_all(request: v1::ReleaseAllRequest) -> Result<ClientRequest, Failure> {
    Ok(ClientRequest::ReleaseAll {
        owner: convert::owner(&request.owner_id)?,
        key: convert::key(&request.idempotency_key)?,
        domains: convert::domains(&request.domains)?,
        edge: edge(request.del_wait_key),
    })
}

/// The message of either one's answer.
pub(crate) fn released(answer: &Answer) -> Result<v1::ReleaseResponse, Failure> {
    match answer {
        Answer::Done => Ok(v1::ReleaseResponse {}),
        other => Err(mismatch(other)),
    }
}

fn edge(remove: bool) -> WaitEdge {
    if remove {
        WaitEdge::Remove
    } else {
        WaitEdge::Keep
    }
}
