//! Conversion between wire types and the values of `tenure-core`, with validation.
//!
//! Invalid values are refused here, before anything has an effect. Generated types are used only
//! here, in the handlers and in the transports; the node does not know protobuf.

use std::num::NonZeroU32;

use prost::Message;
use tenure_core::command::{Hold, Request, RequestKind};
use tenure_core::event::{Event, EventKind};
use tenure_core::outcome::Blocker;
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::{Algorithm, BlockReason, Missing, Mode, Reason};
use tenure_core::value::{Fence, Holder, Invalid, Ttl};
use tenure_wire::v1;

use crate::auth::Caller;
use crate::status::{Code, Failure};

/// Maximum number of entries of one request (R13 list length limits).
pub(crate) const MAX_ENTRIES: usize = 1024;

/// Parses a lease time (R8 range of ttl_ms, range of `ttl_ms`).
pub(crate) fn ttl(millis: u64) -> Result<Ttl, Failure> {
    Ok(Ttl::from_millis(millis)?)
}

/// Parses a path (R1–R4).
pub(crate) fn path(text: &str) -> Result<Path, Failure> {
    Path::parse(text).map_err(|invalid| {
        Failure::new(Code::InvalidArgument, format!("{invalid}: {}", shown(text)))
    })
}

/// Parses a namespace (R11: namespace strings).
pub(crate) fn namespace(text: &str) -> Result<Namespace, Failure> {
    Namespace::parse(text).map_err(|invalid| {
        Failure::new(Code::InvalidArgument, format!("{invalid}: {}", shown(text)))
    })
}

/// Quotes a client's text for an error message: escaped, at most 80 characters.
fn shown(text: &str) -> String {
    let start: String = text.chars().take(80).collect();
    let dots = if start.len() < text.len() { "…" } else { "" };
    format!("{start:?}{dots}")
}

/// Checks the number of entries (R13).
pub(crate) fn count(found: usize, allowed: usize) -> Result<(), Failure> {
    if found > allowed {
        Err(Invalid::Count { found, allowed }.into())
    } else {
        Ok(())
    }
}

/// Parses the list of namespaces that selects domains (R13; R126 selection by domains).
pub(crate) fn domains(texts: &[String]) -> Result<Vec<Namespace>, Failure> {
    count(texts.len(), MAX_ENTRIES)?;
    texts.iter().map(|text| namespace(text)).collect()
}

fn unknown(what: &str, number: i32) -> Failure {
    Failure::new(
        Code::InvalidArgument,
        format!("{what} has no value {number}"),
    )
}

/// Parses a mode (R12 unknown enum numbers are refused).
pub(crate) fn mode(number: i32) -> Result<Mode, Failure> {
    match v1::Mode::try_from(number) {
        Ok(v1::Mode::Write) => Ok(Mode::Write),
        Ok(v1::Mode::Read) => Ok(Mode::Read),
        Ok(v1::Mode::ReadTree) => Ok(Mode::ReadTree),
        Err(_) => Err(unknown("Mode", number)),
    }
}

/// Returns the number of a mode, for clients that know all three (E6 shared lock on a subtree).
pub(crate) fn mode_number(mode: Mode) -> i32 {
    match mode {
        Mode::Write => v1::Mode::Write,
        Mode::Read => v1::Mode::Read,
        Mode::ReadTree => v1::Mode::ReadTree,
    }
    .into()
}

/// Returns the number of a mode. A client that does not know READ_TREE gets READ (E6).
pub(crate) fn mode_number_for(mode: Mode, knows_read_tree: bool) -> i32 {
    if mode == Mode::ReadTree && !knows_read_tree {
        return v1::Mode::Read.into();
    }
    mode_number(mode)
}

/// Parses an algorithm (R12).
pub(crate) fn algorithm(number: i32) -> Result<Algorithm, Failure> {
    match v1::LockAlgorithm::try_from(number) {
        Ok(v1::LockAlgorithm::RecursiveRw) => Ok(Algorithm::RecursiveRw),
        Ok(v1::LockAlgorithm::PointRw) => Ok(Algorithm::PointRw),
        Ok(v1::LockAlgorithm::RecursiveWrite) => Ok(Algorithm::RecursiveWrite),
        Ok(v1::LockAlgorithm::PointWrite) => Ok(Algorithm::PointWrite),
        Ok(v1::LockAlgorithm::Semaphore) => Ok(Algorithm::Semaphore),
        Err(_) => Err(unknown("LockAlgorithm", number)),
    }
}

/// Returns the number of an algorithm.
pub(crate) fn algorithm_number(algorithm: Algorithm) -> i32 {
    match algorithm {
        Algorithm::RecursiveRw => v1::LockAlgorithm::RecursiveRw,
        Algorithm::PointRw => v1::LockAlgorithm::PointRw,
        Algorithm::RecursiveWrite => v1::LockAlgorithm::RecursiveWrite,
        Algorithm::PointWrite => v1::LockAlgorithm::PointWrite,
        Algorithm::Semaphore => v1::LockAlgorithm::Semaphore,
    }
    .into()
}

/// Parses lock requests without their enums: R17 (order of acquire checks) demands all paths first,
/// then all enum values. `request_enums` completes them.
pub(crate) fn requests(requests: &[v1::LockRequest]) -> Result<Vec<Request>, Failure> {
    requests
        .iter()
        .map(|request| {
            Ok(Request {
                path: path(&request.path)?,
                mode: Mode::Write,
                state: RequestKind::New,
                permits: NonZeroU32::new(request.permits),
            })
        })
        .collect()
}

/// Parses the enum values of lock requests (R12).
pub(crate) fn request_enums(
    parsed: &mut [Request],
    requests: &[v1::LockRequest],
) -> Result<(), Failure> {
    for (parsed, request) in parsed.iter_mut().zip(requests) {
        parsed.mode = mode(request.mode)?;
        parsed.state = match v1::LockState::try_from(request.state) {
            Ok(v1::LockState::New) => RequestKind::New,
            Ok(v1::LockState::Held) => RequestKind::Held,
            Err(_) => return Err(unknown("LockState", request.state)),
        };
    }
    Ok(())
}

/// Parses the holds to release, without their enums as above.
pub(crate) fn holds(requests: &[v1::ReleaseRequest]) -> Result<Vec<Hold>, Failure> {
    requests
        .iter()
        .map(|hold| {
            Ok(Hold {
                path: path(&hold.path)?,
                mode: Mode::Write,
            })
        })
        .collect()
}

/// Parses the enum values of holds (R12).
pub(crate) fn hold_enums(
    parsed: &mut [Hold],
    requests: &[v1::ReleaseRequest],
) -> Result<(), Failure> {
    for (parsed, request) in parsed.iter_mut().zip(requests) {
        parsed.mode = mode(request.mode)?;
    }
    Ok(())
}

/// Parses a reason. Only reasons with a blocker are accepted (R110 reasons that can block).
pub(crate) fn block_reason(number: i32) -> Result<BlockReason, Failure> {
    match v1::ReasonCode::try_from(number) {
        Ok(v1::ReasonCode::AncestorLocked) => Ok(BlockReason::AncestorLocked),
        Ok(v1::ReasonCode::WriteLocked) => Ok(BlockReason::WriteLocked),
        Ok(v1::ReasonCode::ReadLocked) => Ok(BlockReason::ReadLocked),
        Ok(v1::ReasonCode::DescendantWriteLocked) => Ok(BlockReason::DescendantWriteLocked),
        Ok(v1::ReasonCode::DescendantReadLocked) => Ok(BlockReason::DescendantReadLocked),
        Ok(v1::ReasonCode::SemaphoreFull) => Ok(BlockReason::SemaphoreFull),
        Ok(v1::ReasonCode::Queued) => Ok(BlockReason::Queued),
        Ok(other) => Err(Failure::new(
            Code::InvalidArgument,
            format!(
                "the reason {} has no blocker: use one of 1 to 5, 9 and 17",
                other.as_str_name()
            ),
        )),
        Err(_) => Err(unknown("ReasonCode", number)),
    }
}

/// Returns the code of a reason.
pub(crate) fn reason_number(reason: Reason) -> i32 {
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

/// Returns the code of what is missing.
pub(crate) fn missing_number(missing: Missing) -> i32 {
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

/// Returns a fence for the wire; 0 means none. Fences are below 2^53, so the conversion is exact.
pub(crate) fn fence_number(fence: Option<Fence>) -> i64 {
    fence.map_or(0, |fence| i64::try_from(fence.number()).unwrap_or(i64::MAX))
}

/// Parses a holder description (E3: holder description). Labels are sorted, because the decoded map
/// has a random order and equal requests must have equal content.
pub(crate) fn holder(wire: v1::Holder) -> Result<Holder, Failure> {
    let bytes = wire.encoded_len();
    if bytes > Holder::MAX_BYTES {
        return Err(Invalid::Holder(bytes).into());
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

/// Converts a holder description to the wire type.
pub(crate) fn holder_out(holder: &Holder) -> v1::Holder {
    v1::Holder {
        name: holder.name.clone(),
        host: holder.host.clone(),
        pid: holder.pid,
        purpose: holder.purpose.clone(),
        labels: holder.labels.iter().cloned().collect(),
    }
}

/// Stands for an owner at a path that the caller may not see.
pub(crate) const HIDDEN: &str = "(no access)";

/// A holder or waiter at a path that the caller may not see.
pub(crate) fn hidden() -> v1::Blocker {
    v1::Blocker {
        owner: HIDDEN.to_owned(),
        ..Default::default()
    }
}

/// Returns a path, or nothing if the caller may not see it.
pub(crate) fn path_out(caller: &Caller, path: &Path) -> String {
    match caller.sees(path) {
        true => path.as_str().to_owned(),
        false => String::new(),
    }
}

/// Converts a blocker to the wire type (E4 blocker and queue position).
pub(crate) fn blocker_out(
    caller: &Caller,
    blocker: &Blocker,
    lease_left_ms: Option<u64>,
) -> v1::Blocker {
    if !caller.sees(&blocker.path) {
        return hidden();
    }
    v1::Blocker {
        owner: caller.shown(&blocker.owner).into_owned(),
        holder: blocker.holder.as_ref().map(holder_out),
        held_ms: blocker.held_ms,
        lease_left_ms: lease_left_ms.unwrap_or(0),
        fence: fence_number(blocker.fence),
        mode: mode_number(blocker.mode),
        path: blocker.path.as_str().to_owned(),
    }
}

/// Converts an event to the wire type, with Tenure's details (E12 event details).
pub(crate) fn event_out(caller: &Caller, event: &Event) -> v1::Event {
    let (kind, fence) = match event.kind {
        EventKind::Grant { fence } => (v1::EventType::Grant, fence),
        EventKind::Killed => (v1::EventType::Killed, None),
        EventKind::Revoke => (v1::EventType::Revoke, None),
    };
    v1::Event {
        r#type: kind.into(),
        owner_id: caller.shown(&event.owner).into_owned(),
        id: event.id,
        namespace: event
            .namespace
            .as_ref()
            .map_or_else(String::new, |n| n.as_str().to_owned()),
        fence: fence_number(fence),
    }
}
