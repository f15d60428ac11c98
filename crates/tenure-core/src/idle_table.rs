//! Hash table keyed by path, with a FIFO eviction queue of idle entries.
//!
//! It stores retained fences (the stored fences of paths without a writer) and semaphore
//! capacities. An *idle* entry is in the eviction queue, ordered by the time at which it became
//! idle. That order follows from the log, so every replica evicts the same entry.
//!
//! The key is the namespace's number and the part of the path after the namespace's name. That part
//! is mostly short enough to need no heap memory.

use hashbrown::HashTable;

use crate::hash::Hasher;
use crate::segment::Segment;
use crate::slab::{Id, Slab};
use crate::space::NamespaceState;

#[derive(Clone, Debug)]
pub(crate) struct IdleEntry<T> {
    namespace: Id<NamespaceState>,
    name: Segment,
    value: T,
    older: Option<Id<IdleEntry<T>>>,
    newer: Option<Id<IdleEntry<T>>>,
    idle: bool,
}

impl<T> IdleEntry<T> {
    fn is(&self, namespace: Id<NamespaceState>, name: &str) -> bool {
        self.namespace == namespace && self.name.as_bytes() == name.as_bytes()
    }

    fn hash(&self, hasher: Hasher) -> u64 {
        hasher.hash(self.namespace.number(), self.name.as_bytes())
    }
}

/// A table of values by (namespace, rest of path), with a queue of idle entries.
#[derive(Clone, Debug)]
pub(crate) struct IdleTable<T> {
    table: HashTable<Id<IdleEntry<T>>>,
    entries: Slab<IdleEntry<T>>,
    oldest: Option<Id<IdleEntry<T>>>,
    newest: Option<Id<IdleEntry<T>>>,
    idle: u32,
    hasher: Hasher,
}

/// An evicted entry.
#[derive(Debug)]
pub(crate) struct Evicted<T> {
    pub(crate) namespace: Id<NamespaceState>,
    pub(crate) value: T,
}

impl<T: Clone> IdleTable<T> {
    pub(crate) fn new(hasher: Hasher) -> IdleTable<T> {
        IdleTable {
            table: HashTable::new(),
            entries: Slab::new(),
            oldest: None,
            newest: None,
            idle: 0,
            hasher,
        }
    }

    /// Returns a copy for [`IdleTable::iter`] alone.
    pub(crate) fn image(&mut self) -> IdleTable<T> {
        IdleTable {
            entries: self.entries.image(),
            oldest: self.oldest,
            newest: self.newest,
            idle: self.idle,
            ..IdleTable::new(self.hasher)
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.entries.len()
    }

    /// Returns the number of idle entries.
    pub(crate) fn idle(&self) -> u32 {
        self.idle
    }

    pub(crate) fn get(&self, namespace: Id<NamespaceState>, name: &str) -> Option<&T> {
        if self.entries.len() == 0 {
            return None;
        }
        self.find(namespace, name)
            .map(|entry| &self.entries[entry].value)
    }

    pub(crate) fn get_mut(&mut self, namespace: Id<NamespaceState>, name: &str) -> Option<&mut T> {
        let entry = self.find(namespace, name)?;
        Some(&mut self.entries[entry].value)
    }

    /// Adds a new entry at the end of the idle queue.
    pub(crate) fn insert_idle(&mut self, namespace: Id<NamespaceState>, name: &str, value: T) {
        let entry = self.insert(namespace, name, value);
        self.list(entry);
    }

    /// Adds a new entry that is in use.
    pub(crate) fn insert(
        &mut self,
        namespace: Id<NamespaceState>,
        name: &str,
        value: T,
    ) -> Id<IdleEntry<T>> {
        let hash = self.hasher.hash(namespace.number(), name.as_bytes());
        let entry = self.entries.insert(IdleEntry {
            namespace,
            name: Segment::new(name),
            value,
            older: None,
            newer: None,
            idle: false,
        });
        let (entries, hasher) = (&self.entries, &self.hasher);
        self.table
            .insert_unique(hash, entry, |other| entries[*other].hash(*hasher));
        entry
    }

    /// Moves an entry to the end of the idle queue.
    pub(crate) fn set_idle(&mut self, namespace: Id<NamespaceState>, name: &str) {
        if let Some(entry) = self.find(namespace, name) {
            self.unlist(entry);
            self.list(entry);
        }
    }

    fn list(&mut self, entry: Id<IdleEntry<T>>) {
        let older = self.newest.replace(entry);
        match older {
            None => self.oldest = Some(entry),
            Some(older) => self.entries[older].newer = Some(entry),
        }
        let listed = &mut self.entries[entry];
        listed.older = older;
        listed.idle = true;
        self.idle += 1;
    }

    pub(crate) fn is_idle(&self, namespace: Id<NamespaceState>, name: &str) -> bool {
        self.find(namespace, name)
            .is_some_and(|entry| self.entries[entry].idle)
    }

    /// Removes an entry from the idle queue.
    pub(crate) fn set_used(&mut self, namespace: Id<NamespaceState>, name: &str) {
        if let Some(entry) = self.find(namespace, name) {
            self.unlist(entry);
        }
    }

    pub(crate) fn remove(&mut self, namespace: Id<NamespaceState>, name: &str) -> Option<T> {
        if self.entries.len() == 0 {
            return None;
        }
        let hash = self.hasher.hash(namespace.number(), name.as_bytes());
        let entries = &self.entries;
        let found = self
            .table
            .find_entry(hash, |entry| entries[*entry].is(namespace, name));
        let (number, _) = found.ok()?.remove();
        self.unlist(number);
        self.entries.remove(number).map(|entry| entry.value)
    }

    /// Returns the longest idle value.
    pub(crate) fn oldest(&self) -> Option<&T> {
        self.oldest.map(|oldest| &self.entries[oldest].value)
    }

    /// Evicts the longest idle entry.
    pub(crate) fn drop_oldest(&mut self) -> Option<Evicted<T>> {
        self.drop_entry(self.oldest?)
    }

    /// Evicts all entries that match; returns the namespace of each.
    pub(crate) fn drop_where(
        &mut self,
        mut goes: impl FnMut(Id<NamespaceState>, &str) -> bool,
    ) -> alloc::vec::Vec<Id<NamespaceState>> {
        let going: alloc::vec::Vec<Id<IdleEntry<T>>> = self
            .entries
            .iter()
            .filter(|(_, entry)| goes(entry.namespace, entry.name.as_str()))
            .map(|(number, _)| number)
            .collect();
        going
            .into_iter()
            .filter_map(|entry| self.drop_entry(entry))
            .map(|dropped| dropped.namespace)
            .collect()
    }

    /// All entries in use, in no particular order, then the idle ones from the longest idle on.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Id<NamespaceState>, &str, &T, bool)> {
        let used = self
            .entries
            .iter()
            .map(|(_, entry)| entry)
            .filter(|entry| !entry.idle);
        let mut at = self.oldest;
        let idle = core::iter::from_fn(move || {
            let entry = &self.entries[at?];
            at = entry.newer;
            Some(entry)
        });
        used.chain(idle).map(|entry| {
            (
                entry.namespace,
                entry.name.as_str(),
                &entry.value,
                entry.idle,
            )
        })
    }

    fn find(&self, namespace: Id<NamespaceState>, name: &str) -> Option<Id<IdleEntry<T>>> {
        let hash = self.hasher.hash(namespace.number(), name.as_bytes());
        self.table
            .find(hash, |entry| self.entries[*entry].is(namespace, name))
            .copied()
    }

    fn unlist(&mut self, number: Id<IdleEntry<T>>) {
        let entry = &mut self.entries[number];
        if !entry.idle {
            return;
        }
        entry.idle = false;
        let (older, newer) = (entry.older.take(), entry.newer.take());
        match older {
            None => self.oldest = newer,
            Some(older) => self.entries[older].newer = newer,
        }
        match newer {
            None => self.newest = older,
            Some(newer) => self.entries[newer].older = older,
        }
        self.idle -= 1;
    }

    fn drop_entry(&mut self, number: Id<IdleEntry<T>>) -> Option<Evicted<T>> {
        self.unlist(number);
        let entry = self.entries.remove(number)?;
        let hash = entry.hash(self.hasher);
        if let Ok(found) = self.table.find_entry(hash, |other| *other == number) {
            found.remove();
        }
        Some(Evicted {
            namespace: entry.namespace,
            value: entry.value,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::HashSeed;
    use alloc::vec;
    use alloc::vec::Vec;

    fn namespace(number: u32) -> Id<NamespaceState> {
        Id::new(number).unwrap()
    }

    #[test]
    fn the_longest_idle_goes_first_and_use_takes_out_of_line() {
        let mut table = IdleTable::new(Hasher::new(HashSeed(3)));
        for (number, name) in ["/a", "/b", "/c", "/d"].into_iter().enumerate() {
            table.insert(namespace(0), name, number);
            table.set_idle(namespace(0), name);
        }
        table.set_idle(namespace(0), "/a");
        table.set_used(namespace(0), "/b");
        assert_eq!((table.len(), table.idle()), (4, 3));
        let order: Vec<usize> = table.iter().map(|(_, _, value, _)| *value).collect();
        assert_eq!(order, vec![1, 2, 3, 0]);
        assert_eq!(table.drop_oldest().map(|dropped| dropped.value), Some(2));
        assert_eq!(table.remove(namespace(0), "/d"), Some(3));
        assert_eq!(table.get(namespace(1), "/a"), None);
        assert_eq!(table.drop_oldest().map(|dropped| dropped.value), Some(0));
        assert!(table.drop_oldest().is_none());
        assert_eq!(table.get(namespace(0), "/b"), Some(&1));
    }
}
