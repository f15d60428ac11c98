//! Sessions: the state of one owner in one namespace: claims under one lease, and at most one
//! waiter.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::claims::Claim;
use super::namespaces::NamespaceState;
use super::queue::Waiter;
use crate::hash::Hasher;
use crate::path::Path;
use crate::policy::{Missing, Mode};
use crate::sharded_table::ShardedTable;
use crate::slab::{Id, Slab};
use crate::tree::{PathNode, SideCounts};
use crate::value::{Fence, Holder, OwnerId, Ttl};

/// The state of one owner in one namespace. There may be one per lock, so rare state is boxed
/// apart.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) namespace: Id<NamespaceState>,
    pub(super) owner: OwnerId,
    /// The newest claim, head of the list of the session's claims.
    pub(super) first_claim: Option<Id<Claim>>,
    pub(super) claims: u32,
    /// Present while there are claims (R76: one lease per owner and namespace).
    pub(super) lease: Option<Lease>,
    /// The queued acquire (R83: one pending entry per namespace).
    pub(super) waiter: Option<Id<Waiter>>,
    rare: Option<Box<RareState>>,
}

#[cfg(target_pointer_width = "64")]
const _: () = assert!(
    core::mem::size_of::<Session>() == 72,
    "an owner must stay cheap"
);

/// The lease of all claims of a session (leases.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) ttl: Ttl,
    pub(super) cover: u64,
    pub(super) epoch: u64,
    pub(super) born: u64,
}

/// State that few sessions have.
#[derive(Clone, Debug)]
struct RareState {
    holder: Option<Box<Holder>>,
    grant: Option<StandingGrant>,
    own_below: Option<Box<OwnBelow>>,
    taken: TakenHolds,
    asked_until: u64,
    next_of_owner: Option<Id<Session>>,
    previous_of_owner: Option<Id<Session>>,
}

/// Holds ended by a break or a policy change, until their owner names them again: by path and mode,
/// with the reason that a renewal reports.
pub(super) type TakenHolds = BTreeMap<(Path, Mode), Missing>;

impl RareState {
    const NOTHING: RareState = RareState {
        holder: None,
        grant: None,
        own_below: None,
        taken: TakenHolds::new(),
        asked_until: 0,
        next_of_owner: None,
        previous_of_owner: None,
    };

    fn is_empty(&self) -> bool {
        self.holder.is_none()
            && self.grant.is_none()
            && self.own_below.is_none()
            && self.taken.is_empty()
            && self.asked_until == 0
            && self.next_of_owner.is_none()
            && self.previous_of_owner.is_none()
    }
}

impl Session {
    /// The owner's description for people (E3: holder description).
    pub(super) fn holder(&self) -> Option<&Holder> {
        self.rare.as_ref()?.holder.as_deref()
    }

    pub(super) fn set_holder(&mut self, holder: Option<Box<Holder>>) {
        self.change(holder.is_some(), |rare| rare.holder = holder);
    }

    pub(super) fn grant(&self) -> Option<&StandingGrant> {
        self.rare.as_ref()?.grant.as_ref()
    }

    pub(super) fn set_grant(&mut self, grant: Option<StandingGrant>) {
        self.change(grant.is_some(), |rare| rare.grant = grant);
    }

    /// Own claims counted by node. Present only in sessions with many claims; others are scanned.
    pub(super) fn own_below(&self) -> Option<&OwnBelow> {
        self.rare.as_ref()?.own_below.as_deref()
    }

    pub(super) fn own_below_mut(&mut self) -> Option<&mut OwnBelow> {
        self.rare.as_mut()?.own_below.as_deref_mut()
    }

    pub(super) fn set_own_below(&mut self, own: Option<Box<OwnBelow>>) {
        self.change(own.is_some(), |rare| rare.own_below = own);
    }

    /// The lease time at which a release request lapses (R116: revoke marker); zero without one.
    pub(super) fn asked_until(&self) -> u64 {
        self.rare.as_ref().map_or(0, |rare| rare.asked_until)
    }

    pub(super) fn set_asked_until(&mut self, until: u64) {
        self.change(until > 0, |rare| rare.asked_until = until);
    }

    pub(super) fn taken(&self) -> Option<&TakenHolds> {
        let taken = &self.rare.as_ref()?.taken;
        (!taken.is_empty()).then_some(taken)
    }

    pub(super) fn note_taken(&mut self, path: Path, mode: Mode, missing: Missing) {
        self.change(true, |rare| {
            rare.taken.insert((path, mode), missing);
        });
    }

    /// The owner named a hold: it knows the state of that path, or gets it as the result.
    pub(super) fn forget_taken(&mut self, path: &Path, mode: Mode) {
        self.change(false, |rare| {
            rare.taken.remove(&(path.clone(), mode));
        });
    }

    pub(super) fn forget_all_taken(&mut self) {
        self.change(false, |rare| rare.taken.clear());
    }

    /// Ends the lease and the state that depends on it. `taken` stays: an acquire that was queued
    /// before may still be granted, and renewals of that lease must report the loss.
    pub(super) fn end_lease(&mut self) -> Option<Lease> {
        let lease = self.lease.take()?;
        self.change(false, |rare| {
            let (next_of_owner, previous_of_owner) = (rare.next_of_owner, rare.previous_of_owner);
            *rare = RareState {
                taken: core::mem::take(&mut rare.taken),
                next_of_owner,
                previous_of_owner,
                ..RareState::NOTHING
            };
        });
        Some(lease)
    }

    fn next_of_owner(&self) -> Option<Id<Session>> {
        self.rare.as_ref()?.next_of_owner
    }

    fn set_next_of_owner(&mut self, next: Option<Id<Session>>) {
        self.change(next.is_some(), |rare| rare.next_of_owner = next);
    }

    fn previous_of_owner(&self) -> Option<Id<Session>> {
        self.rare.as_ref()?.previous_of_owner
    }

    fn set_previous_of_owner(&mut self, previous: Option<Id<Session>>) {
        let adds = previous.is_some();
        self.change(adds, |rare| rare.previous_of_owner = previous);
    }

    /// Changes the rare state; allocates it if `adds` is set.
    fn change(&mut self, adds: bool, change: impl FnOnce(&mut RareState)) {
        match &mut self.rare {
            Some(rare) => {
                change(rare);
                if !adds && rare.is_empty() {
                    self.rare = None;
                }
            }
            None if adds => change(self.rare.insert(Box::new(RareState::NOTHING))),
            None => {}
        }
    }
}

/// The last grant of a queued acquire, until the owner calls again (R122: events are always
/// delivered).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StandingGrant {
    pub(super) waiter: u64,
    pub(super) sequence: u64,
    pub(super) id: u64,
    pub(super) fence: Option<Fence>,
    pub(super) until: u64,
}

/// How many claims a session has strictly below a node: writes and reads.
pub(super) type OwnBelow = HashMap<Id<PathNode>, SideCounts, FxBuildHasher>;

/// Takes the place of a namespace in the hash of an owner. No namespace has this number.
const ANY_NAMESPACE: u32 = u32::MAX;

/// All sessions of a space, found by owner and by (namespace, owner).
#[derive(Clone, Debug)]
pub(super) struct Sessions {
    slab: Slab<Session>,
    // The first session of each owner, by owner: mostly the only one.
    owners: ShardedTable<Id<Session>>,
    // Further sessions, chained behind the first, by namespace and owner.
    others: ShardedTable<Id<Session>>,
    hasher: Hasher,
}

impl Sessions {
    pub(super) fn new(hasher: Hasher) -> Sessions {
        Sessions {
            slab: Slab::new(),
            owners: ShardedTable::new(),
            others: ShardedTable::new(),
            hasher,
        }
    }

    /// Returns a copy that finds sessions by number only.
    pub(super) fn image(&mut self) -> Sessions {
        Sessions {
            slab: self.slab.image(),
            ..Sessions::new(self.hasher)
        }
    }

    pub(super) fn find(
        &self,
        namespace: Id<NamespaceState>,
        owner: &OwnerId,
    ) -> Option<Id<Session>> {
        let number = self.first_of(self.owner_hash(owner), owner)?;
        let first = &self.slab[number];
        if first.namespace == namespace {
            return Some(number);
        }
        first.next_of_owner()?;
        self.others
            .find(self.hash(namespace, owner), |other| {
                let other = &self.slab[*other];
                other.namespace == namespace && other.owner == *owner
            })
            .copied()
    }

    /// Creates a session, which must not exist yet.
    pub(super) fn create(&mut self, namespace: Id<NamespaceState>, owner: &OwnerId) -> Id<Session> {
        let number = self.slab.insert(Session {
            namespace,
            owner: owner.clone(),
            first_claim: None,
            claims: 0,
            lease: None,
            waiter: None,
            rare: None,
        });
        let hash = self.owner_hash(owner);
        match self.first_of(hash, owner) {
            // Insert it behind the first one, so that the owners table does not change.
            Some(first) => {
                let next = self.slab[first].next_of_owner();
                self.slab[first].set_next_of_owner(Some(number));
                self.slab[number].set_previous_of_owner(Some(first));
                self.slab[number].set_next_of_owner(next);
                if let Some(next) = next {
                    self.slab[next].set_previous_of_owner(Some(number));
                }
                let hash = self.hash(namespace, owner);
                let (slab, hasher) = (&self.slab, &self.hasher);
                self.others.insert(hash, number, |other| {
                    let other = &slab[*other];
                    hasher.hash(other.namespace.number(), other.owner.as_str().as_bytes())
                });
            }
            None => self.insert_owner(hash, number),
        }
        number
    }

    pub(super) fn remove(&mut self, number: Id<Session>) {
        let Some(session) = self.slab.remove(number) else {
            return;
        };
        let (previous, next) = (session.previous_of_owner(), session.next_of_owner());
        let Some(previous) = previous else {
            let hash = self.owner_hash(&session.owner);
            self.owners.remove(hash, |other| *other == number);
            if let Some(next) = next {
                self.remove_other(next, self.slab[next].namespace, &session.owner);
                self.slab[next].set_previous_of_owner(None);
                self.insert_owner(hash, next);
            }
            return;
        };
        self.remove_other(number, session.namespace, &session.owner);
        self.slab[previous].set_next_of_owner(next);
        if let Some(next) = next {
            self.slab[next].set_previous_of_owner(Some(previous));
        }
    }

    fn remove_other(
        &mut self,
        number: Id<Session>,
        namespace: Id<NamespaceState>,
        owner: &OwnerId,
    ) {
        let hash = self.hash(namespace, owner);
        self.others.remove(hash, |other| *other == number);
    }

    /// Whether an owner has a session at all.
    #[inline]
    pub(super) fn has_owner(&self, owner: &OwnerId) -> bool {
        // Every group gets this query, and most are empty.
        !self.owners.is_empty() && self.knows(owner)
    }

    #[inline(never)]
    fn knows(&self, owner: &OwnerId) -> bool {
        self.first_of(self.owner_hash(owner), owner).is_some()
    }

    /// All sessions of an owner, in no particular order.
    pub(super) fn of_owner(&self, owner: &OwnerId) -> Vec<Id<Session>> {
        let first = self.first_of(self.owner_hash(owner), owner);
        core::iter::successors(first, |at| self.slab[*at].next_of_owner()).collect()
    }

    pub(super) fn get(&self, number: Id<Session>) -> Option<&Session> {
        self.slab.get(number)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Id<Session>, &Session)> {
        self.slab.iter()
    }

    fn owner_hash(&self, owner: &OwnerId) -> u64 {
        self.hasher.hash(ANY_NAMESPACE, owner.as_str().as_bytes())
    }

    fn hash(&self, namespace: Id<NamespaceState>, owner: &OwnerId) -> u64 {
        self.hasher
            .hash(namespace.number(), owner.as_str().as_bytes())
    }

    fn first_of(&self, hash: u64, owner: &OwnerId) -> Option<Id<Session>> {
        self.owners
            .find(hash, |other| self.slab[*other].owner == *owner)
            .copied()
    }

    fn insert_owner(&mut self, hash: u64, number: Id<Session>) {
        let (slab, hasher) = (&self.slab, &self.hasher);
        self.owners.insert(hash, number, |other| {
            hasher.hash(ANY_NAMESPACE, slab[*other].owner.as_str().as_bytes())
        });
    }
}

impl core::ops::Index<Id<Session>> for Sessions {
    type Output = Session;
    fn index(&self, number: Id<Session>) -> &Session {
        &self.slab[number]
    }
}

impl core::ops::IndexMut<Id<Session>> for Sessions {
    fn index_mut(&mut self, number: Id<Session>) -> &mut Session {
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
            let namespace = |at| Id::new(at).unwrap();
            let numbers: Vec<_> = (0..3)
                .map(|at| sessions.create(namespace(at), &owner))
                .collect();
            let mut left: BTreeSet<_> = numbers.iter().copied().collect();
            for at in gone {
                sessions.remove(numbers[at]);
                left.remove(&numbers[at]);
                let found: BTreeSet<_> = sessions.of_owner(&owner).into_iter().collect();
                assert_eq!(found, left);
                for at in 0..3 {
                    let number = numbers[at as usize];
                    let there = left.contains(&number).then_some(number);
                    assert_eq!(sessions.find(namespace(at), &owner), there);
                }
            }
        }
    }
}
