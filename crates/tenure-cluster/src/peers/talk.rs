//! What meshes say to each other beside the frames of their nodes.

use tenure_core::codec::{DecodeError, Reader, Writer};
use tenure_node::ReplicaId;

use super::rival::{Claim, Rival};
use crate::card::Card;
use crate::report::{Edition, Report};

/// One thing to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Talk {
    /// These nodes are there.
    Cards(Vec<Card>),
    /// These lives are over, by an operator's order.
    Removed(Vec<ReplicaId>),
    /// Give your replicas away, or stop doing so (R166).
    Drain(bool),
    /// How are your replicas?
    Ask(u64),
    /// The answer to it.
    Told(u64, Report),
    /// What belongs to the answer that follows, and release 0.1.0 does not understand.
    Edition(u64, Edition),
    /// How long our cluster has been there, and which others it supersedes. (Not in the first release.)
    Claim(Claim),
    /// Another cluster has our token. (Not in the first release.)
    Rival(Rival),
}

impl Talk {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Writer::new();
        match self {
            Talk::Cards(cards) => {
                out.byte(1);
                out.list(cards);
            }
            Talk::Removed(members) => {
                out.byte(2);
                put_members(&mut out, members.iter().copied());
            }
            Talk::Drain(wanted) => {
                out.byte(3);
                out.byte(u8::from(*wanted));
            }
            Talk::Ask(id) => {
                out.byte(4);
                out.number(*id);
            }
            Talk::Told(id, report) => {
                out.byte(5);
                out.number(*id);
                out.put(report);
            }
            Talk::Edition(id, edition) => {
                out.byte(8);
                out.number(*id);
                out.put(edition);
            }
            Talk::Claim(claim) => {
                out.byte(6);
                out.put(claim);
            }
            Talk::Rival(rival) => {
                out.byte(7);
                out.put(rival);
            }
        }
        out.into_bytes()
    }

    /// What was said; nothing, if only a later release would understand it.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Option<Talk>, DecodeError> {
        let mut input = Reader::new(bytes);
        let talk = match input.byte()? {
            1 => Talk::Cards(input.list()?),
            2 => Talk::Removed(take_members(&mut input)?),
            3 => Talk::Drain(input.byte()? != 0),
            4 => Talk::Ask(input.number()?),
            5 => Talk::Told(input.number()?, input.take()?),
            6 => Talk::Claim(input.take()?),
            7 => Talk::Rival(input.take()?),
            8 => Talk::Edition(input.number()?, input.take()?),
            _ => return Ok(None),
        };
        input.finish()?;
        Ok(Some(talk))
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
    use crate::card::tests::card;
    use crate::peers::rival::{History, Verdict};
    use crate::report::GroupReport;

    #[test]
    fn what_is_said_is_heard() {
        let members = vec![card(1, 2).member, card(9, 1).member];
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
        let report = Report {
            member: members[0],
            release: String::new(),
            rules: 0,
            groups: vec![group],
        };
        for talk in [
            Talk::Cards(vec![card(1, 2), card(3, 4)]),
            Talk::Removed(members.clone()),
            Talk::Drain(true),
            Talk::Ask(7),
            Talk::Told(7, report),
            Talk::Edition(
                7,
                Edition {
                    member: members[1],
                    release: "1.2.3".to_owned(),
                    rules: 2,
                    groups: vec![(0, 1), (3, 2)],
                },
            ),
            Talk::Claim(Claim {
                history: History {
                    members: 4,
                    applied: 1 << 40,
                },
                supersedes: vec![1, u64::MAX],
            }),
            Talk::Rival(Rival {
                cluster: 9,
                number: 1,
                node: "tenure-0".to_owned(),
                address: "10.0.0.1:50052".to_owned(),
                claim: Some(Claim::default()),
                verdict: Verdict::Undecided,
            }),
        ] {
            let bytes = talk.to_bytes();
            assert_eq!(Talk::from_bytes(&bytes), Ok(Some(talk)));
            for end in 0..bytes.len() {
                assert!(Talk::from_bytes(&bytes[..end]).is_err());
            }
        }
        assert_eq!(Talk::from_bytes(&[200, 1, 2]), Ok(None));
    }
}
