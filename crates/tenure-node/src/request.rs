//! Client requests and their answers, in the types of tenure-core.
//!
//! Every request is syntactically valid by construction (R1–R18); groups check what depends on
//! state. A conflict, a queue position and a lost lock are answers; [`Failure`] is for requests
//! that could not be decided.

use tenure_core::command::{Hold, Request, WaitMode};
use tenure_core::deadlock::Detection;
use tenure_core::outcome::{Blocker, BreakOutcome, Conflict};
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::{Algorithm, BlockReason, Missing, Mode};
use tenure_core::query::{Explanation, HeldLock, Inspection, OwnerLocks};
use tenure_core::value::{Fence, Holder, Key, OwnerId, QueueTtl, Ttl};

use crate::GroupId;

/// One call of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientRequest {
    /// Acquire and AcquireStream (R60 acquire is atomic, E1–E5).
    Acquire(AcquireRequest),
    /// Release (R97: Release drops listed holds).
    Release(ReleaseRequest),
    /// ReleaseAll (R100: ReleaseAll drops everything).
    ReleaseAll {
        /// Whose.
        owner: OwnerId,
        /// In which namespaces; none means everywhere (R126: selection by domains).
        domains: Vec<Namespace>,
        /// Whether the wait edge goes too.
        edge: WaitEdge,
        /// Makes it apply at most once.
        key: Option<Key>,
    },
    /// Renew (R90 Renew with domains, R91 Renew without domains).
    Renew {
        /// Whose leases.
        owner: OwnerId,
        /// Their new length.
        ttl: Ttl,
        /// In which namespaces; none means everywhere.
        domains: Vec<Namespace>,
        /// Makes it apply at most once.
        key: Option<Key>,
    },
    /// ForceRelease (R101: ForceRelease always notifies the victim).
    ForceRelease {
        /// Who loses everything.
        victim: OwnerId,
        /// Makes it apply at most once.
        key: Option<Key>,
    },
    /// AssertFencing (R73: AssertFencing checks owner and token).
    AssertFencing {
        /// Who claims to be the writer.
        owner: OwnerId,
        /// At which fence; absent only if there are no paths (R14: AssertFencing needs a token).
        fence: Option<Fence>,
        /// Of which paths.
        paths: Vec<Path>,
    },
    /// DetectCycle (R111: DetectCycle walks wait edges).
    DetectCycle {
        /// Where the walk starts.
        start: OwnerId,
        /// How deep it may go; zero means the default (R112: depth limit of DetectCycle).
        max_depth: u32,
    },
    /// IsBlocking (R109: IsBlocking checks a named conflict).
    IsBlocking {
        /// The path in conflict.
        path: Path,
        /// Who was in the way.
        owner: OwnerId,
        /// Why.
        reason: BlockReason,
    },
    /// IncrFencingToken (R75: IncrFencingToken always grows).
    IncrFencingToken {
        /// Makes it apply at most once.
        key: Option<Key>,
    },
    /// SetWaitEdge (R107: wait edges).
    SetWaitEdge {
        /// Who waits.
        owner: OwnerId,
        /// For whom.
        blocker: OwnerId,
        /// Where and why.
        why: Option<(Path, BlockReason)>,
        /// How long this stands.
        ttl: Ttl,
        /// Makes it apply at most once.
        key: Option<Key>,
    },
    /// ClearWaitEdge (R108: ClearWaitEdge always succeeds).
    ClearWaitEdge {
        /// Who waited.
        owner: OwnerId,
        /// Makes it apply at most once.
        key: Option<Key>,
    },
    /// IsOwnerAlive (R118: IsOwnerAlive includes waiters).
    IsOwnerAlive {
        /// Who.
        owner: OwnerId,
        /// In which namespaces; none means everywhere.
        domains: Vec<Namespace>,
    },
    /// RequestRevoke (R115: RequestRevoke sends an event).
    RequestRevoke {
        /// Who is asked.
        owner: OwnerId,
    },
    /// InspectPath (R141: InspectPath shows one path).
    InspectPath {
        /// Which path.
        path: Path,
    },
    /// ListOwnerLocks (R142: ListOwnerLocks lists live holds).
    ListOwnerLocks {
        /// Whose.
        owner: OwnerId,
        /// In which namespaces; none means everywhere.
        domains: Vec<Namespace>,
    },
    /// DumpLocks (R143: DumpLocks pages through all holds).
    DumpLocks {
        /// Where to go on; empty at the start.
        cursor: Vec<u8>,
        /// How many entries at most; zero means 64.
        page: u32,
    },
    /// SetNamespacePolicy (R131: SetNamespacePolicy clears on change).
    SetNamespacePolicy {
        /// Whose row.
        namespace: Namespace,
        /// What it is to become.
        algorithm: Algorithm,
        /// Makes it apply at most once.
        key: Option<Key>,
    },
    /// GetNamespacePolicy (R136: GetNamespacePolicy reads one row).
    GetNamespacePolicy {
        /// Whose row.
        namespace: Namespace,
    },
    /// DeleteNamespacePolicy (R137 deleting a missing row, R138 deleting a row in use).
    DeleteNamespacePolicy {
        /// Whose row.
        namespace: Namespace,
        /// Makes it apply at most once.
        key: Option<Key>,
    },
    /// ListNamespacePolicies (E13: list namespace policies).
    ListNamespacePolicies {
        /// Rows behind this name.
        after: Option<Namespace>,
        /// How many at most; zero means 64.
        page: u32,
    },
    /// Health (R145: Health needs a working quorum).
    Health,
    /// A read of nothing, confirmed by a round of this group's leader: for those who look at the
    /// leader's state afterwards (backups).
    Confirm {
        /// Which group.
        group: GroupId,
    },
    /// Explain (E7: Explain a lock request).
    Explain {
        /// What would be acquired.
        path: Path,
        /// How.
        mode: Mode,
        /// By whom.
        owner: OwnerId,
    },
    /// Break (E9: Break one hold). Actor and reason are the audit log's business, at the edge.
    Break {
        /// The path whose hold ends.
        path: Path,
        /// Whose hold.
        owner: OwnerId,
        /// For a write, the fence it must still have.
        fence: Option<Fence>,
    },
}

/// See [`ClientRequest::Acquire`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcquireRequest {
    /// Who asks.
    pub owner: OwnerId,
    /// Length of the lease, if granted.
    pub ttl: Ttl,
    /// How long it may wait, if queued.
    pub queue_ttl: QueueTtl,
    /// What is wanted, in the caller's order.
    pub requests: Vec<Request>,
    /// What is given back with it.
    pub releases: Vec<Hold>,
    /// The caller's own fence.
    pub fence: Option<Fence>,
    /// Makes it apply at most once.
    pub key: Option<Key>,
    /// What to do where the answer would be "queued" (E1, E2 ask blockers to release).
    pub wait: WaitMode,
    /// Who this owner is, for people (E3: holder description).
    pub holder: Option<Holder>,
    /// Whether a wait that closes a cycle is refused (E5).
    pub deadlock: Deadlock,
}

/// What becomes of an acquire whose wait would close a cycle (E5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Deadlock {
    /// Nobody looks.
    Ignore,
    /// It is taken back.
    Refuse,
}

/// See [`ClientRequest::Release`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseRequest {
    /// Whose holds.
    pub owner: OwnerId,
    /// Which holds, or places in line.
    pub holds: Vec<Hold>,
    /// Whether the wait edge goes too (R98: Release and the wait edge).
    pub edge: WaitEdge,
    /// Makes it apply at most once.
    pub key: Option<Key>,
}

/// Whether a release also removes the owner's wait edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaitEdge {
    /// It stays.
    Keep,
    /// It goes.
    Remove,
}

/// The answer to a [`ClientRequest`]; the variant is the request's. Small: what is said often moves often,
/// what is long and rare is boxed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To an acquire.
    Acquire(AcquireAnswer),
    /// To whatever succeeds without a word: releases, edges, policies, kills, asking.
    Done,
    /// To a renewal.
    Renew(RenewAnswer),
    /// To AssertFencing.
    AssertFencing(AssertAnswer),
    /// To DetectCycle.
    DetectCycle(Detection),
    /// To IsBlocking and IsOwnerAlive.
    Truth(bool),
    /// To IncrFencingToken.
    Number(Fence),
    /// To InspectPath.
    Inspect(Box<Inspection>),
    /// To ListOwnerLocks.
    OwnerLocks(OwnerLocks),
    /// To DumpLocks.
    Dump {
        /// Some holds.
        locks: Vec<HeldLock>,
        /// Where to go on; empty when done.
        next: Vec<u8>,
    },
    /// To GetNamespacePolicy.
    Policy {
        /// The algorithm in effect.
        algorithm: Algorithm,
        /// Whether there is a row.
        explicit: bool,
    },
    /// To ListNamespacePolicies.
    Policies {
        /// Rows in byte order.
        rows: Vec<(Namespace, Algorithm)>,
        /// Whether these are the last.
        done: bool,
    },
    /// To Health: ready.
    Ready,
    /// To Explain.
    Explain(Box<ExplainAnswer>),
    /// To Break.
    Break(Box<BreakOutcome>),
}

/// How an acquire ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireAnswer {
    /// Held.
    Granted {
        /// Where; `None` for an empty request (R61: empty acquire).
        namespace: Option<Namespace>,
        /// The fence in force.
        fence: Option<Fence>,
    },
    /// In line.
    Queued {
        /// What is in the way.
        conflict: Box<Conflict>,
        /// What is left of the blocker's lease (E4: blocker and queue position).
        lease_left_ms: Option<u64>,
        /// The fence reserved.
        fence: Option<Fence>,
        /// The place in line (E4).
        position: u32,
    },
    /// In conflict; nothing is stored.
    Conflict {
        /// What is in the way.
        conflict: Box<Conflict>,
        /// What is left of the blocker's lease (E4).
        lease_left_ms: Option<u64>,
        /// The owners of the cycle that the wait would have closed, in wait order (E5).
        deadlock: Vec<OwnerId>,
    },
    /// The owner does not hold what it believes to hold.
    Lost {
        /// Which path; `None` when the whole lease is gone.
        path: Option<Path>,
        /// What is missing.
        missing: Missing,
    },
}

/// How a renewal ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewAnswer {
    /// Extended.
    Renewed {
        /// Somebody asked the owner to let go (R93: revoke flag in Renew).
        asked: bool,
    },
    /// Something is gone.
    Lost(Missing),
}

/// How an assertion ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssertAnswer {
    /// All in force.
    Valid,
    /// The owner is not this path's writer.
    StaleOwner(Path),
    /// The owner is this path's writer, at another fence.
    StaleFence(Path),
}

/// What [`ClientRequest::Explain`] is answered (E7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainAnswer {
    /// Why it would not be granted now.
    pub explanation: Explanation,
    /// What is left of each blocker's lease.
    pub left: Vec<Option<u64>>,
    /// For each blocker what it waits for, and so on.
    pub waits: Vec<(OwnerId, Vec<OwnerId>)>,
    /// The cycle through this owner, if there is one.
    pub cycle: Vec<OwnerId>,
}

/// Why a call has no answer. The text says what to do next; the variant is for programs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Refused, and always will be; nothing has changed.
    #[error("{0}")]
    InvalidArgument(String),
    /// The policy or routing changed under an acquire twice in a row; nothing has changed: retry
    /// (R32: re-resolution after policy change).
    #[error("the namespace policy changed under this request twice: try again")]
    Aborted,
    /// The state does not allow it (R133 route changes need drained paths, R138); nothing has
    /// changed.
    #[error("{0}")]
    FailedPrecondition(String),
    /// A limit; nothing has changed.
    #[error("{0}")]
    ResourceExhausted(String),
    /// No leader, no quorum, too much waiting, or an answer that was lost on the way: it may have
    /// happened or not, unless `nothing_happened`.
    #[error("{why}")]
    Unavailable {
        /// What is wrong.
        why: &'static str,
        /// Whether it is certain that nothing has changed.
        nothing_happened: EffectCertainty,
    },
    /// The deadline passed first; it may have happened or not.
    #[error("the deadline passed before the answer came")]
    DeadlineExceeded,
}

/// Said to who gave a key where no more answers can be remembered (R102: keyed requests apply
/// once).
const ANSWERS_FULL: &str = "too many answers are remembered: try again later, or without a key";

impl Failure {
    /// No more answers can be remembered, and none is forgotten early (R102).
    pub(crate) fn answers_full() -> Failure {
        Failure::Unavailable {
            why: ANSWERS_FULL,
            nothing_happened: EffectCertainty::Yes,
        }
    }

    /// Whether the same call without a key would have been taken.
    pub fn wants_no_key(&self) -> bool {
        matches!(self, Failure::Unavailable { why, .. } if *why == ANSWERS_FULL)
    }
}

/// What is known about the effect of a call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EffectCertainty {
    /// Nothing has changed.
    Yes,
    /// It may have happened.
    No,
}

/// What is in an acquire's way, for [`Answer`]s that name only one.
impl AcquireAnswer {
    /// The blocker that was reported, if any.
    pub fn blocker(&self) -> Option<&Blocker> {
        match self {
            AcquireAnswer::Queued { conflict, .. } | AcquireAnswer::Conflict { conflict, .. } => {
                conflict.blocker.as_ref()
            }
            AcquireAnswer::Granted { .. } | AcquireAnswer::Lost { .. } => None,
        }
    }
}
