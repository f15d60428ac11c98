//! Operations on one group, and their results.
//!
//! The leader of the group carries an operation out, on whichever node it is. Client calls and all
//! cross-group work consist of these operations.

use tenure_core::auth::AuthTable;
use tenure_core::command::{Command, ReleaseAll, RenewLease, Route};
use tenure_core::namespace_table::NamespaceTable;
use tenure_core::outcome::{Outcome, Renewed};
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::{Algorithm, BlockReason, Missing, Mode};
use tenure_core::query::{DumpCursor, DumpPage, Explanation, FenceCheck, Inspection, SurveyPage};
use tenure_core::system::{
    ChangeEnd, ChangeView, Edge, KeyClaim, KeyWork, RepeatedKey, SystemCommand, SystemOutcome,
};
use tenure_core::value::{Fence, OwnerId};

use tenure_core::record_enum;

use crate::ReplicaId;

/// Identifies an operation on the node that submitted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct OpId(pub(crate) u64);

/// An operation on one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GroupOp {
    /// Through the log of a lock group.
    Command(Command),
    /// Through the log of the system group.
    System(Box<SystemCommand>),
    /// A renewal: confirmed by a ReadIndex round, logged only in the cases that leases.md names.
    Renew(RenewLease),
    /// A linearizable read.
    Read(GroupQuery),
}

impl GroupOp {
    /// Whether an operation whose answer was lost may be sent again (R106: forwarding is at most
    /// once): whether a second application, however late, does nothing that the first has not done.
    /// Each arm says why.
    pub(crate) fn may_repeat(&self) -> bool {
        match self {
            // Changes nothing.
            GroupOp::Read(_) => true,
            // Never moves a deadline earlier (R77: a renewal never shortens a lease); a late copy
            // may keep a lease for longer, not end it sooner.
            GroupOp::Renew(_) => true,
            GroupOp::Command(command) => match command {
                // Each names its change, and a space takes each step of a change once.
                Command::Freeze(_) | Command::Change(_) | Command::Thaw(_) => true,
                // Names a waiter, and no other ever has its number.
                Command::Withdraw(_) => true,
                // Names everything that ends; what came later stays.
                Command::ReleaseAll(release) => release
                    .until
                    .is_some_and(|until| until != ReleaseAll::EVERYTHING),
                // A second one would mint another fence, or release what was acquired in between. With a
                // key it is the client that repeats, and only if it wants to.
                Command::Acquire(_) | Command::AcquireWithin(_) | Command::Release(_) => false,
                // A second one would answer that the hold is not there, or break the next one.
                Command::Break(_) => false,
                // A second one would mark a lease that was born in between.
                Command::Ask(_) => false,
                // Leaders propose these themselves and never send them.
                Command::Renew(_)
                | Command::Expire(_)
                | Command::Tick
                | Command::Lift { .. }
                | Command::Rules { .. } => false,
            },
            GroupOp::System(command) => match &**command {
                // Each names its change, which is decided once and ends once.
                SystemCommand::Decide { .. } | SystemCommand::Finish { .. } => true,
                // The first plan counts; the others are answered with it.
                SystemCommand::Plan { .. } => true,
                // Reserves the same key again; the work of its call is harmless to repeat, or
                // planned.
                SystemCommand::Claim(_) => true,
                // The first answer stays. A `Complete` without an answer frees the key, and a late
                // copy could free it under another attempt that is still at work.
                SystemCommand::Complete { answer, .. } => answer.is_some(),
                // With a key the first one is remembered in the same entry.
                SystemCommand::SetEdge { claim, .. }
                | SystemCommand::ClearEdge { claim, .. }
                | SystemCommand::Increment { claim, .. } => claim.is_some(),
                // A second copy would be answered that the key is taken, without showing that the
                // first copy took it.
                SystemCommand::Begin { .. } | SystemCommand::Kill { .. } => false,
                // Every copy would send an event.
                SystemCommand::Ask { .. } => false,
                // A second one would be refused: the key exists, or the version is another one.
                SystemCommand::Auth(_) => false,
                // Leaders propose these themselves and never send them.
                SystemCommand::Tick | SystemCommand::Lift { .. } | SystemCommand::Rules { .. } => {
                    false
                }
            },
        }
    }
}

/// A linearizable read of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GroupQuery {
    /// Whether these fences are in force, in order (R73: AssertFencing checks owner and token).
    Assert {
        owner: OwnerId,
        fence: Fence,
        paths: Vec<(Route, Path)>,
    },
    /// R141 (InspectPath shows one path).
    Inspect { route: Route, path: Path },
    /// R109 (IsBlocking checks a named conflict).
    Blocking {
        route: Route,
        owner: OwnerId,
        path: Path,
        reason: BlockReason,
    },
    /// E7 (Explain a lock request).
    Explain {
        route: Route,
        owner: OwnerId,
        path: Path,
        mode: Mode,
    },
    /// R143 (DumpLocks pages through all holds).
    Dump {
        after: Option<DumpCursor>,
        page: u32,
    },
    /// The wait edge that an owner's client has set (R107: wait edges).
    Edge { owner: OwnerId },
    /// The namespace table, if it is newer than this.
    Table { known: Option<u64> },
    /// A policy change under way.
    Change { change: u64 },
    /// R136 (GetNamespacePolicy reads one row).
    Policy { namespace: Namespace },
    /// E13 (list namespace policies).
    Policies { after: Option<Namespace>, page: u32 },
    /// The birth of an owner's lease, if it has one and still has all that it had (R105: replays
    /// report present truth).
    Born {
        namespace: Namespace,
        owner: OwnerId,
    },
    /// Nothing but the round (R145: Health needs a working quorum).
    Nothing,
    /// The idempotency entry of a key, and the rules number of the system group. Since rules 2.
    Claimed { claim: Box<KeyClaim> },
    /// How a policy change ended. Since rules 2.
    Ended { change: u64 },
    /// The access control table, if it has another version. Since rules 2.
    Auth { known: Option<u64> },
    /// Holds and waiters with their details. Since rules 2.
    Survey {
        below: Option<Path>,
        after: Option<DumpCursor>,
        page: u32,
    },
}

/// The result of a [`GroupQuery`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum QueryResult {
    /// The first path that is not valid, by its position in the list.
    Assert(Option<(u32, FenceCheck)>),
    Inspect(Inspection),
    Blocking(bool),
    Explain {
        explanation: Explanation,
        /// The remaining lease time of each blocker, by the leader's clock (E4: blocker and queue
        /// position).
        left: Vec<Option<u64>>,
    },
    Dump(DumpPage),
    Edge(Option<Edge>),
    /// `None` if the known version is still the newest.
    Table(Option<NamespaceTable>),
    /// `None` when it is over.
    Change(Option<ChangeView>),
    Policy {
        algorithm: Algorithm,
        explicit: bool,
    },
    Policies {
        rows: Vec<(Namespace, Algorithm)>,
        done: bool,
    },
    Born(Option<u64>),
    Nothing,
    Claimed {
        rules: u32,
        /// `None` for a key that is new.
        before: Option<RepeatedKey>,
        work: Option<KeyWork>,
    },
    /// `None` for a change that is not over, or that is forgotten.
    Ended(Option<ChangeEnd>),
    /// `None` if the known version is still the newest.
    Auth(Option<AuthTable>),
    Survey(SurveyPage),
    /// The path was resolved by a table older than a change that affects it. At least this version
    /// is needed.
    Outdated {
        version: u64,
    },
}

/// The result of a [`GroupOp`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GroupOpResult {
    /// It was applied.
    Applied {
        outcome: Outcome,
        /// The remaining lease time of the reported blocker (E4).
        lease_left_ms: Option<u64>,
    },
    /// It was applied by the system machine.
    System(SystemOutcome),
    /// A renewal was decided.
    Renewed(Result<Renewed, Missing>),
    /// It was read.
    Found(Box<QueryResult>),
    /// It had no effect and never will: this node is not the leader. On the leader's own node the
    /// operation comes back through [`Turn::returned`](crate::group::StepContext) instead.
    NotHere { leader: Option<ReplicaId> },
    /// It had no effect: too much work is pending (R151: backpressure per group).
    Busy,
    /// It had no effect: this node has no room for more lock state.
    StateFull,
    /// It may have taken effect, or may still do so.
    Unknown,
    /// It had no effect: it is longer than the maximum entry. Or it is a read on another node whose
    /// result is longer than the maximum item of a frame.
    TooLong,
}

record_enum! { GroupOp as "operation" {
    1(command) => Command(command),
    2(command) => System(command),
    3(renew) => Renew(renew),
    4(query) => Read(query),
} }
record_enum! { GroupQuery as "query" {
    1(owner, fence, paths) => Assert { owner, fence, paths },
    2(route, path) => Inspect { route, path },
    3(route, owner, path, reason) => Blocking { route, owner, path, reason },
    4(route, owner, path, mode) => Explain { route, owner, path, mode },
    5(after, page) => Dump { after, page },
    6(owner) => Edge { owner },
    7(known) => Table { known },
    8(namespace) => Policy { namespace },
    9(after, page) => Policies { after, page },
    10 => Nothing,
    11(namespace, owner) => Born { namespace, owner },
    12(change) => Change { change },
    // Since rules 2.
    13(claim) => Claimed { claim },
    14(change) => Ended { change },
    20(known) => Auth { known },
    30(below, after, page) => Survey { below, after, page },
} }
record_enum! { QueryResult as "finding" {
    1(failed) => Assert(failed),
    2(inspection) => Inspect(inspection),
    3(blocking) => Blocking(blocking),
    4(explanation, left) => Explain { explanation, left },
    5(page) => Dump(page),
    6(edge) => Edge(edge),
    7(table) => Table(table),
    8(algorithm, explicit) => Policy { algorithm, explicit },
    9(rows, done) => Policies { rows, done },
    10 => Nothing,
    11(born) => Born(born),
    12(version) => Outdated { version },
    13(view) => Change(view),
    14(rules, before, work) => Claimed { rules, before, work },
    15(end) => Ended(end),
    20(table) => Auth(table),
    30(page) => Survey(page),
} }
record_enum! { GroupOpResult as "answer" {
    1(outcome, lease_left_ms) => Applied { outcome, lease_left_ms },
    2(outcome) => System(outcome),
    3(renewed) => Renewed(Ok(renewed)),
    4(missing) => Renewed(Err(missing)),
    5(found) => Found(found),
    7(leader) => NotHere { leader },
    8 => Busy,
    9 => Unknown,
    10 => TooLong,
    // Since rules 2.
    11 => StateFull,
} }
