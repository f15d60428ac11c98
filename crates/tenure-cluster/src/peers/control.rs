//! Control messages between two registries: node records, removals, draining, status, rivals.

use tenure_core::codec::{DecodeError, Reader, Writer};
use tenure_node::ReplicaId;

use super::rival_cluster::{ClusterClaim, RivalCluster};
use crate::node_record::NodeRecord;
use crate::status_report::{Edition, NodeReport};

/// A control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ControlMessage {
    /// Records of known nodes.
    NodeRecords(Vec<NodeRecord>),
    /// Incarnations that an operator has removed.
    Removed(Vec<ReplicaId>),
    /// Give your replicas away, or stop doing so (R166 (draining a node)).
    Drain(bool),
    /// Request for a status report.
    Ask(u64),
    /// Answer to a status request.
    Told(u64, NodeReport),
    /// The part of the following report that release 0.1.0 cannot decode.
    Edition(u64, Edition),
    /// History of our cluster and the clusters that it supersedes. (Not in the first release.)
    Claim(ClusterClaim),
    /// Another cluster has our token. (Not in the first release.)
    Rival(RivalCluster),
}

impl ControlMessage {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Writer::new();
        match self {
            ControlMessage::NodeRecords(node_records) => {
                out.byte(1);
                out.list(node_records);
            }
            ControlMessage::Removed(members) => {
                out.byte(2);
                put_members(&mut out, members.iter().copied());
            }
            ControlMessage::Drain(wanted) => {
                out.byte(3);
                out.byte(u8::from(*wanted));
            }
            ControlMessage::Ask(id) => {
                out.byte(4);
                out.number(*id);
            }
            ControlMessage::Told(id, report) => {
                out.byte(5);
                out.number(*id);
                out.put(report);
            }
            ControlMessage::Edition(id, edition) => {
                out.byte(8);
                out.number(*id);
                out.put(edition);
            }
            ControlMessage::Claim(claim) => {
                out.byte(6);
                out.put(claim);
            }
            ControlMessage::Rival(rival) => {
                out.byte(7);
                out.put(rival);
            }
        }
        out.into_bytes()
    }

    /// Decodes a message. `None`: only a later release knows this kind.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Option<ControlMessage>, DecodeError> {
        let mut input = Reader::new(bytes);
        let control = match input.byte()? {
            1 => ControlMessage::NodeRecords(input.list()?),
            2 => ControlMessage::Removed(take_members(&mut input)?),
            3 => ControlMessage::Drain(input.byte()? != 0),
            4 => ControlMessage::Ask(input.number()?),
            5 => ControlMessage::Told(input.number()?, input.take()?),
            6 => ControlMessage::Claim(input.take()?),
            7 => ControlMessage::Rival(input.take()?),
            8 => ControlMessage::Edition(input.number()?, input.take()?),
            _ => return Ok(None),
        };
        input.finish()?;
        Ok(Some(control))
    }
}

pub(crate) fn put_members(out: &mut Writer, members: impl ExactSizeIterator<Item = ReplicaId>) {
    out.length(members.len());
    for member in members {
        out.number(member.pack());
    }
}

pub(crate) fn take_members(input: &mut Reader<'_>) -> Result<Vec<ReplicaId>, DecodeError> {
    let count = input.length()?;
    (0..count)
        .map(|_| ReplicaId::unpack(input.number()?).ok_or(DecodeError::Number))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_record::tests::node_record;
    use crate::peers::rival_cluster::{ClusterHistory, RivalOutcome};
    use crate::status_report::GroupReport;

    #[test]
    fn what_is_said_is_heard() {
        let members = vec![node_record(1, 2).member, node_record(9, 1).member];
        let group = GroupReport {
            group: 3,
            leads: true,
            term: 4,
            rules: 0,
            applied: 5,
            voters: members.clone(),
            learners: Vec::new(),
            changing: true,
            lag: 6,
            holds: 7,
            waiters: 8,
        };
        let report = NodeReport {
            member: members[0],
            release: String::new(),
            rules: 0,
            groups: vec![group],
        };
        for control in [
            ControlMessage::NodeRecords(vec![node_record(1, 2), node_record(3, 4)]),
            ControlMessage::Removed(members.clone()),
            ControlMessage::Drain(true),
            ControlMessage::Ask(7),
            ControlMessage::Told(7, report),
            ControlMessage::Edition(
                7,
                Edition {
                    member: members[1],
                    release: "1.2.3".to_owned(),
                    rules: 2,
                    groups: vec![(0, 1), (3, 2)],
                },
            ),
            ControlMessage::Claim(ClusterClaim {
                history: ClusterHistory {
                    members: 4,
                    applied: 1 << 40,
                },
                supersedes: vec![1, u64::MAX],
            }),
            ControlMessage::Rival(RivalCluster {
                cluster: 9,
                number: 1,
                node: "tenure-0".to_owned(),
                address: "10.0.0.1:50052".to_owned(),
                claim: Some(ClusterClaim::default()),
                verdict: RivalOutcome::Undecided,
            }),
        ] {
            let bytes = control.to_bytes();
            assert_eq!(ControlMessage::from_bytes(&bytes), Ok(Some(control)));
            for end in 0..bytes.len() {
                assert!(ControlMessage::from_bytes(&bytes[..end]).is_err());
            }
        }
        assert_eq!(ControlMessage::from_bytes(&[200, 1, 2]), Ok(None));
    }
}
