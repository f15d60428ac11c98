//! What is held: InspectPath, ListOwnerLocks, DumpLocks, Health (R141–R145).

use std::time::Duration;

use tenure_core::value::OwnerId;
use tenure_node::{Answer, ClientRequest};
use tenure_wire::v1;

use super::deadlock::names;
use super::{Call, Handlers, mismatch};
use crate::convert;
use crate::status::Failure;

/// Health answers within this time (R145).
const HEALTH: Duration = Duration::from_secs(2);

impl Handlers {
    /// Who holds exactly this path?
    pub async fn inspect_path(
        &self,
        call: Call,
        request: v1::InspectPathRequest,
    ) -> Result<v1::InspectPathResponse, Failure> {
        let path = convert::path(&request.path)?;
        match self.ask(call, ClientRequest::InspectPath { path }).await? {
            Answer::Inspect(found) => Ok(v1::InspectPathResponse {
                write_owner: found.writer.as_ref().map_or_else(String::new, name),
                read_owners: names(&found.readers),
                has_fence: found.fence.is_some(),
                fence: convert::fence_number(found.fence),
                claim_owner: String::new(),
                semaphore_owners: names(&found.permit_holders),
            }),
            other => Err(mismatch(&other)),
        }
    }

    /// What does this owner hold?
    pub async fn list_owner_locks(
        &self,
        call: Call,
        request: v1::ListOwnerLocksRequest,
    ) -> Result<v1::ListOwnerLocksResponse, Failure> {
        let list = ClientRequest::ListOwnerLocks {
            owner: convert::owner(&request.owner_id)?,
            domains: convert::domains(&request.domains)?,
        };
        match self.ask(call, list).await? {
            Answer::OwnerLocks(found) => Ok(v1::ListOwnerLocksResponse {
                alive: found.alive,
                locks: found
                    .locks
                    .iter()
                    .map(|lock| v1::OwnedLock {
                        path: lock.path.as_str().to_owned(),
                        mode: convert::mode_number_for(lock.mode, request.read_tree),
                    })
                    .collect(),
            }),
            other => Err(mismatch(&other)),
        }
    }

    /// Everything that is held, page by page.
    pub async fn dump_locks(
        &self,
        call: Call,
        request: v1::DumpLocksRequest,
    ) -> Result<v1::DumpLocksResponse, Failure> {
        let dump = ClientRequest::DumpLocks {
            cursor: request.cursor,
            page: request.owner_page,
        };
        match self.ask(call, dump).await? {
            Answer::Dump { locks, next } => Ok(v1::DumpLocksResponse {
                entries: locks
                    .iter()
                    .map(|lock| v1::LockEntry {
                        owner: name(&lock.owner),
                        path: lock.path.as_str().to_owned(),
                        mode: convert::mode_number_for(lock.mode, request.read_tree),
                        has_fence: lock.fence.is_some(),
                        fence: convert::fence_number(lock.fence),
                    })
                    .collect(),
                done: next.is_empty(),
                next_cursor: next,
            }),
            other => Err(mismatch(&other)),
        }
    }

    /// Can this node serve? Never a failure: not being ready is an answer.
    pub async fn health(&self, call: Call) -> v1::HealthResponse {
        let call = Call::within(call.timeout.min(HEALTH));
        match self.ask(call, ClientRequest::Health).await {
            Ok(Answer::Ready) => v1::HealthResponse {
                ok: true,
                detail: std::iter::once("ready".to_owned())
                    .chain(self.node().rivals())
                    .chain(self.node().problems())
                    .collect::<Vec<_>>()
                    .join("; "),
            },
            Ok(other) => v1::HealthResponse {
                ok: false,
                detail: mismatch(&other).message,
            },
            Err(failure) => v1::HealthResponse {
                ok: false,
                // A node that has ended knows why.
                detail: self.node().stopped().unwrap_or(failure.message),
            },
        }
    }
}

fn name(owner: &OwnerId) -> String {
    owner.as_str().to_owned()
}
