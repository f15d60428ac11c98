//! Conversion between the types of `tenure_core` and those of this crate.

use std::num::NonZeroU32;
use std::time::Duration;

use tenure_core::command::Route;
use tenure_core::outcome::{Conflict, Refusal};
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::{Algorithm, Mode as CoreMode, Reason};
use tenure_core::value::{Fence as CoreFence, Holder as CoreHolder, OwnerId, Ttl};

use crate::address::{Address, MemoryName};
use crate::error::{Blocker, BlockerKind, Busy, Error};
use crate::values::{Class, Fence, HoldId, Holder, HolderLiveness, Mode, Verdict};

/// Returns an owner id that holds nothing and waits for nothing.
pub(super) fn no_owner() -> OwnerId {
    OwnerId::new("?").expect("one character is an owner id")
}

pub(super) fn namespace() -> Namespace {
    Namespace::parse("mem").expect("a bare handler is a namespace")
}

pub(super) fn route(algorithm: Algorithm) -> Route {
    Route {
        namespace: namespace(),
        algorithm,
        version: 0,
    }
}

/// Returns the longest ttl. Its length does not matter: no lease is ever expired here.
pub(super) fn longest() -> Ttl {
    Ttl::from_millis(Ttl::MAX_MILLIS).expect("the longest ttl is a ttl")
}

pub(super) fn place_of(path: &Path) -> Address {
    Address::Memory(MemoryName::from_path(path.clone()))
}

pub(super) fn core_mode(mode: Mode) -> CoreMode {
    match mode {
        Mode::Exclusive | Mode::Permit(_) => CoreMode::Write,
        Mode::Shared => CoreMode::Read,
        Mode::SharedTree => CoreMode::ReadTree,
    }
}

pub(super) fn mode_out(mode: CoreMode, permits: Option<NonZeroU32>) -> Mode {
    match (mode, permits) {
        (CoreMode::Write, Some(of)) => Mode::Permit(of),
        (CoreMode::Write, None) => Mode::Exclusive,
        (CoreMode::Read, _) => Mode::Shared,
        (CoreMode::ReadTree, _) => Mode::SharedTree,
    }
}

pub(super) fn holder_in(holder: &Holder) -> CoreHolder {
    CoreHolder {
        name: holder.name.clone(),
        host: holder.host.clone(),
        pid: holder.pid.unwrap_or(0),
        purpose: holder.purpose.clone(),
        labels: holder.labels.clone().into_iter().collect(),
    }
}

pub(super) fn holder_out(holder: &CoreHolder) -> Holder {
    Holder {
        name: holder.name.clone(),
        host: holder.host.clone(),
        pid: Some(holder.pid).filter(|pid| *pid != 0),
        purpose: holder.purpose.clone(),
        labels: holder.labels.iter().cloned().collect(),
    }
}

pub(super) fn blocker(found: &tenure_core::outcome::Blocker) -> Blocker {
    let fence = found.fence.and_then(|fence| Fence::new(fence.number()));
    Blocker {
        place: place_of(&found.path),
        holder: found.holder.as_ref().map(holder_out).unwrap_or_default(),
        standing: BlockerKind::Holds,
        mode: mode_out(found.mode, None),
        held_for: Some(Duration::from_millis(found.held_ms)),
        lease_left: None,
        fence,
        verdict: Verdict::new(HolderLiveness::Alive, "it is this process"),
        id: Some(HoldId::of(found.owner.as_str(), fence)),
    }
}

pub(super) fn split_id(id: Option<&HoldId>) -> (&str, Option<CoreFence>) {
    let text = id.map_or("", HoldId::as_str);
    match text.rsplit_once('@') {
        Some((owner, fence)) => (owner, fence.parse().ok().and_then(CoreFence::from_number)),
        None => (text, None),
    }
}

pub(super) fn busy(place: &Address, conflict: &Conflict) -> Busy {
    let mut found = conflict.blocker.as_ref().map(blocker);
    if let (Reason::Queued, Some(found)) = (conflict.reason, &mut found) {
        found.standing = BlockerKind::Waits;
    }
    let what = match conflict.reason {
        Reason::SemaphoreFull => "all permits are taken",
        Reason::Queued => "others are waiting for it",
        _ => "held",
    };
    Busy::new(place, found, what)
}

pub(super) fn refused(place: &Address, conflict: &Conflict) -> Error {
    match conflict.reason {
        Reason::InvalidPermits {
            capacity: Some(capacity),
        } => Error::refused(
            place,
            Class::BadInput,
            format!("there are {capacity} permits here, and every request must name that number"),
        ),
        reason if reason.is_waitable() => Error::Busy(Box::new(busy(place, conflict))),
        reason => Error::refused(place, Class::Unsupported, format!("{reason:?}")),
    }
}

pub(super) fn not_evaluated(place: &Address, refusal: Refusal) -> Error {
    let what = match refusal {
        Refusal::QueueFull => "too many are waiting",
        Refusal::FencesUsedUp => "all fences are used up",
        Refusal::Outdated { .. }
        | Refusal::Frozen { .. }
        | Refusal::KeyReused
        | Refusal::Moved { .. }
        | Refusal::Quota { .. }
        | Refusal::AnswersFull => "the lock table is in a state that it cannot be in",
    };
    Error::refused(place, Class::Io, what)
}
