//! Identities of nodes, incarnations, replicas and groups.

use std::fmt;
use std::num::NonZeroU32;

/// A node of the cluster, by the number in its name (R162: node ids).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(NonZeroU32);

impl NodeId {
    /// The node of this number; zero is none.
    pub fn new(number: u32) -> Option<NodeId> {
        NonZeroU32::new(number).map(NodeId)
    }

    /// Its number, never zero.
    pub fn number(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// A replica of a group: the node, its incarnation, and the number of the replica. A replica's identity is never
/// used twice (docs/design/replica-identity.md): votes and acknowledgements count for one replica, and a
/// replica that was removed and comes back, or whose node lost its disk, is another one.
///
/// Where no group is meant (the sender of a frame, the node of a configuration) the replica number is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId {
    /// Which node.
    pub node: NodeId,
    /// A number drawn when its data directory was made, and kept there.
    pub incarnation: u32,
    /// The index of the committed entry that added the replica to its group. 0 for the first replicas of
    /// a group and for those that were added under the rules of release 0.1.0.
    pub replica: u64,
}

impl ReplicaId {
    /// A node in one of its incarnations, or its replica with the number 0.
    pub const fn new(node: NodeId, incarnation: u32) -> ReplicaId {
        ReplicaId {
            node,
            incarnation,
            replica: 0,
        }
    }

    /// The replica with this number on the same node in the same incarnation.
    pub const fn numbered(self, replica: u64) -> ReplicaId {
        ReplicaId { replica, ..self }
    }

    /// Whether both are on the same node in the same incarnation: a group has at most one of them at a time.
    pub fn shares_disk(self, other: ReplicaId) -> bool {
        self.node == other.node && self.incarnation == other.incarnation
    }

    /// Node and incarnation in one number, never zero. The replica number is not in it.
    pub fn pack(self) -> u64 {
        u64::from(self.node.number()) << 32 | u64::from(self.incarnation)
    }

    /// Takes a packed number apart.
    pub fn unpack(number: u64) -> Option<ReplicaId> {
        let node = NodeId::new(u32::try_from(number >> 32).ok()?)?;
        let incarnation = u32::try_from(number & u64::from(u32::MAX)).ok()?;
        Some(ReplicaId::new(node, incarnation))
    }
}

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (incarnation {}", self.node, self.incarnation)?;
        if self.replica != 0 {
            write!(f, ", replica {}", self.replica)?;
        }
        f.write_str(")")
    }
}

/// A Raft group: `0 … group_count − 1` hold locks, `group_count` is the system group (R160: groups
/// and placement).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {}", self.0)
    }
}

/// The present up to here is durable: the driver reports marks, outputs wait for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark(pub u64);

/// The time of a step, as the driver reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepTime {
    /// A clock that never goes back while the process runs, in milliseconds.
    pub monotonic_ms: u64,
    /// Unix milliseconds. Serves event ids (R121: event ids) and nothing else.
    pub wall_ms: u64,
}
