//! AssertFencing and IncrFencingToken (R73–R75).

use tenure_core::value::Fence;
use tenure_node::{Answer, AssertAnswer, ClientRequest};
use tenure_wire::v1;

use super::mismatch;
use crate::auth::Caller;
use crate::convert::{self, MAX_ENTRIES};
use crate::rpc::Outcome;
use crate::status::{Code, Failure};

/// Parses an AssertFencing: whether this token is the current one for these paths.
pub(crate) fn assert_fencing(
    caller: &Caller,
    request: v1::AssertFencingRequest,
) -> Result<ClientRequest, Failure> {
    let owner = caller.other_owner(&request.owner_id)?;
    convert::count(request.paths.len(), MAX_ENTRIES)?;
    let paths = request
        .paths
        .iter()
        .map(|path| convert::path(path))
        .collect::<Result<Vec<_>, _>>()?;
    // A token that this server never issues is not a mistake of the client: it cannot be current.
    // Tokens above the range are replaced by the highest one, so the check fails as stale.
    let fence = u64::try_from(request.fencing_token)
        .ok()
        .filter(|number| *number > 0);
    if fence.is_none() && !paths.is_empty() {
        return Err(Failure::new(
            Code::InvalidArgument,
            "fencing_token must be above 0",
        ));
    }
    let highest = Fence::from_number(Fence::MINTED_END - 1);
    let fence = fence.and_then(|number| Fence::from_number(number).or(highest));
    Ok(ClientRequest::AssertFencing {
        owner,
        fence,
        paths,
    })
}

pub(crate) fn asserted(outcome: Outcome<'_>) -> Result<v1::AssertFencingResponse, Failure> {
    match outcome.answer? {
        Answer::AssertFencing(AssertAnswer::Valid) => Ok(v1::AssertFencingResponse::default()),
        Answer::AssertFencing(AssertAnswer::StaleOwner(path)) => {
            Ok(fail(path.as_str(), v1::ReasonCode::StaleOwner))
        }
        Answer::AssertFencing(AssertAnswer::StaleFence(path)) => {
            Ok(fail(path.as_str(), v1::ReasonCode::StaleFencingToken))
        }
        other => Err(mismatch(&other)),
    }
}

fn fail(path: &str, reason: v1::ReasonCode) -> v1::AssertFencingResponse {
    v1::AssertFencingResponse {
        status: v1::AssertStatus::Fail.into(),
        path: path.to_owned(),
        reason: reason.into(),
    }
}

/// Parses an IncrFencingToken: a number greater than all that it returned before.
pub(crate) fn incr_fencing_token(
    caller: &Caller,
    request: v1::IncrFencingTokenRequest,
) -> Result<ClientRequest, Failure> {
    let key = caller.key(&request.idempotency_key)?;
    Ok(ClientRequest::IncrFencingToken { key })
}

pub(crate) fn incremented(outcome: Outcome<'_>) -> Result<v1::IncrFencingTokenResponse, Failure> {
    match outcome.answer? {
        Answer::Number(fence) => Ok(v1::IncrFencingTokenResponse {
            token: convert::fence_number(Some(fence)),
        }),
        other => Err(mismatch(&other)),
    }
}
