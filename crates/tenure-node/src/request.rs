//! Client requests and their answers, in the types of tenure-core.
//!
//! Every request is syntactically valid by construction (R1–R18); groups check what depends on
//! state. A conflict, a queue position and a lost lock are answers; [`Failure`] is for requests
//! that could not be decided.

use tenure_core::auth::{AuthCommand, AuthTable};
use tenure_core::command::{Hold, Request, WaitMode};
use tenure_core::deadlock::Detection;
use tenure_core::limits::LimitKind;
use tenure_core::outcome::{Blocker, BreakOutcome, Conflict};
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::{Algorithm, BlockReason, Missing, Mode};
use tenure_core::query::{
    ChildPage, Explanation, FenceCheck, HeldLock, HistoryPage, HoldView, Inspection, OwnerLocks,
    WaitPage, WaiterView,
};
use tenure_core::value::{Fence, Holder, Key, OwnerId, QueueTtl, Ttl};

use crate::{GroupId, NodeId};

/// One call of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientRequest {
    /// Acquire and AcquireStream (R60 acquire is atomic, E1–E5).
    Acquire(AcquireRequest),
    /// Release (R97: Release drops listed holds).
    Release(ReleaseRequest),
    /// ReleaseAll (R100: ReleaseAll drops everything).
    ReleaseAll {
        /// The owner.
        owner: OwnerId,
        /// The namespaces; empty means all (R126: selection by domains).
        domains: Vec<Namespace>,
        /// Whether the wait edge is removed too.
        edge: WaitEdge,
        /// Idempotency key: the request applies at most once.
        key: Option<Key>,
    },
    /// Renew (R90 Renew with domains, R91 Renew without domains).
    Renew {
        /// The owner of the leases.
        owner: OwnerId,
        /// The new lease time.
        ttl: Ttl,
        /// The namespaces; empty means all.
        domains: Vec<Namespace>,
        /// Idempotency key: the request applies at most once.
        key: Option<Key>,
    },
    /// ForceRelease (R101: ForceRelease always notifies the victim).
    ForceRelease {
        /// The owner that loses all its holds and queue positions.
        victim: OwnerId,
        /// Idempotency key: the request applies at most once.
        key: Option<Key>,
    },
    /// AssertFencing (R73: AssertFencing checks owner and token).
    AssertFencing {
        /// The owner that claims to be the writer.
        owner: OwnerId,
        /// The claimed fence; absent only if there are no paths (R14: AssertFencing needs a token).
        fence: Option<Fence>,
        /// The paths.
        paths: Vec<Path>,
    },
    /// DetectCycle (R111: DetectCycle walks wait edges).
    DetectCycle {
        /// The owner at which the walk starts.
        start: OwnerId,
        /// The depth limit; zero means the default (R112: depth limit of DetectCycle).
        max_depth: u32,
    },
    /// IsBlocking (R109: IsBlocking checks a named conflict).
    IsBlocking {
        /// The path in conflict.
        path: Path,
        /// The owner that was reported as the blocker.
        owner: OwnerId,
        /// The reported reason.
        reason: BlockReason,
    },
    /// IncrFencingToken (R75: IncrFencingToken always grows).
    IncrFencingToken {
        /// Idempotency key: the request applies at most once.
        key: Option<Key>,
    },
    /// SetWaitEdge (R107: wait edges).
    SetWaitEdge {
        /// The owner that waits.
        owner: OwnerId,
        /// The owner that it waits for.
        blocker: OwnerId,
        /// The path in conflict and the reason.
        why: Option<(Path, BlockReason)>,
        /// How long the edge stays without being set again.
        ttl: Ttl,
        /// Idempotency key: the request applies at most once.
        key: Option<Key>,
    },
    /// ClearWaitEdge (R108: ClearWaitEdge always succeeds).
    ClearWaitEdge {
        /// The owner whose edge is removed.
        owner: OwnerId,
        /// Idempotency key: the request applies at most once.
        key: Option<Key>,
    },
    /// IsOwnerAlive (R118: IsOwnerAlive includes waiters).
    IsOwnerAlive {
        /// The owner.
        owner: OwnerId,
        /// The namespaces; empty means all.
        domains: Vec<Namespace>,
    },
    /// RequestRevoke (R115: RequestRevoke sends an event).
    RequestRevoke {
        /// The owner that is asked to release.
        owner: OwnerId,
    },
    /// InspectPath (R141: InspectPath shows one path).
    InspectPath {
        /// The path.
        path: Path,
    },
    /// ListOwnerLocks (R142: ListOwnerLocks lists live holds).
    ListOwnerLocks {
        /// The owner.
        owner: OwnerId,
        /// The namespaces; empty means all.
        domains: Vec<Namespace>,
    },
    /// DumpLocks (R143: DumpLocks pages through all holds).
    DumpLocks {
        /// The cursor of the previous page; empty for the first page.
        cursor: Vec<u8>,
        /// The maximum number of entries; zero means 64.
        page: u32,
    },
    /// DumpLocks with the details of holds, and with the waiters (E18: survey of holds and waiters).
    Survey {
        /// Only holds and waiters at or below this path.
        below: Option<Path>,
        /// The cursor of the previous page; empty for the first page.
        cursor: Vec<u8>,
        /// The maximum number of entries; zero means 64.
        page: u32,
    },
    /// SetNamespacePolicy (R131: SetNamespacePolicy clears on change).
    SetNamespacePolicy {
        /// The namespace of the row.
        namespace: Namespace,
        /// The new algorithm.
        algorithm: Algorithm,
        /// Idempotency key: the request applies at most once.
        key: Option<Key>,
    },
    /// GetNamespacePolicy (R136: GetNamespacePolicy reads one row).
    GetNamespacePolicy {
        /// The namespace of the row.
        namespace: Namespace,
    },
    /// DeleteNamespacePolicy (R137 deleting a missing row, R138 deleting a row in use).
    DeleteNamespacePolicy {
        /// The namespace of the row.
        namespace: Namespace,
        /// Idempotency key: the request applies at most once.
        key: Option<Key>,
    },
    /// ListNamespacePolicies (E13: list namespace policies).
    ListNamespacePolicies {
        /// Only rows after this name.
        after: Option<Namespace>,
        /// The maximum number of rows; zero means 64.
        page: u32,
    },
    /// Health (R145: Health needs a working quorum).
    Health,
    /// An empty linearizable read, confirmed by a ReadIndex round of the group's leader. A backup
    /// uses it before it reads the leader's state.
    Confirm {
        /// The group.
        group: GroupId,
    },
    /// Explain (E7: Explain a lock request).
    Explain {
        /// The path that would be acquired.
        path: Path,
        /// The mode.
        mode: Mode,
        /// The owner that would acquire it.
        owner: OwnerId,
    },
    /// Break (E9: Break one hold). The server writes actor and reason to its audit log; they do not
    /// get here.
    Break {
        /// The path whose hold ends.
        path: Path,
        /// The owner of the hold.
        owner: OwnerId,
        /// For a write, the fence it must still have.
        fence: Option<Fence>,
    },
    /// Lists for people, from all groups (E20–E22).
    Browse(BrowseQuery),
    /// Reads the access control table.
    ReadAuth,
    /// Changes the access control table. Answered when every reachable node uses the new one.
    ChangeAuth(Box<AuthCommand>),
}

/// See [`ClientRequest::Acquire`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcquireRequest {
    /// The owner that acquires.
    pub owner: OwnerId,
    /// Length of the lease, if granted.
    pub ttl: Ttl,
    /// How long it may wait, if queued.
    pub queue_ttl: QueueTtl,
    /// The wanted locks, in the caller's order.
    pub requests: Vec<Request>,
    /// Holds that are released in the same step (R64: inline releases).
    pub releases: Vec<Hold>,
    /// A fence supplied by the caller (R68: caller-supplied tokens).
    pub fence: Option<Fence>,
    /// Idempotency key: the request applies at most once.
    pub key: Option<Key>,
    /// What happens on a waitable conflict (E1 try without waiting, E2 ask blockers to release).
    pub wait: WaitMode,
    /// A description of the owner for people (E3: holder description).
    pub holder: Option<Holder>,
    /// Whether a wait that closes a cycle is refused (E5).
    pub deadlock: Deadlock,
}

/// What happens to an acquire whose wait would close a cycle (E5: refuse on deadlock).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Deadlock {
    /// No deadlock check.
    Ignore,
    /// The acquire is withdrawn and answered with a conflict.
    Refuse,
}

/// See [`ClientRequest::Release`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseRequest {
    /// The owner of the holds.
    pub owner: OwnerId,
    /// The holds, or pending entries, to release.
    pub holds: Vec<Hold>,
    /// Whether the wait edge is removed too (R98: Release and the wait edge).
    pub edge: WaitEdge,
    /// Idempotency key: the request applies at most once.
    pub key: Option<Key>,
}

/// Whether a release also removes the owner's wait edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaitEdge {
    /// The edge stays.
    Keep,
    /// The edge is removed.
    Remove,
}

/// The answer to a [`ClientRequest`]; the variant is the request's. Long and rare variants are
/// boxed, so that moving the frequent ones stays cheap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To an acquire.
    Acquire(AcquireAnswer),
    /// To every request whose success has no result: releases, wait edges, policies, ForceRelease,
    /// RequestRevoke.
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
        /// The cursor of the next page; empty after the last page.
        next: Vec<u8>,
    },
    /// To a survey.
    Survey {
        /// Some holds.
        holds: Vec<HoldView>,
        /// Some waiters; `None` if a node of the cluster is an older release.
        waiters: Option<Vec<WaiterView>>,
        /// The cursor of the next page; empty after the last page.
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
    /// To a list.
    Browse(Box<BrowseAnswer>),
    /// To a read of the access control table.
    Auth(Box<AuthTable>),
    /// To a change of the access control table.
    AuthChanged {
        /// The new version.
        version: u64,
        /// The nodes that have not confirmed that they use it.
        unconfirmed: Vec<NodeId>,
    },
}

/// A list for people. Each page is limited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BrowseQuery {
    /// The children of a prefix, in byte order (E20: list children).
    Children {
        /// The prefix; `None` lists the handlers.
        prefix: Option<Namespace>,
        /// Only children after this name.
        after: Option<String>,
        /// The maximum number of children.
        page: u32,
    },
    /// The waiters that have waited longest (E21: list waits).
    Waits {
        /// The maximum number of waiters.
        page: u32,
    },
    /// The newest changes (E22: History).
    History {
        /// Changes at this path and below; `None` for all.
        prefix: Option<Namespace>,
        /// Only changes from this wall time on, in Unix milliseconds.
        since: u64,
        /// The maximum number of changes.
        page: u32,
    },
}

/// The result of a [`BrowseQuery`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BrowseResult {
    /// Children of a prefix.
    Children(ChildPage),
    /// Waiters, the one that has waited longest first.
    Waits(WaitPage),
    /// Changes, oldest first.
    History(HistoryPage),
}

/// The answer to [`ClientRequest::Browse`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrowseAnswer {
    /// The list.
    pub result: BrowseResult,
    /// Groups that no leader answered for: what they contain is not in the list.
    pub missing_groups: u32,
}

/// The result of an acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireAnswer {
    /// The locks are held.
    Granted {
        /// The namespace; `None` for an empty request (R61: empty acquire).
        namespace: Option<Namespace>,
        /// The fence in force.
        fence: Option<Fence>,
    },
    /// The request waits in the queue.
    Queued {
        /// The blocker and the reason.
        conflict: Box<Conflict>,
        /// The remaining lease time of the blocker (E4: blocker and queue position).
        lease_left_ms: Option<u64>,
        /// The fence that is reserved for the grant.
        fence: Option<Fence>,
        /// The queue position (E4).
        position: u32,
    },
    /// The request is in conflict and does not wait; nothing is stored.
    Conflict {
        /// The blocker and the reason.
        conflict: Box<Conflict>,
        /// The remaining lease time of the blocker (E4).
        lease_left_ms: Option<u64>,
        /// The owners of the cycle that the wait would have closed, in wait order (E5).
        deadlock: Vec<OwnerId>,
    },
    /// The owner does not hold what it believes to hold.
    Lost {
        /// The path; `None` if the whole lease has ended.
        path: Option<Path>,
        /// What is missing.
        missing: Missing,
    },
}

/// The result of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewAnswer {
    /// The leases are extended.
    Renewed {
        /// Whether another owner asked this owner to release (R93: revoke flag in Renew).
        asked: bool,
    },
    /// A lease or a hold is lost.
    Lost(Missing),
}

/// The result of AssertFencing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AssertAnswer {
    /// The owner is the writer of all paths, at this fence.
    Valid,
    /// The owner is not this path's writer.
    StaleOwner(Path),
    /// The owner is this path's writer, at another fence.
    StaleFence(Path),
}

impl AssertAnswer {
    /// The answer of R73 (AssertFencing checks owner and token): the first path that fails decides.
    pub(crate) fn of(failed: Option<(&Path, FenceCheck)>) -> AssertAnswer {
        match failed {
            Some((path, FenceCheck::StaleOwner)) => AssertAnswer::StaleOwner(path.clone()),
            Some((path, FenceCheck::StaleFence { .. })) => AssertAnswer::StaleFence(path.clone()),
            Some((_, FenceCheck::Valid)) | None => AssertAnswer::Valid,
        }
    }
}

/// The answer to [`ClientRequest::Explain`] (E7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainAnswer {
    /// Why the request would not be granted now.
    pub explanation: Explanation,
    /// The remaining lease time of each blocker.
    pub left: Vec<Option<u64>>,
    /// For each blocker the owners that it waits for, and transitively for those.
    pub waits: Vec<(OwnerId, Vec<OwnerId>)>,
    /// The cycle through this owner, if there is one.
    pub cycle: Vec<OwnerId>,
}

/// Why a call has no answer. The text says what to do next; the variant is for programs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The request is invalid: a retry fails again. Nothing has changed.
    #[error("{0}")]
    InvalidArgument(String),
    /// The policy or routing changed under an acquire twice in a row; nothing has changed: retry
    /// (R32: re-resolution after policy change).
    #[error("the namespace policy changed twice during this request: try again")]
    Aborted,
    /// The current state does not allow the request (R133 route changes need drained paths, R138).
    /// Nothing has changed.
    #[error("{0}")]
    FailedPrecondition(String),
    /// A limit is reached. Nothing has changed.
    #[error("{0}")]
    ResourceExhausted(String),
    /// A quota of the principal or of the namespace is used up. Nothing has changed.
    #[error("{text}")]
    OverQuota {
        /// Which one.
        limit: LimitKind,
        /// Whose, how much, and who raises it.
        text: String,
    },
    /// No leader, no quorum, overload, or a lost answer. The request may have taken effect, unless
    /// `nothing_happened` says otherwise.
    #[error("{why}")]
    Unavailable {
        /// The reason, for the user.
        why: &'static str,
        /// Whether it is certain that nothing has changed.
        nothing_happened: EffectCertainty,
    },
    /// The idempotency table is full, and entries are never evicted early (R102: keyed requests
    /// apply once). Nothing has changed; the same call without a key would have been accepted.
    #[error("the idempotency table is full: try again later, or without a key")]
    AnswersFull,
    /// The deadline passed before the answer. The request may have taken effect.
    #[error("timed out: the deadline passed before the answer arrived")]
    DeadlineExceeded,
}

/// What is known about the effect of a call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EffectCertainty {
    /// Nothing has changed.
    Yes,
    /// The request may have taken effect.
    No,
}

/// Access to the single reported blocker.
impl AcquireAnswer {
    /// Returns the reported blocker, if any.
    pub fn blocker(&self) -> Option<&Blocker> {
        match self {
            AcquireAnswer::Queued { conflict, .. } | AcquireAnswer::Conflict { conflict, .. } => {
                conflict.blocker.as_ref()
            }
            AcquireAnswer::Granted { .. } | AcquireAnswer::Lost { .. } => None,
        }
    }
}
