//! Interning of replica identities as the 64-bit ids of the Raft library.
//!
//! The library identifies a replica by 64 bits, an identity has 128. The ids never leave the memory
//! of one replica: messages, votes and memberships carry identities on the wire and on disk. So the
//! mapping only has to be injective within one replica of one process.
//!
//! It is injective: an identity with replica number 0 maps to node and incarnation in one id, which
//! is at least 2^32 because a node id is not zero. Every other identity gets the next id, counted
//! from 1, and keeps it; 2^32 of them do not fit in memory. A group mentions one identity per
//! addition, so the table does not outgrow the log entries that caused it.

use std::collections::BTreeMap;

use crate::ReplicaId;

/// The mapping between replica identities and the library's ids.
#[derive(Clone, Debug, Default)]
pub(super) struct IdInterner {
    numbered: BTreeMap<ReplicaId, u64>,
    /// The identity with the number `n` is at `n - 1`.
    members: Vec<ReplicaId>,
}

impl IdInterner {
    /// The library's number of a replica.
    pub(super) fn id(&mut self, member: ReplicaId) -> u64 {
        if let Some(id) = self.known(member) {
            return id;
        }
        self.members.push(member);
        let id = self.members.len() as u64;
        self.numbered.insert(member, id);
        id
    }

    /// The same, if this replica was mentioned before.
    pub(super) fn known(&self, member: ReplicaId) -> Option<u64> {
        if member.replica == 0 {
            return Some(member.pack());
        }
        self.numbered.get(&member).copied()
    }

    /// The replica that has this number.
    pub(super) fn member(&self, id: u64) -> Option<ReplicaId> {
        if id >> 32 != 0 {
            return ReplicaId::unpack(id);
        }
        let at = usize::try_from(id.checked_sub(1)?).ok()?;
        self.members.get(at).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeId;

    /// Different identities have different numbers, and each number leads back to its identity.
    #[test]
    fn numbers_and_identities_are_one_to_one() {
        let mut ids = IdInterner::default();
        let mut seen = BTreeMap::new();
        for round in 0..3 {
            for node in 1..4 {
                for incarnation in [0, 1, u32::MAX] {
                    for replica in [0, 1, 2, u64::from(u32::MAX) + 7, u64::MAX] {
                        let node = NodeId::new(node).unwrap();
                        let member = ReplicaId::new(node, incarnation).numbered(replica);
                        let id = ids.id(member);
                        assert_eq!(ids.member(id), Some(member));
                        let before = seen.insert(id, member);
                        assert_eq!(before.is_some(), round > 0, "{member} has {id}");
                        assert!(before.is_none_or(|before| before == member));
                    }
                }
            }
        }
        assert_eq!(ids.member(0), None, "0 is the library's number for no node");
        assert_eq!(ids.member(4_000_000), None);
    }
}
