//! Renew and IsOwnerAlive (R90–R93, R118).

use tenure_node::{Answer, ClientRequest, RenewAnswer};
use tenure_wire::v1;

use super::{Call, Handlers, mismatch};
use crate::convert;
use crate::status::Failure;

impl Handlers {
    /// Extends leases.
    pub async fn renew(
        &self,
        call: Call,
        request: v1::RenewRequest,
    ) -> Result<v1::RenewResponse, Failure> {
        renewed(&self.ask(call, renew(request)?).await?)
    }

    /// Has the owner a live lease or a place in line?
    pub async fn is_owner_alive(
        &self,
        call: Call,
        request: v1::IsOwnerAliveRequest,
    ) -> Result<v1::IsOwnerAliveResponse, Failure> {
        let alive = ClientRequest::IsOwnerAlive {
            owner: convert::owner(&request.owner_id)?,
            domains: convert::domains(&request.domains)?,
        };
        match self.ask(call, alive).await? {
            Answer::Truth(alive) => Ok(v1::IsOwnerAliveResponse { alive }),
            other => Err(mismatch(&other)),
        }
    }
}

/// What a message of a renewal asks.
pub(crate) fn renew(request: v1::RenewRequest) -> Result<ClientRequest, Failure> {
    Ok(ClientRequest::Renew {
        owner: convert::owner(&request.owner_id)?,
        ttl: convert::ttl(request.ttl_ms)?,
        key: convert::key(&request.idempotency_key)?,
        domains: convert::domains(&request.domains)?,
    })
}

/// The message of a renewal's answer.
pub(crate) fn renewed(answer: &Answer) -> Result<v1::RenewResponse, Failure> {
    match answer {
        Answer::Renew(RenewAnswer::Renewed { asked }) => Ok(v1::RenewResponse {
            status: v1::RenewStatus::Ok.into(),
            revoke_requested: *asked,
            ..Default::default()
        }),
        Answer::Renew(RenewAnswer::Lost(missing)) => Ok(v1::RenewResponse {
            status: v1::RenewStatus::Lost.into(),
            reason: convert::missing_number(*missing),
            ..Default::default()
        }),
        other => Err(mismatch(other)),
    }
}
