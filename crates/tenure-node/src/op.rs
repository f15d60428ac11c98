//! What a group is asked to do, and what it answers.
//!
//! An operation concerns one group and is carried out by its leader, wherever that is. Calls of
//! clients and whatever spans groups are made of these.

use tenure_core::command::{Command, Renew, Route};
use tenure_core::outcome::{Outcome, Renewed};
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::{Algorithm, BlockReason, Missing, Mode};
use tenure_core::query::{DumpCursor, DumpPage, Explanation, FenceCheck, Inspection};
use tenure_core::system::{ChangeView, Edge, SystemCommand, SystemOutcome};
use tenure_core::table::NamespaceTable;
use tenure_core::value::{Fence, OwnerId};

use crate::Member;

/// Names an operation on the node that asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket(pub(crate) u64);

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Through the log of a lock group.
    Command(Command),
    /// Through the log of the system group.
    System(Box<SystemCommand>),
    /// A renewal: confirmed by a round, written down only where leases.md says so.
    Renew(Renew),
    /// A linearizable read.
    Read(Query),
}

impl Op {
    /// Whether doing it twice is the same as doing it once, so that a lost answer may be asked for
    /// again (R106). What goes through the log is not, except for the steps of a policy change.
    pub(crate) fn may_repeat(&self) -> bool {
        match self {
            Op::Read(_) | Op::Renew(_) => true,
            Op::Command(command) => matches!(
                command,
                Command::Freeze(_) | Command::Change(_) | Command::Thaw(_)
            ),
            Op::System(command) => matches!(
                **command,
                SystemCommand::Decide { .. } | SystemCommand::Finish { .. }
            ),
        }
    }
}

/// What can be read from one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Query {
    /// Whether these fences are in force, in order (R73).
    Assert {
        owner: OwnerId,
        fence: Fence,
        paths: Vec<(Route, Path)>,
    },
    /// R141.
    Inspect { route: Route, path: Path },
    /// R109.
    Blocking {
        route: Route,
        owner: OwnerId,
        path: Path,
        reason: BlockReason,
    },
    /// E7.
    Explain {
        route: Route,
        owner: OwnerId,
        path: Path,
        mode: Mode,
    },
    /// R143.
    Dump {
        after: Option<DumpCursor>,
        page: u32,
    },
    /// The edge that an owner's client has set (R107).
    Edge { owner: OwnerId },
    /// The namespace table, if it is newer than this.
    Table { known: Option<u64> },
    /// A policy change under way.
    Change { change: u64 },
    /// R136.
    Policy { namespace: Namespace },
    /// E13.
    Policies { after: Option<Namespace>, page: u32 },
    /// The birth of an owner's lease, if it has one and still has all that it had (R105).
    Born {
        namespace: Namespace,
        owner: OwnerId,
    },
    /// Nothing but the round (R145).
    Nothing,
}

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The first that is not valid, by its place in the list.
    Assert(Option<(u32, FenceCheck)>),
    Inspect(Inspection),
    Blocking(bool),
    Explain {
        explanation: Explanation,
        /// What is left of each blocker's lease, as the leader knows it (E4).
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
    /// Resolved by an older table than a change that concerns it: at least this version is needed.
    Outdated {
        version: u64,
    },
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OpAnswer {
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
    Found(Box<Found>),
    /// It has certainly not happened and never will: this is not the leader. On the leader's own
    /// node the operation comes back through [`Turn::returned`](crate::group::Turn) instead.
    NotHere { leader: Option<Member> },
    /// It has certainly not happened: too much waits already (R151).
    Busy,
    /// It may have happened, or may still happen.
    Unknown,
    /// It has not happened: it is longer than an entry may be. Or it was read on another node, and what was
    /// found is longer than an item of a frame may be.
    TooLong,
}
