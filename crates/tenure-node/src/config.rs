//! Configuration of a node. It is given at the start and never changes while the node runs.

use tenure_core::policy::Algorithm;
use tenure_core::space::SpaceLimits;

use crate::{NodeId, ReplicaId};

/// The configuration of a node.
#[derive(Clone, Debug)]
pub struct Config {
    /// The identity of this node in this incarnation (see [`ReplicaId`]).
    pub me: ReplicaId,
    /// Fixed for the lifetime of the cluster; the same on every node.
    pub cluster: ClusterConfig,
    /// Limits on pending work and stored data.
    pub limits: Limits,
    /// Must be greater than at every earlier start of this incarnation: it distinguishes the frames
    /// and ReadIndex rounds of this process from those of an earlier one.
    pub start: u64,
    /// Seed of the generator that spreads elections and retries. Equal seeds and inputs give equal
    /// outputs.
    pub seed: u64,
    /// Nodes that are known at the start; see [`Input::Cluster`](crate::Input::Cluster).
    pub nodes: Vec<NodeId>,
}

/// Fixed at a cluster's birth and checked by the driver against the data directory and peers (R161:
/// settings fixed per cluster).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// The number of groups that hold locks; the system group is an additional one.
    pub group_count: u32,
    /// How many segments a fallback namespace has (R22: fallback namespace).
    pub prefix_segments: usize,
    /// The algorithm of namespaces without a row (R24: algorithm of a namespace).
    pub default_algorithm: Algorithm,
}

/// Limits on pending work and stored data of a node.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum pending operations of one group on this node (R151: backpressure per group).
    pub group_inflight: usize,
    /// Maximum pending operations and calls on this node.
    pub node_inflight: usize,
    /// Estimated bytes of lock state on this node above which acquires are refused; `None` for no
    /// limit.
    pub state_bytes: Option<u64>,
    /// A group's log is cut when it has this many entries.
    pub log_entries: usize,
    /// A group's log is also cut when it has this many bytes.
    pub log_bytes: usize,
    /// Entries that stay in memory for slow followers after a cut.
    pub log_kept: usize,
    /// Bytes of one write batch, at most [`MAX_BATCH_BYTES`](crate::MAX_BATCH_BYTES). Only its last entry
    /// and the hard state before that may exceed it.
    pub batch_bytes: usize,
    /// Memory for the history of all groups of this node, in bytes (E22: History). Zero switches it
    /// off.
    pub history_bytes: usize,
    /// Limits of a space; part of its replicated state, so the same on every node.
    pub space: SpaceLimits,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            group_inflight: 1024,
            node_inflight: 65_536,
            state_bytes: None,
            log_entries: 10_000,
            log_bytes: 2 * 1024 * 1024,
            log_kept: 1_000,
            batch_bytes: crate::MAX_BATCH_BYTES,
            history_bytes: 0,
            space: SpaceLimits::default(),
        }
    }
}
