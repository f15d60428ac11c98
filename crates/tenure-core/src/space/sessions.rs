//! Sessions: what one owner has in one namespace. Claims under one lease, and at most one place in line.

use alloc::boxed::Box;
use alloc::vec::Vec;

use hashbrown::{HashMap, HashTable};
use rustc_hash::FxBuildHasher;

use crate::hash::Hasher;
use crate::slab::{NONE, Slab};
use crate::value::{Fence, Holder, OwnerId, Ttl};

/// One owner in one namespace.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) namespace: u32,
    pub(super) owner: OwnerId,
    next_of_owner: u32,
    previous_of_owner: u32,
    /// The newest claim; the others follow it.
    pub(super) first_claim: u32,
    pub(super) claims: u32,
    /// Present while there are claims (R76).
    pub(super) lease: Option<Lease>,
    /// The place in line, or `NONE` (R83).
    pub(super) waiter: u32,
    pub(super) holder: Option<Box<Holder>>,
    pub(super) grant: Option<Box<StandingGrant>>,
    /// Only for those with many claims, who would otherwise have to be scanned.
    pub(super) own_below: Option<Box<OwnBelow>>,
}

/// The time-limited right behind all claims of a session (leases.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) ttl: Ttl,
    pub(super) cover: u64,
    pub(super) epoch: u64,
    pub(super) born: u64,
    /// Until when it counts that somebody asked (R116); zero if nobody did.
    pub(super) asked_until: u64,
}

/// The grant that answered the latest place in line, as long as nothing was heard of the owner since (R122).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StandingGrant {
    pub(super) waiter: u64,
    pub(super) sequence: u64,
    pub(super) id: u64,
    pub(super) fence: Option<Fence>,
    pub(super) until: u64,
}

/// How many claims a session has strictly below a node: writes and reads.
pub(super) type OwnBelow = HashMap<u32, (u32, u32), FxBuildHasher>;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Sessions {
    slab: Slab<Session>,
    table: HashTable<u32>,
    // The first session of each owner; the others are chained.
    owners: HashTable<u32>,
    hasher: Hasher,
}

impl Sessions {
    pub(super) fn new(hasher: Hasher) -> Sessions {
        Sessions {
            slab: Slab::new(),
            table: HashTable::new(),
            owners: HashTable::new(),
            hasher,
        }
    }

    pub(super) fn find(&self, namespace: u32, owner: &OwnerId) -> Option<u32> {
        let hash = self.hasher.hash(namespace, owner.as_str().as_bytes());
        self.table
            .find(hash, |other| {
                let other = &self.slab[*other];
                other.namespace == namespace && other.owner == *owner
            })
            .copied()
    }

    /// A session that is not there yet.
    pub(super) fn create(&mut self, namespace: u32, owner: &OwnerId) -> u32 {
        let number = self.slab.insert(Session {
            namespace,
            owner: owner.clone(),
            next_of_owner: NONE,
            previous_of_owner: NONE,
            first_claim: NONE,
            claims: 0,
            lease: None,
            waiter: NONE,
            holder: None,
            grant: None,
            own_below: None,
        });
        let hash = self.hasher.hash(namespace, owner.as_str().as_bytes());
        let (slab, hasher) = (&self.slab, &self.hasher);
        self.table.insert_unique(hash, number, |other| {
            let other = &slab[*other];
            hasher.hash(other.namespace, other.owner.as_str().as_bytes())
        });
        let hash = self.hasher.hash(NONE, owner.as_str().as_bytes());
        match self.first_of(hash, owner) {
            // Behind the first one, so that the table of owners stays as it is.
            Some(first) => {
                let next = core::mem::replace(&mut self.slab[first].next_of_owner, number);
                self.slab[number].previous_of_owner = first;
                self.slab[number].next_of_owner = next;
                if next != NONE {
                    self.slab[next].previous_of_owner = number;
                }
            }
            None => self.insert_owner(hash, number),
        }
        number
    }

    pub(super) fn remove(&mut self, number: u32) {
        let Some(session) = self.slab.get(number) else {
            return;
        };
        let (previous, next) = (session.previous_of_owner, session.next_of_owner);
        let hash = self
            .hasher
            .hash(session.namespace, session.owner.as_str().as_bytes());
        let owner_hash = self.hasher.hash(NONE, session.owner.as_str().as_bytes());
        if let Ok(entry) = self.table.find_entry(hash, |other| *other == number) {
            entry.remove();
        }
        if next != NONE {
            self.slab[next].previous_of_owner = previous;
        }
        if previous != NONE {
            self.slab[previous].next_of_owner = next;
        } else {
            if let Ok(entry) = self.owners.find_entry(owner_hash, |other| *other == number) {
                entry.remove();
            }
            if next != NONE {
                self.insert_owner(owner_hash, next);
            }
        }
        self.slab.remove(number);
    }

    /// Whether an owner has a session at all.
    pub(super) fn has_owner(&self, owner: &OwnerId) -> bool {
        if self.owners.is_empty() {
            return false;
        }
        let hash = self.hasher.hash(NONE, owner.as_str().as_bytes());
        self.first_of(hash, owner).is_some()
    }

    /// All sessions of an owner, in no particular order.
    pub(super) fn of_owner(&self, owner: &OwnerId) -> Vec<u32> {
        let mut found = Vec::new();
        let hash = self.hasher.hash(NONE, owner.as_str().as_bytes());
        let mut at = self.first_of(hash, owner).unwrap_or(NONE);
        while at != NONE {
            found.push(at);
            at = self.slab[at].next_of_owner;
        }
        found
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Session)> {
        self.slab.iter()
    }

    fn first_of(&self, hash: u64, owner: &OwnerId) -> Option<u32> {
        self.owners
            .find(hash, |other| self.slab[*other].owner == *owner)
            .copied()
    }

    fn insert_owner(&mut self, hash: u64, number: u32) {
        let (slab, hasher) = (&self.slab, &self.hasher);
        self.owners.insert_unique(hash, number, |other| {
            hasher.hash(NONE, slab[*other].owner.as_str().as_bytes())
        });
    }
}

impl core::ops::Index<u32> for Sessions {
    type Output = Session;
    fn index(&self, number: u32) -> &Session {
        &self.slab[number]
    }
}

impl core::ops::IndexMut<u32> for Sessions {
    fn index_mut(&mut self, number: u32) -> &mut Session {
        &mut self.slab[number]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::HashSeed;
    use alloc::collections::BTreeSet;

    #[test]
    fn the_sessions_of_an_owner_are_chained_in_any_order_of_leaving() {
        let owner = OwnerId::new("amy").unwrap();
        for gone in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
            let mut sessions = Sessions::new(Hasher::new(HashSeed(0)));
            let numbers: Vec<u32> = (0..3).map(|at| sessions.create(at, &owner)).collect();
            let mut left: BTreeSet<u32> = numbers.iter().copied().collect();
            for at in gone {
                sessions.remove(numbers[at]);
                left.remove(&numbers[at]);
                let found: BTreeSet<u32> = sessions.of_owner(&owner).into_iter().collect();
                assert_eq!(found, left);
            }
        }
    }
}
