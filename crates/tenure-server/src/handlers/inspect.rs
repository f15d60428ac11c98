//! Inspection: InspectPath, ListOwnerLocks, DumpLocks and Health (R141–R145).

use std::num::NonZeroU32;
use std::time::Duration;

use tenure_core::query::HeldLock;
use tenure_node::{Answer, ClientRequest};
use tenure_wire::v1;

use super::deadlock::names;
use super::mismatch;
use crate::auth::Caller;
use crate::convert;
use crate::rpc::{Facts, Outcome, ValidCall};
use crate::status::Failure;

/// Time limit for Health (R145, Health needs a working quorum).
pub(crate) const HEALTH_TIMEOUT: Duration = Duration::from_secs(2);

/// Parses a query for the holders of exactly this path.
pub(crate) fn inspect_path(
    _: &Caller,
    request: v1::InspectPathRequest,
) -> Result<ClientRequest, Failure> {
    let path = convert::path(&request.path)?;
    Ok(ClientRequest::InspectPath { path })
}

pub(crate) fn inspected(outcome: Outcome<'_>) -> Result<v1::InspectPathResponse, Failure> {
    let (answer, caller) = outcome.open()?;
    match answer {
        Answer::Inspect(found) => Ok(v1::InspectPathResponse {
            write_owner: found
                .writer
                .as_ref()
                .map_or_else(String::new, |owner| caller.shown(owner).into_owned()),
            read_owners: names(caller, &found.readers),
            has_fence: found.fence.is_some(),
            fence: convert::fence_number(found.fence),
            claim_owner: String::new(),
            semaphore_owners: names(caller, &found.permit_holders),
        }),
        other => Err(mismatch(&other)),
    }
}

/// Parses a query for the holds of an owner.
pub(crate) fn list_owner_locks(
    caller: &Caller,
    request: v1::ListOwnerLocksRequest,
) -> Result<ValidCall, Failure> {
    let list = ClientRequest::ListOwnerLocks {
        owner: caller.other_owner(&request.owner_id)?,
        domains: convert::domains(&request.domains)?,
    };
    Ok(with_modes(list, request.read_tree))
}

pub(crate) fn listed(outcome: Outcome<'_>) -> Result<v1::ListOwnerLocksResponse, Failure> {
    let read_tree = outcome.facts.read_tree;
    let (answer, caller) = outcome.open()?;
    match answer {
        Answer::OwnerLocks(found) => Ok(v1::ListOwnerLocksResponse {
            alive: found.alive,
            locks: found
                .locks
                .iter()
                .filter(|lock| caller.owns(&lock.owner) || caller.sees(&lock.path))
                .map(|lock| v1::OwnedLock {
                    path: lock.path.as_str().to_owned(),
                    mode: convert::mode_number_for(lock.mode, read_tree),
                })
                .collect(),
        }),
        other => Err(mismatch(&other)),
    }
}

/// Parses a query for one page of all holds.
pub(crate) fn dump_locks(_: &Caller, request: v1::DumpLocksRequest) -> Result<ValidCall, Failure> {
    let (cursor, page) = (request.cursor, request.owner_page);
    let dump = match request.details {
        true => ClientRequest::Survey {
            below: match request.prefix.as_str() {
                "" => None,
                prefix => Some(convert::path(prefix)?),
            },
            cursor,
            page,
        },
        false => ClientRequest::DumpLocks { cursor, page },
    };
    Ok(with_modes(dump, request.read_tree))
}

pub(crate) fn dumped(outcome: Outcome<'_>) -> Result<v1::DumpLocksResponse, Failure> {
    let read_tree = outcome.facts.read_tree;
    let (answer, caller) = outcome.open()?;
    match answer {
        Answer::Dump { locks, next } => Ok(v1::DumpLocksResponse {
            entries: locks
                .iter()
                .filter(|lock| caller.observes(&lock.path))
                .map(|lock| entry(caller, lock, read_tree))
                .collect(),
            done: next.is_empty(),
            next_cursor: next,
            ..Default::default()
        }),
        Answer::Survey {
            holds,
            waiters,
            next,
        } => Ok(v1::DumpLocksResponse {
            detailed: waiters.is_some(),
            entries: holds
                .iter()
                .filter(|hold| caller.observes(&hold.lock.path))
                .map(|hold| v1::LockEntry {
                    holder: hold.holder.as_ref().map(convert::holder_out),
                    held_ms: hold.held_ms.unwrap_or(0),
                    lease_left_ms: hold.left_ms.unwrap_or(0),
                    permits: hold.permits.map_or(0, NonZeroU32::get),
                    ..entry(caller, &hold.lock, read_tree)
                })
                .collect(),
            waiters: waiters
                .unwrap_or_default()
                .iter()
                .filter(|waiter| caller.observes(&waiter.path))
                .map(|waiter| v1::WaitEntry {
                    owner: caller.shown(&waiter.owner).into_owned(),
                    path: waiter.path.as_str().to_owned(),
                    mode: convert::mode_number_for(waiter.mode, read_tree),
                    holder: waiter.holder.as_ref().map(convert::holder_out),
                    waited_ms: waiter.waited_ms,
                    number: waiter.waiter,
                })
                .collect(),
            done: next.is_empty(),
            next_cursor: next,
        }),
        other => Err(mismatch(&other)),
    }
}

fn entry(caller: &Caller, lock: &HeldLock, read_tree: bool) -> v1::LockEntry {
    v1::LockEntry {
        owner: caller.shown(&lock.owner).into_owned(),
        path: lock.path.as_str().to_owned(),
        mode: convert::mode_number_for(lock.mode, read_tree),
        has_fence: lock.fence.is_some(),
        fence: convert::fence_number(lock.fence),
        ..Default::default()
    }
}

/// Parses a query whether this node is ready.
pub(crate) fn health(_: &Caller, _: v1::HealthRequest) -> Result<ClientRequest, Failure> {
    Ok(ClientRequest::Health)
}

/// Makes the response of Health. Always `Ok`: a node that is not ready is a response, not an error.
pub(crate) fn healthy(outcome: Outcome<'_>) -> Result<v1::HealthResponse, Failure> {
    let node = outcome.node;
    let (ok, detail) = match outcome.answer {
        Ok(Answer::Ready) => {
            let ready = std::iter::once("ready".to_owned())
                .chain(node.rivals())
                .chain(node.problems());
            (true, ready.collect::<Vec<_>>().join("; "))
        }
        Ok(other) => (false, mismatch(&other).message),
        // A node that has stopped knows the cause; a failed call does not.
        Err(failure) => (false, node.stopped().unwrap_or(failure.message)),
    };
    Ok(v1::HealthResponse { ok, detail })
}

fn with_modes(request: ClientRequest, read_tree: bool) -> ValidCall {
    let facts = Facts {
        read_tree,
        ..Default::default()
    };
    ValidCall {
        request: Box::new(request),
        facts,
    }
}
