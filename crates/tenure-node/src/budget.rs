//! Backpressure: limits on pending work per group and per node (R151: backpressure per group).
//!
//! Above the limit the node answers "busy" at once; a busy answer guarantees that nothing changed.
//! Endings (`Expire`, `Tick`) are exempt: a full group must still be able to end expired leases.

use crate::group::Group;
use crate::node::Node;

impl Node {
    /// Whether a group takes another operation.
    pub(crate) fn has_room(&self, group: &Group) -> bool {
        group.load() < self.config.limits.group_inflight
    }

    /// Whether the node takes another call, of a client or of a peer.
    pub(crate) fn has_room_for_calls(&self) -> bool {
        self.coordinator.waiting_calls() + self.coordinator.waiting_operations()
            < self.config.limits.node_inflight
    }
}
