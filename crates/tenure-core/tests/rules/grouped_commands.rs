//! Groups are invisible: R0 (groups are invisible to clients). No visible result depends on which
//! namespaces share a space.
//!
//! The same random commands are applied to one space for all namespaces and to three spaces with a
//! part of the namespaces each. The results must be equal.

use std::collections::BTreeMap;

use tenure_core::command::{Command, Selection};
use tenure_core::event::{ChangeKind, Event, EventKind, LockChange};
use tenure_core::outcome::{AcquireOutcome, Outcome, Withdrawn};
use tenure_core::path::Namespace;
use tenure_core::query::HeldLock;
use tenure_core::space::{HashSeed, Space, SpaceLimits};
use tenure_core::value::Stamp;
use tenure_reference::Model;

use crate::cluster_state::{ClusterState, owner_id};
use crate::random::{Mismatch, quietly, report, story};
use crate::step::Step;

const GROUPS: usize = 3;

/// Returns the space of a namespace.
fn group(namespace: &Namespace) -> usize {
    let sum: usize = namespace.as_str().bytes().map(usize::from).sum();
    sum % GROUPS
}

struct Placements {
    world: ClusterState,
    // Only to look up what a step refers to.
    model: Model,
    one: Space,
    many: Vec<Space>,
    // The number that a waiter of the single space has in the space of its group.
    waiters: BTreeMap<(Namespace, u64), u64>,
    // For each order number of the single space: the order numbers of the groups at that time.
    orders: BTreeMap<u64, Vec<u64>>,
}

/// The visible effects of a command: its outcome, the events, the changes for watchers.
#[derive(Debug, PartialEq)]
struct ObservedEffects {
    outcome: Outcome,
    events: Vec<Event>,
    changes: Vec<LockChange>,
}

impl Placements {
    fn new() -> Placements {
        let space = || {
            let mut space = Space::new(SpaceLimits::default(), HashSeed(1));
            space.watch();
            space
        };
        Placements {
            world: ClusterState::new(),
            model: Model::new(),
            one: space(),
            many: (0..GROUPS).map(|_| space()).collect(),
            waiters: BTreeMap::new(),
            orders: BTreeMap::from([(0, vec![0; GROUPS])]),
        }
    }

    fn take(&mut self, step: &Step) -> Result<(), String> {
        let Some(command) = self.world.command(step, &self.model) else {
            return Ok(());
        };
        let stamp = Stamp {
            time: self.world.time,
            wall: self.world.time,
        };
        self.model.apply(stamp, &command);
        let place = place(&command);
        // The other groups get a tick, so that time passes in all of them.
        let mut parts = Vec::new();
        for at in 0..GROUPS {
            let part = match place {
                Some(only) if only != at => Command::Tick,
                _ => self.translated(&command, at),
            };
            parts.push((at, self.many[at].apply(stamp, part)));
        }
        let namespace = namespace_of(&command).cloned();
        let alone = self.one.apply(stamp, command);
        if let (Outcome::Acquire(AcquireOutcome::Queued(queued)), Some(at)) =
            (&alone.outcome, place)
            && let Outcome::Acquire(AcquireOutcome::Queued(same)) = &parts[at].1.outcome
        {
            let namespace = namespace.expect("an acquire has a namespace");
            self.waiters.insert((namespace, queued.waiter), same.waiter);
        }
        self.world.hear(&alone.outcome);
        let orders = self.many.iter().map(Space::order).collect();
        self.orders.insert(self.one.order(), orders);
        let mut together = ObservedEffects {
            outcome: parts[place.unwrap_or(0)].1.outcome.clone(),
            events: Vec::new(),
            changes: Vec::new(),
        };
        // A command for all groups: its outcome is the sum of the parts.
        if place.is_none() {
            together.outcome =
                parts
                    .iter()
                    .skip(1)
                    .fold(together.outcome, |sum, (_, part)| {
                        match (sum, &part.outcome) {
                            (Outcome::Touched(a), Outcome::Touched(b)) => Outcome::Touched(a + b),
                            (Outcome::Frozen(a), Outcome::Frozen(b)) => {
                                Outcome::Frozen(a.merge(b.clone()))
                            }
                            (other, _) => other,
                        }
                    });
        }
        for (_, part) in parts {
            together.events.extend(part.events);
            together.changes.extend(part.changes);
        }
        let alone = ObservedEffects {
            outcome: alone.outcome,
            events: alone.events,
            changes: alone.changes,
        };
        same("what is seen", plain(alone), plain(together))?;
        self.compare()
    }

    /// Replaces epochs, waiter numbers and order numbers by those of the group's own space.
    fn translated(&self, command: &Command, at: usize) -> Command {
        let mut command = command.clone();
        match &mut command {
            Command::Expire(expire) => {
                let epoch = |space: &Space| {
                    space
                        .lease(&expire.namespace, &expire.owner)
                        .map(|lease| lease.epoch)
                };
                let right = epoch(&self.one) == Some(expire.epoch);
                expire.epoch = match epoch(&self.many[at]) {
                    Some(epoch) if right => epoch,
                    _ => u64::MAX,
                };
            }
            Command::Withdraw(withdraw) => {
                let key = (withdraw.namespace.clone(), withdraw.waiter);
                let number = self.waiters.get(&key);
                withdraw.waiter = number.copied().unwrap_or(u64::MAX);
            }
            Command::ReleaseAll(release) => {
                let until = release.until.and_then(|until| self.orders.get(&until));
                release.until = until.map(|orders| orders[at]).or(release.until);
            }
            _ => {}
        }
        command
    }

    fn compare(&self) -> Result<(), String> {
        let holds = |space: &Space| -> Vec<HeldLock> {
            ["amy", "bob", "cid", "dan", "eve"]
                .iter()
                .flat_map(|owner| space.owner_locks(&owner_id(owner), &Selection::All).locks)
                .collect()
        };
        let leases = |space: &Space| -> Vec<String> {
            let leases = space.leases().map(|lease| {
                let (ttl, asked) = (lease.ttl.millis(), lease.asked_until);
                format!(
                    "{} {} {ttl} {} {asked}",
                    lease.namespace, lease.owner, lease.cover
                )
            });
            leases.collect()
        };
        let mut apart: Vec<HeldLock> = self.many.iter().flat_map(holds).collect();
        let mut alone = holds(&self.one);
        for list in [&mut alone, &mut apart] {
            list.sort_by(|a, b| (&a.owner, &a.path, a.mode).cmp(&(&b.owner, &b.path, b.mode)));
        }
        same("holds", alone, apart)?;
        let mut apart: Vec<String> = self.many.iter().flat_map(leases).collect();
        let mut alone = leases(&self.one);
        alone.sort();
        apart.sort();
        same("leases", alone, apart)
    }
}

fn place(command: &Command) -> Option<usize> {
    namespace_of(command).map(group)
}

/// Returns the namespace that a command concerns; `None` if it goes to every space.
fn namespace_of(command: &Command) -> Option<&Namespace> {
    Some(match command {
        Command::Acquire(acquire) => &acquire.route.namespace,
        Command::AcquireWithin(within) => &within.acquire.route.namespace,
        Command::Release(release) => &release.route.namespace,
        Command::Renew(renew) => &renew.namespace,
        Command::Expire(expire) => &expire.namespace,
        Command::Break(order) => &order.route.namespace,
        Command::Withdraw(withdraw) => &withdraw.namespace,
        _ => return None,
    })
}

/// Removes the numbers that differ between spaces, and sorts the lists.
fn plain(mut seen: ObservedEffects) -> ObservedEffects {
    match &mut seen.outcome {
        Outcome::Acquire(AcquireOutcome::Queued(queued)) => queued.waiter = 0,
        Outcome::Renew(Ok(renewed)) => renewed.born = 0,
        Outcome::Withdraw(Withdrawn::Granted { .. }) => {}
        _ => {}
    }
    seen.events.sort_by(|a, b| {
        let key = |event: &Event| (event.owner.clone(), event.namespace.clone(), event.sequence);
        key(a).cmp(&key(b))
    });
    for event in &mut seen.events {
        (event.sequence, event.id) = (0, 0);
    }
    // Each group that a policy change clears emits its own events and changes.
    seen.events
        .dedup_by(|a, b| a == b && a.kind == EventKind::Killed);
    seen.changes.sort_by(|a, b| {
        (&a.namespace, &a.owner, &a.path, a.mode).cmp(&(&b.namespace, &b.owner, &b.path, b.mode))
    });
    seen.changes
        .dedup_by(|a, b| a == b && matches!(a.kind, ChangeKind::Policy { .. }));
    seen
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, one: T, many: T) -> Result<(), String> {
    if one == many {
        return Ok(());
    }
    Err(format!(
        "{what}\n  in one space:      {one:?}\n  in several spaces: {many:?}"
    ))
}

fn play(steps: &[Step]) -> Result<(), Mismatch> {
    let mut placements = Placements::new();
    for (at, step) in steps.iter().enumerate() {
        quietly(|| placements.take(step)).map_err(|why| Mismatch { at, why })?;
    }
    Ok(())
}

/// R0 (groups are invisible to clients).
#[test]
fn nothing_depends_on_which_namespaces_share_a_space() {
    for seed in 0..700 {
        let steps = story(seed ^ 0x5eed, 120);
        if let Err(finding) = play(&steps) {
            report(seed, &steps, finding, |steps| play(steps).err());
        }
    }
}
