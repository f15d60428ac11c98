//! Gossiped node record: identity and addresses of one node.
//!
//! Records are hints. A node proves its identity in the handshake before it gets any data, so a
//! wrong or outdated record costs one connection attempt and nothing else.

use tenure_core::codec::{DecodeError, Encode, Reader, Writer};
use tenure_node::{NodeId, ReplicaId};

/// Maximum length of a name or an address.
const MAX_ADDRESS: usize = 255;

/// What a node gossips about itself. See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeRecord {
    /// Node number and incarnation.
    pub(crate) member: ReplicaId,
    /// Orders the incarnations of a node number: the one with the latest birth is current. It is
    /// the wall clock at the creation of the data directory, or later: a joining node dates it
    /// after every incarnation of its number that the cluster knows (`peers/incarnations.rs`), so
    /// the order does not depend on clocks.
    pub(crate) born_ms: u64,
    /// Number of starts of the node; then the number of changes of its record since the last start.
    pub(crate) start: u64,
    pub(crate) revision: u64,
    /// Name given by the operator.
    pub(crate) name: String,
    /// Address for peers, `host:port`.
    pub(crate) internal: String,
    /// Address for gossip.
    pub(crate) gossip: String,
    /// Address for clients.
    pub(crate) public: String,
    /// Whether the node gives its replicas away (R166 (draining a node)).
    pub(crate) draining: bool,
}

impl NodeRecord {
    /// Returns the node number.
    pub(crate) fn node(&self) -> NodeId {
        self.member.node
    }

    /// Returns whether this record replaces `other`, a record of the same node.
    pub(crate) fn is_newer_than(&self, other: &NodeRecord) -> bool {
        let age = |node_record: &NodeRecord| {
            (
                node_record.born_ms,
                node_record.member.incarnation,
                node_record.start,
                node_record.revision,
            )
        };
        age(self) > age(other)
    }
}

impl Encode for NodeRecord {
    fn put(&self, out: &mut Writer) {
        out.number(self.member.pack());
        out.number(self.born_ms);
        out.number(self.start);
        out.number(self.revision);
        out.text(&self.name);
        out.text(&self.internal);
        out.text(&self.gossip);
        out.text(&self.public);
        out.byte(u8::from(self.draining));
    }

    fn take(input: &mut Reader<'_>) -> Result<NodeRecord, DecodeError> {
        let member = ReplicaId::unpack(input.number()?).ok_or(DecodeError::Number)?;
        let (born_ms, start, revision) = (input.number()?, input.number()?, input.number()?);
        let mut address = || {
            let text = input.text()?;
            if text.len() > MAX_ADDRESS {
                return Err(DecodeError::Inconsistent(
                    "a name or an address is too long",
                ));
            }
            Ok(text.to_owned())
        };
        let (name, internal) = (address()?, address()?);
        let (gossip, public) = (address()?, address()?);
        let draining = match input.byte()? {
            0 => false,
            1 => true,
            found => {
                return Err(DecodeError::Tag {
                    of: "drain mark",
                    found,
                });
            }
        };
        Ok(NodeRecord {
            member,
            born_ms,
            start,
            revision,
            name,
            internal,
            gossip,
            public,
            draining,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn node_record(node: u32, incarnation: u32) -> NodeRecord {
        NodeRecord {
            member: ReplicaId::new(NodeId::new(node).unwrap(), incarnation),
            born_ms: 1,
            start: 1,
            revision: 0,
            name: format!("node-{}", node - 1),
            internal: format!("10.0.0.{node}:50052"),
            gossip: format!("10.0.0.{node}:7946"),
            public: format!("http://10.0.0.{node}:50051"),
            draining: false,
        }
    }

    #[test]
    fn it_comes_back_as_it_was_written() {
        let mut out = Writer::new();
        node_record(3, 9).put(&mut out);
        let bytes = out.into_bytes();
        let mut input = Reader::new(&bytes);
        assert_eq!(NodeRecord::take(&mut input), Ok(node_record(3, 9)));
        for end in 0..bytes.len() {
            assert!(NodeRecord::take(&mut Reader::new(&bytes[..end])).is_err());
        }
    }

    /// R162 (node ids): a node may change all its addresses; the record of its latest start is
    /// current.
    #[test]
    fn the_later_start_counts() {
        let old = node_record(1, 7);
        let moved = NodeRecord {
            start: 2,
            internal: "elsewhere:1".into(),
            ..old.clone()
        };
        assert!(moved.is_newer_than(&old) && !old.is_newer_than(&moved));
        let wiped = NodeRecord {
            born_ms: 2,
            start: 1,
            ..node_record(1, 3)
        };
        assert!(wiped.is_newer_than(&moved) && !moved.is_newer_than(&wiped));
        assert!(!old.is_newer_than(&old));
    }
}
