//! Operations on one group, and their results.
//!
//! The leader of the group carries an operation out, on whichever node it is. Client calls and all
//! cross-group work consist of these operations.

use tenure_core::command::{Command, ReleaseAll, RenewLease, Route};
use tenure_core::namespace_table::NamespaceTable;
use tenure_core::outcome::{Outcome, Renewed};
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::{Algorithm, BlockReason, Missing, Mode};
use tenure_core::query::{DumpCursor, DumpPage, Explanation, FenceCheck, Inspection};
use tenure_core::system::{
    ChangeEnd, ChangeView, Edge, KeyClaim, KeyWork, RepeatedKey, SystemCommand, SystemOutcome,
};
use tenure_core::value::{Fence, OwnerId};

use crate::ReplicaId;

/// Names an operation on the node that asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct OpId(pub(crate) u64);

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GroupOp {
    /// Through the log of a lock group.
    Command(Command),
    /// Through the log of the system group.
    System(Box<SystemCommand>),
    /// A renewal: confirmed by a round, written down only where leases.md says so.
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
                Command::Acquire(_) | Command::Release(_) => false,
                // A second one would answer that the hold is not there, or break the next one.
                Command::Break(_) => false,
                // A second one would mark a lease that was born in between.
                Command::Ask(_) => false,
                // Proposed by leaders for themselves, never sent.
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
                // Says again that the key is taken; what its call does is harmless to repeat, or planned.
                SystemCommand::Claim(_) => true,
                // The first answer stays. Giving up says nothing about what is at work.
                SystemCommand::Complete { answer, .. } => answer.is_some(),
                // With a key the first one is remembered in the same entry.
                SystemCommand::SetEdge { claim, .. }
                | SystemCommand::ClearEdge { claim, .. }
                | SystemCommand::Increment { claim, .. } => claim.is_some(),
                // A second one would be told that the key is taken, and could not tell by whom.
                SystemCommand::Begin { .. } | SystemCommand::Kill { .. } => false,
                // An event each time.
                SystemCommand::Ask { .. } => false,
                // Proposed by leaders for themselves, never sent.
                SystemCommand::Tick | SystemCommand::Lift { .. } | SystemCommand::Rules { .. } => {
                    false
                }
            },
        }
    }
}

/// What can be read from one group.
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
    /// The edge that an owner's client has set (R107: wait edges).
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
    /// What is known of a key, and by which rules the system group goes. Since rules 2.
    Claimed { claim: Box<KeyClaim> },
    /// How a policy change ended. Since rules 2.
    Ended { change: u64 },
}

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum QueryResult {
    /// The first that is not valid, by its place in the list.
    Assert(Option<(u32, FenceCheck)>),
    Inspect(Inspection),
    Blocking(bool),
    Explain {
        explanation: Explanation,
        /// What is left of each blocker's lease, as the leader knows it (E4: blocker and queue
        /// position).
        left: Vec<Option<u64>>,
    },
    Dump(DumpPage),
    Edge(Option<Edge>),
    /// `None` where the known one is still the newest.
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
    /// Resolved by an older table than a change that concerns it: at least this version is needed.
    Outdated {
        version: u64,
    },
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GroupOpResult {
    /// It was applied.
    Applied {
        outcome: Outcome,
        /// What is left of the reported blocker's lease (E4).
        lease_left_ms: Option<u64>,
    },
    /// It was applied by the system machine.
    System(SystemOutcome),
    /// A renewal was decided.
    Renewed(Result<Renewed, Missing>),
    /// It was read.
    Found(Box<QueryResult>),
    /// It has certainly not happened and never will: this is not the leader. On the leader's own
    /// node the operation comes back through [`Turn::returned`](crate::group::StepContext) instead.
    NotHere { leader: Option<ReplicaId> },
    /// It has certainly not happened: too much waits already (R151: backpressure per group).
    Busy,
    /// It may have happened, or may still happen.
    Unknown,
    /// It has not happened: it is longer than an entry may be. Or it was read on another node, and what was
    /// found is longer than an item of a frame may be.
    TooLong,
}
