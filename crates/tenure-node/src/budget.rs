//! Backpressure: limits on pending work per group and per node (R151: backpressure per group).
//!
//! Above the limit the node answers "busy" at once; a busy answer guarantees that nothing changed.
//! Endings (`Expire`, `Tick`) are exempt: a full group must still be able to end expired leases.
//!
//! A part of the room is reserved for work that keeps or frees what is already held: renewals and
//! releases. So an overload of acquires and reads costs no lease, and locks become free again.
//!
//! The rest of a group's room is shared by dynamic thresholds (Choudhury and Hahne): a principal may
//! have as many operations pending as a multiple of the room that is still free. A single principal
//! gets most of the room, several get equal parts of it, and there is always some left for another.

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;
use tenure_core::Fingerprint;
use tenure_core::auth::scope_of;
use tenure_core::command::{Acquire, Command, RequestKind};

use crate::GroupId;
use crate::group::Group;
use crate::group_op::GroupOp;
use crate::node::Node;
use crate::request::ClientRequest;

/// One part in so many of the room is reserved for urgent work.
const RESERVED_PART: usize = 4;

/// Whether work may use the reserved room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// A renewal or a release.
    Urgent,
    Normal,
}

impl Urgency {
    fn room(self, limit: usize) -> usize {
        match self {
            Urgency::Urgent => limit,
            Urgency::Normal => limit - limit / RESERVED_PART,
        }
    }

    pub(crate) fn of_request(request: &ClientRequest) -> Urgency {
        match request {
            ClientRequest::Renew { .. }
            | ClientRequest::Release(_)
            | ClientRequest::ReleaseAll { .. }
            | ClientRequest::ForceRelease { .. } => Urgency::Urgent,
            _ => Urgency::Normal,
        }
    }

    pub(crate) fn of_operation(op: &GroupOp) -> Urgency {
        match op {
            GroupOp::Renew(_)
            | GroupOp::Command(
                Command::Release(_)
                | Command::ReleaseAll(_)
                | Command::Renew(_)
                | Command::Withdraw(_),
            ) => Urgency::Urgent,
            // The system group decides about policies and keys; calls that have begun need it.
            GroupOp::System(_) => Urgency::Urgent,
            GroupOp::Command(_) | GroupOp::Read(_) => Urgency::Normal,
        }
    }
}

/// A principal may have so many times the free room of a group pending: one principal alone gets
/// four fifths of the room, two get four ninths each.
const SHARE_OF_FREE: usize = 4;

/// Acquires are refused above this part of the limit on lock state, in percent.
const FULL_PERCENT: u64 = 80;

/// The share of a group that an operation counts against: the group, and a hash of the principal
/// that its owner names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Share(GroupId, u64);

impl Share {
    /// Returns the share of an operation; `None` for urgent ones and reads.
    pub(crate) fn of(group: GroupId, op: &GroupOp) -> Option<Share> {
        let acquire = acquire_of(op)?;
        // Two principals with the same hash share a part: that is unlikely, and harmless.
        let mut hash = Fingerprint::new();
        hash.text(scope_of(acquire.owner.as_str()).unwrap_or(""));
        Some(Share(group, hash.finish() as u64))
    }
}

fn acquire_of(op: &GroupOp) -> Option<&Acquire> {
    match op {
        GroupOp::Command(Command::Acquire(acquire)) => Some(acquire),
        GroupOp::Command(Command::AcquireWithin(within)) => Some(&within.acquire),
        _ => None,
    }
}

/// How many operations each principal has pending in each group.
#[derive(Debug, Default)]
pub(crate) struct Shares(HashMap<Share, usize, FxBuildHasher>);

impl Shares {
    pub(crate) fn add(&mut self, share: Share) {
        *self.0.entry(share).or_default() += 1;
    }

    pub(crate) fn remove(&mut self, share: Share) {
        if let Some(pending) = self.0.get_mut(&share) {
            *pending -= 1;
            if *pending == 0 {
                self.0.remove(&share);
            }
        }
    }

    fn pending(&self, share: Share) -> usize {
        self.0.get(&share).copied().unwrap_or(0)
    }
}

impl Node {
    /// Whether a group takes another acquire of this principal.
    pub(crate) fn has_share(&self, group: &Group, share: Share) -> bool {
        let room = Urgency::Normal.room(self.config.limits.group_inflight);
        let free = room.saturating_sub(group.load());
        self.coordinator.forward.shares.pending(share) < SHARE_OF_FREE * free
    }

    /// Whether this node has no room for the lock state that an operation adds.
    pub(crate) fn is_full_for(&self, op: &GroupOp) -> bool {
        let takes = |acquire: &Acquire| {
            let mut requests = acquire.requests.iter();
            requests.any(|one| one.state == RequestKind::New)
        };
        self.coordinator.is_state_full && acquire_of(op).is_some_and(takes)
    }

    /// Estimates the memory of the lock state, once per tick.
    pub(crate) fn measure_state(&mut self) {
        let Some(limit) = self.config.limits.state_bytes else {
            return;
        };
        let groups = self.groups.iter().flatten();
        let spaces = groups.filter_map(|group| group.machine.space());
        let bytes: u64 = spaces.map(tenure_core::space::Space::footprint).sum();
        self.coordinator.is_state_full = bytes > limit / 100 * FULL_PERCENT;
    }

    /// Whether a group takes another operation.
    pub(crate) fn has_room(&self, group: &Group, urgency: Urgency) -> bool {
        group.load() < urgency.room(self.config.limits.group_inflight)
    }

    /// Whether the node takes another call, of a client or of a peer.
    pub(crate) fn has_room_for_calls(&self, urgency: Urgency) -> bool {
        self.coordinator.waiting_calls() + self.coordinator.waiting_operations()
            < urgency.room(self.config.limits.node_inflight)
    }
}
