//! The lock state machine of one group.

use alloc::vec::Vec;

use crate::codec::DecodeError;
use crate::command::{Command, Route, Selection};
use crate::event::{Event, LockChange};
use crate::outcome::{Applied, Outcome};
use crate::path::{Namespace, Path};
use crate::policy::{BlockReason, Missing, Mode};
use crate::query::{
    Counts, DumpCursor, DumpPage, EventsAfter, Explanation, FenceCheck, Inspection, LeaseView,
    OwnerLocks, WaitsFor,
};
use crate::value::{Fence, OwnerId, Stamp};

/// How much a space keeps. Part of its state: the same on every replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceLimits {
    /// Fences of paths that nobody holds; beyond it the longest idle becomes its namespace's floor (R72).
    pub marks: u32,
    /// Namespaces with nothing left but a floor; beyond it the longest idle is folded into the space's floor (R72).
    pub idle_namespaces: u32,
    /// Floors of moved regions; beyond it the oldest is folded into the space's floor (R71).
    pub region_floors: u32,
    /// Remembered answers; beyond it keyed requests are refused (R102).
    pub answers: u32,
    /// Idle semaphore capacities; beyond it the longest idle is forgotten (R52).
    pub capacities: u32,
    /// NEW paths that may wait in one namespace (R85).
    pub waiting_paths: u32,
    /// Events kept for 30 s (R122); beyond it the oldest goes.
    pub events: u32,
}

impl Default for SpaceLimits {
    fn default() -> SpaceLimits {
        SpaceLimits {
            marks: 65_536,
            idle_namespaces: 16_384,
            region_floors: 1024,
            answers: 65_536,
            capacities: 16_384,
            waiting_paths: 262_144,
            events: 65_536,
        }
    }
}

/// Keys the hash tables of one process. It never shows in any answer and need not be the same on
/// all replicas: give a random one where clients are not trusted, so that nobody can aim at collisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HashSeed(pub u64);

/// The lock state machine of one group.
pub struct Space {}

impl Space {
    /// An empty space.
    pub fn new(_limits: SpaceLimits, _seed: HashSeed) -> Space {
        Space {}
    }

    /// Applies one command. The same commands in the same order give the same space everywhere.
    pub fn apply(&mut self, _stamp: Stamp, _command: Command) -> Applied {
        Applied {
            outcome: Outcome::Done,
            events: Vec::new(),
            leases: Vec::new(),
            changes: Vec::new(),
        }
    }

    /// The largest stamp seen.
    pub fn time(&self) -> u64 {
        0
    }

    /// The number of the rules that it applies by.
    pub fn rules(&self) -> u32 {
        1
    }

    /// From now on `apply` tells what those who watch see (E8). Volatile: no part of the state.
    pub fn watch(&mut self) {}

    /// From now on it does not.
    pub fn unwatch(&mut self) {}

    /// Writes the whole state behind what is in `bytes`. Equal states give equal bytes.
    pub fn encode_snapshot(&self, bytes: Vec<u8>) -> Vec<u8> {
        bytes
    }

    /// Reads a state back.
    pub fn decode_snapshot(_bytes: &[u8], seed: HashSeed) -> Result<Space, DecodeError> {
        Ok(Space::new(SpaceLimits::default(), seed))
    }

    /// All leases, in no particular order.
    pub fn leases(&self) -> impl Iterator<Item = LeaseView<'_>> {
        core::iter::empty()
    }

    /// One lease.
    pub fn lease(&self, _namespace: &Namespace, _owner: &OwnerId) -> Option<LeaseView<'_>> {
        None
    }

    /// What an unlogged renewal needs: the lease, or why there is none (R90).
    pub fn renewal(&self, _ns: &Namespace, _owner: &OwnerId) -> Result<LeaseView<'_>, Missing> {
        Err(Missing::Alive)
    }

    /// The lease time at which the next waiter's time is over.
    pub fn next_waiter_end(&self) -> Option<u64> {
        None
    }

    /// Whether there is a waiter or a lease of more than a minute (leases.md step 7).
    pub fn wants_ticks(&self) -> bool {
        false
    }

    /// All that is known of one path (R141).
    pub fn inspect(&self, _namespace: &Namespace, _path: &Path, _now: u64) -> Inspection {
        Inspection::default()
    }

    /// An owner's holds (R142).
    pub fn owner_locks(&self, _owner: &OwnerId, _selection: &Selection) -> OwnerLocks {
        OwnerLocks::default()
    }

    /// The next page of all holds (R143).
    pub fn dump(&self, _after: Option<DumpCursor>, _page: usize) -> DumpPage {
        DumpPage::default()
    }

    /// Whether an owner's fence on a path is the one in force (R73).
    pub fn assert_fencing(
        &self,
        _namespace: &Namespace,
        _owner: &OwnerId,
        _path: &Path,
        _fence: Fence,
    ) -> FenceCheck {
        FenceCheck::StaleOwner
    }

    /// Whether a conflict that was reported still exists (R109).
    pub fn is_blocking(
        &self,
        _namespace: &Namespace,
        _owner: &OwnerId,
        _path: &Path,
        _reason: BlockReason,
        _now: u64,
    ) -> bool {
        false
    }

    /// Whether an owner has a lease or a place in line in the selected namespaces (R118).
    pub fn owner_alive(&self, _owner: &OwnerId, _selection: &Selection, _now: u64) -> bool {
        false
    }

    /// The namespaces here in which an owner has anything, in byte order (R130).
    pub fn owner_namespaces(&self, _owner: &OwnerId) -> Vec<Namespace> {
        Vec::new()
    }

    /// Would this acquire succeed now, and if not, why (E7)?
    pub fn explain(
        &self,
        route: &Route,
        _owner: &OwnerId,
        _path: &Path,
        _mode: Mode,
        _now: u64,
    ) -> Explanation {
        Explanation {
            namespace: route.namespace.clone(),
            algorithm: route.algorithm,
            conflict: None,
            blockers: Vec::new(),
            ahead: Vec::new(),
            position: 1,
        }
    }

    /// Whom an owner's waiters here wait for (E5).
    pub fn waits_for(&self, _owner: &OwnerId, _now: u64) -> Vec<WaitsFor> {
        Vec::new()
    }

    /// The events that followed a sequence number.
    pub fn events_after(&self, _sequence: u64) -> EventsAfter {
        EventsAfter::Complete(Vec::new())
    }

    /// The sequence number of the last event.
    pub fn last_event(&self) -> u64 {
        0
    }

    /// The GRANTs that a new subscriber of this owner must still be told (R122), at most one a namespace.
    /// A renewal clears one only in the leader's memory: the caller leaves out those whose owner renewed
    /// since (`Event::id` and namespace tell which).
    pub fn standing_grants(&self, _owner: &OwnerId, _now: u64) -> Vec<Event> {
        Vec::new()
    }

    /// The present holds (as `Granted`) and waiters (as `Queued`) under a prefix (E8).
    pub fn watch_snapshot(&self, _prefix: &Namespace, _now: u64) -> Vec<LockChange> {
        Vec::new()
    }

    /// The highest fence minted here, driven namespaces left aside (R75).
    pub fn highest_minted(&self) -> Option<Fence> {
        None
    }

    /// How much is in it.
    pub fn counts(&self) -> Counts {
        Counts::default()
    }

    /// What must hold between any two commands. Panics if it does not.
    #[cfg(any(test, feature = "check"))]
    pub fn check(&self) {}
}
