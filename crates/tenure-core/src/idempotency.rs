//! Idempotency table: remembered answers by key, with their expiry queue (R102: keyed requests apply
//! once).
//!
//! Answers are kept for 300 s of lease time and never evicted early. A full table refuses new keyed
//! requests. A space remembers the answers of its own calls, the system machine those of calls that
//! concern several groups.

use alloc::collections::{BTreeMap, VecDeque};

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
pub(crate) struct IdempotencyTable<K, A> {
    table: BTreeMap<K, Remembered<A>>,
    // Expiry queue. A key that was remembered again occurs more than once; the last one counts.
    ends: VecDeque<(u64, K)>,
    limit: usize,
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

impl<K: Ord + Clone, A> IdempotencyTable<K, A> {
    pub(crate) fn new(limit: u32) -> IdempotencyTable<K, A> {
        IdempotencyTable {
            table: BTreeMap::new(),
            ends: VecDeque::new(),
            limit: limit as usize,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn look(&self, key: &K, fingerprint: u128, time: u64) -> KeyLookup<&A> {
        match self.table.get(key) {
            Some(there) if there.end > time => {
                if there.fingerprint == fingerprint {
                    KeyLookup::Answered(&there.answer)
                } else {
                    KeyLookup::Reused
                }
            }
            // A lapsed entry is replaced in place, so the limit does not matter.
            Some(_) => KeyLookup::New,
            None if self.table.len() >= self.limit => KeyLookup::Full,
            None => KeyLookup::New,
        }
    }

    /// The entry of a key, also after its end.
    pub(crate) fn get(&self, key: &K) -> Option<&Remembered<A>> {
        self.table.get(key)
    }

    pub(crate) fn answer_mut(&mut self, key: &K) -> Option<&mut A> {
        self.table.get_mut(key).map(|there| &mut there.answer)
    }

    /// All entries from a key on, in the order of the keys.
    pub(crate) fn starting_at(&self, first: &K) -> impl Iterator<Item = (&K, &Remembered<A>)> {
        self.table.range(first..)
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
        let end = remembered.end;
        if self.table.get(&key).is_none_or(|there| there.end != end) {
            self.ends.push_back((end, key.clone()));
        }
        self.table.insert(key, remembered);
    }

    pub(crate) fn remove(&mut self, key: &K) {
        self.table.remove(key);
    }

    /// Removes lapsed answers, a few per entry, but more than one entry can add.
    pub(crate) fn forget(&mut self, time: u64) {
        let mut left = 16;
        while left > 0 && self.ends.front().is_some_and(|(end, _)| *end <= time) {
            if let Some((end, key)) = self.ends.pop_front()
                && self.table.get(&key).is_some_and(|there| there.end == end)
            {
                self.table.remove(&key);
                left -= 1;
            }
        }
    }

    /// Iterates over all answers, in the order of their ends.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &Remembered<A>)> {
        self.ends.iter().filter_map(|(end, key)| {
            let there = self.table.get(key)?;
            (there.end == *end).then_some((key, there))
        })
    }

    /// Changes all answers, in the order of their ends.
    pub(crate) fn change_all(&mut self, mut change: impl FnMut(&mut A)) {
        for (end, key) in &self.ends {
            if let Some(there) = self.table.get_mut(key).filter(|there| there.end == *end) {
                change(&mut there.answer);
            }
        }
    }
}
