//! Placement by rendezvous hashing: namespace to group, and group to nodes (R160: groups and
//! placement).
//!
//! These functions must never change their results: every node and every release must agree on them
//! for the lifetime of a cluster.

use tenure_core::path::Namespace;
use xxhash_rust::xxh3::xxh3_64;

use crate::{GroupId, NodeId};

/// The group that decides a namespace: the one of highest weight, the lowest on a tie.
pub fn group_of(namespace: &Namespace, group_count: u32) -> GroupId {
    let mut bytes = vec![0; 8];
    bytes.extend_from_slice(namespace.as_str().as_bytes());
    let mut best = (0, 0);
    for group in 0..group_count {
        bytes[..8].copy_from_slice(&u64::from(group).to_le_bytes());
        let weight = xxh3_64(&bytes);
        if group == 0 || weight > best.0 {
            best = (weight, group);
        }
    }
    GroupId(best.1)
}

/// The nodes that should replicate a group, the preferred leader first.
pub fn voters_of(group: GroupId, nodes: &[NodeId], replicas: usize) -> Vec<NodeId> {
    let mut ranked: Vec<(u64, NodeId)> = nodes
        .iter()
        .map(|node| {
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&u64::from(group.0).to_le_bytes());
            bytes[8..].copy_from_slice(&u64::from(node.number()).to_le_bytes());
            (xxh3_64(&bytes), *node)
        })
        .collect();
    ranked.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
    ranked.dedup();
    ranked.truncate(replicas);
    ranked.into_iter().map(|(_, node)| node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(count: u32) -> Vec<NodeId> {
        (1..=count).filter_map(NodeId::new).collect()
    }

    /// R160: computed with another implementation of XXH3; a cluster's data stands on these.
    #[test]
    fn placement_never_changes() {
        let groups = ["t:/a", "tenant:/acme", "h", "vol:/x"]
            .map(|name| group_of(&Namespace::parse(name).unwrap(), 256).0);
        assert_eq!(groups, [106, 37, 16, 174]);
        let voters = [0, 1, 2, 3].map(|group| {
            let ranked = voters_of(GroupId(group), &nodes(5), 3);
            [ranked[0].number(), ranked[1].number(), ranked[2].number()]
        });
        assert_eq!(voters, [[4, 5, 3], [5, 3, 1], [4, 1, 3], [5, 4, 2]]);
    }

    #[test]
    fn every_group_gets_its_share() {
        let mut shares = [0u32; 16];
        for number in 0..4_000 {
            let name = Namespace::parse(&format!("t:/{number}")).unwrap();
            shares[group_of(&name, 16).0 as usize] += 1;
        }
        assert!(shares.iter().all(|share| (150..350).contains(share)));
    }

    #[test]
    fn a_node_that_leaves_moves_only_its_own_replicas() {
        for group in (0..256).map(GroupId) {
            let with = voters_of(group, &nodes(5), 3);
            let without: Vec<NodeId> = nodes(4);
            let after = voters_of(group, &without, 3);
            let kept = with.iter().filter(|node| after.contains(node)).count();
            let lost = usize::from(with.contains(&NodeId::new(5).unwrap()));
            assert_eq!(kept, 3 - lost);
        }
    }
}
