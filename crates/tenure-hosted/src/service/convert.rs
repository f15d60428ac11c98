//! Conversion between wire types and the values of `tenure-core`.

use std::num::NonZeroU32;

use prost::Message;
use tenure_core::command::{Hold, Request, RequestKind};
use tenure_core::event::{ChangeKind, Event, EventKind, LockChange};
use tenure_core::outcome::Blocker;
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::{Algorithm, BlockReason, Missing, Mode, Reason};
use tenure_core::query::WaiterView;
use tenure_core::value::{Fence, Holder, Invalid, Key, OwnerId, Ttl};
use tenure_wire::v1;
use tonic::Status;

/// Maximum number of entries of one request (R13: list length limits).
pub(super) const MAX_ENTRIES: usize = 1024;

pub(super) fn invalid(invalid: Invalid) -> Status {
    Status::invalid_argument(invalid.to_string())
}

pub(super) fn owner(text: &str) -> Result<OwnerId, Status> {
    OwnerId::new(text).map_err(invalid)
}

pub(super) fn key(text: &str) -> Result<Option<Key>, Status> {
    Key::new(text).map_err(invalid)
}

pub(super) fn ttl(millis: u64) -> Result<Ttl, Status> {
    Ttl::from_millis(millis).map_err(invalid)
}

pub(super) fn path(text: &str) -> Result<Path, Status> {
    Path::parse(text)
        .map_err(|invalid| Status::invalid_argument(format!("{invalid}: {}", shown(text))))
}

pub(super) fn namespace(text: &str) -> Result<Namespace, Status> {
    Namespace::parse(text)
        .map_err(|invalid| Status::invalid_argument(format!("{invalid}: {}", shown(text))))
}

/// Quotes a caller's text for an error message: escaped, at most 80 characters.
fn shown(text: &str) -> String {
    let start: String = text.chars().take(80).collect();
    let dots = if start.len() < text.len() { "…" } else { "" };
    format!("{start:?}{dots}")
}

pub(super) fn count(found: usize) -> Result<(), Status> {
    let allowed = MAX_ENTRIES;
    match found > allowed {
        true => Err(invalid(Invalid::Count { found, allowed })),
        false => Ok(()),
    }
}

pub(super) fn domains(texts: &[String]) -> Result<Vec<Namespace>, Status> {
    count(texts.len())?;
    texts.iter().map(|text| namespace(text)).collect()
}

fn unknown(what: &str, number: i32) -> Status {
    Status::invalid_argument(format!("{what} has no value {number}"))
}

pub(super) fn mode(number: i32) -> Result<Mode, Status> {
    match v1::Mode::try_from(number) {
        Ok(v1::Mode::Write) => Ok(Mode::Write),
        Ok(v1::Mode::Read) => Ok(Mode::Read),
        Ok(v1::Mode::ReadTree) => Ok(Mode::ReadTree),
        Err(_) => Err(unknown("Mode", number)),
    }
}

/// Returns the number of a mode. A client that does not know READ_TREE gets READ (E6: shared lock on
/// a subtree).
pub(super) fn mode_number(mode: Mode, knows_read_tree: bool) -> i32 {
    match mode {
        Mode::Write => v1::Mode::Write,
        Mode::ReadTree if knows_read_tree => v1::Mode::ReadTree,
        Mode::Read | Mode::ReadTree => v1::Mode::Read,
    }
    .into()
}

pub(super) fn algorithm(number: i32) -> Result<Algorithm, Status> {
    match v1::LockAlgorithm::try_from(number) {
        Ok(v1::LockAlgorithm::RecursiveRw) => Ok(Algorithm::RecursiveRw),
        Ok(v1::LockAlgorithm::PointRw) => Ok(Algorithm::PointRw),
        Ok(v1::LockAlgorithm::RecursiveWrite) => Ok(Algorithm::RecursiveWrite),
        Ok(v1::LockAlgorithm::PointWrite) => Ok(Algorithm::PointWrite),
        Ok(v1::LockAlgorithm::Semaphore) => Ok(Algorithm::Semaphore),
        Err(_) => Err(unknown("LockAlgorithm", number)),
    }
}

pub(super) fn algorithm_number(algorithm: Algorithm) -> i32 {
    match algorithm {
        Algorithm::RecursiveRw => v1::LockAlgorithm::RecursiveRw,
        Algorithm::PointRw => v1::LockAlgorithm::PointRw,
        Algorithm::RecursiveWrite => v1::LockAlgorithm::RecursiveWrite,
        Algorithm::PointWrite => v1::LockAlgorithm::PointWrite,
        Algorithm::Semaphore => v1::LockAlgorithm::Semaphore,
    }
    .into()
}

/// Parses lock requests and holds to release: first all paths, then all enum values (R17: order of
/// acquire checks).
pub(super) fn wanted(
    requests: &[v1::LockRequest],
    releases: &[v1::ReleaseRequest],
) -> Result<(Vec<Request>, Vec<Hold>), Status> {
    let parse = |request: &v1::LockRequest| {
        Ok(Request {
            path: path(&request.path)?,
            mode: Mode::Write,
            state: RequestKind::New,
            permits: NonZeroU32::new(request.permits),
        })
    };
    let mut parsed = requests
        .iter()
        .map(parse)
        .collect::<Result<Vec<Request>, Status>>()?;
    let mut holds = releases
        .iter()
        .map(|hold| {
            Ok(Hold {
                path: path(&hold.path)?,
                mode: Mode::Write,
            })
        })
        .collect::<Result<Vec<Hold>, Status>>()?;
    for (parsed, request) in parsed.iter_mut().zip(requests) {
        parsed.mode = mode(request.mode)?;
        parsed.state = match v1::LockState::try_from(request.state) {
            Ok(v1::LockState::New) => RequestKind::New,
            Ok(v1::LockState::Held) => RequestKind::Held,
            Err(_) => return Err(unknown("LockState", request.state)),
        };
    }
    for (hold, request) in holds.iter_mut().zip(releases) {
        hold.mode = mode(request.mode)?;
    }
    Ok((parsed, holds))
}

/// Parses a reason. Only reasons with a blocker are accepted (R110: reasons that can block).
pub(super) fn block_reason(number: i32) -> Result<BlockReason, Status> {
    match v1::ReasonCode::try_from(number) {
        Ok(v1::ReasonCode::AncestorLocked) => Ok(BlockReason::AncestorLocked),
        Ok(v1::ReasonCode::WriteLocked) => Ok(BlockReason::WriteLocked),
        Ok(v1::ReasonCode::ReadLocked) => Ok(BlockReason::ReadLocked),
        Ok(v1::ReasonCode::DescendantWriteLocked) => Ok(BlockReason::DescendantWriteLocked),
        Ok(v1::ReasonCode::DescendantReadLocked) => Ok(BlockReason::DescendantReadLocked),
        Ok(v1::ReasonCode::SemaphoreFull) => Ok(BlockReason::SemaphoreFull),
        Ok(v1::ReasonCode::Queued) => Ok(BlockReason::Queued),
        Ok(other) => Err(Status::invalid_argument(format!(
            "the reason {} has no blocker: use one of 1 to 5, 9 and 17",
            other.as_str_name()
        ))),
        Err(_) => Err(unknown("ReasonCode", number)),
    }
}

pub(super) fn reason_number(reason: Reason) -> i32 {
    match reason {
        Reason::AncestorLocked => v1::ReasonCode::AncestorLocked,
        Reason::WriteLocked => v1::ReasonCode::WriteLocked,
        Reason::ReadLocked => v1::ReasonCode::ReadLocked,
        Reason::DescendantWriteLocked => v1::ReasonCode::DescendantWriteLocked,
        Reason::DescendantReadLocked => v1::ReasonCode::DescendantReadLocked,
        Reason::SemaphoreFull => v1::ReasonCode::SemaphoreFull,
        Reason::Queued => v1::ReasonCode::Queued,
        Reason::ReadLocksDisabled => v1::ReasonCode::ReadLocksDisabled,
        Reason::StaleFence { .. } => v1::ReasonCode::StaleFencingToken,
        Reason::InvalidPermits { .. } => v1::ReasonCode::InvalidPermits,
    }
    .into()
}

pub(super) fn missing_number(missing: Missing) -> i32 {
    match missing {
        Missing::Alive => v1::ReasonCode::MissingAlive,
        Missing::Write => v1::ReasonCode::MissingWrite,
        Missing::Read => v1::ReasonCode::MissingRead,
        Missing::Semaphore => v1::ReasonCode::MissingSemaphore,
        Missing::Fence => v1::ReasonCode::MissingFence,
        Missing::OwnerSet => v1::ReasonCode::MissingOwnerSet,
    }
    .into()
}

/// Returns a fence for the wire; 0 means none.
pub(super) fn fence_number(fence: Option<Fence>) -> i64 {
    fence.map_or(0, |fence| i64::try_from(fence.number()).unwrap_or(i64::MAX))
}

/// Parses a holder description (E3: holder description). Labels are sorted, because equal requests
/// must have equal content.
pub(super) fn holder(wire: v1::Holder) -> Result<Holder, Status> {
    let bytes = wire.encoded_len();
    if bytes > Holder::MAX_BYTES {
        return Err(invalid(Invalid::Holder(bytes)));
    }
    let mut labels: Vec<(String, String)> = wire.labels.into_iter().collect();
    labels.sort();
    Ok(Holder {
        name: wire.name,
        host: wire.host,
        pid: wire.pid,
        purpose: wire.purpose,
        labels,
    })
}

pub(super) fn holder_out(holder: &Holder) -> v1::Holder {
    v1::Holder {
        name: holder.name.clone(),
        host: holder.host.clone(),
        pid: holder.pid,
        purpose: holder.purpose.clone(),
        labels: holder.labels.iter().cloned().collect(),
    }
}

pub(super) fn blocker_out(blocker: &Blocker, lease_left_ms: Option<u64>) -> v1::Blocker {
    v1::Blocker {
        owner: blocker.owner.as_str().to_owned(),
        holder: blocker.holder.as_ref().map(holder_out),
        held_ms: blocker.held_ms,
        lease_left_ms: lease_left_ms.unwrap_or(0),
        fence: fence_number(blocker.fence),
        mode: mode_number(blocker.mode, true),
        path: blocker.path.as_str().to_owned(),
    }
}

pub(super) fn waiter_out(waiter: &WaiterView) -> v1::Blocker {
    v1::Blocker {
        owner: waiter.owner.as_str().to_owned(),
        holder: waiter.holder.as_ref().map(holder_out),
        held_ms: waiter.waited_ms,
        mode: mode_number(waiter.mode, true),
        path: waiter.path.as_str().to_owned(),
        ..Default::default()
    }
}

pub(super) fn names(owners: &[OwnerId]) -> Vec<String> {
    owners
        .iter()
        .map(|owner| owner.as_str().to_owned())
        .collect()
}

pub(super) fn event_out(event: &Event) -> v1::Event {
    let (kind, fence) = match event.kind {
        EventKind::Grant { fence } => (v1::EventType::Grant, fence),
        EventKind::Killed => (v1::EventType::Killed, None),
        EventKind::Revoke => (v1::EventType::Revoke, None),
    };
    v1::Event {
        r#type: kind.into(),
        owner_id: event.owner.as_str().to_owned(),
        id: event.id,
        namespace: event
            .namespace
            .as_ref()
            .map_or_else(String::new, |name| name.as_str().to_owned()),
        fence: fence_number(fence),
    }
}

/// Converts a change for watchers. `is_present`: it is one of the holds and waiters that were there
/// before.
pub(super) fn change_out(change: &LockChange, id: u64, is_present: bool) -> v1::LockChange {
    let kind = match change.kind {
        ChangeKind::Granted if is_present => v1::ChangeKind::Snapshot,
        ChangeKind::Granted => v1::ChangeKind::Granted,
        ChangeKind::Queued => v1::ChangeKind::Queued,
        ChangeKind::Released => v1::ChangeKind::Released,
        ChangeKind::Expired => v1::ChangeKind::Expired,
        ChangeKind::Killed => v1::ChangeKind::Killed,
        ChangeKind::Dequeued => v1::ChangeKind::Dequeued,
        ChangeKind::Asked => v1::ChangeKind::Asked,
        ChangeKind::Policy { .. } => v1::ChangeKind::Policy,
    };
    let path = match &change.path {
        Some(path) => path.as_str(),
        None => change.namespace.as_str(),
    };
    v1::LockChange {
        id,
        kind: kind.into(),
        owner: change
            .owner
            .as_ref()
            .map_or_else(String::new, |owner| owner.as_str().to_owned()),
        path: path.to_owned(),
        mode: mode_number(change.mode.unwrap_or(Mode::Write), true),
        fence: fence_number(change.fence),
        holder: change.holder.as_ref().map(holder_out),
    }
}
