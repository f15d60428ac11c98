//! Commands: one closed enum of every input that changes a [`Space`](crate::space::Space).
//!
//! A command is one entry of a group's log, or one of several in it. Values are valid by
//! construction; whatever depends on the state is decided by `apply`, identically on every replica.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::num::NonZeroU32;

use crate::path::{Namespace, Path};
use crate::policy::{Algorithm, Mode};
use crate::value::{Fence, Holder, Key, OwnerId, QueueTtl, Ttl};

/// All that can change a space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Take, re-validate and give back paths of one namespace, atomically (R40–R89).
    Acquire(Acquire),
    /// Give back paths of one namespace (R97 Release drops listed holds, R99 Release cancels a
    /// pending entry).
    Release(Release),
    /// Give back everything an owner has here, in the selected namespaces (R100 ReleaseAll drops
    /// everything, R101 ForceRelease always notifies the victim).
    ReleaseAll(ReleaseAll),
    /// A renewal that must be written down (leases.md step 4).
    Renew(RenewLease),
    /// The end of a lease: the only way one runs out (leases.md step 3).
    Expire(Expire),
    /// Nothing but the passing of time (leases.md step 7).
    Tick,
    /// Marks an owner's leases here: somebody asks it to let go (R116: revoke marker).
    Ask(AskRelease),
    /// Ends one hold if it is still the one named (E9: Break one hold).
    Break(BreakLock),
    /// Takes a queued acquire back, unless it was granted meanwhile (E5: refuse on deadlock).
    Withdraw(Withdraw),
    /// First step of a policy change: hold back acquires and grants in a region, report what is there.
    Freeze(Freeze),
    /// Last step of a policy change that was decided: clear, drop waiters, raise the floor and the version.
    Change(ChangePolicy),
    /// Last step of a policy change that was refused: let the region go on.
    Thaw(Thaw),
    /// Raises every counter and floor (after a restore or a recovery that may have lost grants).
    Lift {
        /// By how much.
        by: u64,
    },
    /// Moves the space to newer rules, once all its replicas know them.
    Rules {
        /// The number of the rules.
        number: u32,
    },
}

impl Command {
    /// The form that a space of these rules knows. A leader proposes no other.
    #[must_use]
    pub fn for_rules(mut self, rules: u32) -> Command {
        if rules < 2 {
            match &mut self {
                Command::Release(release) => release.whole = None,
                Command::ReleaseAll(release) => release.until = None,
                _ => {}
            }
        }
        self
    }
}

/// How a request was resolved: the space refuses it if a later change concerns it (R32:
/// re-resolution after policy change).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The namespace all paths of the request lie in (R31: one namespace per acquire).
    pub namespace: Namespace,
    /// Its algorithm (R24: algorithm of a namespace).
    pub algorithm: Algorithm,
    /// The version of the namespace table that said so.
    pub version: u64,
}

/// See [`Command::Acquire`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquire {
    /// How it was resolved.
    pub route: Route,
    /// Who asks.
    pub owner: OwnerId,
    /// Length of the lease, if granted.
    pub ttl: Ttl,
    /// How long it may wait, if queued.
    pub queue_ttl: QueueTtl,
    /// What is wanted, in the caller's order.
    pub requests: Vec<Request>,
    /// What is given back with it, after the acquires (R64: inline releases).
    pub releases: Vec<Hold>,
    /// The caller's own fence; `None` lets the space mint one.
    pub fence: Option<Fence>,
    /// Makes the request apply at most once (R102: keyed requests apply once).
    pub key: Option<Key>,
    /// What to do where the answer would be "queued".
    pub wait: WaitMode,
    /// Who this owner is, for people (E3: holder description).
    pub holder: Option<Box<Holder>>,
}

/// One wanted path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The path.
    pub path: Path,
    /// How it is wanted.
    pub mode: Mode,
    /// Whether it is to be taken, or verified to be held.
    pub state: RequestKind,
    /// Capacity of a semaphore path; `None` where the caller named none. Ignored elsewhere.
    pub permits: Option<NonZeroU32>,
}

/// Whether a request takes a path or verifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RequestKind {
    /// Take this path.
    New,
    /// The caller believes that it holds it: verify in the same transaction (R55–R59).
    Held,
}

/// What an acquire does when it cannot be granted at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaitMode {
    /// Join the line.
    Queue,
    /// Join the line and ask the blockers to let go (E2: ask blockers to release).
    QueueAndAsk,
    /// Do not join: a conflict, and nothing is stored (E1: try without waiting).
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

/// See [`Command::Release`]. Requests that span namespaces are split before they get here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// How it was resolved.
    pub route: Route,
    /// Whose holds.
    pub owner: OwnerId,
    /// Which holds, or places in line (R99).
    pub holds: Vec<Hold>,
    /// Makes the request apply at most once (R102).
    pub key: Option<Key>,
    /// What a key needs that outlives a change of routes; `None` is the form of rules 1.
    pub whole: Option<Whole>,
}

/// The request that a keyed release is a part of.
///
/// A change of routes splits a request otherwise than before, and takes a path to a namespace that does not
/// know the key. So the key speaks of the whole request, each namespace remembers which holds it released
/// under the key, and where paths have moved a while ago all namespaces are asked for them before the release is
/// applied ([`Refusal::Moved`](crate::outcome::Refusal)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole {
    /// A hash of the whole request.
    pub fingerprint: u128,
    /// All namespaces were asked about these holds since the change of this version, and none had released
    /// them under the key. A later change of routes needs a new question: between the two the release may have
    /// been applied in the namespace that the path has left since.
    pub asked: Option<u64>,
}

/// See [`Command::ReleaseAll`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseAll {
    /// Whose holds, leases, markers and places in line.
    pub owner: OwnerId,
    /// In which namespaces.
    pub selection: Selection,
    /// How it is shown to those who watch: given back, or taken away (E8: Watch lock changes).
    /// KILLED itself comes from the system group.
    pub cause: ReleaseCause,
    /// Names what ends: leases and waiters up to this place in the space's order
    /// ([`Space::order`](crate::space::Space::order)). What is younger stays, so that a repeat ends nothing
    /// else. `None` is the form of rules 1: everything that is there.
    pub until: Option<u64>,
}

impl ReleaseAll {
    /// The place in the order that names nothing: everything that is there ends.
    pub const EVERYTHING: u64 = u64::MAX;
}

/// Who ended the holds of a [`ReleaseAll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReleaseCause {
    /// The owner itself.
    Owner,
    /// ForceRelease (R101).
    Killed,
}

/// Which namespaces an owner-wide call means (R126–R128).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// All of them.
    All,
    /// Those selected by any of these; duplicates count once.
    Only(Vec<Domain>),
}

/// One entry of `domains`, resolved by the namespace table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Domain {
    /// Exactly this namespace (R127: domains are literal names).
    Namespace(Namespace),
    /// All namespaces of a handler; absence in some is no loss (R128).
    Handler(Namespace),
}

/// See [`Command::Renew`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenewLease {
    /// The one namespace; owner-wide renewals are split before they get here.
    pub namespace: Namespace,
    /// Whose lease.
    pub owner: OwnerId,
    /// Its new length, from the entry's stamp.
    pub ttl: Ttl,
}

/// See [`Command::Expire`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expire {
    /// The lease's namespace.
    pub namespace: Namespace,
    /// The lease's owner.
    pub owner: OwnerId,
    /// The lease's epoch when its end was decided. Another one now means that it was renewed since.
    pub epoch: u64,
}

/// See [`Command::Ask`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskRelease {
    /// Who is asked. The REVOKE event comes from the system group (R115: RequestRevoke sends an
    /// event).
    pub owner: OwnerId,
}

/// See [`Command::Break`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakLock {
    /// How the path was resolved.
    pub route: Route,
    /// The path whose hold ends.
    pub path: Path,
    /// Whose hold.
    pub owner: OwnerId,
    /// For a write: the fence it must still have. `None` for reads and permits.
    pub fence: Option<Fence>,
}

/// See [`Command::Withdraw`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Withdraw {
    /// Where it waits.
    pub namespace: Namespace,
    /// Who waits.
    pub owner: OwnerId,
    /// The waiter's number, as its QUEUED answer gave it.
    pub waiter: u64,
}

/// The paths that a policy change moves or clears: below `root`, but in none of `except`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// The namespace whose row changes.
    pub root: Namespace,
    /// Explicit namespaces inside it; they keep what they have (R134: only moving holds count).
    pub except: Vec<Namespace>,
}

impl Region {
    /// Whether a path is in it.
    pub fn contains(&self, path: &Path) -> bool {
        self.root.contains(path) && !self.except.iter().any(|nested| nested.contains(path))
    }
}

/// See [`Command::Freeze`]. Repeating it is harmless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Freeze {
    /// The number of the change, given when it began.
    pub change: u64,
    /// Every change up to this number is over: what a space remembers of them can go.
    pub settled: u64,
    /// What is frozen.
    pub region: Region,
}

/// See [`Command::Change`]. Repeating it is harmless: a space applies each change once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangePolicy {
    /// The number of the change, given when it began.
    pub change: u64,
    /// Every change up to this number is over.
    pub settled: u64,
    /// The version that the namespace table got when the change was decided.
    pub version: u64,
    /// Where it takes effect.
    pub region: Region,
    /// The effective algorithm of the region's root from now on, for those who watch.
    pub algorithm: Algorithm,
    /// What happens to what is there.
    pub clear: ClearPolicy,
    /// Paths of the region get fences above this from now on (R71: tokens never go back).
    pub floor: Option<Fence>,
}

/// What a policy change does to holds and waiters in its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClearPolicy {
    /// Waiters only; there are no live holds, which was checked while frozen (R133 route changes
    /// need drained paths, R138 deleting a row in use).
    Waiters,
    /// Everything, each owner concerned gets one KILLED (R131: SetNamespacePolicy clears on
    /// change).
    All,
}

/// See [`Command::Thaw`]. Repeating it is harmless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thaw {
    /// The number of the change that was refused.
    pub change: u64,
}
