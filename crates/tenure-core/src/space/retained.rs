//! Retained fences of paths without a writer, and capacities of semaphore paths (kept 24 h unused).

use core::num::NonZeroU32;

use super::Space;
use super::namespaces::NamespaceState;
use crate::namespace_table::parent_name;
use crate::path::Path;
use crate::policy::Mode;
use crate::slab::Id;
use crate::tree::PathNode;
use crate::value::Fence;

/// How long an unused capacity is kept (R52: when capacity is forgotten).
const CAPACITY_KEPT_MS: u64 = 24 * 60 * 60 * 1000;

/// The capacity of a semaphore path.
#[derive(Clone, Debug)]
pub(super) struct Capacity {
    pub(super) permits: NonZeroU32,
    /// The time since which no permit is held or wanted; meaningless while one is.
    pub(super) idle_since: u64,
}

impl Space {
    /// Retains the fence of a path that is no longer held. Beyond the limit the longest idle one is
    /// folded into its namespace's floor (R72: token retention and floors).
    pub(super) fn leave_mark(&mut self, namespace: Id<NamespaceState>, path: &Path, fence: Fence) {
        let state = &mut self.namespaces[namespace];
        state.marks += 1;
        // Evict before inserting: one entry beyond the limit would double the table, which never
        // shrinks.
        self.fold_marks(self.limits.marks.saturating_sub(1));
        let name = self.namespaces[namespace].name.rest(path);
        self.marks.insert_idle(namespace, name, fence);
        self.fold_marks(self.limits.marks);
    }

    /// Folds the longest idle fences into floors until at most `kept` remain.
    fn fold_marks(&mut self, kept: u32) {
        while self.marks.idle() > kept {
            let Some(dropped) = self.marks.drop_oldest() else {
                return;
            };
            let state = &mut self.namespaces[dropped.namespace];
            state.floor = state.floor.max(dropped.value.number());
            state.marks -= 1;
            self.settle_namespace(dropped.namespace);
        }
    }

    /// Removes the retained fence of a path that is held again; its claim stores the fence now.
    pub(super) fn take_mark(&mut self, namespace: Id<NamespaceState>, path: &Path) {
        let state = &mut self.namespaces[namespace];
        let name = state.name.rest(path);
        if self.marks.remove(namespace, name).is_some() {
            state.marks -= 1;
        }
    }

    /// Returns the stored fence of a path (R66: where tokens are stored): the writer's, or the
    /// retained one. Permits have none.
    pub(super) fn stored_fence(
        &self,
        namespace: Id<NamespaceState>,
        path: &Path,
        node: Option<Id<PathNode>>,
    ) -> Option<Fence> {
        let writer = node.and_then(|node| self.claims_at(node, Mode::Write).next());
        writer
            .and_then(|claim| self.claims[claim].fence())
            .or_else(|| {
                let name = self.namespaces[namespace].name.rest(path);
                self.marks.get(namespace, name).copied()
            })
    }

    /// Returns the floor of a path: supplied fences up to it are stale if the path has no stored
    /// one (R71 tokens never go back, R72).
    pub(super) fn fence_floor(&self, namespace: Id<NamespaceState>, path: &Path) -> u64 {
        let floor = self.namespaces[namespace].floor;
        if self.region_floors.is_empty() {
            return floor;
        }
        let mut highest = floor;
        let mut name = Some(path.as_str());
        while let Some(prefix) = name {
            for moved in self.region_floors.get(prefix).into_iter().flatten() {
                if moved.region.contains(path) {
                    highest = highest.max(moved.floor);
                }
            }
            name = parent_name(prefix);
        }
        highest
    }

    /// Mints a fence for these paths, above all earlier ones of the paths and their namespace (R67:
    /// minting a token). Returns `None` if the numbers are exhausted.
    pub(super) fn mint<'a>(
        &mut self,
        namespace: Id<NamespaceState>,
        writes: impl Iterator<Item = &'a Path>,
    ) -> Option<Fence> {
        let mut above = self.namespaces[namespace].high;
        if !self.region_floors.is_empty() {
            for path in writes {
                above = above.max(self.fence_floor(namespace, path));
            }
        }
        let fence = Fence::from_number(above + 1)?;
        self.namespaces[namespace].high = fence.number();
        if fence.number() < Fence::DRIVEN {
            self.minted = self.minted.max(fence.number());
        }
        Some(fence)
    }

    /// Returns a path's capacity, if it is fixed (R51: the first acquire fixes capacity).
    pub(super) fn capacity(
        &self,
        namespace: Id<NamespaceState>,
        path: &Path,
    ) -> Option<NonZeroU32> {
        let name = self.namespaces[namespace].name.rest(path);
        let capacity = self.capacities.get(namespace, name)?;
        let over = self.capacities.is_idle(namespace, name)
            && capacity.idle_since.saturating_add(CAPACITY_KEPT_MS) <= self.time;
        (!over).then_some(capacity.permits)
    }

    /// Fixes a path's capacity by a granted request (R51).
    pub(super) fn fix_capacity(
        &mut self,
        namespace: Id<NamespaceState>,
        path: &Path,
        permits: NonZeroU32,
    ) {
        if self.capacity(namespace, path).is_none() {
            let name = self.namespaces[namespace].name.rest(path);
            if self.capacities.remove(namespace, name).is_none() {
                self.namespaces[namespace].capacities += 1;
            }
            let idle_since = self.time;
            let capacity = Capacity {
                permits,
                idle_since,
            };
            self.capacities.insert(namespace, name, capacity);
        }
        self.settle_capacity(namespace, path);
    }

    /// Marks a capacity as idle if no permit of the path is held or wanted (R52).
    pub(super) fn settle_capacity(&mut self, namespace: Id<NamespaceState>, path: &Path) {
        let name = self.namespaces[namespace].name.rest(path);
        if self.capacities.get(namespace, name).is_none() {
            return;
        }
        let used = self.path_position(namespace, path).at.is_some_and(|node| {
            self.count_at(node, Mode::Write) > 0
                || self
                    .tree
                    .extra(node)
                    .is_some_and(|extra| !extra.line(Mode::Write).is_empty())
        });
        if used {
            self.capacities.set_used(namespace, name);
            return;
        }
        if self.capacities.is_idle(namespace, name) {
            return;
        }
        if let Some(capacity) = self.capacities.get_mut(namespace, name) {
            capacity.idle_since = self.time;
        }
        self.capacities.set_idle(namespace, name);
        while self.capacities.idle() > self.limits.capacities {
            self.drop_oldest_capacity();
        }
    }

    /// Drops lapsed capacities, a few per entry.
    pub(super) fn forget_capacities(&mut self) {
        for _ in 0..4 {
            match self.capacities.oldest() {
                Some(oldest) if oldest.idle_since.saturating_add(CAPACITY_KEPT_MS) <= self.time => {
                    self.drop_oldest_capacity();
                }
                _ => return,
            }
        }
    }

    fn drop_oldest_capacity(&mut self) {
        if let Some(dropped) = self.capacities.drop_oldest() {
            self.namespaces[dropped.namespace].capacities -= 1;
            self.settle_namespace(dropped.namespace);
        }
    }

    /// Updates a namespace that may have become empty.
    pub(super) fn settle_namespace(&mut self, namespace: Id<NamespaceState>) {
        let Some(state) = self.namespaces.get_mut(namespace) else {
            return;
        };
        if state.sessions == 0
            && let Some(root) = state.root
            && self.tree.is_bare(root)
        {
            self.tree.uproot(root);
            state.root = None;
        }
        self.namespaces.settle(namespace);
    }
}
