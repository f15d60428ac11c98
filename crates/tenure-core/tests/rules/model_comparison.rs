//! Model-based testing: every step is applied to the space and to the naive model, and all results
//! must agree.
//!
//! Where the rules leave an order open (which of several owners gets its event first), both may
//! choose. The events of one owner and the changes of one path have one order.

use std::collections::BTreeMap;

use tenure_core::command::{Command, Selection};
use tenure_core::event::{Event, EventKind, LockChange};
use tenure_core::outcome::{Applied, LeaseChange, LeaseNumber};
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::{BlockReason, Mode};
use tenure_core::query::{EventsAfter, HeldLock, LeaseView};
use tenure_core::space::{HashSeed, Space, SpaceImage, SpaceLimits};
use tenure_core::value::{Fence, OwnerId, Stamp, Ttl};
use tenure_reference::Model;

use crate::cluster_state::ClusterState;
use crate::step::Step;

/// A space and its model.
pub(crate) struct ModelPair {
    pub(crate) world: ClusterState,
    pub(crate) space: Space,
    pub(crate) model: Model,
    /// Whether the space runs without comparison, because it has limits and the model has none.
    alone: bool,
    /// Whether algorithms are mixed in one namespace, which only the conflict check supports: R43
    /// (conflicts between different algorithms).
    pub(crate) mixed: bool,
    /// An image of the space, and its bytes when it was made.
    image: Option<(SpaceImage, Vec<u8>)>,
}

impl ModelPair {
    pub(crate) fn new() -> ModelPair {
        let mut pair = ModelPair::alone(SpaceLimits::default());
        pair.alone = false;
        pair
    }

    /// A pair whose commands grant and end so many waiters each.
    pub(crate) fn with_batch(batch: u32) -> ModelPair {
        let limits = SpaceLimits {
            batch,
            ..SpaceLimits::default()
        };
        let mut pair = ModelPair::alone(limits);
        pair.alone = false;
        pair.model = Model::with_batch(batch as usize);
        pair
    }

    /// A space with small limits. The model has none, so nothing is compared.
    pub(crate) fn alone(limits: SpaceLimits) -> ModelPair {
        let mut space = Space::new(limits, HashSeed(7));
        space.watch();
        ModelPair {
            world: ClusterState::new(),
            space,
            model: Model::new(),
            alone: true,
            mixed: false,
            image: None,
        }
    }

    pub(crate) fn stamp(&self) -> Stamp {
        Stamp {
            time: self.world.time,
            wall: 1_000_000 + self.world.time / 3,
        }
    }

    /// Applies a step to both. `Ok(None)`: the step is no command. `Err`: the results differ.
    pub(crate) fn take(&mut self, step: &Step) -> Result<Option<Applied>, String> {
        match self.world.command(step, &self.model) {
            None => Ok(None),
            Some(command) => self.apply(command).map(Some),
        }
    }

    /// Applies a command to both and compares all results.
    pub(crate) fn apply(&mut self, command: Command) -> Result<Applied, String> {
        let stamp = self.stamp();
        let before = numbered(&self.space);
        let expected = self.model.apply(stamp, &command);
        let found = self.space.apply(stamp, command);
        self.world.hear(&found.outcome);
        if self.alone {
            self.space.check();
            return Ok(found);
        }
        same("outcome", &found.outcome, &expected.outcome)?;
        same(
            "events",
            &by_owner(&found.events),
            &by_owner(&expected.events),
        )?;
        same(
            "lease changes",
            &in_the_end(
                named(&found.leases, &before, &numbered(&self.space)),
                &before,
            ),
            &in_the_end(named_by(&self.model, &expected.leases), &before),
        )?;
        same(
            "changes for watchers",
            &by_path(&found.changes),
            &by_path(&expected.changes),
        )?;
        self.space.check();
        Ok(found)
    }

    /// Compares two answers.
    pub(crate) fn agree<T: PartialEq + std::fmt::Debug>(
        &self,
        space: &T,
        twin: &T,
    ) -> Result<(), String> {
        if self.alone {
            return Ok(());
        }
        same("the answer", space, twin)
    }

    /// Encodes the space, and continues with the decoded copy. An image that was made before is
    /// encoded only now, after many changes of the space.
    pub(crate) fn through_a_snapshot(&mut self) -> Result<(), String> {
        if let Some((image, bytes)) = self.image.take() {
            same("image", &image.encode_snapshot(Vec::new()), &bytes)?;
        }
        let bytes = self.space.encode_snapshot(Vec::new());
        let mut read = Space::decode_snapshot(&bytes, HashSeed(bytes.len() as u64))
            .map_err(|error| format!("its own snapshot is refused: {error}"))?;
        read.check();
        same("snapshot", &read.encode_snapshot(Vec::new()), &bytes)?;
        read.watch();
        self.space = read;
        self.image = Some((self.space.image(), bytes));
        Ok(())
    }

    /// Compares all queries at a lease time, now or `ahead` milliseconds later.
    pub(crate) fn compare(
        &self,
        ahead: u64,
        owners: &[OwnerId],
        paths: &[Path],
    ) -> Result<(), String> {
        let (space, now) = (&self.space, self.world.time + ahead);
        let model = &self.model.at(now);
        // Lease numbers are internal and differ between the two.
        let shown = |lease: LeaseView<'_>| {
            let number = LeaseNumber(0);
            format!("{:?}", LeaseView { number, ..lease })
        };
        let mut leases: Vec<String> = space.leases().map(shown).collect();
        let mut pair: Vec<String> = self.model.leases().map(shown).collect();
        leases.sort();
        pair.sort();
        same("leases", &leases, &pair)?;
        same("holds", &self.dump(3)?, &sorted(model.holds()))?;
        for prefix in ["t", "t:/a/b"] {
            let prefix = Namespace::parse(prefix).unwrap();
            let all = |changes: Vec<LockChange>| {
                let mut changes = by_path(&changes);
                changes.sort_by_key(|change| change.kind);
                changes
            };
            same(
                &format!("what is seen under {prefix}"),
                &all(space.watch_snapshot(&prefix, now)),
                &all(model.watch_snapshot(&prefix)),
            )?;
        }
        for path in paths {
            let namespace = self.world.table.namespace_of(path);
            let (found, expected) = (
                space.inspect(&namespace, path, now),
                model.inspect(&namespace, path),
            );
            same(&format!("inspection of {path}"), &found, &expected)?;
        }
        for owner in owners {
            let mut found = space.owner_locks(owner, &Selection::All);
            let mut expected = model.owner_locks(owner, &Selection::All);
            found.locks = sorted(found.locks);
            expected.locks = sorted(expected.locks);
            same(&format!("locks of {owner}"), &found, &expected)?;
            same(
                &format!("life of {owner}"),
                &space.owner_alive(owner, &Selection::All, now),
                &model.is_alive(owner, &Selection::All),
            )?;
            for namespace in ["t:/a", "t:/ab", "u:/a", "t:/a/b", "t"] {
                let namespace = Namespace::parse(namespace).unwrap();
                same(
                    &format!("a renewal of {owner} in {namespace}"),
                    &space.renewal(&namespace, owner).map(|_| ()),
                    &self.model.renewal(&namespace, owner),
                )?;
            }
            let standing = space.standing_grants(owner, now).into_iter();
            let mut standing: Vec<(Namespace, Option<Fence>)> = standing
                .map(|event| match (event.namespace, event.kind) {
                    (Some(namespace), EventKind::Grant { fence }) => (namespace, fence),
                    other => panic!("{other:?} is no grant"),
                })
                .collect();
            standing.sort();
            same(
                &format!("standing grants of {owner}"),
                &standing,
                &model.standing_grants(owner),
            )?;
            let mut found = space.waits_for(owner, now);
            found.iter_mut().for_each(|waits| waits.owners.sort());
            found.sort_by_key(|waits| waits.place.waiter);
            same(
                &format!("waits of {owner}"),
                &found,
                &model.waits_for(owner),
            )?;
        }
        Ok(())
    }

    /// Compares the queries about one owner and one path.
    pub(crate) fn compare_pair(&self, owner: &OwnerId, path: &Path) -> Result<(), String> {
        let namespace = self.world.table.namespace_of(path);
        let now = self.world.time;
        let model = &self.model.at(now);
        let stored = model.stored(&namespace, path).map_or(1, Fence::number);
        for number in [stored, stored + 1] {
            let fence = Fence::from_number(number).unwrap();
            same(
                &format!("assertion of {owner} on {path} at {fence}"),
                &self.space.assert_fencing(&namespace, owner, path, fence),
                &model.check_fence(&namespace, owner, path, fence),
            )?;
        }
        for reason in REASONS {
            same(
                &format!("whether {owner} blocks {path} by {reason:?}"),
                &self.space.is_blocking(&namespace, owner, path, reason, now),
                &model.is_blocking(&namespace, owner, path, reason),
            )?;
        }
        if self.space.next_waiter_end().is_some_and(|end| end <= now) {
            // The space still sees waiters that the next commands end.
            return Ok(());
        }
        let route = self.world.table.resolve(path);
        for mode in [Mode::Write, Mode::Read, Mode::ReadTree] {
            let what = format!("explanation of {owner} {mode:?} {path}");
            let found = self
                .space
                .explain(&route, owner, path, mode, self.space.time());
            let expected = self.model.explain(&route, owner, path, mode);
            if route.algorithm.allows(mode) && !self.mixed {
                same(&what, &found, &expected)?;
            } else {
                // No holder blocks a request that is never possible, so only the conflict is
                // compared.
                same(&what, &found.conflict, &expected.conflict)?;
            }
        }
        Ok(())
    }

    /// Compares all kept events.
    pub(crate) fn compare_events(&self) -> Result<(), String> {
        let expected = self.model.events_after(0);
        let found = match self.space.events_after(0) {
            EventsAfter::Complete(events) | EventsAfter::Hole(events) => events,
        };
        same("kept events", &by_owner(&found), &by_owner(&expected))
    }

    /// Returns all holds, page by page.
    pub(crate) fn dump(&self, page: usize) -> Result<Vec<HeldLock>, String> {
        let (mut locks, mut cursor) = (Vec::new(), None);
        for _ in 0..10_000 {
            let part = self.space.dump(cursor, page);
            if part.locks.len() > page {
                return Err(format!("{} holds on a page of {page}", part.locks.len()));
            }
            locks.extend(part.locks);
            cursor = part.next;
            if cursor.is_none() {
                return Ok(sorted(locks));
            }
        }
        Err("the scan of all holds has no end".into())
    }
}

const REASONS: [BlockReason; 7] = [
    BlockReason::AncestorLocked,
    BlockReason::WriteLocked,
    BlockReason::ReadLocked,
    BlockReason::DescendantWriteLocked,
    BlockReason::DescendantReadLocked,
    BlockReason::SemaphoreFull,
    BlockReason::Queued,
];

fn same<T: PartialEq + std::fmt::Debug>(what: &str, space: &T, twin: &T) -> Result<(), String> {
    if space == twin {
        return Ok(());
    }
    Err(format!("{what}\n  space: {space:?}\n  twin:  {twin:?}"))
}

fn sorted(mut locks: Vec<HeldLock>) -> Vec<HeldLock> {
    locks.sort_by(|a, b| (&a.owner, &a.path, a.mode).cmp(&(&b.owner, &b.path, b.mode)));
    locks
}

/// Sorts events by owner and namespace: R121 (event ids), R124 (order of events). The numbers are
/// compared as a list. The order of a release request and a grant from one command is not
/// specified.
fn by_owner(events: &[Event]) -> Vec<Event> {
    let mut numbers: Vec<(u64, u64)> = events
        .iter()
        .map(|event| (event.sequence, event.id))
        .collect();
    assert!(
        numbers.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1),
        "the numbers and ids of events grow: {numbers:?}"
    );
    let mut events = events.to_vec();
    events.sort_by(|a, b| (&a.owner, &a.namespace, a.kind).cmp(&(&b.owner, &b.namespace, b.kind)));
    numbers.sort();
    for (event, (sequence, id)) in events.iter_mut().zip(numbers) {
        (event.sequence, event.id) = (sequence, id);
    }
    events
}

/// Returns the leases of a space by number, with their epochs.
fn numbered(space: &Space) -> BTreeMap<LeaseNumber, (Name, u64)> {
    let named = |lease: LeaseView<'_>| {
        let name = (lease.namespace.clone(), lease.owner.clone());
        (lease.number, (name, lease.epoch))
    };
    space.leases().map(named).collect()
}

/// A lease's namespace and owner.
type Name = (Namespace, OwnerId);

/// The result for a lease: its ttl and epoch, or its end.
type Named = (Name, Option<(Ttl, u64)>);

/// Returns the lease changes of a space by name. A number may be reused within one command; a lease
/// that exists neither before nor after has no name.
fn named(
    changes: &[LeaseChange],
    before: &BTreeMap<LeaseNumber, (Name, u64)>,
    after: &BTreeMap<LeaseNumber, (Name, u64)>,
) -> Vec<Named> {
    let mut old = before.clone();
    let name = |change: &LeaseChange| match *change {
        LeaseChange::Set { lease, ttl, epoch } | LeaseChange::Renewed { lease, ttl, epoch } => {
            let (name, now) = after.get(&lease)?;
            (*now == epoch).then(|| (name.clone(), Some((ttl, epoch))))
        }
        LeaseChange::Ended { lease } => old.remove(&lease).map(|(name, _)| (name, None)),
    };
    changes.iter().filter_map(name).collect()
}

fn named_by(model: &Model, changes: &[LeaseChange]) -> Vec<Named> {
    let name = |change: &LeaseChange| match *change {
        LeaseChange::Set { lease, ttl, epoch } | LeaseChange::Renewed { lease, ttl, epoch } => {
            (model.lease_name(lease).unwrap().clone(), Some((ttl, epoch)))
        }
        LeaseChange::Ended { lease } => (model.lease_name(lease).unwrap().clone(), None),
    };
    changes.iter().map(name).collect()
}

/// Returns the last change of each lease. A lease that started and ended within the command is
/// omitted.
fn in_the_end(changes: Vec<Named>, before: &BTreeMap<LeaseNumber, (Name, u64)>) -> Vec<Named> {
    let mut last: Vec<Named> = Vec::new();
    for change in changes {
        last.retain(|(name, _)| *name != change.0);
        last.push(change);
    }
    let was_there = |name: &Name| before.values().any(|(there, _)| there == name);
    last.retain(|(name, set)| set.is_some() || was_there(name));
    last.sort();
    last
}

/// Sorts changes by path, in their order: E8 (Watch lock changes).
fn by_path(changes: &[LockChange]) -> Vec<LockChange> {
    let mut changes = changes.to_vec();
    changes.sort_by(|a, b| {
        (&a.namespace, &a.owner, &a.path, a.mode).cmp(&(&b.namespace, &b.owner, &b.path, b.mode))
    });
    changes
}
