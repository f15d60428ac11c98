//! Backpressure: limits on pending work per group and per node (R151: backpressure per group).
//!
//! Above the limit the node answers "busy" at once; a busy answer guarantees that nothing changed.
//! Endings (`Expire`, `Tick`) are exempt: a full group must still be able to end expired leases.
//!
//! A part of the room is reserved for work that keeps or frees what is already held: renewals and
//! releases. So an overload of acquires and reads costs no lease, and locks become free again.

use tenure_core::command::Command;

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

impl Node {
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
