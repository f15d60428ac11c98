//! Lock state machine of one group: commands in, outcomes and events out.
//!
//! ```text
//!             ┌ conflict.rs: conflict check; names the blocker
//! acquire.rs ─┼ claims.rs: claims in the path tree and its counts
//!             └ queue.rs: waiters and their blockers ──▶ wake.rs: grants waiters after a change
//! release.rs, policy_change.rs: end claims, leases and waiters
//! queries.rs: reads      snapshot.rs, restore.rs: encoding of the state      check.rs: invariants
//! ```
//!
//! There is no clock here: time is a number that comes with each entry, and a lease expires only by
//! `Expire`. Everything else with a time limit is ignored by lookups once its time is over, and
//! removed by later entries.

mod acquire;
mod blockers;
mod browse;
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
mod usage;
mod wake;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::command::{AcquireWithin, Command};
use crate::event::{ChangeKind, Event, EventIdStride, LockChange};
use crate::event_log::EventLog;
use crate::hash::Hasher;
use crate::history::History;
use crate::idle_table::IdleTable;
use crate::outcome::{Applied, LeaseChange, Outcome};
use crate::path::Namespace;
use crate::slab::{Id, Slab};
use crate::tree::Tree;
use crate::value::{Fence, Stamp};
use crate::wait_lists::WaitLists;

use self::idempotency::{ROOM_FACTOR, ScopedKey, SpaceAnswers};
use self::namespaces::Namespaces;
use self::policy_change::{RegionFloor, Routes};
use self::retained::Capacity;
use self::sessions::Sessions;
use self::usage::Usage;

pub(crate) use self::claims::Claim;
pub(crate) use self::namespaces::NamespaceState;
pub(crate) use self::queue::Waiter;
pub use self::snapshot::SpaceImage;
pub use crate::hash::HashSeed;

/// The newest rules that this release knows. Every change of an outcome, or of the encoding of a
/// command or a snapshot, needs a new number.
pub const RULES: u32 = 2;

/// The rules of release 0.1.0, with which every machine starts. [`Command::Rules`] switches to
/// newer ones, so entries of an older release are applied by the rules under which they were
/// written.
pub const FIRST_RULES: u32 = 1;

/// Size limits of a space. They are part of its state and equal on every replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceLimits {
    /// Retained fences of paths without a holder; beyond it the longest idle one is folded into its
    /// namespace's floor (R72: token retention and floors).
    pub marks: u32,
    /// Namespaces that have only a floor; beyond it the longest idle one is folded into the space's
    /// floor (R72).
    pub idle_namespaces: u32,
    /// Floors of moved regions; beyond it the oldest is folded into the space's floor (R71: tokens
    /// never go back).
    pub region_floors: u32,
    /// Remembered answers; beyond it keyed requests are refused (R102: keyed requests apply once).
    pub answers: u32,
    /// Idle semaphore capacities; beyond it the longest idle one is evicted (R52: when capacity is
    /// forgotten).
    pub capacities: u32,
    /// NEW paths that may wait in one namespace (R85: queue size limit).
    pub waiting_paths: u32,
    /// Events kept for 30 s (R122: events are always delivered); beyond it the oldest is dropped.
    pub events: u32,
    /// Waiters that one command grants, and waiters that it ends because their time is over (R87:
    /// when waiters are granted). The following commands do the rest. Since rules 2.
    pub batch: u32,
}

impl Default for SpaceLimits {
    /// Changing a default changes the state machine, like changing [`RULES`]: replicas of two
    /// releases would diverge.
    fn default() -> SpaceLimits {
        SpaceLimits {
            marks: 1024,
            idle_namespaces: 16_384,
            region_floors: 1024,
            answers: 65_536,
            capacities: 16_384,
            waiting_paths: 262_144,
            events: 65_536,
            batch: 2048,
        }
    }
}

/// The lock state machine of one group.
#[derive(Clone, Debug)]
pub struct Space {
    limits: SpaceLimits,
    rules: u32,
    time: u64,
    // The wall clock hint of the entry being applied; used only for event ids.
    wall: u64,
    namespaces: Namespaces,
    region_floors: BTreeMap<Namespace, Vec<RegionFloor>>,
    tree: Tree,
    claims: Slab<Claim>,
    sessions: Sessions,
    waiters: Slab<Waiter>,
    // The number of the last waiter.
    next_waiter: u64,
    // The sum of the levels of all waiting paths.
    waiting_levels: u64,
    // Deadlines of waiters: (end, number, waiter).
    ends: BTreeSet<(u64, u64, Id<Waiter>)>,
    links: WaitLists,
    marks: IdleTable<Fence>,
    capacities: IdleTable<Capacity>,
    answers: SpaceAnswers,
    events: EventLog,
    routes: Routes,
    // The last epoch given to a lease. Since rules 2 epochs and waiters share one number sequence.
    epoch: u64,
    // Waiters up to this number were numbered before that: a lease granted to one of them starts
    // with its own epoch, not with the waiter's number.
    order_from: u64,
    // The highest fence minted below `Fence::DRIVEN` (R75: IncrFencingToken always grows).
    minted: u64,
    // The number of leases longer than `SHORT_LEASE_MS`, which need ticks.
    long_leases: u32,
    // The number of all leases.
    leases: u32,
    // What each principal has in each namespace.
    usage: Usage,
    watching: bool,
    // Not part of the replicated state.
    history: History,
    // Waiters to re-check: (number, waiter). By rules 1 none is left when a command ends.
    pending: BTreeSet<(u64, Id<Waiter>)>,
    // How many waiters the present command has granted or removed in its wake-up passes.
    woken: u32,
    out: Effects,
}

/// Effects of applied commands other than their outcomes. See [`Applied`].
#[derive(Clone, Debug, Default)]
pub struct Effects {
    /// Events for owners, in order.
    pub events: Vec<Event>,
    /// Leases that were set or ended, in order.
    pub leases: Vec<LeaseChange>,
    /// Changes for watchers.
    pub changes: Vec<LockChange>,
}

impl Effects {
    /// Lists with a larger capacity are freed by `clear`.
    const KEPT: usize = 1024;

    /// Empties the lists and keeps their memory, up to a limit.
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

    /// Most commands set or end one lease, so the list starts with capacity 1.
    fn lease(&mut self, change: LeaseChange) {
        if self.leases.capacity() == 0 {
            self.leases = Vec::with_capacity(1);
        }
        self.leases.push(change);
    }
}

/// Why a claim ends, as reported to watchers.
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
    /// Creates an empty space.
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
            waiting_levels: 0,
            ends: BTreeSet::new(),
            links: WaitLists::new(),
            marks: IdleTable::new(hasher),
            capacities: IdleTable::new(hasher),
            answers: SpaceAnswers::new(limits.answers),
            events: EventLog::new(limits.events),
            routes: Routes::default(),
            epoch: 0,
            order_from: 0,
            minted: 0,
            long_leases: 0,
            leases: 0,
            usage: Usage::new(hasher),
            watching: false,
            history: History::default(),
            pending: BTreeSet::new(),
            woken: 0,
            out: Effects::default(),
            limits,
        }
    }

    /// Sets the ids that the group's events get (R121: event ids). The stride belongs to the group
    /// and is not part of the state: set it after `new` and after decoding a snapshot.
    pub fn number_events(&mut self, stride: EventIdStride) {
        self.events.stride = stride;
    }

    /// Sets [`SpaceLimits::batch`] of a space that was decoded from a snapshot of rules 1, which does
    /// not contain it. Later snapshots do, so then it has no effect.
    pub fn set_batch(&mut self, batch: u32) {
        if self.rules < 2 {
            self.limits.batch = batch;
        }
    }

    /// Applies one command. The same commands in the same order give the same space on every
    /// replica.
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

    /// Applies one command like [`Space::apply`], but collects its effects in [`Space::effects`],
    /// so that a caller that applies many commands reuses the lists.
    pub fn act(&mut self, stamp: Stamp, command: Command) -> Outcome {
        self.woken = 0;
        self.pass_time(stamp);
        let outcome = match command {
            Command::Acquire(acquire) => Outcome::Acquire(self.acquire(acquire, None)),
            Command::AcquireWithin(within) => {
                let AcquireWithin { acquire, quota } = *within;
                Outcome::Acquire(self.acquire(acquire, Some(&quota)))
            }
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
                self.raise_rules(number);
                Outcome::Done
            }
        };
        debug_assert!(
            self.pending.is_empty() || self.woken >= self.limits.batch,
            "every freed waiter was looked at"
        );
        outcome
    }

    /// Switches to newer rules.
    fn raise_rules(&mut self, number: u32) {
        if self.rules < 2 && number >= 2 {
            self.order_from = self.order();
            self.answers.rename_all(ScopedKey::hashed);
            let waiters: Vec<_> = self.waiters.iter().map(|(id, _)| id).collect();
            for id in waiters {
                let answers = &mut self.waiters[id].answers;
                *answers = answers.iter().map(ScopedKey::hashed).collect();
            }
            self.share_answers();
        }
        self.rules = self.rules.max(number);
    }

    /// Remembers more answers and shares the room among the namespaces, since rules 2.
    fn share_answers(&mut self) {
        let limit = (self.limits.answers as usize).saturating_mul(ROOM_FACTOR);
        self.answers.share_room(limit);
    }

    /// Returns the effects collected since they were last cleared.
    pub fn effects(&mut self) -> &mut Effects {
        &mut self.out
    }

    /// Advances the time: what is due at the stamp ends before the command applies (leases.md), up to
    /// the limit of a batch.
    fn pass_time(&mut self, stamp: Stamp) {
        self.time = self.time.max(stamp.time);
        self.wall = stamp.wall;
        self.history.pass_time(stamp.wall);
        let mut sessions = Vec::new();
        let most = match self.rules {
            0..2 => usize::MAX,
            _ => self.limits.batch as usize,
        };
        while sessions.len() < most
            && let Some((end, _, id)) = self.ends.first().copied()
            && end <= self.time
        {
            sessions.push(self.waiters[id].session);
            self.leave(id);
        }
        for session in sessions {
            self.settle_session(session);
        }
        self.wake_waiters();
        self.answers.forget(self.time);
        self.events.forget(self.time);
        self.forget_capacities();
    }

    /// Returns a new lease epoch.
    fn next_epoch(&mut self) -> u64 {
        let last = if self.rules >= 2 {
            self.order()
        } else {
            self.epoch
        };
        self.epoch = last + 1;
        self.epoch
    }

    /// Returns a new waiter number.
    fn next_waiter(&mut self) -> u64 {
        let last = if self.rules >= 2 {
            self.order()
        } else {
            self.next_waiter
        };
        self.next_waiter = last + 1;
        self.next_waiter
    }

    /// Returns the largest useful argument of [`Command::Lift`]. A larger one would not raise the
    /// counters further, and a second state lifted from the same one would issue the same fences.
    pub fn lift_room(&self) -> u64 {
        (Fence::DRIVEN - 1).saturating_sub(self.namespaces.floor.max(self.minted))
    }

    /// Raises every counter and floor, as far as there are numbers, and unfreezes every region.
    ///
    /// The system machine that froze a region is restored too, possibly from an earlier moment at
    /// which the change had not begun. So a lifted state cannot wait for it. `Lift` is not proposed
    /// to a group: it transforms a saved state while no node runs, so it is the same under all
    /// rules.
    fn lift(&mut self, by: u64) {
        let raise = |number: u64| number.saturating_add(by).min(Fence::MINTED_END - 1);
        let numbers: Vec<_> = self.namespaces.iter().map(|(number, _)| number).collect();
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
        // These counters have no upper limit of their own; the bound keeps them far from overflow.
        let by = by.min(Fence::MINTED_END);
        self.epoch = self.epoch.saturating_add(by);
        self.next_waiter = self.next_waiter.saturating_add(by);
        self.events.sequence = self.events.sequence.saturating_add(by);
        // No event: no stream is open while a state is lifted, and its id would not be of the
        // group's stride.
        self.abandon_changes(u64::MAX);
        self.wake_waiters();
    }

    /// Starts to report changes for watchers (E8: Watch lock changes). Volatile: not part of the
    /// state.
    pub fn watch(&mut self) {
        self.watching = true;
    }

    /// Keeps recent changes in a ring of at most so many bytes (E22: History); zero switches it off.
    /// `wall` is the present wall time. Volatile: not part of the state.
    pub fn keep_history(&mut self, bytes: usize, wall: u64) {
        let is_new = self.time == 0 && self.order() == 0;
        self.history.keep(bytes, if is_new { 0 } else { wall });
    }

    /// Whether changes are reported to watchers or kept in the history.
    fn reports(&self) -> bool {
        self.watching || self.history.is_kept()
    }

    /// Stops reporting changes for watchers.
    pub fn unwatch(&mut self) {
        self.watching = false;
    }
}
