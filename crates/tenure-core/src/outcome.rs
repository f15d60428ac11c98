//! Outcomes: the results of commands applied to a [`Space`](crate::space::Space), as values.
//!
//! A conflict is a regular outcome, not an error. Wire codes, HTTP statuses, exit codes and messages
//! are derived from these enums at the edges of the system.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::event::{Event, LockChange};
use crate::path::Path;
use crate::policy::{Missing, Mode, Reason};
use crate::value::{Fence, Holder, OwnerId, Ttl};

/// All that one applied command did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The answer to whoever proposed it.
    pub outcome: Outcome,
    /// Events for owners, in order. Kept by the space for 30 s (R122: events are always delivered).
    pub events: Vec<Event>,
    /// Leases that were set or ended, in order; the leader keeps their deadlines (leases.md).
    pub leases: Vec<LeaseChange>,
    /// What those who watch see (E8: Watch lock changes); empty unless somebody does.
    pub changes: Vec<LockChange>,
}

/// The answer to one command; the variant is the command's. Small: what is said often moves often,
/// what is long and rare is boxed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// To an acquire.
    Acquire(AcquireOutcome),
    /// To a release.
    Release(Result<(), Refusal>),
    /// To a release of everything, and to asking: how many leases or waiters it met.
    Touched(u64),
    /// To a logged renewal.
    Renew(Result<Renewed, Missing>),
    /// To an expiry: whether the lease ended by it.
    Expired(bool),
    /// To a break.
    Break(Box<BreakOutcome>),
    /// To a withdrawal.
    Withdraw(Withdrawn),
    /// To a freeze.
    Frozen(FreezeReport),
    /// To a tick, a change, a thaw, a lift, new rules.
    Done,
}

/// How an acquire ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireOutcome {
    /// Every NEW path is held, the releases are done (R62: effect of OK).
    Granted {
        /// The fence in force: minted, or the supplied one (R70: token in the response).
        fence: Option<Fence>,
    },
    /// It waits in line; nothing of it has taken effect (R81: queueing has no effect).
    Queued(Box<Queued>),
    /// It is in conflict; nothing is stored (R58: failed acquires change nothing).
    Conflict(Box<Conflict>),
    /// The owner does not hold what it believes to hold; nothing has changed (R58).
    Lost {
        /// The path; `None` when the whole lease is gone.
        path: Option<Path>,
        /// What is missing.
        missing: Missing,
    },
    /// Not evaluated.
    Refused(Refusal),
}

/// A place in line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    /// What is in the way.
    pub conflict: Conflict,
    /// The fence reserved for it, or the supplied one.
    pub fence: Option<Fence>,
    /// The waiter's number; smaller ones come first.
    pub waiter: u64,
    /// 1 + the number of earlier waiters that it must wait for, counted up to 1000 (E4: blocker and
    /// queue position).
    pub position: u32,
}

/// What is in the way, and where (R45–R48).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Why.
    pub reason: Reason,
    /// The path in the way; it may be an ancestor or a descendant of the requested one.
    pub path: Path,
    /// Who is in the way; `None` where nobody is (stale fence, wrong permits, reads disabled).
    pub blocker: Option<Blocker>,
}

/// Who is in the way, and with what (E4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// The owner.
    pub owner: OwnerId,
    /// Its hold's path, or the path that it waits for.
    pub path: Path,
    /// Its mode.
    pub mode: Mode,
    /// The fence of a write hold.
    pub fence: Option<Fence>,
    /// How long it has held (or waited), in lease time.
    pub held_ms: u64,
    /// Who it is, for people.
    pub holder: Option<Holder>,
}

/// Why a command was not evaluated. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// Resolved by an older table: resolve again with at least this version (R32: re-resolution
    /// after policy change).
    Outdated {
        /// The version of the change that concerns it.
        version: u64,
    },
    /// A policy change is under way there: try again when it is over.
    Frozen {
        /// The number of that change.
        change: u64,
    },
    /// The key was used for a different request (R103: key reuse with other content).
    KeyReused,
    /// Some of the paths were moved to this namespace a while ago, so that the key may be known to another
    /// one: ask all of them, then try again.
    Moved {
        /// The version of the latest change that moved one of them.
        version: u64,
    },
    /// No room to remember another answer (R102: keyed requests apply once).
    AnswersFull,
    /// No room in the queue (R85: queue size limit).
    QueueFull,
    /// No fence is left below the limit in this namespace (R15 limit for supplied tokens, R71
    /// tokens never go back).
    FencesUsedUp,
}

/// An OK renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewed {
    /// Somebody asked the owner to let go (R93: revoke flag in Renew).
    pub asked: bool,
    /// The lease's birth: a replay is answered OK only while this very lease lives (R105: replays
    /// report present truth).
    pub born: u64,
}

/// How a break ended (E9: Break one hold).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BreakOutcome {
    /// The hold is gone and its owner got KILLED.
    Broken,
    /// It is not the hold that was named; who is there now, if anybody.
    NotThatHold(Option<Blocker>),
    /// Not evaluated.
    Refused(Refusal),
}

/// How a withdrawal ended (E5: refuse on deadlock).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Withdrawn {
    /// It waited and does not any more.
    Withdrawn,
    /// It was granted meanwhile, with this fence.
    Granted {
        /// The fence of the grant.
        fence: Option<Fence>,
    },
    /// Neither waiting nor granted.
    Gone,
}

/// What a frozen region holds (R133 route changes need drained paths, R138 deleting a row in use).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreezeReport {
    /// A live hold in the region (the first one by path, then owner), if there is one.
    pub live: Option<(Path, OwnerId)>,
    /// The highest fence that a namespace touching the region has minted, stored or folded.
    pub highest: Option<Fence>,
}

impl FreezeReport {
    /// What two groups report together: the first live hold by path, then owner; the highest fence.
    pub fn merge(self, other: FreezeReport) -> FreezeReport {
        FreezeReport {
            live: match (self.live, other.live) {
                (Some(one), Some(two)) => Some(one.min(two)),
                (one, two) => one.or(two),
            },
            highest: self.highest.max(other.highest),
        }
    }
}

/// Tells one space's leases apart while they live: small numbers, which are used again. Each process
/// has its own; [`LeaseView`](crate::query::LeaseView) says whose lease it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseNumber(pub u32);

/// A lease that was set or ended by a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseChange {
    /// `deadline = reading + ttl`, under this epoch.
    Set {
        /// Which lease.
        lease: LeaseNumber,
        /// Its length.
        ttl: Ttl,
        /// Its new epoch.
        epoch: u64,
    },
    /// A logged renewal: `deadline = reading + ttl`, or the deadline that it has if that is later
    /// (R77: a renewal never shortens a lease).
    Renewed {
        /// Which lease.
        lease: LeaseNumber,
        /// The length that was asked for.
        ttl: Ttl,
        /// Its new epoch.
        epoch: u64,
    },
    /// The lease is gone: forget its deadline.
    Ended {
        /// Which lease it was.
        lease: LeaseNumber,
    },
}
