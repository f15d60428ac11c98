//! Conversion between wire types and the types of this crate. Generated types stay within the
//! `daemon` backend.

use std::num::NonZeroU32;
use std::time::Duration;

use tenure_core::path::Path;
use tenure_wire::v1;

use crate::address::Address;
use crate::error::{Blocker, BlockerKind};
use crate::values::{Fence, HoldId, Holder, HolderLiveness, Mode, Verdict};

pub(super) fn mode(mode: Mode) -> v1::Mode {
    match mode {
        Mode::Exclusive | Mode::Permit(_) => v1::Mode::Write,
        Mode::Shared => v1::Mode::Read,
        Mode::SharedTree => v1::Mode::ReadTree,
    }
}

pub(super) fn mode_out(mode: v1::Mode) -> Mode {
    match mode {
        v1::Mode::Write => Mode::Exclusive,
        v1::Mode::Read => Mode::Shared,
        v1::Mode::ReadTree => Mode::SharedTree,
    }
}

/// Returns the mode of a hold. A permit is written as an exclusive hold with a number of permits.
pub(super) fn hold_mode(mode: v1::Mode, permits: u32) -> Mode {
    NonZeroU32::new(permits).map_or_else(|| mode_out(mode), Mode::Permit)
}

/// Zero means no fence on the wire.
pub(super) fn fence(number: i64) -> Option<Fence> {
    u64::try_from(number).ok().and_then(Fence::new)
}

pub(super) fn holder_in(holder: &Holder) -> v1::Holder {
    v1::Holder {
        name: holder.name.clone(),
        host: holder.host.clone(),
        pid: holder.pid.unwrap_or(0),
        purpose: holder.purpose.clone(),
        labels: holder.labels.clone().into_iter().collect(),
    }
}

pub(super) fn holder_out(holder: &v1::Holder) -> Holder {
    Holder {
        name: holder.name.clone(),
        host: holder.host.clone(),
        pid: Some(holder.pid).filter(|pid| *pid != 0),
        purpose: holder.purpose.clone(),
        labels: holder.labels.clone().into_iter().collect(),
    }
}

/// Returns the description of a holder, or its owner id as the name if there is none.
pub(super) fn holder_or_owner(holder: Option<&v1::Holder>, owner: &str) -> Holder {
    match holder {
        Some(holder) => holder_out(holder),
        None => Holder {
            name: owner.to_owned(),
            ..Holder::default()
        },
    }
}

pub(super) fn blocker(place: Address, found: &v1::Blocker) -> Blocker {
    let fence = fence(found.fence);
    Blocker {
        place,
        holder: holder_or_owner(found.holder.as_ref(), &found.owner),
        standing: BlockerKind::Holds,
        mode: mode_out(found.mode()),
        held_for: Some(Duration::from_millis(found.held_ms)),
        lease_left: Some(Duration::from_millis(found.lease_left_ms)).filter(|left| !left.is_zero()),
        fence,
        verdict: Verdict::new(HolderLiveness::Alive, "its lease has not run out"),
        id: Some(HoldId::of(&found.owner, fence)),
    }
}

/// Returns the address of another path on the same daemon.
pub(super) fn place_like(place: &Address, path: &str) -> Address {
    match (place, Path::parse(path)) {
        (Address::Daemon { nodes, .. }, Ok(path)) => Address::Daemon {
            nodes: nodes.clone(),
            path,
        },
        (place, _) => place.clone(),
    }
}
