//! Outcomes: the results of commands applied to a [`Space`](crate::space::Space), as values.
//!
//! A conflict is a regular outcome, not an error. Wire codes, HTTP statuses, exit codes and
//! messages are derived from these enums at the edges of the system.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::event::{Event, LockChange};
use crate::limits::{LimitKind, QuotaScope};
use crate::path::Path;
use crate::policy::{Missing, Mode, Reason};
use crate::value::{Fence, Holder, OwnerId, Ttl};

/// All effects of one applied command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The result, returned to the proposer.
    pub outcome: Outcome,
    /// Events for owners, in order. Kept by the space for 30 s (R122: events are always delivered).
    pub events: Vec<Event>,
    /// Leases that were set or ended, in order; the leader keeps their deadlines (leases.md).
    pub leases: Vec<LeaseChange>,
    /// Changes for watchers (E8: Watch lock changes); empty while there are none.
    pub changes: Vec<LockChange>,
}

/// The result of one command; each command has its own variant. Large and rare results are boxed,
/// because outcomes are moved often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Result of an acquire.
    Acquire(AcquireOutcome),
    /// Result of a release.
    Release(Result<(), Refusal>),
    /// Result of a release of everything and of a release request: the number of leases or waiters
    /// concerned.
    Touched(u64),
    /// Result of a logged renewal.
    Renew(Result<Renewed, Missing>),
    /// Result of an expiry: whether it ended the lease.
    Expired(bool),
    /// Result of a break.
    Break(Box<BreakOutcome>),
    /// Result of a withdrawal.
    Withdraw(Withdrawn),
    /// Result of a freeze.
    Frozen(FreezeReport),
    /// Result of a tick, a change, a thaw, a lift and new rules.
    Done,
}

/// The result of an acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireOutcome {
    /// Every NEW path is held, the releases are done (R62: effect of OK).
    Granted {
        /// The fence in force: minted, or the supplied one (R70: token in the response).
        fence: Option<Fence>,
    },
    /// The acquire is queued; nothing has taken effect yet (R81: queueing has no effect).
    Queued(Box<Queued>),
    /// The acquire conflicts; nothing is stored (R58: failed acquires change nothing).
    Conflict(Box<Conflict>),
    /// The owner does not hold a path that it requested as HELD; nothing has changed (R58).
    Lost {
        /// The path; `None` when the whole lease is gone.
        path: Option<Path>,
        /// What is missing.
        missing: Missing,
    },
    /// The command was not evaluated.
    Refused(Refusal),
}

/// A queued acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    /// What blocks the acquire.
    pub conflict: Conflict,
    /// The fence reserved for the acquire, or the supplied one.
    pub fence: Option<Fence>,
    /// The waiter's number; smaller ones come first.
    pub waiter: u64,
    /// 1 + the number of earlier waiters that it must wait for, counted up to 1000 (E4: blocker and
    /// queue position).
    pub position: u32,
}

/// What blocks an acquire, and at which path (R45–R48).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The kind of conflict.
    pub reason: Reason,
    /// The blocking path; it may be an ancestor or a descendant of the requested one.
    pub path: Path,
    /// The blocking owner; `None` if the reason involves no other owner (stale fence, wrong
    /// permits, reads disabled).
    pub blocker: Option<Blocker>,
}

/// The claim or waiter that blocks an acquire (E4).
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
    /// The owner's description for people.
    pub holder: Option<Holder>,
}

/// The reason why a command was not evaluated. The state is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// The request was resolved by an outdated table. Resolve again with at least this version
    /// (R32: re-resolution after policy change).
    Outdated {
        /// The version of the change that concerns the request.
        version: u64,
    },
    /// A policy change is in progress for these paths. Retry when it is finished.
    Frozen {
        /// The number of that change.
        change: u64,
    },
    /// The key was used for a different request (R103: key reuse with other content).
    KeyReused,
    /// Some of the paths were moved to this namespace recently, so another namespace may know the
    /// key. Query all namespaces, then retry.
    Moved {
        /// The version of the latest change that moved one of them.
        version: u64,
    },
    /// No room to remember another answer (R102: keyed requests apply once).
    AnswersFull,
    /// No room in the queue (R85: queue size limit).
    QueueFull,
    /// The acquire would exceed a quota.
    Quota {
        /// Whose.
        scope: QuotaScope,
        /// Which.
        limit: LimitKind,
        /// Its value.
        value: u64,
    },
    /// No fence is left below the limit in this namespace (R15 limit for supplied tokens, R71
    /// tokens never go back).
    FencesUsedUp,
}

/// An OK renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewed {
    /// Whether another client has asked the owner to release (R93: revoke flag in Renew).
    pub asked: bool,
    /// The first epoch of the lease. A replay returns OK only while this same lease lives (R105:
    /// replays report present truth).
    pub born: u64,
}

/// The result of a break (E9: Break one hold).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BreakOutcome {
    /// The hold has ended and its owner got a KILLED event.
    Broken,
    /// The named hold does not exist any more. Contains the present holder, if there is one.
    NotThatHold(Option<Blocker>),
    /// The command was not evaluated.
    Refused(Refusal),
}

/// The result of a withdrawal (E5: refuse on deadlock).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Withdrawn {
    /// The waiter was removed.
    Withdrawn,
    /// The acquire was granted before the withdrawal.
    Granted {
        /// The fence of the grant.
        fence: Option<Fence>,
    },
    /// The acquire is neither queued nor granted.
    Gone,
}

/// The content of a frozen region (R133 route changes need drained paths, R138 deleting a row in
/// use).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreezeReport {
    /// A live hold in the region (the first one by path, then owner), if there is one.
    pub live: Option<(Path, OwnerId)>,
    /// The highest fence that a namespace touching the region has minted, stored or folded.
    pub highest: Option<Fence>,
}

impl FreezeReport {
    /// Merges the reports of two groups: the first live hold by path, then owner, and the highest
    /// fence.
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

/// Identifies a lease of one space while it lives. Numbers are small, reused, and local to a
/// process; [`LeaseView`](crate::query::LeaseView) names the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseNumber(pub u32);

/// A change of a lease, for the leader's deadline heap.
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
