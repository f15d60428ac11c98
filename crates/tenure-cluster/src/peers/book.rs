//! What a node remembers of its cluster between starts: one record of its log for each card.
//!
//! A record holds 64 KiB at most and the log fails at a longer one, which stops the node. Names and
//! addresses are up to 255 bytes each, so the cards of a few dozen nodes would not fit into one.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::codec::{DecodeError, Encode, Reader, Writer, from_bytes, to_bytes};
use tenure_node::{NodeId, ReplicaId};

use super::rival::{Claim, History, MOST_SUPERSEDED, Rival, supersede};
use super::talk::{put_members, take_members};
use crate::card::Card;
use crate::identity::IdentityError;

/// Where the first release kept all cards and removals in one record.
const LEGACY: &[u8] = b"peers";
const CARD: &str = "peer/";
const REMOVED: &str = "removed/";
const STANDING: &[u8] = b"standing";
const STOPPED: &[u8] = b"stopped";
/// Removals that are remembered of one node number. A life is drawn at random, so one that was
/// forgotten does not come back by chance.
const MOST_LIVES: usize = 1024;

/// A record for the log: key and value.
pub(crate) type Item = (Vec<u8>, Vec<u8>);

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Book {
    pub(crate) cards: Vec<Card>,
    pub(crate) removed: BTreeSet<ReplicaId>,
    pub(crate) standing: Standing,
    /// Why no node may be started on this data, if none may.
    pub(crate) stopped: Option<String>,
    /// Whether some of it is in the first release's record and has to be written anew.
    pub(crate) is_legacy: bool,
}

/// What a node knows of its cluster as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Members that were ever seen, this node included.
    pub(crate) members: u64,
    /// The most entries of the system group that are known to be applied anywhere in this cluster.
    pub(crate) applied: u64,
    /// Clusters that an operator gave up for this one.
    pub(crate) supersedes: Vec<u64>,
    /// The cluster that this one gave way to, until an operator decides.
    pub(crate) gave_way_to: Option<Rival>,
}

impl Standing {
    /// Takes in what another node of this cluster knows of it. Says whether that was news.
    pub(crate) fn merge(&mut self, claim: &Claim) -> bool {
        let History { members, applied } = claim.history;
        let grown = members > self.members || applied > self.applied;
        self.members = self.members.max(members);
        self.applied = self.applied.max(applied);
        supersede(&mut self.supersedes, &claim.supersedes) || grown
    }

    /// What this node says of its cluster.
    pub(crate) fn claim(&self) -> Claim {
        Claim {
            history: History {
                members: self.members,
                applied: self.applied,
            },
            supersedes: self.supersedes.clone(),
        }
    }
}

impl Book {
    /// What the log holds of it.
    pub(crate) fn find(records: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<Book, IdentityError> {
        let mut book = Book::default();
        let mut cards: BTreeMap<NodeId, Card> = BTreeMap::new();
        for (key, value) in records.iter().filter(|(_, value)| !value.is_empty()) {
            let name = std::str::from_utf8(key).unwrap_or_default();
            if key == LEGACY {
                let Legacy {
                    cards: old,
                    removed,
                } = read(value)?;
                book.is_legacy = !old.is_empty() || !removed.is_empty();
                book.removed.extend(removed);
                for card in old {
                    // A record of its own is written later.
                    cards.entry(card.node()).or_insert(card);
                }
            } else if name.starts_with(CARD) {
                let card: Card = read(value)?;
                cards.insert(card.node(), card);
            } else if name.starts_with(REMOVED) {
                let Removed(members) = read(value)?;
                book.removed.extend(members);
            } else if key == STANDING {
                book.standing = read(value)?;
            } else if key == STOPPED {
                book.stopped = Some(String::from_utf8_lossy(value).into_owned());
            }
        }
        cards.retain(|_, card| !book.removed.contains(&card.member));
        book.cards = cards.into_values().collect();
        let least = book.cards.len() as u64 + 1;
        book.standing.members = book.standing.members.max(least);
        Ok(book)
    }

    /// Everything, in place of the first release's record.
    pub(crate) fn items(&self) -> Vec<Item> {
        let nodes: BTreeSet<NodeId> = self.removed.iter().map(|member| member.node).collect();
        let mut items: Vec<Item> = self.cards.iter().map(card).collect();
        items.extend(nodes.into_iter().map(|node| removed(node, &self.removed)));
        items.push(standing(&self.standing));
        // Written last: until then a crash leaves the old record in force.
        items.push((LEGACY.to_vec(), to_bytes(&Legacy::default())));
        items
    }
}

fn read<T: Encode>(value: &[u8]) -> Result<T, IdentityError> {
    from_bytes(value).map_err(|error| IdentityError::Unreadable(error.to_string()))
}

/// The record of a card.
pub(crate) fn card(card: &Card) -> Item {
    let key = format!("{CARD}{}", card.node().number());
    (key.into_bytes(), to_bytes(card))
}

/// The record of a node that has no card any more. Records cannot be removed; an empty one counts as none.
pub(crate) fn no_card(node: NodeId) -> Item {
    (format!("{CARD}{}", node.number()).into_bytes(), Vec::new())
}

/// The record of a node's lives that are over.
pub(crate) fn removed(node: NodeId, all: &BTreeSet<ReplicaId>) -> Item {
    let incarnations = all.iter().copied().filter(|member| member.node == node);
    let value = Removed(incarnations.take(MOST_LIVES).collect());
    let key = format!("{REMOVED}{}", node.number());
    (key.into_bytes(), to_bytes(&value))
}

/// The record of what is known of the cluster as a whole.
pub(crate) fn standing(standing: &Standing) -> Item {
    (STANDING.to_vec(), to_bytes(standing))
}

/// The record that keeps every later start off this data.
pub(crate) fn stopped(why: &str) -> Item {
    (STOPPED.to_vec(), why.as_bytes().to_vec())
}

struct Removed(Vec<ReplicaId>);

impl Encode for Removed {
    fn put(&self, out: &mut Writer) {
        put_members(out, self.0.iter().copied());
    }

    fn take(input: &mut Reader<'_>) -> Result<Removed, DecodeError> {
        Ok(Removed(take_members(input)?))
    }
}

/// The record of the first release.
#[derive(Default)]
struct Legacy {
    cards: Vec<Card>,
    removed: Vec<ReplicaId>,
}

impl Encode for Legacy {
    fn put(&self, out: &mut Writer) {
        out.list(&self.cards);
        put_members(out, self.removed.iter().copied());
    }

    fn take(input: &mut Reader<'_>) -> Result<Legacy, DecodeError> {
        Ok(Legacy {
            cards: input.list()?,
            removed: take_members(input)?,
        })
    }
}

impl Encode for Standing {
    fn put(&self, out: &mut Writer) {
        out.number(self.members);
        out.length(self.supersedes.len());
        for cluster in &self.supersedes {
            out.number(*cluster);
        }
        out.option(self.gave_way_to.as_ref());
        out.number(self.applied);
    }

    fn take(input: &mut Reader<'_>) -> Result<Standing, DecodeError> {
        let members = input.number()?;
        let count = input.length()?;
        if count > MOST_SUPERSEDED {
            return Err(DecodeError::Inconsistent(
                "too many clusters are superseded",
            ));
        }
        Ok(Standing {
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
    use super::super::rival::Verdict;
    use super::*;
    use crate::card::tests::card as short;

    /// A card with the longest names and addresses there can be.
    fn long(node: u32) -> Card {
        Card {
            name: format!("{node:0>255}"),
            internal: format!("{node:i>255}"),
            gossip: format!("{node:g>255}"),
            public: format!("{node:p>255}"),
            ..short(node, 1)
        }
    }

    fn stored(items: Vec<Item>) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut batch = tenure_log::Batch::new();
        for (key, value) in &items {
            // What the log refuses here stops a node.
            batch.node(key, value).unwrap();
        }
        items.into_iter().collect()
    }

    #[test]
    fn the_cards_of_500_nodes_with_long_names_fit() {
        let book = Book {
            cards: (2..=501).map(long).collect(),
            removed: (1..=2000)
                .map(|incarnation| short(600, incarnation).member)
                .collect(),
            standing: Standing {
                members: 900,
                applied: 77,
                supersedes: (1..=32).collect(),
                gave_way_to: Some(Rival {
                    cluster: 4,
                    number: 1,
                    node: "x".repeat(600),
                    address: "x".repeat(255),
                    claim: Some(Claim {
                        supersedes: (1..=32).collect(),
                        ..Claim::default()
                    }),
                    verdict: Verdict::GivesWay,
                }),
            },
            ..Book::default()
        };
        let found = Book::find(&stored(book.items())).unwrap();
        assert_eq!(found.removed.len(), MOST_LIVES);
        let removed = book.removed.clone();
        assert_eq!(Book { removed, ..found }, book);
    }

    /// A node that has just joined, or that was just started, claims no less than it has heard: a shorter claim
    /// would make the whole cluster give way to another one.
    #[test]
    fn what_was_heard_of_the_history_is_claimed_after_a_restart() {
        let heard = Claim {
            history: History {
                members: 5,
                applied: 900,
            },
            supersedes: vec![3],
        };
        let mut joined = Standing {
            members: 1,
            ..Standing::default()
        };
        assert!(joined.merge(&heard));
        assert!(!joined.merge(&heard), "no news");
        assert!(!joined.merge(&Claim::default()), "less is no news");
        let book = Book::find(&stored(vec![standing(&joined)])).unwrap();
        assert_eq!(book.standing.claim(), heard);
    }

    #[test]
    fn the_first_releases_record_is_read_and_replaced() {
        let legacy = Legacy {
            cards: vec![short(2, 1), short(3, 1), short(4, 1)],
            removed: vec![short(4, 1).member],
        };
        let mut records = stored(vec![(LEGACY.to_vec(), to_bytes(&legacy))]);
        let newer = Card {
            start: 9,
            ..short(3, 1)
        };
        records.extend([card(&newer)]);
        let book = Book::find(&records).unwrap();
        assert!(book.is_legacy);
        assert_eq!(book.cards, [short(2, 1), newer]);
        assert_eq!(book.standing.members, 3);
        records.extend(book.items());
        let again = Book::find(&records).unwrap();
        let is_legacy = false;
        assert_eq!(again, Book { is_legacy, ..book });
        records.extend([no_card(short(2, 1).node())]);
        assert_eq!(Book::find(&records).unwrap().cards.len(), 1);
        records.insert(STANDING.to_vec(), vec![1, 2, 3]);
        assert!(Book::find(&records).is_err());
    }
}
