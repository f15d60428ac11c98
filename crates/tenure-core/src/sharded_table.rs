//! Hash table in shards: a table that never moves all its entries at once.
//!
//! A plain table that is full moves to twice the memory in one call, which takes a tenth of a second
//! for a million entries. This one starts as a single table; from [`MANY`] entries on it has
//! [`SHARDS`] of them, each of which moves alone.

use alloc::boxed::Box;
use alloc::vec::Vec;

use hashbrown::HashTable;

/// Entries from which on the table is split.
const MANY: usize = 16_384;
/// Number of shards of a large table.
const SHARDS: usize = 64;

/// A hash table of small values that are found by their hash, like [`HashTable`].
#[derive(Clone, Debug)]
pub(crate) struct ShardedTable<T> {
    /// The only table, until it is split.
    small: HashTable<T>,
    shards: Option<Box<[HashTable<T>]>>,
}

impl<T> ShardedTable<T> {
    pub(crate) fn new() -> ShardedTable<T> {
        ShardedTable {
            small: HashTable::new(),
            shards: None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        let shards = self.shards.iter().flatten();
        self.small.is_empty() && shards.into_iter().all(HashTable::is_empty)
    }

    fn table(&self, hash: u64) -> &HashTable<T> {
        match &self.shards {
            None => &self.small,
            Some(shards) => &shards[shard(hash)],
        }
    }

    fn table_mut(&mut self, hash: u64) -> &mut HashTable<T> {
        match &mut self.shards {
            None => &mut self.small,
            Some(shards) => &mut shards[shard(hash)],
        }
    }

    pub(crate) fn find(&self, hash: u64, is: impl FnMut(&T) -> bool) -> Option<&T> {
        self.table(hash).find(hash, is)
    }

    /// Adds a value that is not in the table.
    pub(crate) fn insert(&mut self, hash: u64, value: T, hasher: impl Fn(&T) -> u64) {
        if self.shards.is_none() && self.small.len() >= MANY {
            let mut shards: Vec<HashTable<T>> = Vec::new();
            shards.resize_with(SHARDS, || HashTable::with_capacity(2 * MANY / SHARDS));
            for value in core::mem::take(&mut self.small) {
                let hash = hasher(&value);
                shards[shard(hash)].insert_unique(hash, value, &hasher);
            }
            self.shards = Some(shards.into_boxed_slice());
        }
        self.table_mut(hash).insert_unique(hash, value, hasher);
    }

    pub(crate) fn remove(&mut self, hash: u64, is: impl FnMut(&T) -> bool) {
        if let Ok(entry) = self.table_mut(hash).find_entry(hash, is) {
            entry.remove();
        }
    }
}

/// The tables use the lowest and the seven highest bits of a hash.
fn shard(hash: u64) -> usize {
    // Below 64, so the cast is lossless.
    (hash >> 50) as usize % SHARDS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::{HashSeed, Hasher};

    #[test]
    fn values_are_found_before_and_after_the_split() {
        let hasher = Hasher::new(HashSeed(1));
        let hash = |value: &u32| hasher.hash(*value, b"");
        let mut table = ShardedTable::new();
        assert!(table.is_empty());
        let all = 3 * MANY as u32;
        for value in 0..all {
            table.insert(hash(&value), value, hash);
        }
        assert!(table.shards.is_some());
        for value in 0..all {
            assert_eq!(table.find(hash(&value), |one| *one == value), Some(&value));
        }
        for value in 1..all {
            table.remove(hash(&value), |one| *one == value);
        }
        assert!(!table.is_empty());
        assert_eq!(table.find(hash(&1), |one| *one == 1), None);
        table.remove(hash(&0), |one| *one == 0);
        assert!(table.is_empty());
    }
}
