//! A table of things remembered about paths, the longest idle of which can be dropped.
//!
//! Fence marks and semaphore capacities live here. An entry that is *idle* stands in line for being
//! dropped, in the order in which entries became idle: an order of history, hence the same everywhere.

use hashbrown::HashTable;

use crate::hash::Hasher;
use crate::path::Path;
use crate::slab::{NONE, Slab};

#[derive(Clone, Debug)]
struct Entry<T> {
    namespace: u32,
    path: Path,
    value: T,
    older: u32,
    newer: u32,
    idle: bool,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Aged<T> {
    table: HashTable<u32>,
    entries: Slab<Entry<T>>,
    oldest: u32,
    newest: u32,
    idle: u32,
    hasher: Hasher,
}

/// An entry that left the table.
#[derive(Debug)]
pub(crate) struct Dropped<T> {
    pub(crate) namespace: u32,
    pub(crate) value: T,
}

impl<T> Aged<T> {
    pub(crate) fn new(hasher: Hasher) -> Aged<T> {
        Aged {
            table: HashTable::new(),
            entries: Slab::new(),
            oldest: NONE,
            newest: NONE,
            idle: 0,
            hasher,
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.entries.len()
    }

    /// How many are idle.
    pub(crate) fn idle(&self) -> u32 {
        self.idle
    }

    pub(crate) fn get(&self, namespace: u32, path: &Path) -> Option<&T> {
        if self.entries.len() == 0 {
            return None;
        }
        self.find(namespace, path)
            .map(|entry| &self.entries[entry].value)
    }

    pub(crate) fn get_mut(&mut self, namespace: u32, path: &Path) -> Option<&mut T> {
        let entry = self.find(namespace, path)?;
        Some(&mut self.entries[entry].value)
    }

    /// Adds an entry that is not there yet, at the end of the line of the idle.
    pub(crate) fn insert_idle(&mut self, namespace: u32, path: Path, value: T) {
        let entry = self.insert(namespace, path, value);
        self.list(entry);
    }

    /// Adds an entry that is not there yet, in use.
    pub(crate) fn insert(&mut self, namespace: u32, path: Path, value: T) -> u32 {
        let hash = self.hasher.hash(namespace, path.as_str().as_bytes());
        let entry = self.entries.insert(Entry {
            namespace,
            path,
            value,
            older: NONE,
            newer: NONE,
            idle: false,
        });
        let (entries, hasher) = (&self.entries, &self.hasher);
        self.table.insert_unique(hash, entry, |other| {
            let other = &entries[*other];
            hasher.hash(other.namespace, other.path.as_str().as_bytes())
        });
        entry
    }

    /// Puts an entry at the end of the line of the idle.
    pub(crate) fn set_idle(&mut self, namespace: u32, path: &Path) {
        if let Some(entry) = self.find(namespace, path) {
            self.unlist(entry);
            self.list(entry);
        }
    }

    fn list(&mut self, entry: u32) {
        let older = core::mem::replace(&mut self.newest, entry);
        match older {
            NONE => self.oldest = entry,
            older => self.entries[older].newer = entry,
        }
        let listed = &mut self.entries[entry];
        listed.older = older;
        listed.idle = true;
        self.idle += 1;
    }

    pub(crate) fn is_idle(&self, namespace: u32, path: &Path) -> bool {
        self.find(namespace, path)
            .is_some_and(|entry| self.entries[entry].idle)
    }

    /// Takes an entry out of the line.
    pub(crate) fn set_used(&mut self, namespace: u32, path: &Path) {
        if let Some(entry) = self.find(namespace, path) {
            self.unlist(entry);
        }
    }

    pub(crate) fn remove(&mut self, namespace: u32, path: &Path) -> Option<T> {
        if self.entries.len() == 0 {
            return None;
        }
        let entry = self.find(namespace, path)?;
        self.drop_entry(entry).map(|dropped| dropped.value)
    }

    /// The longest idle value.
    pub(crate) fn oldest(&self) -> Option<&T> {
        self.entries.get(self.oldest).map(|entry| &entry.value)
    }

    /// Drops the longest idle one.
    pub(crate) fn drop_oldest(&mut self) -> Option<Dropped<T>> {
        if self.oldest == NONE {
            return None;
        }
        self.drop_entry(self.oldest)
    }

    /// Drops all entries of which this holds; the namespaces they were in, one for each.
    pub(crate) fn drop_where(
        &mut self,
        mut goes: impl FnMut(u32, &Path) -> bool,
    ) -> alloc::vec::Vec<u32> {
        let going: alloc::vec::Vec<u32> = self
            .entries
            .iter()
            .filter(|(_, entry)| goes(entry.namespace, &entry.path))
            .map(|(number, _)| number)
            .collect();
        going
            .into_iter()
            .filter_map(|entry| self.drop_entry(entry))
            .map(|dropped| dropped.namespace)
            .collect()
    }

    /// All entries in use, in no particular order, then the idle ones from the longest idle on.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Path, &T, bool)> {
        let used = self
            .entries
            .iter()
            .map(|(_, entry)| entry)
            .filter(|entry| !entry.idle);
        let mut at = self.oldest;
        let idle = core::iter::from_fn(move || {
            let entry = self.entries.get(at)?;
            at = entry.newer;
            Some(entry)
        });
        used.chain(idle)
            .map(|entry| (entry.namespace, &entry.path, &entry.value, entry.idle))
    }

    fn find(&self, namespace: u32, path: &Path) -> Option<u32> {
        let hash = self.hasher.hash(namespace, path.as_str().as_bytes());
        self.table
            .find(hash, |entry| {
                let entry = &self.entries[*entry];
                entry.namespace == namespace && entry.path == *path
            })
            .copied()
    }

    fn unlist(&mut self, number: u32) {
        let entry = &mut self.entries[number];
        if !entry.idle {
            return;
        }
        entry.idle = false;
        let older = core::mem::replace(&mut entry.older, NONE);
        let newer = core::mem::replace(&mut entry.newer, NONE);
        match older {
            NONE => self.oldest = newer,
            older => self.entries[older].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.entries[newer].older = older,
        }
        self.idle -= 1;
    }

    fn drop_entry(&mut self, number: u32) -> Option<Dropped<T>> {
        self.unlist(number);
        let entry = self.entries.remove(number)?;
        let hash = self
            .hasher
            .hash(entry.namespace, entry.path.as_str().as_bytes());
        if let Ok(found) = self.table.find_entry(hash, |other| *other == number) {
            found.remove();
        }
        Some(Dropped {
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

    #[test]
    fn the_longest_idle_goes_first_and_use_takes_out_of_line() {
        let mut table = Aged::new(Hasher::new(HashSeed(3)));
        let path = |text| Path::parse(text).unwrap();
        for (number, text) in ["h:/a", "h:/b", "h:/c", "h:/d"].into_iter().enumerate() {
            table.insert(0, path(text), number);
            table.set_idle(0, &path(text));
        }
        table.set_idle(0, &path("h:/a"));
        table.set_used(0, &path("h:/b"));
        assert_eq!((table.len(), table.idle()), (4, 3));
        let order: Vec<usize> = table.iter().map(|(_, _, value, _)| *value).collect();
        assert_eq!(order, vec![1, 2, 3, 0]);
        assert_eq!(table.drop_oldest().map(|dropped| dropped.value), Some(2));
        assert_eq!(table.remove(0, &path("h:/d")), Some(3));
        assert_eq!(table.get(1, &path("h:/a")), None);
        assert_eq!(table.drop_oldest().map(|dropped| dropped.value), Some(0));
        assert!(table.drop_oldest().is_none());
        assert_eq!(table.get(0, &path("h:/b")), Some(&1));
    }
}
