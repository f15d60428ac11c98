//! Idempotency table: remembered answers by key, with their expiry queue (R102: keyed requests apply
//! once).
//!
//! Answers are kept for 300 s of lease time and never evicted early. A full table refuses new keyed
//! requests. Since rules 2 the room of a space is shared by its namespaces, so that the keys of one
//! namespace do not take the room of all others. A space remembers the answers of its own calls, the system machine those of calls that
//! concern several groups.

use alloc::collections::BTreeMap;

use crate::slab::{Id, Slab};

/// How long an answer is remembered, in lease time.
pub(crate) const KEPT_MS: u64 = 300_000;

/// An answer with the fingerprint of its request and its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remembered<A> {
    pub(crate) fingerprint: u128,
    pub(crate) answer: A,
    pub(crate) end: u64,
}

/// Remembered answers `A` by key `K`.
#[derive(Clone, Debug)]
pub(crate) struct IdempotencyTable<K: TableKey, A> {
    entries: Slab<Entry<K, A>>,
    by_key: BTreeMap<K, Id<Entry<K, A>>>,
    // Expiry queue, a list through the entries: ends never decrease along it.
    oldest: Option<Id<Entry<K, A>>>,
    newest: Option<Id<Entry<K, A>>>,
    /// How many answers belong to each share.
    shares: BTreeMap<K::Share, u32>,
    limit: usize,
    fair: bool,
}

/// The key of a remembered answer.
pub(crate) trait TableKey: Ord + Clone {
    /// The answers of one share compete for room with those of the others.
    type Share: Ord + Clone + core::fmt::Debug;
    /// Returns the share of the key.
    fn share(&self) -> &Self::Share;
}

#[derive(Clone, Debug)]
struct Entry<K, A> {
    key: K,
    remembered: Remembered<A>,
    older: Option<Id<Entry<K, A>>>,
    newer: Option<Id<Entry<K, A>>>,
}

/// The result of looking up a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyLookup<A> {
    /// The key is new, and there is room.
    New,
    /// The same request got this answer.
    Answered(A),
    /// It was used for a different request (R103: key reuse with other content).
    Reused,
    /// It is new, and there is no room (R102).
    Full,
}

impl<K: TableKey, A: Clone> IdempotencyTable<K, A> {
    pub(crate) fn new(limit: u32) -> IdempotencyTable<K, A> {
        IdempotencyTable {
            entries: Slab::new(),
            by_key: BTreeMap::new(),
            oldest: None,
            newest: None,
            shares: BTreeMap::new(),
            limit: limit as usize,
            fair: false,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Sets the limit and shares the room from now on: a share may be as large as what is free
    /// beside it. So one share alone takes half of the room, and a new share always finds some.
    pub(crate) fn share_room(&mut self, limit: usize) {
        self.limit = limit;
        self.fair = true;
    }

    fn has_room(&self, key: &K) -> bool {
        let free = self.limit.saturating_sub(self.len());
        let used = self.shares.get(key.share()).copied().unwrap_or(0);
        free > 0 && (!self.fair || (used as usize) < free)
    }

    pub(crate) fn look(&self, key: &K, fingerprint: u128, time: u64) -> KeyLookup<&A> {
        match self.get(key) {
            Some(there) if there.end > time => {
                if there.fingerprint == fingerprint {
                    KeyLookup::Answered(&there.answer)
                } else {
                    KeyLookup::Reused
                }
            }
            // A lapsed entry is replaced in place, so the limit does not matter.
            Some(_) => KeyLookup::New,
            None if self.has_room(key) => KeyLookup::New,
            None => KeyLookup::Full,
        }
    }

    /// The entry of a key, also after its end.
    pub(crate) fn get(&self, key: &K) -> Option<&Remembered<A>> {
        let id = self.by_key.get(key)?;
        Some(&self.entries[*id].remembered)
    }

    pub(crate) fn answer_mut(&mut self, key: &K) -> Option<&mut A> {
        let id = self.by_key.get(key)?;
        Some(&mut self.entries[*id].remembered.answer)
    }

    /// All entries from a key on, in the order of the keys.
    pub(crate) fn starting_at(&self, first: &K) -> impl Iterator<Item = (&K, &Remembered<A>)> {
        let entries = self.by_key.range(first..);
        entries.map(|(key, id)| (key, &self.entries[*id].remembered))
    }

    pub(crate) fn remember(&mut self, key: K, fingerprint: u128, answer: A, time: u64) {
        let end = time.saturating_add(KEPT_MS);
        self.restore(
            key,
            Remembered {
                fingerprint,
                answer,
                end,
            },
        );
    }

    /// Restores an answer. Answers must come in the order of their ends.
    pub(crate) fn restore(&mut self, key: K, remembered: Remembered<A>) {
        if let Some(id) = self.by_key.get(&key).copied() {
            let moves = self.entries[id].remembered.end != remembered.end;
            self.entries[id].remembered = remembered;
            if moves {
                self.unlist(id);
                self.list(id);
            }
            return;
        }
        *self.shares.entry(key.share().clone()).or_default() += 1;
        let id = self.entries.insert(Entry {
            key: key.clone(),
            remembered,
            older: None,
            newer: None,
        });
        self.by_key.insert(key, id);
        self.list(id);
    }

    pub(crate) fn remove(&mut self, key: &K) {
        let Some(id) = self.by_key.remove(key) else {
            return;
        };
        self.unlist(id);
        self.entries.remove(id);
        if let Some(used) = self.shares.get_mut(key.share()) {
            *used -= 1;
            if *used == 0 {
                self.shares.remove(key.share());
            }
        }
    }

    fn list(&mut self, id: Id<Entry<K, A>>) {
        let older = self.newest.replace(id);
        match older {
            None => self.oldest = Some(id),
            Some(older) => self.entries[older].newer = Some(id),
        }
        self.entries[id].older = older;
    }

    fn unlist(&mut self, id: Id<Entry<K, A>>) {
        let entry = &mut self.entries[id];
        let (older, newer) = (entry.older.take(), entry.newer.take());
        match older {
            None => self.oldest = newer,
            Some(older) => self.entries[older].newer = newer,
        }
        match newer {
            None => self.newest = older,
            Some(newer) => self.entries[newer].older = older,
        }
    }

    /// Removes lapsed answers, a few per entry, but more than one entry can add.
    pub(crate) fn forget(&mut self, time: u64) {
        for _ in 0..16 {
            let Some(oldest) = self.oldest.map(|oldest| &self.entries[oldest]) else {
                return;
            };
            if oldest.remembered.end > time {
                return;
            }
            let key = oldest.key.clone();
            self.remove(&key);
        }
    }

    /// Iterates over all answers, in the order of their ends.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &Remembered<A>)> {
        core::iter::successors(self.oldest, |id| self.entries[*id].newer).map(|id| {
            let entry = &self.entries[id];
            (&entry.key, &entry.remembered)
        })
    }

    /// Changes all answers, in the order of their ends.
    pub(crate) fn change_all(&mut self, mut change: impl FnMut(&mut A)) {
        let mut at = self.oldest;
        while let Some(id) = at {
            let entry = &mut self.entries[id];
            change(&mut entry.remembered.answer);
            at = entry.newer;
        }
    }

    /// Replaces all keys.
    pub(crate) fn rename_all(&mut self, name: impl Fn(&K) -> K) {
        self.by_key.clear();
        let mut at = self.oldest;
        while let Some(id) = at {
            let entry = &mut self.entries[id];
            entry.key = name(&entry.key);
            self.by_key.insert(entry.key.clone(), id);
            at = entry.newer;
        }
    }

    /// Returns a copy for [`IdempotencyTable::iter`] alone.
    pub(crate) fn image(&mut self) -> IdempotencyTable<K, A> {
        IdempotencyTable {
            entries: self.entries.image(),
            oldest: self.oldest,
            newest: self.newest,
            ..IdempotencyTable::new(0)
        }
    }
}
