//! Commands: one closed enum of every input that changes a [`Space`](crate::space::Space).
//!
//! A command is one entry of a group's log, or one of several in it. Values are valid by
//! construction; whatever depends on the state is decided by `apply`, identically on every replica.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::num::NonZeroU32;

use crate::limits::Quota;
use crate::path::{Namespace, Path};
use crate::policy::{Algorithm, Mode};
use crate::value::{Fence, Holder, Key, OwnerId, QueueTtl, Ttl};

/// Every command that changes a space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Acquires, re-validates and releases paths of one namespace, atomically (R40–R89).
    Acquire(Acquire),
    /// Acquires within the quotas of the owner's principal and of the namespace. Since rules 2.
    AcquireWithin(Box<AcquireWithin>),
    /// Releases paths of one namespace (R97 Release drops listed holds, R99 Release cancels a
    /// pending entry).
    Release(Release),
    /// Releases everything that an owner has in the selected namespaces of this space (R100
    /// ReleaseAll drops everything, R101 ForceRelease always notifies the victim).
    ReleaseAll(ReleaseAll),
    /// Renews a lease through the log, when its cover does not suffice (leases.md step 4).
    Renew(RenewLease),
    /// Expires a lease. A lease never ends by time alone, only by this command (leases.md step 3).
    Expire(Expire),
    /// Only advances the time (leases.md step 7).
    Tick,
    /// Marks an owner's leases in this space: another client requests their release (R116: revoke
    /// marker).
    Ask(AskRelease),
    /// Ends one hold if it is still the one named (E9: Break one hold).
    Break(BreakLock),
    /// Cancels a queued acquire, unless it was granted meanwhile (E5: refuse on deadlock).
    Withdraw(Withdraw),
    /// First step of a policy change: blocks acquires and grants in a region and reports its
    /// content.
    Freeze(Freeze),
    /// Last step of a committed policy change: clears holds, drops waiters, raises the floor and
    /// the version.
    Change(ChangePolicy),
    /// Last step of a refused policy change: unfreezes the region.
    Thaw(Thaw),
    /// Raises every counter and floor, after a restore or a recovery that may have lost grants.
    Lift {
        /// The amount to add.
        by: u64,
    },
    /// Switches the space to newer rules. Proposed once all its replicas know them.
    Rules {
        /// The number of the rules.
        number: u32,
    },
}

impl Command {
    /// Returns the command in the form that a space with these rules understands. A leader proposes
    /// no other form.
    #[must_use]
    pub fn for_rules(mut self, rules: u32) -> Command {
        if rules < 2 {
            match &mut self {
                Command::AcquireWithin(within) => {
                    return Command::Acquire(within.acquire.clone());
                }
                Command::Release(release) => release.whole = None,
                Command::ReleaseAll(release) => release.until = None,
                _ => {}
            }
        }
        self
    }
}

/// The result of resolving a request in the namespace table. The space refuses the request if a
/// later change concerns it (R32: re-resolution after policy change).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The namespace all paths of the request lie in (R31: one namespace per acquire).
    pub namespace: Namespace,
    /// Its algorithm (R24: algorithm of a namespace).
    pub algorithm: Algorithm,
    /// The version of the namespace table that was used.
    pub version: u64,
}

/// Arguments of [`Command::Acquire`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquire {
    /// How it was resolved.
    pub route: Route,
    /// The requesting owner.
    pub owner: OwnerId,
    /// Length of the lease, if granted.
    pub ttl: Ttl,
    /// How long it may wait, if queued.
    pub queue_ttl: QueueTtl,
    /// The requested paths, in the caller's order.
    pub requests: Vec<Request>,
    /// The holds to release after the paths are granted (R64: inline releases).
    pub releases: Vec<Hold>,
    /// The caller's own fence; `None` lets the space mint one.
    pub fence: Option<Fence>,
    /// Makes the request apply at most once (R102: keyed requests apply once).
    pub key: Option<Key>,
    /// What to do if the acquire cannot be granted at once.
    pub wait: WaitMode,
    /// The description of the owner for people (E3: holder description).
    pub holder: Option<Box<Holder>>,
}

/// Arguments of [`Command::AcquireWithin`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcquireWithin {
    /// The acquire.
    pub acquire: Acquire,
    /// The quotas that apply to it.
    pub quota: Quota,
}

/// One requested path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The path.
    pub path: Path,
    /// The requested mode.
    pub mode: Mode,
    /// Whether to acquire the path or to verify that it is held.
    pub state: RequestKind,
    /// Capacity of a semaphore path; `None` if the caller gave none. Ignored by other algorithms.
    pub permits: Option<NonZeroU32>,
}

/// Whether a request takes a path or verifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RequestKind {
    /// Acquire this path.
    New,
    /// The caller assumes that it holds this path: verify that in the same transaction (R55–R59).
    Held,
}

/// What an acquire does when it cannot be granted at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaitMode {
    /// Join the queue.
    Queue,
    /// Join the queue and ask the blockers to release (E2: ask blockers to release).
    QueueAndAsk,
    /// Do not join the queue: report a conflict and store nothing (E1: try without waiting).
    No,
}

/// A path and the mode in which it is held.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hold {
    /// The path.
    pub path: Path,
    /// The mode of the hold.
    pub mode: Mode,
}

/// Arguments of [`Command::Release`]. A request that spans namespaces becomes one command per
/// namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// How it was resolved.
    pub route: Route,
    /// The owner of the holds.
    pub owner: OwnerId,
    /// The holds to release, or the paths of a waiter to cancel (R99).
    pub holds: Vec<Hold>,
    /// Makes the request apply at most once (R102).
    pub key: Option<Key>,
    /// Keeps a key valid across a route change; `None` is the form of rules 1.
    pub whole: Option<Whole>,
}

/// The request that a keyed release is a part of.
///
/// A route change may split the same request differently, and may move a path to a namespace that
/// does not know the key. Therefore the key stands for the whole request, and each namespace
/// remembers which holds it released under the key. If paths have moved recently, all namespaces
/// are queried for them before the release is applied
/// ([`Refusal::Moved`](crate::outcome::Refusal)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole {
    /// A hash of the whole request.
    pub fingerprint: u128,
    /// The version of a route change after which all namespaces were queried about these holds, and
    /// none had released them under the key. A later route change needs a new query: between the
    /// two the release may have been applied in the namespace that the path has left since.
    pub asked: Option<u64>,
}

/// Arguments of [`Command::ReleaseAll`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseAll {
    /// The owner whose holds, leases, markers and waiters end.
    pub owner: OwnerId,
    /// The namespaces concerned.
    pub selection: Selection,
    /// Whether watchers see a release or a kill (E8: Watch lock changes). The KILLED event itself
    /// comes from the system group.
    pub cause: ReleaseCause,
    /// Ends only leases and waiters up to this number in the space's order
    /// ([`Space::order`](crate::space::Space::order)). Younger ones stay, so that a repeat ends
    /// nothing else. `None` is the form of rules 1: everything present ends.
    pub until: Option<u64>,
}

impl ReleaseAll {
    /// The number for which everything present ends.
    pub const EVERYTHING: u64 = u64::MAX;
}

/// The initiator of a [`ReleaseAll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReleaseCause {
    /// The owner itself.
    Owner,
    /// ForceRelease (R101).
    Killed,
}

/// The namespaces that an owner-wide call applies to (R126–R128).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// All of them.
    All,
    /// Namespaces selected by any of these; duplicates count once.
    Only(Vec<Domain>),
}

/// One entry of `domains`, resolved by the namespace table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Domain {
    /// Exactly this namespace (R127: domains are literal names).
    Namespace(Namespace),
    /// All namespaces of a handler. A namespace without a lease is not reported as lost (R128).
    Handler(Namespace),
}

/// Arguments of [`Command::Renew`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenewLease {
    /// The namespace of the lease. An owner-wide renewal becomes one command per namespace.
    pub namespace: Namespace,
    /// The owner of the lease.
    pub owner: OwnerId,
    /// The new length of the lease, counted from the entry's stamp.
    pub ttl: Ttl,
}

/// Arguments of [`Command::Expire`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expire {
    /// The lease's namespace.
    pub namespace: Namespace,
    /// The lease's owner.
    pub owner: OwnerId,
    /// The lease's epoch when the leader decided that it expired. A different epoch at apply means
    /// that the lease was renewed since, and the command has no effect.
    pub epoch: u64,
}

/// Arguments of [`Command::Ask`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskRelease {
    /// The owner asked to release. The REVOKE event comes from the system group (R115:
    /// RequestRevoke sends an event).
    pub owner: OwnerId,
}

/// Arguments of [`Command::Break`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakLock {
    /// How the path was resolved.
    pub route: Route,
    /// The path whose hold ends.
    pub path: Path,
    /// The owner of the hold.
    pub owner: OwnerId,
    /// For a write: the fence that the hold must still have. `None` for reads and permits.
    pub fence: Option<Fence>,
}

/// Arguments of [`Command::Withdraw`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Withdraw {
    /// The namespace in which the acquire is queued.
    pub namespace: Namespace,
    /// The owner of the queued acquire.
    pub owner: OwnerId,
    /// The waiter's number, as returned with QUEUED.
    pub waiter: u64,
}

/// The paths that a policy change moves or clears: below `root`, but in none of `except`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// The namespace whose row changes.
    pub root: Namespace,
    /// Explicit namespaces inside `root`; their holds and waiters stay (R134: only moving holds
    /// count).
    pub except: Vec<Namespace>,
}

impl Region {
    /// Returns whether the region contains a path.
    pub fn contains(&self, path: &Path) -> bool {
        self.root.contains(path) && !self.except.iter().any(|nested| nested.contains(path))
    }
}

/// Arguments of [`Command::Freeze`], which is idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Freeze {
    /// The number of the change, assigned when it began.
    pub change: u64,
    /// Every change up to this number is finished; the space may drop what it remembers of them.
    pub settled: u64,
    /// The region to freeze.
    pub region: Region,
}

/// Arguments of [`Command::Change`], which is idempotent: a space applies each change once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangePolicy {
    /// The number of the change, assigned when it began.
    pub change: u64,
    /// Every change up to this number is finished.
    pub settled: u64,
    /// The version that the namespace table got when the change was decided.
    pub version: u64,
    /// The region in which the change takes effect.
    pub region: Region,
    /// The new effective algorithm of the region's root, for watchers.
    pub algorithm: Algorithm,
    /// What happens to holds and waiters in the region.
    pub clear: ClearPolicy,
    /// New fences of the region's paths are above this one (R71: tokens never go back).
    pub floor: Option<Fence>,
}

/// What a policy change does to holds and waiters in its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClearPolicy {
    /// Waiters only; there are no live holds, which was checked while frozen (R133 route changes
    /// need drained paths, R138 deleting a row in use).
    Waiters,
    /// Holds and waiters. Each owner concerned gets one KILLED event (R131: SetNamespacePolicy
    /// clears on change).
    All,
}

/// Arguments of [`Command::Thaw`], which is idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thaw {
    /// The number of the change that was refused.
    pub change: u64,
}
