//! Backpressure: how much may wait, in a group and on the node (R151: backpressure per group).
//!
//! Beyond it the answer is an immediate "busy", which is certain to have changed nothing. Endings
//! (`Expire`, `Tick`) are exempt: a full group must still let go of what is over.

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
