//! Durable cluster state of a node: key-value records in the log, one per peer.
//!
//! A value holds at most 64 KiB. The log thread refuses a longer one, and the previous value stays.
//! Names and addresses have up to 255 bytes each, so the node records of a few dozen nodes would
//! not fit into one value.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::codec::{DecodeError, Encode, Reader, Writer, from_bytes, to_bytes};
use tenure_node::{NodeId, ReplicaId};

use super::control::{put_members, take_members};
use super::rival_cluster::{
    ClusterClaim, ClusterHistory, MOST_SUPERSEDED, RivalCluster, supersede,
};
use crate::identity::IdentityError;
use crate::node_record::NodeRecord;

/// Key under which the first release stored all node records and removals in one record.
const LEGACY: &[u8] = b"peers";
const NODE_RECORD: &str = "peer/";
const REMOVED: &str = "removed/";
const STANDING: &[u8] = b"standing";
const STOPPED: &[u8] = b"stopped";
/// Maximum number of stored removals per node number. An incarnation is a random number, so one
/// that is no longer stored does not come back by chance.
const MOST_INCARNATIONS: usize = 1024;

/// A record for the log: key and value.
pub(crate) type StateRecord = (Vec<u8>, Vec<u8>);

/// Peers, removals and the cluster's history, as stored in the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PersistedState {
    pub(crate) node_records: Vec<NodeRecord>,
    pub(crate) removed: BTreeSet<ReplicaId>,
    pub(crate) standing: ClusterStanding,
    /// Why no node may start on this data. `None`: it may.
    pub(crate) stopped: Option<String>,
    /// Whether some of it comes from the first release's record and must be rewritten.
    pub(crate) is_legacy: bool,
}

/// What a node knows about its cluster as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterStanding {
    /// Number of members ever seen, this node included.
    pub(crate) members: u64,
    /// Highest known number of applied entries of the system group on any node of this cluster.
    pub(crate) applied: u64,
    /// Clusters that an operator gave up for this one.
    pub(crate) supersedes: Vec<u64>,
    /// The rival cluster for which this one stopped, until an operator decides.
    pub(crate) gave_way_to: Option<RivalCluster>,
}

impl ClusterStanding {
    /// Merges the claim of another node of this cluster. Returns whether it contained anything new.
    pub(crate) fn merge(&mut self, claim: &ClusterClaim) -> bool {
        let ClusterHistory { members, applied } = claim.history;
        let grown = members > self.members || applied > self.applied;
        self.members = self.members.max(members);
        self.applied = self.applied.max(applied);
        supersede(&mut self.supersedes, &claim.supersedes) || grown
    }

    /// Returns this node's claim about its cluster.
    pub(crate) fn claim(&self) -> ClusterClaim {
        ClusterClaim {
            history: ClusterHistory {
                members: self.members,
                applied: self.applied,
            },
            supersedes: self.supersedes.clone(),
        }
    }
}

impl PersistedState {
    /// Collects the state from the records of the log.
    pub(crate) fn find(
        records: &BTreeMap<Vec<u8>, Vec<u8>>,
    ) -> Result<PersistedState, IdentityError> {
        let mut peer_state = PersistedState::default();
        let mut node_records: BTreeMap<NodeId, NodeRecord> = BTreeMap::new();
        for (key, value) in records.iter().filter(|(_, value)| !value.is_empty()) {
            let name = std::str::from_utf8(key).unwrap_or_default();
            if key == LEGACY {
                let LegacyRecord {
                    node_records: old,
                    removed,
                } = read(value)?;
                peer_state.is_legacy = !old.is_empty() || !removed.is_empty();
                peer_state.removed.extend(removed);
                for node_record in old {
                    // A record under its own key is newer.
                    node_records
                        .entry(node_record.node())
                        .or_insert(node_record);
                }
            } else if name.starts_with(NODE_RECORD) {
                let node_record: NodeRecord = read(value)?;
                node_records.insert(node_record.node(), node_record);
            } else if name.starts_with(REMOVED) {
                let RemovedNodes(members) = read(value)?;
                peer_state.removed.extend(members);
            } else if key == STANDING {
                peer_state.standing = read(value)?;
            } else if key == STOPPED {
                peer_state.stopped = Some(String::from_utf8_lossy(value).into_owned());
            }
        }
        node_records.retain(|_, node_record| !peer_state.removed.contains(&node_record.member));
        peer_state.node_records = node_records.into_values().collect();
        let least = peer_state.node_records.len() as u64 + 1;
        peer_state.standing.members = peer_state.standing.members.max(least);
        Ok(peer_state)
    }

    /// Returns all records that replace the first release's record.
    pub(crate) fn items(&self) -> Vec<StateRecord> {
        let nodes: BTreeSet<NodeId> = self.removed.iter().map(|member| member.node).collect();
        let mut items: Vec<StateRecord> = self.node_records.iter().map(node_record).collect();
        items.extend(nodes.into_iter().map(|node| removed(node, &self.removed)));
        items.push(standing(&self.standing));
        // Written last: until then a crash leaves the old record in force.
        items.push((LEGACY.to_vec(), to_bytes(&LegacyRecord::default())));
        items
    }
}

fn read<T: Encode>(value: &[u8]) -> Result<T, IdentityError> {
    from_bytes(value).map_err(|error| IdentityError::Unreadable(error.to_string()))
}

/// Encodes a node record.
pub(crate) fn node_record(node_record: &NodeRecord) -> StateRecord {
    let key = format!("{NODE_RECORD}{}", node_record.node().number());
    (key.into_bytes(), to_bytes(node_record))
}

/// Encodes the absence of a node record. Records cannot be deleted; an empty one counts as none.
pub(crate) fn no_node_record(node: NodeId) -> StateRecord {
    (
        format!("{NODE_RECORD}{}", node.number()).into_bytes(),
        Vec::new(),
    )
}

/// Encodes the removed incarnations of a node.
pub(crate) fn removed(node: NodeId, all: &BTreeSet<ReplicaId>) -> StateRecord {
    let incarnations = all.iter().copied().filter(|member| member.node == node);
    let value = RemovedNodes(incarnations.take(MOST_INCARNATIONS).collect());
    let key = format!("{REMOVED}{}", node.number());
    (key.into_bytes(), to_bytes(&value))
}

/// Encodes what is known about the cluster as a whole.
pub(crate) fn standing(standing: &ClusterStanding) -> StateRecord {
    (STANDING.to_vec(), to_bytes(standing))
}

/// Encodes the record that prevents every later start on this data.
pub(crate) fn stopped(why: &str) -> StateRecord {
    (STOPPED.to_vec(), why.as_bytes().to_vec())
}

struct RemovedNodes(Vec<ReplicaId>);

impl Encode for RemovedNodes {
    fn put(&self, out: &mut Writer) {
        put_members(out, self.0.iter().copied());
    }

    fn take(input: &mut Reader<'_>) -> Result<RemovedNodes, DecodeError> {
        Ok(RemovedNodes(take_members(input)?))
    }
}

/// Record of the first release.
#[derive(Default)]
struct LegacyRecord {
    node_records: Vec<NodeRecord>,
    removed: Vec<ReplicaId>,
}

impl Encode for LegacyRecord {
    fn put(&self, out: &mut Writer) {
        out.list(&self.node_records);
        put_members(out, self.removed.iter().copied());
    }

    fn take(input: &mut Reader<'_>) -> Result<LegacyRecord, DecodeError> {
        Ok(LegacyRecord {
            node_records: input.list()?,
            removed: take_members(input)?,
        })
    }
}

impl Encode for ClusterStanding {
    fn put(&self, out: &mut Writer) {
        out.number(self.members);
        out.length(self.supersedes.len());
        for cluster in &self.supersedes {
            out.number(*cluster);
        }
        out.option(self.gave_way_to.as_ref());
        out.number(self.applied);
    }

    fn take(input: &mut Reader<'_>) -> Result<ClusterStanding, DecodeError> {
        let members = input.number()?;
        let count = input.length()?;
        if count > MOST_SUPERSEDED {
            return Err(DecodeError::Inconsistent(
                "too many clusters are superseded",
            ));
        }
        Ok(ClusterStanding {
            members,
            supersedes: (0..count)
                .map(|_| input.number())
                .collect::<Result<_, _>>()?,
            gave_way_to: input.option()?,
            applied: input.number()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::rival_cluster::RivalOutcome;
    use super::*;
    use crate::node_record::tests::node_record as short;

    /// Returns a node record with the longest possible names and addresses.
    fn long(node: u32) -> NodeRecord {
        NodeRecord {
            name: format!("{node:0>255}"),
            internal: format!("{node:i>255}"),
            gossip: format!("{node:g>255}"),
            public: format!("{node:p>255}"),
            ..short(node, 1)
        }
    }

    fn stored(items: Vec<StateRecord>) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut batch = tenure_log::Batch::new();
        for (key, value) in &items {
            // A record that the log refuses here would stop a node.
            batch.node(key, value).unwrap();
        }
        items.into_iter().collect()
    }

    #[test]
    fn the_cards_of_500_nodes_with_long_names_fit() {
        let peer_state = PersistedState {
            node_records: (2..=501).map(long).collect(),
            removed: (1..=2000)
                .map(|incarnation| short(600, incarnation).member)
                .collect(),
            standing: ClusterStanding {
                members: 900,
                applied: 77,
                supersedes: (1..=32).collect(),
                gave_way_to: Some(RivalCluster {
                    cluster: 4,
                    number: 1,
                    node: "x".repeat(600),
                    address: "x".repeat(255),
                    claim: Some(ClusterClaim {
                        supersedes: (1..=32).collect(),
                        ..ClusterClaim::default()
                    }),
                    verdict: RivalOutcome::GivesWay,
                }),
            },
            ..PersistedState::default()
        };
        let found = PersistedState::find(&stored(peer_state.items())).unwrap();
        assert_eq!(found.removed.len(), MOST_INCARNATIONS);
        let removed = peer_state.removed.clone();
        assert_eq!(PersistedState { removed, ..found }, peer_state);
    }

    /// A node that has just joined or started claims no less than it has heard: a shorter claim
    /// would make the whole cluster stop for another one.
    #[test]
    fn what_was_heard_of_the_history_is_claimed_after_a_restart() {
        let heard = ClusterClaim {
            history: ClusterHistory {
                members: 5,
                applied: 900,
            },
            supersedes: vec![3],
        };
        let mut joined = ClusterStanding {
            members: 1,
            ..ClusterStanding::default()
        };
        assert!(joined.merge(&heard));
        assert!(!joined.merge(&heard), "no news");
        assert!(!joined.merge(&ClusterClaim::default()), "less is no news");
        let peer_state = PersistedState::find(&stored(vec![standing(&joined)])).unwrap();
        assert_eq!(peer_state.standing.claim(), heard);
    }

    #[test]
    fn the_first_releases_record_is_read_and_replaced() {
        let legacy = LegacyRecord {
            node_records: vec![short(2, 1), short(3, 1), short(4, 1)],
            removed: vec![short(4, 1).member],
        };
        let mut records = stored(vec![(LEGACY.to_vec(), to_bytes(&legacy))]);
        let newer = NodeRecord {
            start: 9,
            ..short(3, 1)
        };
        records.extend([node_record(&newer)]);
        let peer_state = PersistedState::find(&records).unwrap();
        assert!(peer_state.is_legacy);
        assert_eq!(peer_state.node_records, [short(2, 1), newer]);
        assert_eq!(peer_state.standing.members, 3);
        records.extend(peer_state.items());
        let again = PersistedState::find(&records).unwrap();
        let is_legacy = false;
        assert_eq!(
            again,
            PersistedState {
                is_legacy,
                ..peer_state
            }
        );
        records.extend([no_node_record(short(2, 1).node())]);
        assert_eq!(
            PersistedState::find(&records).unwrap().node_records.len(),
            1
        );
        records.insert(STANDING.to_vec(), vec![1, 2, 3]);
        assert!(PersistedState::find(&records).is_err());
    }
}
