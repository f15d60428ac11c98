//! Subscription table: from an owner to the streams that receive its events.
//!
//! There may be one subscription per lock, so one costs 32 bytes plus a table slot. Most owners
//! have one subscription, found by the owner alone; further ones are in a map. The subscriptions of
//! one stream form a linked list, so that closing a stream needs no other bookkeeping.

use std::collections::BTreeMap;

use hashbrown::HashTable;
use tenure_core::value::OwnerId;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::StreamId;

/// The subscription table.
#[derive(Debug)]
pub(super) struct Subscriptions {
    entries: Vec<Option<SubscriptionEntry>>,
    free: Vec<u32>,
    /// One subscription of each owner.
    first: HashTable<u32>,
    /// Further subscriptions of the same owners.
    others: BTreeMap<(OwnerId, StreamId), u32>,
    /// The head of each stream's list.
    streams: BTreeMap<StreamId, u32>,
    /// Clients choose owner ids, so the hash is seeded against deliberate collisions.
    seed: u64,
}

#[derive(Debug)]
struct SubscriptionEntry {
    owner: OwnerId,
    stream: StreamId,
    older: u32,
    newer: u32,
}

const NONE: u32 = u32::MAX;

impl Subscriptions {
    pub(super) fn new(seed: u64) -> Subscriptions {
        Subscriptions {
            entries: Vec::new(),
            free: Vec::new(),
            first: HashTable::new(),
            others: BTreeMap::new(),
            streams: BTreeMap::new(),
            seed,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Adds a subscription. Returns whether it is new.
    pub(super) fn insert(&mut self, owner: &OwnerId, stream: StreamId) -> bool {
        let first = self.first_of(owner);
        let known = |at: u32| self.entry(at).is_some_and(|entry| entry.stream == stream);
        if first.is_some_and(known) || self.has_other(owner, stream) {
            return false;
        }
        let older = self.streams.get(&stream).copied().unwrap_or(NONE);
        let at = self.keep(SubscriptionEntry {
            owner: owner.clone(),
            stream,
            older,
            newer: NONE,
        });
        if let Some(older) = self.entry_mut(older) {
            older.newer = at;
        }
        self.streams.insert(stream, at);
        if first.is_some() {
            self.others.insert((owner.clone(), stream), at);
        } else {
            self.put_first(owner, at);
        }
        true
    }

    /// Ends a stream; calls `gone` with the owner of each of its subscriptions.
    pub(super) fn end(&mut self, stream: StreamId, mut gone: impl FnMut(OwnerId)) {
        let mut at = self.streams.remove(&stream).unwrap_or(NONE);
        while let Some(entry) = self.entries.get_mut(at as usize).and_then(Option::take) {
            self.forget(at, &entry);
            self.free.push(at);
            at = entry.older;
            gone(entry.owner);
        }
        if self.is_empty() {
            *self = Subscriptions::new(self.seed);
        }
    }

    /// Returns the streams that receive an owner's events.
    pub(super) fn streams_of(&self, owner: &OwnerId) -> impl Iterator<Item = StreamId> {
        let first = self.first_of(owner).and_then(|at| self.entry(at));
        let others = first.map(|first| {
            let from = (first.owner.clone(), StreamId(0));
            let others = self.others.range(from..).map(|(other, _)| other);
            others.take_while(|other| other.0 == first.owner)
        });
        let others = others.into_iter().flatten().map(|(_, stream)| *stream);
        first.map(|first| first.stream).into_iter().chain(others)
    }

    /// Takes an entry, which is no longer there, out of the tables.
    fn forget(&mut self, at: u32, gone: &SubscriptionEntry) {
        let found = self
            .first
            .find_entry(self.hash(&gone.owner), |other| *other == at);
        let Ok(found) = found else {
            self.others.remove(&(gone.owner.clone(), gone.stream));
            return;
        };
        found.remove();
        // Another subscription of the same owner moves from `others` to `first`.
        let from = (gone.owner.clone(), StreamId(0));
        let next = self.others.range(from..).next();
        if let Some((next, at)) = next.filter(|(next, _)| next.0 == gone.owner) {
            let (next, at) = (next.clone(), *at);
            self.others.remove(&next);
            self.put_first(&gone.owner, at);
        }
    }

    fn put_first(&mut self, owner: &OwnerId, at: u32) {
        let (entries, seed) = (&self.entries, self.seed);
        self.first.insert_unique(hash(seed, owner), at, |other| {
            let other = entries[*other as usize].as_ref();
            other.map_or(0, |other| hash(seed, &other.owner))
        });
    }

    fn first_of(&self, owner: &OwnerId) -> Option<u32> {
        let is_owners = |at: &u32| self.entry(*at).is_some_and(|entry| entry.owner == *owner);
        self.first.find(self.hash(owner), is_owners).copied()
    }

    fn has_other(&self, owner: &OwnerId, stream: StreamId) -> bool {
        !self.others.is_empty() && self.others.contains_key(&(owner.clone(), stream))
    }

    fn keep(&mut self, entry: SubscriptionEntry) -> u32 {
        if let Some(at) = self.free.pop() {
            self.entries[at as usize] = Some(entry);
            return at;
        }
        let count = self.entries.len();
        if count == self.entries.capacity() {
            // Grows by a quarter: doubling could waste half of the memory.
            self.entries.reserve_exact((count / 4).max(4));
        }
        self.entries.push(Some(entry));
        u32::try_from(count).expect("fewer subscriptions than 2^32 fit in memory")
    }

    fn entry(&self, at: u32) -> Option<&SubscriptionEntry> {
        self.entries.get(at as usize)?.as_ref()
    }

    fn entry_mut(&mut self, at: u32) -> Option<&mut SubscriptionEntry> {
        self.entries.get_mut(at as usize)?.as_mut()
    }

    fn hash(&self, owner: &OwnerId) -> u64 {
        hash(self.seed, owner)
    }
}

fn hash(seed: u64, owner: &OwnerId) -> u64 {
    xxh3_64_with_seed(owner.as_str().as_bytes(), seed)
}

const _: () = assert!(
    size_of::<Option<SubscriptionEntry>>() == 32,
    "there may be many"
);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Against a set of pairs.
    #[test]
    fn every_owner_is_heard_where_it_was_asked_for() {
        let mut random = 3u64;
        let mut draw = |below: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) % below
        };
        let owner = |number: u64| OwnerId::new(&format!("owner-{number}")).unwrap();
        let mut subscriptions = Subscriptions::new(7);
        let mut known: BTreeSet<(OwnerId, StreamId)> = BTreeSet::new();
        for _ in 0..3_000 {
            let (who, stream) = (owner(draw(12)), StreamId(draw(8)));
            if draw(8) > 0 {
                let fresh = known.insert((who.clone(), stream));
                assert_eq!(subscriptions.insert(&who, stream), fresh);
            } else {
                let mut gone = BTreeSet::new();
                subscriptions.end(stream, |who| assert!(gone.insert((who, stream))));
                let (left, ended) = known.into_iter().partition(|(_, other)| *other != stream);
                assert_eq!(gone, ended);
                known = left;
            }
            assert_eq!(subscriptions.is_empty(), known.is_empty());
            for who in (0..12).map(owner) {
                let found: BTreeSet<StreamId> = subscriptions.streams_of(&who).collect();
                let all = known.iter().filter(|(other, _)| *other == who);
                let expected: BTreeSet<StreamId> = all.map(|(_, stream)| *stream).collect();
                assert_eq!(found, expected, "{who}");
                assert_eq!(found.len(), subscriptions.streams_of(&who).count());
            }
        }
    }
}
