//! Identity of a node in its data directory: created with the directory, checked at every start
//! (R161 (settings fixed per cluster)).

use std::collections::BTreeMap;

use tenure_core::codec::{Encode, Reader, Writer};
use tenure_core::policy::Algorithm;
use tenure_node::{ClusterConfig, NodeId, ReplicaId};

/// Key of the identity record in the log.
const KEY: &[u8] = b"identity";

/// What a data directory says about its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeIdentity {
    pub(crate) me: ReplicaId,
    /// Number of starts on this directory.
    pub(crate) starts: u64,
    pub(crate) cluster: ClusterConfig,
    /// Time of creation; see `NodeRecord::born_ms`.
    pub(crate) born_ms: u64,
    /// Id of the node's cluster. `None` until a joining node has found one.
    pub(crate) cluster_id: Option<u64>,
    /// Whether the node created its cluster. Only then may it find no groups and create them.
    pub(crate) founder: bool,
    /// Whether an operator has ordered that the node gives its replicas away (R166 (draining a
    /// node)).
    pub(crate) draining: bool,
}

/// Reason why a node cannot start on a data directory.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// The directory belongs to another node.
    #[error(
        "the data directory belongs to node {found}, but this node is configured as {configured}"
    )]
    Node {
        /// Node number in the directory.
        found: u32,
        /// Configured node number.
        configured: u32,
    },
    /// A setting that is fixed per cluster was changed.
    #[error(
        "{key} is configured as {configured}, but the cluster was created with {found}, and the setting cannot \
         change: set it to {found}"
    )]
    Fixed {
        /// Name of the setting.
        key: &'static str,
        /// Value in the directory.
        found: String,
        /// Configured value.
        configured: String,
    },
    /// The identity record cannot be decoded.
    #[error("the identity in the data directory cannot be read: {0}")]
    Unreadable(String),
}

impl NodeIdentity {
    /// Creates the identity of a new node. With a cluster id the node creates that cluster, without
    /// one it joins.
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

    /// Decodes the identity from the log's records. `None`: the directory is new.
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

    /// Returns the record that must be durable before the node sends anything.
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

    /// Checks whether this directory fits the configuration.
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
    // Version 1 had only single nodes: such a node created its own cluster.
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

    /// R161: a node with a changed fixed setting does not start.
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
            refused.to_string().contains("created with 256"),
            "{refused}"
        );
    }
}
