//! Offline operations for the commands of operators: backup archives, and data directories without
//! a running daemon.

use tenure_core::policy::Algorithm;
use tenure_node::ClusterConfig;
use tenure_wire::cluster::StatusResponse;

pub use tenure_cluster::archive::{Archive, ArchiveWriter, read_archive};
pub use tenure_cluster::offline::{OldData, found, keep, recover, rejoin, restore};
pub use tenure_node::NodeId;

/// Returns the fixed settings of the cluster that gave this status. `None` if its algorithm is
/// unknown.
pub fn facts(status: &StatusResponse) -> Option<ClusterConfig> {
    let named = |algorithm: &Algorithm| algorithm_name(*algorithm) == status.default_lock_algorithm;
    Some(ClusterConfig {
        group_count: status.group_count,
        prefix_segments: status.routing_prefix_segments as usize,
        default_algorithm: Algorithm::ALL.into_iter().find(named)?,
    })
}

/// Returns the number of the cluster that gave this status, if it has one.
pub fn cluster_of(status: &StatusResponse) -> Option<u64> {
    u64::from_str_radix(&status.cluster_id, 16).ok()
}

/// Returns the node of this name: its trailing digits, plus one (R162 node ids).
pub fn node_of(name: &str) -> Option<NodeId> {
    let number = crate::config::node_number(name)?;
    NodeId::new(u32::try_from(number).ok()?)
}

/// Returns the name of an algorithm in the configuration.
pub(crate) fn algorithm_name(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::RecursiveRw => "recursive_rw",
        Algorithm::PointRw => "point_rw",
        Algorithm::RecursiveWrite => "recursive_write",
        Algorithm::PointWrite => "point_write",
        Algorithm::Semaphore => "semaphore",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R162: the trailing digits of a name, plus one; a name without digits is no node's.
    #[test]
    fn a_name_has_a_number() {
        let number = |name| node_of(name).map(NodeId::number);
        assert_eq!(number("tenure-0"), Some(1));
        assert_eq!(number("rack7-node12"), Some(13));
        assert_eq!(number("tenure"), None);
        assert_eq!(number("tenure-4294967295"), None);
    }
}
