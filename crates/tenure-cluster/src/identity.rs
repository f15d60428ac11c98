//! Who this node is, as its data directory remembers: drawn at birth, checked at every start (R161).

use std::collections::BTreeMap;

use tenure_core::codec::{Encode, Reader, Writer};
use tenure_core::policy::Algorithm;
use tenure_node::{ClusterConfig, NodeId, ReplicaId};

/// Where the log keeps it.
const KEY: &[u8] = b"identity";

/// What a data directory knows about its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeIdentity {
    pub(crate) me: ReplicaId,
    /// How often a node was started on it.
    pub(crate) starts: u64,
    pub(crate) cluster: ClusterConfig,
    /// When it was made; see `Card::born_ms`.
    pub(crate) born_ms: u64,
    /// Which cluster it belongs to; `None` until a joining node has found one.
    pub(crate) cluster_id: Option<u64>,
    /// Whether its groups were born here: only a founder may find itself without any and make them.
    pub(crate) founder: bool,
    /// Whether an operator wants its replicas elsewhere (R166).
    pub(crate) draining: bool,
}

/// Why a node cannot start on a data directory.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// It belongs to another node.
    #[error(
        "the data directory belongs to node {found}, but this node is configured as {configured}"
    )]
    Node {
        /// Whose it is.
        found: u32,
        /// What is configured.
        configured: u32,
    },
    /// Something that is fixed at birth was changed.
    #[error(
        "{key} was {found} when the cluster was born, and is configured as {configured}: it can never change"
    )]
    Fixed {
        /// Which key.
        key: &'static str,
        /// What it was.
        found: String,
        /// What is configured.
        configured: String,
    },
    /// What is there cannot be read.
    #[error("the identity in the data directory cannot be read: {0}")]
    Unreadable(String),
}

impl NodeIdentity {
    /// A node that never was. With a number for a cluster it founds that, without one it joins.
    pub(crate) fn born(
        me: ReplicaId,
        born_ms: u64,
        cluster: ClusterConfig,
        should_bootstrap: Option<u64>,
    ) -> NodeIdentity {
        NodeIdentity {
            me,
            starts: 0,
            cluster,
            born_ms,
            cluster_id: should_bootstrap,
            founder: should_bootstrap.is_some(),
            draining: false,
        }
    }

    /// What the log holds, if this directory was used before.
    pub(crate) fn find(
        records: &BTreeMap<Vec<u8>, Vec<u8>>,
    ) -> Result<Option<NodeIdentity>, IdentityError> {
        let Some(bytes) = records.get(KEY) else {
            return Ok(None);
        };
        decode(bytes)
            .map(Some)
            .map_err(|error| IdentityError::Unreadable(error.to_string()))
    }

    /// The record to be written before the node says anything.
    pub(crate) fn record(&self) -> (&'static [u8], Vec<u8>) {
        let mut out = Writer::new();
        out.byte(2);
        out.number(self.me.pack());
        out.number(self.starts);
        out.number(u64::from(self.cluster.group_count));
        out.number(self.cluster.prefix_segments as u64);
        out.put(&self.cluster.default_algorithm);
        out.number(self.born_ms);
        out.number(self.cluster_id.unwrap_or(0));
        out.byte(u8::from(self.founder) | u8::from(self.draining) << 1);
        (KEY, out.into_bytes())
    }

    /// Whether this directory may be used as configured.
    pub(crate) fn check(&self, node: NodeId, cluster: &ClusterConfig) -> Result<(), IdentityError> {
        if self.me.node != node {
            return Err(IdentityError::Node {
                found: self.me.node.number(),
                configured: node.number(),
            });
        }
        let fixed = |key, found: String, configured: String| {
            if found == configured {
                Ok(())
            } else {
                Err(IdentityError::Fixed {
                    key,
                    found,
                    configured,
                })
            }
        };
        let born = &self.cluster;
        fixed(
            "group_count",
            born.group_count.to_string(),
            cluster.group_count.to_string(),
        )?;
        fixed(
            "routing_prefix_segments",
            born.prefix_segments.to_string(),
            cluster.prefix_segments.to_string(),
        )?;
        fixed(
            "default_lock_algorithm",
            format!("{:?}", born.default_algorithm),
            format!("{:?}", cluster.default_algorithm),
        )
    }
}

fn decode(bytes: &[u8]) -> Result<NodeIdentity, tenure_core::codec::DecodeError> {
    use tenure_core::codec::DecodeError;
    let mut input = Reader::new(bytes);
    let version = input.byte()?;
    if !(1..=2).contains(&version) {
        return Err(DecodeError::Version { found: version });
    }
    let me = ReplicaId::unpack(input.number()?).ok_or(DecodeError::Number)?;
    let starts = input.number()?;
    let group_count = input.small()?;
    let prefix_segments = input.small()? as usize;
    let default_algorithm = Algorithm::take(&mut input)?;
    // Version 1 knew only nodes that were alone: such a node founded the cluster it is in.
    let (born_ms, cluster_id, flags) = if version == 1 {
        (0, me.pack(), 1)
    } else {
        (input.number()?, input.number()?, input.byte()?)
    };
    input.finish()?;
    let cluster = ClusterConfig {
        group_count,
        prefix_segments,
        default_algorithm,
    };
    Ok(NodeIdentity {
        me,
        starts,
        cluster,
        born_ms,
        cluster_id: Some(cluster_id).filter(|id| *id != 0),
        founder: flags & 1 != 0,
        draining: flags & 2 != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> NodeIdentity {
        let cluster = ClusterConfig {
            group_count: 256,
            prefix_segments: 1,
            default_algorithm: Algorithm::RecursiveRw,
        };
        let node = NodeId::new(3).unwrap();
        NodeIdentity::born(ReplicaId::new(node, 77), 12, cluster, Some(5))
    }

    /// A directory of the first release is a cluster of its own.
    #[test]
    fn a_record_of_version_1_is_understood() {
        let mut old = identity().record().1;
        old[0] = 1;
        old.truncate(old.len() - 3);
        let records = BTreeMap::from([(KEY.to_vec(), old)]);
        let found = NodeIdentity::find(&records).unwrap().unwrap();
        assert!(found.founder && !found.draining);
        assert_eq!(found.cluster_id, Some(found.me.pack()));
    }

    #[test]
    fn it_comes_back_as_it_was_written() {
        let (key, value) = identity().record();
        let records = BTreeMap::from([(key.to_vec(), value.clone())]);
        assert_eq!(NodeIdentity::find(&records).unwrap(), Some(identity()));
        let damaged = BTreeMap::from([(key.to_vec(), value[..3].to_vec())]);
        assert!(matches!(
            NodeIdentity::find(&damaged),
            Err(IdentityError::Unreadable(_))
        ));
    }

    /// R161: what is fixed at birth stops a node that is configured otherwise.
    #[test]
    fn what_is_fixed_is_checked() {
        let node = NodeId::new(3).unwrap();
        let mut cluster = identity().cluster;
        assert_eq!(identity().check(node, &cluster), Ok(()));
        let other = NodeId::new(4).unwrap();
        assert!(matches!(
            identity().check(other, &cluster),
            Err(IdentityError::Node { .. })
        ));
        cluster.group_count = 4;
        let refused = identity().check(node, &cluster).unwrap_err();
        assert!(
            refused.to_string().contains("group_count was 256"),
            "{refused}"
        );
    }
}
