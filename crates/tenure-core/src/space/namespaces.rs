//! Per-namespace fence counters and floors (R67 (minting a token), R71 (tokens never go back), R72
//! (token retention and floors)).
//!
//! A namespace mints fences from one counter, `high`, which is never below any fence stored in it.
//! The fences of evicted state are merged into a floor (*folded*), and a fence that a client
//! supplies must be above the floor. The retained fence of one path is folded into its namespace's
//! `floor`, the counter of an idle namespace into the floor of the space, where new namespaces
//! start. A namespace whose counter has reached [`Fence::DRIVEN`] by a supplied fence is never
//! folded, so that one client cannot exhaust the fence numbers of all others.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use core::ops::Bound;

use hashbrown::HashTable;

use super::usage::Tally;
use crate::hash::Hasher;
use crate::path::Namespace;
use crate::slab::{Id, Slab};
use crate::tree::PathNode;
use crate::value::Fence;

/// One namespace.
#[derive(Clone, Debug)]
pub(crate) struct NamespaceState {
    pub(super) name: Namespace,
    /// Its root in the tree, if it has nodes.
    pub(super) root: Option<Id<PathNode>>,
    /// The highest fence minted, stored or folded here.
    pub(super) high: u64,
    /// Supplied fences up to this are stale on paths without a stored one.
    pub(super) floor: u64,
    pub(super) sessions: u32,
    pub(super) marks: u32,
    pub(super) capacities: u32,
    /// NEW paths that wait (R85: queue size limit).
    pub(super) waiting_paths: u32,
    /// The sum of the levels of these paths (R85).
    pub(super) waiting_levels: u64,
    /// What all owners have here.
    pub(super) tally: Tally,
    /// What the owners have that name a principal.
    pub(super) named: Tally,
    older: Option<Id<NamespaceState>>,
    newer: Option<Id<NamespaceState>>,
    pub(super) idle: bool,
}

/// All namespaces of a space, found by name, with the eviction queue of idle ones.
#[derive(Clone, Debug)]
pub(super) struct Namespaces {
    slab: Slab<NamespaceState>,
    table: HashTable<Id<NamespaceState>>,
    hasher: Hasher,
    oldest: Option<Id<NamespaceState>>,
    newest: Option<Id<NamespaceState>>,
    idle: u32,
    limit: u32,
    /// The floor of the space, at which new namespaces start.
    pub(super) floor: u64,
    /// The names in order. Built when a query needs them.
    ordered: Option<Box<OrderedNames>>,
}

/// The namespaces by [`order_key`].
#[derive(Clone, Debug, Default)]
struct OrderedNames {
    names: BTreeMap<Box<str>, Id<NamespaceState>>,
    /// Number of insertions and removals since it was last used.
    unused: usize,
}

/// Returns the key by which namespaces are ordered: as the tree of paths is, segment by segment. No
/// path contains U+0000. A bare handler comes directly before the root of the handler.
pub(super) fn order_key(name: &str) -> String {
    match name.contains(':') {
        true => name.replace('/', "\0"),
        false => [name, ":"].concat(),
    }
}

impl Namespaces {
    pub(super) fn new(hasher: Hasher, limit: u32) -> Namespaces {
        Namespaces {
            slab: Slab::new(),
            table: HashTable::new(),
            hasher,
            oldest: None,
            newest: None,
            idle: 0,
            limit,
            floor: 0,
            ordered: None,
        }
    }

    /// Sorts the names, unless they are sorted.
    pub(super) fn order(&mut self) {
        let slab = &self.slab;
        let ordered = self.ordered.get_or_insert_with(|| {
            let names = slab.iter();
            let names = names.map(|(id, state)| (order_key(state.name.as_str()).into(), id));
            Box::new(OrderedNames {
                names: names.collect(),
                unused: 0,
            })
        });
        ordered.unused = 0;
    }

    /// Iterates over the namespaces from a key on, in order. Empty unless they are sorted.
    pub(super) fn starting_at(
        &self,
        key: &str,
    ) -> impl Iterator<Item = (&str, Id<NamespaceState>)> {
        let range = (Bound::Included(key), Bound::Unbounded);
        let ordered = self.ordered.iter();
        let names = ordered.flat_map(move |ordered| ordered.names.range::<str, _>(range));
        names.map(|(key, id)| (&**key, *id))
    }

    /// Updates the sorted names, if there are any; drops them if no query has used them for a long
    /// time.
    fn reorder(&mut self, name: &str, change: Option<Id<NamespaceState>>) {
        let Some(ordered) = &mut self.ordered else {
            return;
        };
        ordered.unused += 1;
        if ordered.unused > 1024 + 4 * ordered.names.len() {
            self.ordered = None;
            return;
        }
        match change {
            Some(id) => {
                ordered.names.insert(order_key(name).into(), id);
            }
            None => {
                ordered.names.remove(&*order_key(name));
            }
        }
    }

    /// Returns a copy that finds namespaces by number only.
    pub(super) fn image(&mut self) -> Namespaces {
        Namespaces {
            slab: self.slab.image(),
            oldest: self.oldest,
            newest: self.newest,
            idle: self.idle,
            floor: self.floor,
            ..Namespaces::new(self.hasher, self.limit)
        }
    }

    pub(super) fn len(&self) -> u32 {
        self.slab.len()
    }

    pub(super) fn find(&self, name: &Namespace) -> Option<Id<NamespaceState>> {
        let hash = self.hasher.hash(0, name.as_str().as_bytes());
        self.table
            .find(hash, |other| self.slab[*other].name == *name)
            .copied()
    }

    /// Returns the namespace with this name; creates it if needed.
    pub(super) fn ensure(&mut self, name: &Namespace) -> Id<NamespaceState> {
        if let Some(found) = self.find(name) {
            return found;
        }
        self.insert(name.clone(), self.floor, self.floor)
    }

    pub(super) fn insert(&mut self, name: Namespace, high: u64, floor: u64) -> Id<NamespaceState> {
        let hash = self.hasher.hash(0, name.as_str().as_bytes());
        let number = self.slab.insert(NamespaceState {
            name,
            root: None,
            high,
            floor,
            sessions: 0,
            marks: 0,
            capacities: 0,
            waiting_paths: 0,
            waiting_levels: 0,
            tally: Tally::default(),
            named: Tally::default(),
            older: None,
            newer: None,
            idle: false,
        });
        let (slab, hasher) = (&self.slab, &self.hasher);
        self.table.insert_unique(hash, number, |other| {
            hasher.hash(0, slab[*other].name.as_str().as_bytes())
        });
        if self.ordered.is_some() {
            let name = self.slab[number].name.clone();
            self.reorder(name.as_str(), Some(number));
        }
        number
    }

    pub(super) fn get_mut(&mut self, number: Id<NamespaceState>) -> Option<&mut NamespaceState> {
        self.slab.get_mut(number)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Id<NamespaceState>, &NamespaceState)> {
        self.slab.iter()
    }

    /// Iterates over idle namespaces (only counters remain), the longest idle first.
    pub(super) fn idle(&self) -> impl Iterator<Item = Id<NamespaceState>> + '_ {
        let mut at = self.oldest;
        core::iter::from_fn(move || {
            let number = at?;
            at = self.slab[number].newer;
            Some(number)
        })
    }

    /// Reclassifies a namespace after a change: in use, queued for folding, kept because it is
    /// driven, or removed. The root of an empty namespace must have been removed before.
    pub(super) fn settle(&mut self, number: Id<NamespaceState>) {
        let Some(state) = self.slab.get(number) else {
            return;
        };
        let used = state.sessions > 0 || state.marks > 0 || state.capacities > 0;
        if used {
            self.unlist(number);
        } else if state.high <= self.floor && state.floor <= self.floor {
            self.unlist(number);
            self.forget(number);
        } else if state.high >= Fence::DRIVEN {
            self.unlist(number);
        } else if !state.idle {
            self.list(number);
            while self.idle > self.limit
                && let Some(oldest) = self.oldest
            {
                self.floor = self.floor.max(self.slab[oldest].high);
                self.unlist(oldest);
                self.forget(oldest);
            }
        }
    }

    /// Appends a namespace to the queue for folding, while a snapshot is decoded.
    pub(super) fn restore_idle(&mut self, number: Id<NamespaceState>) -> bool {
        let fresh = self.slab.get(number).is_some_and(|state| !state.idle);
        if fresh {
            self.list(number);
        }
        fresh
    }

    fn forget(&mut self, number: Id<NamespaceState>) {
        let Some(state) = self.slab.remove(number) else {
            return;
        };
        let hash = self.hasher.hash(0, state.name.as_str().as_bytes());
        if let Ok(entry) = self.table.find_entry(hash, |other| *other == number) {
            entry.remove();
        }
        self.reorder(state.name.as_str(), None);
    }

    fn list(&mut self, number: Id<NamespaceState>) {
        let older = self.newest.replace(number);
        match older {
            None => self.oldest = Some(number),
            Some(older) => self.slab[older].newer = Some(number),
        }
        let state = &mut self.slab[number];
        state.older = older;
        state.idle = true;
        self.idle += 1;
    }

    fn unlist(&mut self, number: Id<NamespaceState>) {
        let state = &mut self.slab[number];
        if !state.idle {
            return;
        }
        state.idle = false;
        let (older, newer) = (state.older.take(), state.newer.take());
        match older {
            None => self.oldest = newer,
            Some(older) => self.slab[older].newer = newer,
        }
        match newer {
            None => self.newest = older,
            Some(newer) => self.slab[newer].older = older,
        }
        self.idle -= 1;
    }
}

impl core::ops::Index<Id<NamespaceState>> for Namespaces {
    type Output = NamespaceState;
    fn index(&self, number: Id<NamespaceState>) -> &NamespaceState {
        &self.slab[number]
    }
}

impl core::ops::IndexMut<Id<NamespaceState>> for Namespaces {
    fn index_mut(&mut self, number: Id<NamespaceState>) -> &mut NamespaceState {
        &mut self.slab[number]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::HashSeed;

    #[test]
    fn r72_idle_namespaces_fold_into_the_floor_unless_driven() {
        let mut spaces = Namespaces::new(Hasher::new(HashSeed(0)), 1);
        let name = |text| Namespace::parse(text).unwrap();
        for (text, high) in [
            ("h:/a", 10),
            ("h:/b", 7),
            ("h:/c", Fence::DRIVEN),
            ("h:/d", 3),
        ] {
            let number = spaces.ensure(&name(text));
            spaces[number].high = high;
            spaces.settle(number);
        }
        assert_eq!(spaces.floor, 10, "the longest idle ones were folded");
        assert!(spaces.find(&name("h:/a")).is_none());
        assert!(spaces.find(&name("h:/b")).is_some(), "within the limit");
        assert!(spaces.find(&name("h:/c")).is_some(), "kept apart");
        // Counters not above the floor carry no information.
        let back = spaces.ensure(&name("h:/a"));
        assert_eq!(spaces[back].high, 10);
        spaces.settle(back);
        assert!(spaces.find(&name("h:/a")).is_none());
    }
}
