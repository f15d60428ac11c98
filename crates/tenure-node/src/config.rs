//! Configuration of a node. It is given at the start and never changes while the node runs.

use tenure_core::policy::Algorithm;
use tenure_core::space::SpaceLimits;

use crate::{NodeId, ReplicaId};

/// Everything that does not change while a node runs.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who this is, in this incarnation (see [`ReplicaId`]).
    pub me: ReplicaId,
    /// Fixed for the cluster's incarnation; the same on every node.
    pub cluster: ClusterConfig,
    /// How much may wait and be kept.
    pub limits: Limits,
    /// Greater than at every earlier start of this incarnation: tells the frames and rounds of this
    /// process from those of an earlier one.
    pub start: u64,
    /// Any number; spreads elections and retries. Equal seeds and inputs give equal outputs.
    pub seed: u64,
    /// Nodes that are known at the start; see [`Input::Cluster`](crate::Input::Cluster).
    pub nodes: Vec<NodeId>,
}

/// Fixed at a cluster's birth and checked by the driver against the data directory and peers (R161:
/// settings fixed per cluster).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// How many groups hold locks; one more is the system group.
    pub group_count: u32,
    /// How many segments a fallback namespace has (R22: fallback namespace).
    pub prefix_segments: usize,
    /// The algorithm of namespaces without a row (R24: algorithm of a namespace).
    pub default_algorithm: Algorithm,
}

/// How much may wait and be kept.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Operations that may wait in one group on this node (R151: backpressure per group).
    pub group_inflight: usize,
    /// Operations and calls that may wait on this node.
    pub node_inflight: usize,
    /// A group's log is cut when it has this many entries.
    pub log_entries: usize,
    /// Or this many bytes.
    pub log_bytes: usize,
    /// So many entries stay for slow followers after a cut.
    pub log_kept: usize,
    /// How much a space keeps; part of its state, the same on every node.
    pub space: SpaceLimits,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            group_inflight: 1024,
            node_inflight: 65_536,
            log_entries: 10_000,
            log_bytes: 2 * 1024 * 1024,
            log_kept: 1_000,
            space: SpaceLimits::default(),
        }
    }
}
