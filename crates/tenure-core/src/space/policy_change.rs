//! Policy changes in one space: freeze a region, then change or thaw it (R131–R140). Also refuses
//! requests resolved by an old namespace table (R32 (re-resolution after policy change)).

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use super::Space;
use super::acquire::all_paths;
use super::namespaces::NamespaceState;
use super::queue::Waiter;
use super::sessions::Session;
use crate::command::{ChangePolicy, ClearPolicy, Freeze, Region, Route, Thaw};
use crate::event::{ChangeKind, EventKind, LockChange};
use crate::history::Noted;
use crate::idempotency::KEPT_MS;
use crate::outcome::FreezeReport;
use crate::path::{Namespace, Path};
use crate::slab::Id;
use crate::value::{Fence, OwnerId};

/// Number of recent changes that a space distinguishes; older routes are always outdated.
const RECENT: usize = 64;

/// Changes of the namespace table, as known to a space.
#[derive(Clone, Debug, Default)]
pub(super) struct Routes {
    /// Applied changes with the table's version, oldest first.
    pub(super) recent: VecDeque<(u64, Region)>,
    /// Routes older than this are outdated, whichever paths they concern.
    pub(super) floor: u64,
    /// The highest version applied.
    pub(super) newest: u64,
    /// Changes finished in this space, above `settled`.
    pub(super) done: BTreeSet<u64>,
    /// All changes up to this one are finished in every group.
    pub(super) settled: u64,
    /// Frozen regions by the number of their change.
    pub(super) frozen: BTreeMap<u64, FrozenRegion>,
    /// Regions whose paths may have come from another namespace, oldest first. Since rules 2.
    pub(super) moved: VecDeque<MovedRegion>,
    /// Stands for all paths after `moved` overflowed.
    pub(super) all_moved: AllMoved,
}

/// A moved region that stands for all paths, with the time at which it lapses.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AllMoved {
    pub(super) end: u64,
    pub(super) version: u64,
}

/// A region whose paths changed their namespace recently.
#[derive(Clone, Debug)]
pub(super) struct MovedRegion {
    /// The time at which the last answers remembered in the former namespaces lapse.
    pub(super) end: u64,
    pub(super) version: u64,
    pub(super) region: Region,
}

/// Number of moved regions that a space distinguishes.
const MOVED: usize = 64;

/// A region in which no acquire is granted.
#[derive(Clone, Debug)]
pub(super) struct FrozenRegion {
    pub(super) region: Region,
    /// Waiters that became pending while the region was frozen.
    pub(super) waiters: BTreeSet<(u64, Id<Waiter>)>,
}

/// The fence floor of a region whose paths came from another namespace (R71: tokens never go back).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RegionFloor {
    pub(super) region: Region,
    pub(super) floor: u64,
    /// The change that created it; the oldest is folded first.
    pub(super) change: u64,
}

impl Routes {
    fn is_over(&self, change: u64) -> bool {
        change <= self.settled || self.done.contains(&change)
    }

    fn settle(&mut self, settled: u64) {
        if settled > self.settled {
            self.settled = settled;
            self.done = self.done.split_off(&settled.saturating_add(1));
        }
    }

    /// Returns the latest change that moved a path to another namespace, if the former one may
    /// still remember answers.
    pub(super) fn moved_by(&self, path: &Path, time: u64) -> Option<u64> {
        let moved = self.moved.iter();
        let here = moved.filter(|moved| moved.end > time && moved.region.contains(path));
        let here = here.map(|moved| moved.version);
        let all = Some(self.all_moved.version).filter(|_| self.all_moved.end > time);
        here.max().max(all)
    }

    fn note_moved(&mut self, moved: MovedRegion, time: u64) {
        while self.moved.front().is_some_and(|moved| moved.end <= time) {
            self.moved.pop_front();
        }
        if self.moved.len() >= MOVED
            && let Some(moved) = self.moved.pop_front()
        {
            self.all_moved = AllMoved {
                end: moved.end,
                version: moved.version.max(self.all_moved.version),
            };
        }
        self.moved.push_back(moved);
    }

    fn finish(&mut self, change: u64) {
        if change > self.settled {
            self.done.insert(change);
        }
    }
}

impl Space {
    /// Returns the table version that a request needs, if it was resolved by an outdated table
    /// (R32).
    pub(super) fn outdated<'a>(
        &self,
        route: &Route,
        mut paths: impl Iterator<Item = &'a Path>,
    ) -> Option<u64> {
        let routes = &self.routes;
        if route.version < routes.floor {
            return Some(routes.newest);
        }
        if route.version >= routes.newest {
            // The route is current. A path outside its namespace cannot come from any table.
            return paths
                .any(|path| !route.namespace.contains(path))
                .then_some(route.version.saturating_add(1));
        }
        let newer: Vec<&(u64, Region)> = routes
            .recent
            .iter()
            .filter(|(version, _)| *version > route.version)
            .collect();
        let mut concerns = None;
        for path in paths {
            if !route.namespace.contains(path) {
                return Some(routes.newest);
            }
            let here = newer.iter().filter(|(_, region)| region.contains(path));
            concerns = concerns.max(here.map(|(version, _)| *version).max());
        }
        concerns
    }

    /// Returns the change that freezes one of these paths, if any.
    pub(super) fn frozen<'a>(&self, mut paths: impl Iterator<Item = &'a Path>) -> Option<u64> {
        if self.routes.frozen.is_empty() {
            return None;
        }
        paths.find_map(|path| {
            let mut frozen = self.routes.frozen.iter();
            frozen
                .find(|(_, frozen)| frozen.region.contains(path))
                .map(|(change, _)| *change)
        })
    }

    /// Returns whether an unfinished change concerns one of these paths.
    pub fn holds_back<'a>(&self, paths: impl Iterator<Item = &'a Path>) -> bool {
        self.frozen(paths).is_some()
    }

    /// Defers a waiter whose paths are frozen. Returns whether it did.
    pub(super) fn park(&mut self, id: Id<Waiter>) -> bool {
        let waiter = &self.waiters[id];
        let Some(change) = self.frozen(all_paths(&waiter.request)) else {
            return false;
        };
        let number = waiter.number;
        if let Some(frozen) = self.routes.frozen.get_mut(&change) {
            frozen.waiters.insert((number, id));
        }
        true
    }

    pub(super) fn freeze(&mut self, freeze: Freeze) -> FreezeReport {
        self.settle_changes(freeze.settled);
        let report = self.report(&freeze.region);
        if !self.routes.is_over(freeze.change) {
            self.routes
                .frozen
                .entry(freeze.change)
                .or_insert(FrozenRegion {
                    region: freeze.region,
                    waiters: BTreeSet::new(),
                });
        }
        report
    }

    pub(super) fn thaw(&mut self, thaw: &Thaw) {
        self.routes.finish(thaw.change);
        self.unfreeze(thaw.change);
        self.wake_waiters();
    }

    pub(super) fn change(&mut self, change: ChangePolicy) {
        self.settle_changes(change.settled);
        if self.routes.is_over(change.change) {
            return;
        }
        self.routes.finish(change.change);
        self.clear(&change.region, change.clear);
        self.forget_moved(&change);
        self.unfreeze(change.change);
        // Only a change that clears no holds may change routes (R133 route changes need drained
        // paths, R138 deleting a row in use).
        if self.rules >= 2 && change.clear == ClearPolicy::Waiters {
            let moved = MovedRegion {
                end: self.time.saturating_add(KEPT_MS),
                version: change.version,
                region: change.region.clone(),
            };
            self.routes.note_moved(moved, self.time);
        }
        let routes = &mut self.routes;
        routes.newest = routes.newest.max(change.version);
        routes
            .recent
            .push_back((change.version, change.region.clone()));
        if routes.recent.len() > RECENT
            && let Some((version, _)) = routes.recent.pop_front()
        {
            routes.floor = routes.floor.max(version);
        }
        if self.history.is_kept() {
            let noted = Noted {
                kind: ChangeKind::Policy {
                    algorithm: change.algorithm,
                },
                path: change.region.root.as_str(),
                owner: None,
                mode: None,
                fence: None,
                holder: None,
            };
            self.history.note(self.wall, &noted);
        }
        if self.watching {
            self.out.changes.push(LockChange {
                namespace: change.region.root,
                kind: ChangeKind::Policy {
                    algorithm: change.algorithm,
                },
                owner: None,
                path: None,
                mode: None,
                fence: None,
                holder: None,
            });
        }
        self.wake_waiters();
    }

    /// Drops the state of changes that are finished in every group. If one of them still freezes a
    /// region here, this space was restored from a moment before its end: neither `Change` nor
    /// `Thaw` will follow.
    fn settle_changes(&mut self, settled: u64) {
        self.routes.settle(settled);
        // Release 0.1.0 keeps such a region frozen, and its replicas must agree with ours.
        if self.rules < 2 {
            return;
        }
        for (region, owners) in self.abandon_changes(settled) {
            for owner in owners {
                self.tell_owner(owner, Some(region.root.clone()), EventKind::Killed);
            }
        }
        // Grants what the dropped waiters blocked, before the command reports or clears holds.
        self.wake_waiters();
    }

    /// Unfreezes the regions of changes up to a number, whose results are unknown, and drops their
    /// waiters.
    ///
    /// The waiters are not woken: if the change was applied, their paths may belong to a namespace
    /// of another group, and a grant here would create a second holder. A client that retries is
    /// resolved by the present table. Returns the owners of the dropped waiters, by region.
    pub(super) fn abandon_changes(&mut self, up_to: u64) -> Vec<(Region, BTreeSet<OwnerId>)> {
        let mut abandoned = Vec::new();
        while let Some((change, _)) = self.routes.frozen.first_key_value()
            && *change <= up_to
            && let Some((_, FrozenRegion { region, .. })) = self.routes.frozen.pop_first()
        {
            let mut waiters: Vec<(u64, Id<Waiter>)> = self
                .waiters
                .iter()
                .filter(|(_, waiter)| all_paths(&waiter.request).any(|path| region.contains(path)))
                .map(|(id, waiter)| (waiter.number, id))
                .collect();
            waiters.sort_unstable();
            let mut owners = BTreeSet::new();
            for (_, id) in waiters {
                let session = self.waiters[id].session;
                owners.insert(self.sessions[session].owner.clone());
                self.leave(id);
                self.settle_session(session);
            }
            abandoned.push((region, owners));
        }
        abandoned
    }

    fn unfreeze(&mut self, change: u64) {
        if let Some(frozen) = self.routes.frozen.remove(&change) {
            for (_, id) in frozen.waiters {
                self.mark_pending(Some(id));
            }
        }
    }

    /// Returns the namespaces that may have paths in a region, sorted by name.
    fn touching(&self, region: &Region) -> Vec<Id<NamespaceState>> {
        let mut found: Vec<_> = self
            .namespaces
            .iter()
            .filter(|(_, state)| {
                let name = &state.name;
                (region.root == *name || region.root.encloses(name) || name.encloses(&region.root))
                    && !region.except.contains(name)
                    && !region.except.iter().any(|nested| nested.encloses(name))
            })
            .map(|(number, _)| number)
            .collect();
        found.sort_by(|one, two| self.namespaces[*one].name.cmp(&self.namespaces[*two].name));
        found
    }

    fn report(&self, region: &Region) -> FreezeReport {
        let touching: BTreeSet<_> = self.touching(region).into_iter().collect();
        let floors = self.region_floors.values().flatten().filter(|moved| {
            let root = &moved.region.root;
            region.root == *root || region.root.encloses(root) || root.encloses(&region.root)
        });
        let highest = touching
            .iter()
            .map(|namespace| self.namespaces[*namespace].high)
            .chain(floors.map(|moved| moved.floor))
            .chain(core::iter::once(self.namespaces.floor))
            .max()
            .unwrap_or(0);
        let live = self
            .sessions
            .iter()
            .filter(|(_, session)| touching.contains(&session.namespace) && session.claims > 0)
            .flat_map(|(number, session)| {
                self.session_claims(number).map(move |claim| {
                    let name = &self.namespaces[session.namespace].name;
                    (
                        self.tree.path(name, self.claims[claim].node),
                        &session.owner,
                    )
                })
            })
            // A hold ended by force counts as live until its owner names it. If its route changed,
            // a release of it would not reach the lease that reports it as lost, and that lease
            // could never be renewed again.
            .chain(self.sessions.iter().flat_map(|(_, session)| {
                let taken = session.taken().into_iter().flat_map(|taken| taken.keys());
                taken.map(|(path, _)| (path.clone(), &session.owner))
            }))
            .filter(|(path, _)| region.contains(path))
            .min()
            .map(|(path, owner)| (path, owner.clone()));
        FreezeReport {
            live,
            highest: Fence::from_number(highest),
        }
    }

    /// Drops the holds and waiters that a change clears; each owner concerned gets one KILLED event
    /// (R131, R133, R138).
    fn clear(&mut self, region: &Region, clear: ClearPolicy) {
        let touching: BTreeSet<_> = self.touching(region).into_iter().collect();
        let mut sessions: Vec<_> = self
            .sessions
            .iter()
            .filter(|(_, session)| touching.contains(&session.namespace))
            .map(|(number, _)| number)
            .collect();
        let key = |session: &Id<Session>| {
            let there = &self.sessions[*session];
            (
                there.owner.clone(),
                self.namespaces[there.namespace].name.clone(),
            )
        };
        // Session numbers may differ between replicas, so the order is by owner and namespace.
        sessions.sort_by_cached_key(key);
        let mut killed: BTreeSet<OwnerId> = BTreeSet::new();
        for session in sessions {
            let waits_there = self.sessions[session].waiter.filter(|waiter| {
                all_paths(&self.waiters[*waiter].request).any(|path| region.contains(path))
            });
            let owner = self.sessions[session].owner.clone();
            if let Some(waiter) = waits_there {
                self.leave(waiter);
                killed.insert(owner.clone());
            }
            // Otherwise there is no live hold: that was checked while frozen (R133, R138).
            if clear == ClearPolicy::All {
                let name = self.namespaces[self.sessions[session].namespace]
                    .name
                    .clone();
                let claims: Vec<(_, Path)> = self
                    .session_claims(session)
                    .map(|claim| (claim, self.tree.path(&name, self.claims[claim].node)))
                    .filter(|(_, path)| region.contains(path))
                    .collect();
                for (claim, path) in claims {
                    self.take_away(claim, path);
                    killed.insert(owner.clone());
                }
            }
            self.settle_session(session);
        }
        for owner in killed {
            self.tell_owner(owner, Some(region.root.clone()), EventKind::Killed);
        }
    }

    /// Drops capacities, which belong to the old policy (R52: when capacity is forgotten), and
    /// folds the fences of moved paths into the region's floor (R71).
    fn forget_moved(&mut self, change: &ChangePolicy) {
        let region = &change.region;
        let names = &self.namespaces;
        let goes = |number: Id<NamespaceState>, rest: &str| {
            region.contains(&names[number].name.path(rest))
        };
        let forgotten = self.capacities.drop_where(goes);
        let floor = change.floor;
        let moved = floor.map(|_| self.marks.drop_where(goes));
        for namespace in &forgotten {
            self.namespaces[*namespace].capacities -= 1;
        }
        let mut touched = forgotten;
        if let (Some(floor), Some(moved)) = (floor, moved) {
            for namespace in &moved {
                self.namespaces[*namespace].marks -= 1;
            }
            touched.extend(moved);
            self.raise_region(region, floor, change.change);
        }
        touched.sort_unstable();
        touched.dedup();
        for namespace in touched {
            self.settle_namespace(namespace);
        }
    }

    fn raise_region(&mut self, region: &Region, floor: Fence, change: u64) {
        let floors = self.region_floors.entry(region.root.clone()).or_default();
        // The new floor replaces older ones that it covers.
        floors.retain(|old| {
            old.floor > floor.number()
                || !region
                    .except
                    .iter()
                    .all(|nested| old.region.except.contains(nested))
        });
        floors.push(RegionFloor {
            region: region.clone(),
            floor: floor.number(),
            change,
        });
        while self.region_floors.values().map(Vec::len).sum::<usize>()
            > self.limits.region_floors as usize
        {
            if !self.fold_region() {
                return;
            }
        }
    }

    /// Folds the oldest region floor, unless it is driven: into the namespaces that may have its paths,
    /// and into the floor of the space for those that come later.
    fn fold_region(&mut self) -> bool {
        let oldest = self
            .region_floors
            .values()
            .flatten()
            .filter(|moved| moved.floor < Fence::DRIVEN)
            .min_by_key(|moved| moved.change)
            .cloned();
        let Some(oldest) = oldest else {
            return false;
        };
        let root: &Namespace = &oldest.region.root;
        if let Some(floors) = self.region_floors.get_mut(root) {
            floors.retain(|moved| *moved != oldest);
            if floors.is_empty() {
                self.region_floors.remove(root);
            }
        }
        self.namespaces.floor = self.namespaces.floor.max(oldest.floor);
        for namespace in self.touching(&oldest.region) {
            let state = &mut self.namespaces[namespace];
            state.floor = state.floor.max(oldest.floor);
            state.high = state.high.max(oldest.floor);
            self.settle_namespace(namespace);
        }
        true
    }
}
