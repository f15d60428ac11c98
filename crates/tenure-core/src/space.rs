//! Lock state machine of one group: commands in, outcomes and events out.
//!
//! ```text
//!             ┌ conflict.rs: conflict check; names the blocker
//! acquire.rs ─┼ claims.rs: claims in the path tree and its counts
//!             └ queue.rs: waiters and their blockers ──▶ wake.rs: grants waiters after a change
//! release.rs, policy_change.rs: end claims, leases and waiters
//! queries.rs: read-only queries      snapshot.rs, restore.rs: encoding of the state      check.rs: invariants
//! ```
//!
//! There is no clock here: time is a number that comes with each entry, and leases end only by
//! `Expire`. Everything else with a time limit is ignored by lookups once its time is over, and
//! removed by later entries.

mod acquire;
mod blockers;
#[cfg(any(test, feature = "check"))]
mod check;
mod claims;
mod conflict;
mod idempotency;
mod namespaces;
mod packed_claim;
mod policy_change;
mod queries;
mod queue;
mod release;
mod restore;
mod retained;
mod sessions;
mod snapshot;
mod wake;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::command::Command;
use crate::event::{ChangeKind, Event, EventIdStride, LockChange};
use crate::event_log::EventLog;
use crate::hash::Hasher;
use crate::idle_table::IdleTable;
use crate::outcome::{Applied, LeaseChange, Outcome};
use crate::path::Namespace;
use crate::slab::Slab;
use crate::tree::Tree;
use crate::value::{Fence, Stamp};
use crate::wait_lists::WaitLists;

use self::claims::Claim;
use self::idempotency::IdempotencyTable;
use self::namespaces::Namespaces;
use self::policy_change::{RegionFloor, Routes};
use self::queue::Waiter;
use self::retained::Capacity;
use self::sessions::Sessions;

pub(crate) use self::idempotency::KEPT_MS as ANSWER_KEPT_MS;
pub use crate::hash::HashSeed;

/// The newest rules that this release knows. A change of any outcome, or of the form of a command or a
/// snapshot, needs a new number.
pub const RULES: u32 = 2;

/// The rules of release 0.1.0, by which every machine begins. [`Command::Rules`] moves it on, so that the
/// entries of an older release are applied by the rules under which they were written.
pub const FIRST_RULES: u32 = 1;

/// How much a space keeps. Part of its state: the same on every replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceLimits {
    /// Fences of paths that nobody holds; beyond it the longest idle becomes its namespace's floor
    /// (R72: token retention and floors).
    pub marks: u32,
    /// Namespaces with nothing left but a floor; beyond it the longest idle is folded into the space's floor (R72).
    pub idle_namespaces: u32,
    /// Floors of moved regions; beyond it the oldest is folded into the space's floor (R71: tokens
    /// never go back).
    pub region_floors: u32,
    /// Remembered answers; beyond it keyed requests are refused (R102: keyed requests apply once).
    pub answers: u32,
    /// Idle semaphore capacities; beyond it the longest idle is forgotten (R52: when capacity is
    /// forgotten).
    pub capacities: u32,
    /// NEW paths that may wait in one namespace (R85: queue size limit).
    pub waiting_paths: u32,
    /// Events kept for 30 s (R122: events are always delivered); beyond it the oldest goes.
    pub events: u32,
}

impl Default for SpaceLimits {
    /// Another number here is another state machine, like other [`RULES`]: replicas of two releases would differ.
    fn default() -> SpaceLimits {
        SpaceLimits {
            marks: 1024,
            idle_namespaces: 16_384,
            region_floors: 1024,
            answers: 65_536,
            capacities: 16_384,
            waiting_paths: 262_144,
            events: 65_536,
        }
    }
}

/// The lock state machine of one group.
#[derive(Clone, Debug)]
pub struct Space {
    limits: SpaceLimits,
    rules: u32,
    time: u64,
    // The wall clock hint of the entry being applied; serves event ids and nothing else.
    wall: u64,
    namespaces: Namespaces,
    region_floors: BTreeMap<Namespace, Vec<RegionFloor>>,
    tree: Tree,
    claims: Slab<Claim>,
    sessions: Sessions,
    waiters: Slab<Waiter>,
    // The number of the last waiter.
    next_waiter: u64,
    // When waiters' times are over: (end, number, waiter).
    ends: BTreeSet<(u64, u64, u32)>,
    links: WaitLists,
    marks: IdleTable<Fence>,
    capacities: IdleTable<Capacity>,
    answers: IdempotencyTable,
    events: EventLog,
    routes: Routes,
    // The last epoch given to a lease. Since rules 2 epochs and waiters are numbered in one order.
    epoch: u64,
    // Waiters up to this number are older than that order: a grant of one is a new birth.
    order_from: u64,
    // The highest fence minted below `Fence::DRIVEN` (R75: IncrFencingToken always grows).
    minted: u64,
    // Leases of more than a minute.
    long_leases: u32,
    watching: bool,
    // Waiters to be looked at before the command ends: (number, waiter).
    pending: BTreeSet<(u64, u32)>,
    out: Effects,
}

/// What applied commands have done, beside their answers. See [`Applied`].
#[derive(Clone, Debug, Default)]
pub struct Effects {
    /// Events for owners, in order.
    pub events: Vec<Event>,
    /// Leases that were set or ended, in order.
    pub leases: Vec<LeaseChange>,
    /// What those who watch see.
    pub changes: Vec<LockChange>,
}

impl Effects {
    /// Lists that are longer than this are not kept for the next command.
    const KEPT: usize = 1024;

    /// Forgets everything, but keeps the room.
    pub fn clear(&mut self) {
        fn empty<T>(list: &mut Vec<T>) {
            list.clear();
            if list.capacity() > Effects::KEPT {
                *list = Vec::new();
            }
        }
        empty(&mut self.events);
        empty(&mut self.leases);
        empty(&mut self.changes);
    }

    /// Most commands set or end one lease: the list starts with room for just that.
    fn lease(&mut self, change: LeaseChange) {
        if self.leases.capacity() == 0 {
            self.leases = Vec::with_capacity(1);
        }
        self.leases.push(change);
    }
}

/// Why a claim ends, for those who watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClaimEnd {
    Released,
    Expired,
    Killed,
}

impl ClaimEnd {
    fn change(self) -> ChangeKind {
        match self {
            ClaimEnd::Released => ChangeKind::Released,
            ClaimEnd::Expired => ChangeKind::Expired,
            ClaimEnd::Killed => ChangeKind::Killed,
        }
    }
}

impl Space {
    /// An empty space.
    pub fn new(limits: SpaceLimits, seed: HashSeed) -> Space {
        let hasher = Hasher::new(seed);
        Space {
            rules: FIRST_RULES,
            time: 0,
            wall: 0,
            namespaces: Namespaces::new(hasher, limits.idle_namespaces),
            region_floors: BTreeMap::new(),
            tree: Tree::new(hasher),
            claims: Slab::new(),
            sessions: Sessions::new(hasher),
            waiters: Slab::new(),
            next_waiter: 0,
            ends: BTreeSet::new(),
            links: WaitLists::new(),
            marks: IdleTable::new(hasher),
            capacities: IdleTable::new(hasher),
            answers: IdempotencyTable::new(limits.answers),
            events: EventLog::new(limits.events),
            routes: Routes::default(),
            epoch: 0,
            order_from: 0,
            minted: 0,
            long_leases: 0,
            watching: false,
            pending: BTreeSet::new(),
            out: Effects::default(),
            limits,
        }
    }

    /// Gives its events the ids of a lane (R121: event ids). It belongs to the group, not to its
    /// state: set it after `new` and after a snapshot was read.
    pub fn number_events(&mut self, stride: EventIdStride) {
        self.events.stride = stride;
    }

    /// Applies one command. The same commands in the same order give the same space everywhere.
    pub fn apply(&mut self, stamp: Stamp, command: Command) -> Applied {
        let outcome = self.act(stamp, command);
        let Effects {
            events,
            leases,
            changes,
        } = core::mem::take(&mut self.out);
        Applied {
            outcome,
            events,
            leases,
            changes,
        }
    }

    /// Like [`Space::apply`], but all except the answer is left in [`Space::effects`]: whoever applies
    /// many commands need not make lists for each.
    pub fn act(&mut self, stamp: Stamp, command: Command) -> Outcome {
        self.pass_time(stamp);
        let outcome = match command {
            Command::Acquire(acquire) => Outcome::Acquire(self.acquire(acquire)),
            Command::Release(release) => Outcome::Release(self.release(release)),
            Command::ReleaseAll(release) => Outcome::Touched(self.release_all(release)),
            Command::Renew(renew) => Outcome::Renew(self.renew(&renew)),
            Command::Expire(expire) => Outcome::Expired(self.expire(&expire)),
            Command::Tick => Outcome::Done,
            Command::Ask(ask) => Outcome::Touched(self.ask(&ask)),
            Command::Break(hold) => Outcome::Break(Box::new(self.break_hold(hold))),
            Command::Withdraw(withdraw) => Outcome::Withdraw(self.withdraw(&withdraw)),
            Command::Freeze(freeze) => Outcome::Frozen(self.freeze(freeze)),
            Command::Change(change) => {
                self.change(change);
                Outcome::Done
            }
            Command::Thaw(thaw) => {
                self.thaw(&thaw);
                Outcome::Done
            }
            Command::Lift { by } => {
                self.lift(by);
                Outcome::Done
            }
            Command::Rules { number } => {
                if self.rules < 2 && number >= 2 {
                    self.order_from = self.order();
                }
                self.rules = self.rules.max(number);
                Outcome::Done
            }
        };
        debug_assert!(self.pending.is_empty(), "every freed waiter was looked at");
        outcome
    }

    /// What was done since this was last emptied.
    pub fn effects(&mut self) -> &mut Effects {
        &mut self.out
    }

    /// What ends by the stamp ends before the command (leases.md).
    fn pass_time(&mut self, stamp: Stamp) {
        self.time = self.time.max(stamp.time);
        self.wall = stamp.wall;
        let mut sessions = Vec::new();
        while let Some((end, _, id)) = self.ends.first().copied()
            && end <= self.time
        {
            sessions.push(self.waiters[id].session);
            self.leave(id);
        }
        if !sessions.is_empty() {
            for session in sessions {
                self.settle_session(session);
            }
            self.wake_waiters();
        }
        self.answers.forget(self.time);
        self.events.forget(self.time);
        self.forget_capacities();
    }

    /// The next number of a lease's epoch.
    fn next_epoch(&mut self) -> u64 {
        let last = if self.rules >= 2 {
            self.order()
        } else {
            self.epoch
        };
        self.epoch = last + 1;
        self.epoch
    }

    /// The next number of a waiter.
    fn next_waiter(&mut self) -> u64 {
        let last = if self.rules >= 2 {
            self.order()
        } else {
            self.next_waiter
        };
        self.next_waiter = last + 1;
        self.next_waiter
    }

    /// By how much the counters can be raised at most (see [`Command::Lift`]): beyond that they would stay where
    /// they are, and a second state that is raised from the same one would give out the same fences.
    pub fn lift_room(&self) -> u64 {
        (Fence::DRIVEN - 1).saturating_sub(self.namespaces.floor.max(self.minted))
    }

    /// Raises every counter and floor, as far as there are numbers, and unfreezes every region.
    ///
    /// A lifted state goes on without the system machine that froze it: that one is restored too, from
    /// another moment, and may never have heard of the change. `Lift` is not proposed to a group. It
    /// transforms a saved state while no node runs, so it is the same under all rules.
    fn lift(&mut self, by: u64) {
        let raise = |number: u64| number.saturating_add(by).min(Fence::MINTED_END - 1);
        let numbers: Vec<u32> = self.namespaces.iter().map(|(number, _)| number).collect();
        for number in numbers {
            let state = &mut self.namespaces[number];
            state.high = raise(state.high);
            state.floor = state.high;
        }
        for moved in self.region_floors.values_mut().flatten() {
            moved.floor = raise(moved.floor);
        }
        let highest = self.namespaces.floor.max(self.minted);
        self.namespaces.floor = raise(highest).min(Fence::DRIVEN - 1).max(highest);
        self.minted = self.minted.max(self.namespaces.floor);
        // These never run out, so they are not raised further than fences can be.
        let by = by.min(Fence::MINTED_END);
        self.epoch = self.epoch.saturating_add(by);
        self.next_waiter = self.next_waiter.saturating_add(by);
        self.events.sequence = self.events.sequence.saturating_add(by);
        // No event: no stream is open while a state is lifted, and its ids would not be of the group's lane.
        self.abandon_changes(u64::MAX);
        self.wake_waiters();
    }

    /// From now on `apply` tells what those who watch see (E8: Watch lock changes). Volatile: no
    /// part of the state.
    pub fn watch(&mut self) {
        self.watching = true;
    }

    /// From now on it does not.
    pub fn unwatch(&mut self) {
        self.watching = false;
    }
}
