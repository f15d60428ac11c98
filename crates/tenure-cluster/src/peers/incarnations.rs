//! The lives of one node number, and which of them counts.
//!
//! A node with an empty disk draws a new life. Its number must then stand for that life only: a volume of
//! an earlier life, or an older copy of the present one, has forgotten what its node has voted and
//! answered since. No clock decides. A node that has no cluster yet has voted in none, so it is a new life
//! whatever its clock says, and it dates its birth after every life that the cluster knows of its number.
//! Each start of a life is counted durably before the node says anything, so a copy from before the last
//! known start shows itself by a lower count.

use tenure_core::codec::{DecodeError, Encode, Reader, Writer};

use super::hello::Refusal;
use crate::card::Card;

/// The newest life of a node number that is known somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) incarnation: u32,
    pub(crate) born_ms: u64,
    pub(crate) start: u64,
}

/// Whether a node belongs to a cluster already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Belongs {
    Yes,
    NotYet,
}

impl Belongs {
    pub(crate) fn of(cluster: Option<u64>) -> Belongs {
        if cluster.is_some() {
            Belongs::Yes
        } else {
            Belongs::NotYet
        }
    }
}

/// What a node is, compared with the newest life that is known of its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Succession {
    /// That life, or a later one.
    Current,
    /// A new life whose birth is dated too early: it must be dated after this.
    New { after_ms: u64 },
    /// An earlier life.
    Earlier,
    /// That life, from a copy of its data that was made before start number `known`.
    OlderCopy { known: u64 },
}

impl Mark {
    pub(crate) fn of(card: &Card) -> Mark {
        Mark {
            incarnation: card.member.incarnation,
            born_ms: card.born_ms,
            start: card.start,
        }
    }

    /// What a node with this card is, if this is the newest known life of its number.
    pub(crate) fn compare(&self, card: &Card, belongs: Belongs) -> Succession {
        let theirs = Mark::of(card);
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
            Belongs::Yes => Succession::Earlier,
            Belongs::NotYet => Succession::New {
                after_ms: self.born_ms,
            },
        }
    }

    /// Why a node with this card may not take part, if it may not.
    pub(crate) fn check(&self, card: &Card, belongs: Belongs) -> Result<(), Refusal> {
        let node = card.node().number();
        match self.compare(card, belongs) {
            Succession::Current | Succession::New { .. } => Ok(()),
            Succession::Earlier => Err(Refusal::EarlierLife(node)),
            Succession::OlderCopy { known } => Err(Refusal::OlderCopy {
                node,
                start: card.start,
                known,
            }),
        }
    }
}

impl Encode for Mark {
    fn put(&self, out: &mut Writer) {
        out.number(u64::from(self.incarnation));
        out.number(self.born_ms);
        out.number(self.start);
    }

    fn take(input: &mut Reader<'_>) -> Result<Mark, DecodeError> {
        Ok(Mark {
            incarnation: input.small()?,
            born_ms: input.number()?,
            start: input.number()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::card::tests::card;

    #[test]
    fn which_life_counts() {
        let known = Card {
            born_ms: 100,
            start: 5,
            ..card(2, 7)
        };
        let mark = Mark::of(&known);
        let with = |incarnation, born_ms, start| Card {
            born_ms,
            start,
            ..card(2, incarnation)
        };
        for belongs in [Belongs::Yes, Belongs::NotYet] {
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
        assert_eq!(mark.compare(&earlier, Belongs::Yes), Succession::Earlier);
        let new = Succession::New { after_ms: 100 };
        assert_eq!(mark.compare(&earlier, Belongs::NotYet), new);
        for (refused, belongs) in [(with(7, 100, 4), Belongs::NotYet), (earlier, Belongs::Yes)] {
            let why = mark.check(&refused, belongs).unwrap_err().to_string();
            assert!(why.contains("tenure cluster rejoin"), "{why}");
        }
    }
}
