//! Parsers: Release of listed holds, ReleaseAll of an owner in selected namespaces (R97–R100).

use tenure_node::{ClientRequest, ReleaseRequest, WaitEdge};
use tenure_wire::v1;

use crate::auth::Caller;
use crate::convert::{self, MAX_ENTRIES};
use crate::status::Failure;

/// Parses a Release of the listed holds.
pub(crate) fn release(
    caller: &Caller,
    request: v1::ReleaseLocksRequest,
) -> Result<ClientRequest, Failure> {
    let owner = caller.owner(&request.owner_id)?;
    let key = caller.key(&request.idempotency_key)?;
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

/// Parses a ReleaseAll: everything that the owner holds in the named namespaces.
pub(crate) fn release_all(
    caller: &Caller,
    request: v1::ReleaseAllRequest,
) -> Result<ClientRequest, Failure> {
    Ok(ClientRequest::ReleaseAll {
        owner: caller.owner(&request.owner_id)?,
        key: caller.key(&request.idempotency_key)?,
        domains: convert::domains(&request.domains)?,
        edge: edge(request.del_wait_key),
    })
}

fn edge(remove: bool) -> WaitEdge {
    if remove {
        WaitEdge::Remove
    } else {
        WaitEdge::Keep
    }
}
