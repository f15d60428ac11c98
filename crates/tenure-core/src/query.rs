//! Read-only queries of a [`Space`](crate::space::Space): the types of their results.
//!
//! Queries take the leader's lease time as `now`. A waiter whose time is over is absent from every
//! result, whether or not the entry that removes it was applied already (leases.md). Leases do not
//! end by `now`; they live until their `Expire` is applied.

use alloc::vec::Vec;

use crate::deadlock::WaitPosition;
use crate::event::Event;
use crate::outcome::{Blocker, Conflict, LeaseNumber};
use crate::path::{Namespace, Path};
use crate::policy::{Algorithm, Mode};
use crate::value::{Fence, Holder, OwnerId, Ttl};

/// What the leader must know of a lease (leases.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseView<'a> {
    /// What tells it from the others.
    pub number: LeaseNumber,
    /// Where.
    pub namespace: &'a Namespace,
    /// Whose.
    pub owner: &'a OwnerId,
    /// Its length.
    pub ttl: Ttl,
    /// The lease time up to which the log vouches for it.
    pub cover: u64,
    /// Changes whenever the lease is set; never repeats in a space.
    pub epoch: u64,
    /// Its first epoch: tells whether this is still the lease that was renewed (R105: replays
    /// report present truth).
    pub born: u64,
    /// The lease time until which it counts that somebody asked the owner to let go (R93 revoke
    /// flag in Renew, R116 revoke marker); zero if nobody did.
    pub asked_until: u64,
}

/// All that is known of one path (R141: InspectPath shows one path).
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
    /// How many wait for exactly this path.
    pub waiters: u64,
}

/// One hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldLock {
    /// Whose.
    pub owner: OwnerId,
    /// Where it is decided.
    pub namespace: Namespace,
    /// On what.
    pub path: Path,
    /// How.
    pub mode: Mode,
    /// The fence of a fenced write.
    pub fence: Option<Fence>,
}

/// An owner's holds in the selected namespaces (R142: ListOwnerLocks lists live holds).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerLocks {
    /// Whether it has a lease there.
    pub alive: bool,
    /// What it holds there, each hold once.
    pub locks: Vec<HeldLock>,
}

/// Where a scan of all holds goes on (R143: DumpLocks pages through all holds). Good for any
/// replica of the space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DumpCursor(pub u64);

/// A part of all holds (R143).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DumpPage {
    /// Some holds; may be none although there are more.
    pub locks: Vec<HeldLock>,
    /// Where to go on; `None` when all were seen.
    pub next: Option<DumpCursor>,
}

/// Whether a fence is the one in force (R73: AssertFencing checks owner and token).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FenceCheck {
    /// It is.
    Valid,
    /// The owner is not the path's writer.
    StaleOwner,
    /// The owner is the writer, at another fence.
    StaleFence {
        /// The one in force.
        current: Fence,
    },
}

/// One who waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaiterView {
    /// Its number; smaller ones come first.
    pub waiter: u64,
    /// Who.
    pub owner: OwnerId,
    /// The first of its paths that is in the way.
    pub path: Path,
    /// How it wants that path.
    pub mode: Mode,
    /// For how long it has waited, in lease time.
    pub waited_ms: u64,
    /// Who it is, for people.
    pub holder: Option<Holder>,
}

/// Why an acquire would not be granted now (E7: Explain a lock request).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The namespace that decides.
    pub namespace: Namespace,
    /// Its algorithm.
    pub algorithm: Algorithm,
    /// What the acquire would be answered; `None` if it would be granted.
    pub conflict: Option<Conflict>,
    /// Those who hold something that is in the way, in the order of R45 (order of conflict reasons)
    /// and R46 (smallest owner or path reported).
    pub blockers: Vec<Blocker>,
    /// Those who came earlier and are in the way, in order.
    pub ahead: Vec<WaiterView>,
    /// 1 + the number of earlier waiters in the way, counted up to 1000 (E4: blocker and queue
    /// position).
    pub position: u32,
}

/// Whom one waiter of an owner waits for (E5: refuse on deadlock).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitsFor {
    /// Where it waits.
    pub place: WaitPosition,
    /// Owners whose holds or earlier places are in its way, each once.
    pub owners: Vec<OwnerId>,
}

/// Events that follow a sequence number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventsAfter {
    /// All of them.
    Complete(Vec<Event>),
    /// Some are no longer kept; these are the ones that are.
    Hole(Vec<Event>),
}

/// How much is in a space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Namespaces with a hold, a waiter or something remembered.
    pub namespaces: u64,
    /// Leases.
    pub leases: u64,
    /// Holds.
    pub claims: u64,
    /// Waiters.
    pub waiters: u64,
    /// Remembered fences of paths that nobody holds (R72: token retention and floors).
    pub marks: u64,
    /// Remembered answers (R102: keyed requests apply once).
    pub answers: u64,
}
