//! Incarnation check: which incarnation of a node id is current.
//!
//! A node with an empty disk draws a new incarnation. From then on its id stands for that
//! incarnation only: the data of an earlier incarnation, or an older copy of the current data, does
//! not contain the node's latest votes and acknowledgements.
//!
//! Incarnations are ordered by their time of birth, but a wrong clock is harmless. A node without a
//! cluster has never voted, so it counts as new, and it dates its birth after every incarnation of
//! its id that the cluster knows. A member counts each start durably before it sends anything, so a
//! copy from before the last known start has a lower count.

use tenure_core::codec::{DecodeError, Encode, Reader, Writer};

use super::handshake::HandshakeRefusal;
use crate::node_record::NodeRecord;

/// The newest incarnation of a node number that some node knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IncarnationMark {
    pub(crate) incarnation: u32,
    pub(crate) born_ms: u64,
    pub(crate) start: u64,
}

/// Whether a node already belongs to a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BelongsToCluster {
    Yes,
    NotYet,
}

impl BelongsToCluster {
    pub(crate) fn of(cluster: Option<u64>) -> BelongsToCluster {
        if cluster.is_some() {
            BelongsToCluster::Yes
        } else {
            BelongsToCluster::NotYet
        }
    }
}

/// Result of comparing a node with the newest known incarnation of its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Succession {
    /// That incarnation or a later one.
    Current,
    /// A new incarnation whose birth is dated too early: it must be later than this.
    New { after_ms: u64 },
    /// An earlier incarnation.
    Earlier,
    /// That incarnation, but on a copy of its data from before start number `known`.
    OlderCopy { known: u64 },
}

impl IncarnationMark {
    pub(crate) fn of(node_record: &NodeRecord) -> IncarnationMark {
        IncarnationMark {
            incarnation: node_record.member.incarnation,
            born_ms: node_record.born_ms,
            start: node_record.start,
        }
    }

    /// Compares a node with `self`, the newest known incarnation of its number.
    pub(crate) fn compare(
        &self,
        node_record: &NodeRecord,
        belongs: BelongsToCluster,
    ) -> Succession {
        let theirs = IncarnationMark::of(node_record);
        if theirs.incarnation == self.incarnation {
            return if theirs.start < self.start {
                Succession::OlderCopy { known: self.start }
            } else {
                Succession::Current
            };
        }
        let is_later = (theirs.born_ms, theirs.incarnation) > (self.born_ms, self.incarnation);
        match belongs {
            _ if is_later => Succession::Current,
            BelongsToCluster::Yes => Succession::Earlier,
            BelongsToCluster::NotYet => Succession::New {
                after_ms: self.born_ms,
            },
        }
    }

    /// Checks whether a node with this record may take part. Returns the reason if not.
    pub(crate) fn check(
        &self,
        node_record: &NodeRecord,
        belongs: BelongsToCluster,
    ) -> Result<(), HandshakeRefusal> {
        let node = node_record.node().number();
        match self.compare(node_record, belongs) {
            Succession::Current | Succession::New { .. } => Ok(()),
            Succession::Earlier => Err(HandshakeRefusal::EarlierLife(node)),
            Succession::OlderCopy { known } => Err(HandshakeRefusal::OlderCopy {
                node,
                start: node_record.start,
                known,
            }),
        }
    }
}

impl Encode for IncarnationMark {
    fn put(&self, out: &mut Writer) {
        out.number(u64::from(self.incarnation));
        out.number(self.born_ms);
        out.number(self.start);
    }

    fn take(input: &mut Reader<'_>) -> Result<IncarnationMark, DecodeError> {
        Ok(IncarnationMark {
            incarnation: input.small()?,
            born_ms: input.number()?,
            start: input.number()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_record::tests::node_record;

    #[test]
    fn which_life_counts() {
        let known = NodeRecord {
            born_ms: 100,
            start: 5,
            ..node_record(2, 7)
        };
        let mark = IncarnationMark::of(&known);
        let with = |incarnation, born_ms, start| NodeRecord {
            born_ms,
            start,
            ..node_record(2, incarnation)
        };
        for belongs in [BelongsToCluster::Yes, BelongsToCluster::NotYet] {
            for (incarnation, born_ms, start, expected) in [
                (7, 100, 5, Succession::Current),
                (7, 100, 6, Succession::Current),
                (7, 100, 4, Succession::OlderCopy { known: 5 }),
                (8, 101, 1, Succession::Current),
                (8, 100, 1, Succession::Current),
            ] {
                let found = mark.compare(&with(incarnation, born_ms, start), belongs);
                assert_eq!(found, expected, "{incarnation} {born_ms} {start}");
            }
        }
        let earlier = with(8, 99, 9);
        assert_eq!(
            mark.compare(&earlier, BelongsToCluster::Yes),
            Succession::Earlier
        );
        let new = Succession::New { after_ms: 100 };
        assert_eq!(mark.compare(&earlier, BelongsToCluster::NotYet), new);
        for (refused, belongs) in [
            (with(7, 100, 4), BelongsToCluster::NotYet),
            (earlier, BelongsToCluster::Yes),
        ] {
            let why = mark.check(&refused, belongs).unwrap_err().to_string();
            assert!(why.contains("tenure cluster rejoin"), "{why}");
        }
    }
}
