//! What meshes say to each other beside the frames of their nodes.

use std::collections::BTreeMap;

use tenure_core::codec::{DecodeError, Reader, Record, Writer, from_bytes};
use tenure_node::Member;

use crate::card::Card;
use crate::identity::IdentityError;
use crate::report::Report;

/// One thing to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Talk {
    /// These nodes are there.
    Cards(Vec<Card>),
    /// These lives are over, by an operator's order.
    Removed(Vec<Member>),
    /// Give your replicas away, or stop doing so (R166).
    Drain(bool),
    /// How are your replicas?
    Ask(u64),
    /// The answer to it.
    Told(u64, Report),
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
            _ => return Ok(None),
        };
        input.finish()?;
        Ok(Some(talk))
    }
}

pub(crate) fn put_members(out: &mut Writer, members: impl ExactSizeIterator<Item = Member>) {
    out.length(members.len());
    for member in members {
        out.number(member.pack());
    }
}

pub(crate) fn take_members(input: &mut Reader<'_>) -> Result<Vec<Member>, DecodeError> {
    let count = input.length()?;
    (0..count)
        .map(|_| Member::unpack(input.number()?).ok_or(DecodeError::Number))
        .collect()
}

/// What a node remembers of the others between its starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Remembered {
    pub(crate) cards: Vec<Card>,
    pub(crate) removed: Vec<Member>,
}

impl Remembered {
    /// Where the log keeps it.
    pub(crate) const KEY: &'static [u8] = b"peers";

    /// What the log holds of it.
    pub(crate) fn find(records: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<Remembered, IdentityError> {
        let Some(bytes) = records.get(Remembered::KEY) else {
            return Ok(Remembered::default());
        };
        from_bytes(bytes).map_err(|error| IdentityError::Unreadable(error.to_string()))
    }
}

impl Record for Remembered {
    fn put(&self, out: &mut Writer) {
        out.list(&self.cards);
        put_members(out, self.removed.iter().copied());
    }

    fn take(input: &mut Reader<'_>) -> Result<Remembered, DecodeError> {
        Ok(Remembered {
            cards: input.list()?,
            removed: take_members(input)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::card::tests::card;
    use crate::report::GroupReport;
    use tenure_core::codec::to_bytes;

    #[test]
    fn what_is_said_is_heard() {
        let members = vec![card(1, 2).member, card(9, 1).member];
        let group = GroupReport {
            group: 3,
            leads: true,
            term: 4,
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
            groups: vec![group],
        };
        for talk in [
            Talk::Cards(vec![card(1, 2), card(3, 4)]),
            Talk::Removed(members.clone()),
            Talk::Drain(true),
            Talk::Ask(7),
            Talk::Told(7, report),
        ] {
            let bytes = talk.to_bytes();
            assert_eq!(Talk::from_bytes(&bytes), Ok(Some(talk)));
            for end in 0..bytes.len() {
                assert!(Talk::from_bytes(&bytes[..end]).is_err());
            }
        }
        assert_eq!(Talk::from_bytes(&[200, 1, 2]), Ok(None));
        let remembered = Remembered {
            cards: vec![card(4, 4)],
            removed: members,
        };
        assert_eq!(from_bytes(&to_bytes(&remembered)), Ok(remembered));
    }
}
