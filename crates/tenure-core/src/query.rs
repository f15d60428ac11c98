//! Read-only queries of a [`Space`](crate::space::Space): the types of their results.
//!
//! Queries take the leader's lease time as `now`. A waiter whose time is over is absent from every
//! result, whether or not the entry that removes it was applied already (leases.md). A lease does
//! not expire by `now`; it expires when its `Expire` is applied.

use alloc::string::String;
use alloc::vec::Vec;
use core::num::NonZeroU32;

use crate::deadlock::WaitPosition;
use crate::event::{ChangeKind, Event};
use crate::outcome::{Blocker, Conflict, LeaseNumber};
use crate::path::{Namespace, Path};
use crate::policy::{Algorithm, Mode};
use crate::value::{Fence, Holder, OwnerId, Ttl};

/// A lease as the leader sees it (leases.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseView<'a> {
    /// Identifies the lease in this process.
    pub number: LeaseNumber,
    /// The namespace of the lease.
    pub namespace: &'a Namespace,
    /// The owner.
    pub owner: &'a OwnerId,
    /// Its length.
    pub ttl: Ttl,
    /// The lease time up to which the log covers the lease.
    pub cover: u64,
    /// Changes whenever the lease is set; never repeats in a space.
    pub epoch: u64,
    /// The first epoch of the lease. It shows whether this is still the lease that was renewed
    /// (R105: replays report present truth).
    pub born: u64,
    /// The lease time at which a pending release request lapses (R93 revoke flag in Renew, R116
    /// revoke marker); zero without one.
    pub asked_until: u64,
}

/// The state of one path (R141: InspectPath shows one path).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inspection {
    /// Its writer.
    pub writer: Option<OwnerId>,
    /// Its readers of either kind, in byte order.
    pub readers: Vec<OwnerId>,
    /// Holders of its permits, in byte order.
    pub permit_holders: Vec<OwnerId>,
    /// The stored fence, also without a holder.
    pub fence: Option<Fence>,
    /// The number of waiters for exactly this path.
    pub waiters: u64,
}

/// One hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldLock {
    /// The owner.
    pub owner: OwnerId,
    /// The namespace of the path.
    pub namespace: Namespace,
    /// The held path.
    pub path: Path,
    /// The mode of the hold.
    pub mode: Mode,
    /// The fence of a fenced write.
    pub fence: Option<Fence>,
}

/// An owner's holds in the selected namespaces (R142: ListOwnerLocks lists live holds).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerLocks {
    /// Whether the owner has a lease in one of them.
    pub alive: bool,
    /// The holds, each once.
    pub locks: Vec<HeldLock>,
}

/// The position at which a scan of all holds continues (R143: DumpLocks pages through all holds).
/// Valid on every replica of the space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DumpCursor(pub u64);

/// One page of all holds (R143).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DumpPage {
    /// The holds of this page. May be empty although more follow.
    pub locks: Vec<HeldLock>,
    /// The cursor of the next page; `None` after the last one.
    pub next: Option<DumpCursor>,
}

/// A hold with what its readers want to know about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldView {
    /// The hold.
    pub lock: HeldLock,
    /// The time held so far, in lease time; `None` if the leader is an older release.
    pub held_ms: Option<u64>,
    /// The remaining lease time, by the leader's clock.
    pub left_ms: Option<u64>,
    /// The owner's description for people.
    pub holder: Option<Holder>,
    /// The number of permits of the path, if the hold is one of them.
    pub permits: Option<NonZeroU32>,
}

/// One page of all holds and waiters: first the holds, then the waiters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SurveyPage {
    /// The holds of this page. May be empty although more follow.
    pub holds: Vec<HoldView>,
    /// The waiters of this page, one entry per path that a waiter wants, in no particular order.
    /// `None` if the leader is an older release.
    pub waiters: Option<Vec<WaiterView>>,
    /// The cursor of the next page; `None` after the last one. A change of the leader between two
    /// pages may hide or repeat a waiter, because only holds keep their numbers in snapshots.
    pub next: Option<DumpCursor>,
}

/// The result of comparing a fence with the one in force (R73: AssertFencing checks owner and
/// token).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FenceCheck {
    /// The fence is in force.
    Valid,
    /// The owner is not the path's writer.
    StaleOwner,
    /// The owner is the writer, at another fence.
    StaleFence {
        /// The fence in force.
        current: Fence,
    },
}

/// One waiter that blocks an acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaiterView {
    /// Its number; smaller ones come first.
    pub waiter: u64,
    /// The waiting owner.
    pub owner: OwnerId,
    /// The first of its paths that blocks the acquire.
    pub path: Path,
    /// The mode in which it requests that path.
    pub mode: Mode,
    /// The time waited so far, in lease time.
    pub waited_ms: u64,
    /// The owner's description for people.
    pub holder: Option<Holder>,
}

/// Why an acquire would not be granted now (E7: Explain a lock request).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The namespace that decides.
    pub namespace: Namespace,
    /// Its algorithm.
    pub algorithm: Algorithm,
    /// The conflict that the acquire would get; `None` if it would be granted.
    pub conflict: Option<Conflict>,
    /// Blocking holds, in the order of R45 (order of conflict reasons) and R46 (smallest owner or
    /// path reported).
    pub blockers: Vec<Blocker>,
    /// Blocking earlier waiters, in queue order.
    pub ahead: Vec<WaiterView>,
    /// 1 + the number of blocking earlier waiters, counted up to 1000 (E4: blocker and queue
    /// position).
    pub position: u32,
}

/// Wait-for edges of one waiter (E5: refuse on deadlock).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitsFor {
    /// The waiter's queue position.
    pub place: WaitPosition,
    /// Owners of the holds and earlier waiters that block it, each once.
    pub owners: Vec<OwnerId>,
}

/// Which wait-for edges a question about several owners returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EdgeDetail {
    /// All edges of every owner.
    All,
    /// As many as needed to reach every owner that all edges reach. Of the waiters in a line only
    /// the latest one asked about lists everything ahead of it; the others list the one ahead of
    /// them. So the number of edges grows with the line, not with its square.
    Reachable,
}

/// Events that follow a sequence number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventsAfter {
    /// All of them.
    Complete(Vec<Event>),
    /// The events still kept; older ones are gone.
    Hole(Vec<Event>),
}

/// A hold, as lists of present holds show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresentHold {
    /// The namespace of the path.
    pub namespace: Namespace,
    /// The hold.
    pub hold: Blocker,
    /// The remaining lease time. The space does not know it; the leader fills it in.
    pub lease_left_ms: Option<u64>,
}

/// One child of a prefix, with what is at it and below it (E20: list children).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Child {
    /// The handler, or the segment. Empty for the root of a handler itself.
    pub name: String,
    /// Holds at the child and below it.
    pub holds: u64,
    /// Waiters at the child and below it. An acquire of several paths may count more than once.
    pub waiters: u64,
    /// Whether there is something below it.
    pub is_branch: bool,
    /// Whether there are more holds and waiters than counted: counting is limited.
    pub is_minimum: bool,
    /// Some holds at exactly the child.
    pub holders: Vec<PresentHold>,
}

/// One page of the children of a prefix, in byte order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChildPage {
    /// The children.
    pub children: Vec<Child>,
    /// The page contains every child up to this name; `None` if it contains all that follow.
    pub until: Option<String>,
}

/// One waiter with what it waits for (E21: list waits).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingOwner {
    /// The waiter: of several paths the first one.
    pub waiter: WaiterView,
    /// How many paths it waits for.
    pub paths: u32,
    /// Owners of holds and earlier waiters that block it, each once; not all if there are many.
    pub blockers: Vec<OwnerId>,
}

/// The waiters that have waited longest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitPage {
    /// The waiters.
    pub waits: Vec<WaitingOwner>,
    /// How many waiters there are.
    pub count: u64,
}

/// One change of a hold, a waiter or a policy, with its time (E22: History).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryEvent {
    /// The wall clock of the leader, in Unix milliseconds.
    pub wall: u64,
    /// What happened.
    pub kind: ChangeKind,
    /// The path; the namespace for a policy change and a release request.
    pub path: String,
    /// The owner of the hold or waiter; `None` for a policy change.
    pub owner: Option<OwnerId>,
    /// The mode of the hold or request.
    pub mode: Option<Mode>,
    /// The fence, for writes.
    pub fence: Option<Fence>,
    /// The owner's description for people, without labels and with long texts cut.
    pub holder: Option<Holder>,
}

/// The newest changes of one space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryPage {
    /// The changes, oldest first.
    pub events: Vec<HistoryEvent>,
    /// The wall time from which on no change is missing; zero if nothing was applied yet.
    pub complete_since: u64,
    /// Whether older changes that were asked for are left out.
    pub is_cut: bool,
}

/// Sizes of a space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Namespaces with a hold, a waiter or remembered state.
    pub namespaces: u64,
    /// Leases.
    pub leases: u64,
    /// Holds.
    pub claims: u64,
    /// Waiters.
    pub waiters: u64,
    /// Retained fences of paths without a holder (R72: token retention and floors).
    pub marks: u64,
    /// Remembered answers (R102: keyed requests apply once).
    pub answers: u64,
}
