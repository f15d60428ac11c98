//! AssertFencing and IncrFencingToken (R73–R75).

use tenure_core::value::Fence;
use tenure_node::{Answer, AssertAnswer, ClientRequest};
use tenure_wire::v1;

use super::{Call, Handlers, mismatch};
use crate::convert::{self, MAX_ENTRIES};
use crate::status::{Code, Failure};

impl Handlers {
    /// Is this fence still the one in force for these paths?
    pub async fn assert_fencing(
        &self,
        call: Call,
        request: v1::AssertFencingRequest,
    ) -> Result<v1::AssertFencingResponse, Failure> {
        asserted(&self.ask(call, assert_fencing(request)?).await?)
    }

    /// A number greater than all that it returned before.
    pub async fn incr_fencing_token(
        &self,
        call: Call,
        request: v1::IncrFencingTokenRequest,
    ) -> Result<v1::IncrFencingTokenResponse, Failure> {
        let key = convert::key(&request.idempotency_key)?;
        match self
            .ask(call, ClientRequest::IncrFencingToken { key })
            .await?
        {
            Answer::Number(fence) => Ok(v1::IncrFencingTokenResponse {
                token: convert::fence_number(Some(fence)),
            }),
            other => Err(mismatch(&other)),
        }
    }
}

/// What a message of a fence check asks.
pub(crate) fn assert_fencing(request: v1::AssertFencingRequest) -> Result<ClientRequest, Failure> {
    check_fencing(&request.owner_id, request.fencing_token, &request.paths)
}

/// The same, of the parts of a message.
pub(crate) fn check_fencing<P: AsRef<str>>(
    owner: &str,
    token: i64,
    paths: &[P],
) -> Result<ClientRequest, Failure> {
    let owner = convert::owner(owner)?;
    convert::count(paths.len(), MAX_ENTRIES)?;
    let paths = paths
        .iter()
        .map(|path| convert::path(path.as_ref()))
        .collect::<Result<Vec<_>, _>>()?;
    // A number that this server never issues can be no path's fence; asking is no mistake.
    let fence = u64::try_from(token).ok().filter(|number| *number > 0);
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

/// The message of its answer.
pub(crate) fn asserted(answer: &Answer) -> Result<v1::AssertFencingResponse, Failure> {
    match answer {
        Answer::AssertFencing(AssertAnswer::Valid) => Ok(v1::AssertFencingResponse::default()),
        Answer::AssertFencing(AssertAnswer::StaleOwner(path)) => {
            Ok(fail(path.as_str(), v1::ReasonCode::StaleOwner))
        }
        Answer::AssertFencing(AssertAnswer::StaleFence(path)) => {
            Ok(fail(path.as_str(), v1::ReasonCode::StaleFencingToken))
        }
        other => Err(mismatch(other)),
    }
}

fn fail(path: &str, reason: v1::ReasonCode) -> v1::AssertFencingResponse {
    v1::AssertFencingResponse {
        status: v1::AssertStatus::Fail.into(),
        path: path.to_owned(),
        reason: reason.into(),
    }
}
