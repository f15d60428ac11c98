//! Commands and outcomes of the [`System`](super::System) machine.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::auth::{AuthCommand, AuthRefusal};
use crate::command::Selection;
use crate::event::Event;
use crate::outcome::FreezeReport;
use crate::path::{Namespace, Path};
use crate::policy::{Algorithm, BlockReason};
use crate::value::{Fence, Key, OwnerId, Ttl};

/// Every command that changes the system machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SystemCommand {
    /// Begins to set (`Some`) or delete (`None`) a row of the namespace table (R131–R138).
    Begin {
        /// The namespace of the row.
        namespace: Namespace,
        /// The new algorithm, or `None` to delete the row.
        to: Option<Algorithm>,
        /// Makes the call apply at most once (R103: key reuse with other content).
        claim: Option<KeyClaim>,
    },
    /// Decides a change from the merged reports of all frozen groups.
    Decide {
        /// The change's number.
        change: u64,
        /// The reports of all groups concerned, merged (see [`FreezeReport::merge`]).
        report: FreezeReport,
    },
    /// Every group concerned has applied or thawed the change.
    Finish {
        /// The change's number.
        change: u64,
    },
    /// Records that an owner waits for another (R107: wait edges).
    SetEdge {
        /// The waiting owner.
        owner: OwnerId,
        /// The owner it waits for, and the reason.
        edge: Edge,
        /// The lifetime of the edge.
        ttl: Ttl,
        /// Makes the call apply at most once.
        claim: Option<KeyClaim>,
    },
    /// Removes an owner's wait edge (R108: ClearWaitEdge always succeeds).
    ClearEdge {
        /// The owner of the edge.
        owner: OwnerId,
        /// Makes the call apply at most once.
        claim: Option<KeyClaim>,
    },
    /// Returns the next global number (R75: IncrFencingToken always grows).
    Increment {
        /// The highest fence below [`Fence::DRIVEN`] that the reachable groups have minted.
        above: Option<Fence>,
        /// Makes the call apply at most once.
        claim: Option<KeyClaim>,
    },
    /// Reserves a key before a call fans out (R102–R104).
    Claim(KeyClaim),
    /// Stores the plan of a keyed call before the call takes effect. The first plan wins: a later
    /// proposal gets the first plan as its result. Reserves the key if it is not reserved yet.
    /// Since rules 2.
    Plan {
        /// The key and its call.
        claim: KeyClaim,
        /// The owner whose leases and waiters end.
        owner: OwnerId,
        /// The leases and waiters concerned.
        plan: ReleasePlan,
        /// The immediate effect, if this plan is the first.
        effect: ReleasePlanEffect,
    },
    /// Ends a reservation: with the answer to remember, or with `None` if the call failed and a
    /// repeat may be evaluated again.
    Complete {
        /// The key and its call.
        claim: KeyClaim,
        /// The answer that a repeat gets.
        answer: Option<SystemAnswer>,
        /// The plan that was carried out, if any. By now the key may stand for a later plan, which
        /// is not complete. Since rules 2.
        plan: Option<ReleasePlan>,
    },
    /// ForceRelease: creates the KILLED event and removes the wait edge. The coordinator sends the
    /// release to the groups afterwards (R101: ForceRelease always notifies the victim).
    Kill {
        /// The victim.
        owner: OwnerId,
        /// The key to reserve; completed after the groups have applied the release.
        claim: Option<KeyClaim>,
    },
    /// RequestRevoke: creates the REVOKE event. The coordinator marks the leases in the groups
    /// afterwards (R115: RequestRevoke sends an event).
    Ask {
        /// The owner asked to release.
        owner: OwnerId,
    },
    /// Only advances the time.
    Tick,
    /// Raises the global counter and the table's version, after a restore that may have lost some.
    Lift {
        /// The amount to add.
        by: u64,
    },
    /// Switches the machine to newer rules. Proposed once all its replicas know them.
    Rules {
        /// The number of the rules.
        number: u32,
    },
    /// Changes the access control table. Since rules 2.
    Auth(Box<AuthCommand>),
}

impl SystemCommand {
    /// Returns the command in the form that a machine with these rules understands; `None` if those
    /// rules have no such command.
    #[must_use]
    pub fn for_rules(mut self, rules: u32) -> Option<SystemCommand> {
        if rules < 2 {
            match &mut self {
                SystemCommand::Plan { .. } | SystemCommand::Auth(_) => return None,
                SystemCommand::Complete { plan, .. } => *plan = None,
                SystemCommand::ClearEdge { claim, .. }
                    if claim
                        .as_ref()
                        .is_some_and(|claim| claim.call == SystemCall::Release) =>
                {
                    *claim = None;
                }
                _ => {}
            }
        }
        Some(self)
    }
}

/// One wait edge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// The owner that is waited for.
    pub blocker: OwnerId,
    /// The path and the reason, if the client gave them (R16: SetWaitEdge path and reason).
    pub why: Option<(Path, BlockReason)>,
}

/// The calls whose answers the system group remembers: those that span groups (R104).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SystemCall {
    /// Renew.
    Renew,
    /// ReleaseAll.
    ReleaseAll,
    /// ForceRelease.
    ForceRelease,
    /// SetWaitEdge.
    SetWaitEdge,
    /// ClearWaitEdge.
    ClearWaitEdge,
    /// IncrFencingToken.
    IncrFencingToken,
    /// SetNamespacePolicy.
    SetNamespacePolicy,
    /// DeleteNamespacePolicy.
    DeleteNamespacePolicy,
    /// Release, as far as it removes a wait edge. Since rules 2.
    Release,
}

/// An idempotency key with its scope and the fingerprint of its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyClaim {
    /// The call.
    pub call: SystemCall,
    /// The caller's key.
    pub key: Key,
    /// A hash of the request: the same key for another request is refused (R103).
    pub fingerprint: u128,
}

/// What a ReleaseAll or ForceRelease ends: in each group everything that the owner had at one
/// moment.
///
/// Leases and waiters of a group are numbered in one sequence, so one number covers all that
/// existed and none that came later. The size of a plan depends on the number of groups, not on the
/// number of holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleasePlan {
    /// The namespaces concerned (R126–R128).
    pub selection: Selection,
    /// The groups in which the owner had leases or waiters, each with the highest number to end.
    pub groups: Vec<(u32, u64)>,
}

/// What the first plan of a call does in addition to being stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReleasePlanEffect {
    /// Nothing.
    None,
    /// Removes the owner's wait edge.
    ClearEdge,
    /// Removes the owner's wait edge and creates a KILLED event (R101).
    Kill,
}

/// The work in progress of a call with a reserved key. Since rules 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyWork {
    /// The call carries out this plan.
    Plan(ReleasePlan),
    /// The call makes the table change of this number.
    Change(u64),
}

/// The result of a change of the namespace table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeEnd {
    /// The change was applied.
    Made,
    /// A live hold prevented the change (R133 route changes need drained paths, R138).
    Refused {
        /// That hold.
        live: (Path, OwnerId),
    },
}

/// A remembered answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SystemAnswer {
    /// Plain success.
    Done,
    /// The leases that a renewal extended, and whether a release was requested (R105: replays
    /// report present truth).
    Renewed {
        /// Each lease by its namespace and its first epoch.
        leases: Vec<(Namespace, u64)>,
        /// `revoke_requested`.
        asked: bool,
    },
    /// An issued number.
    Number(Fence),
}

/// All effects of one applied command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemApplied {
    /// The result, returned to the proposer.
    pub outcome: SystemOutcome,
    /// Events for owners, in order.
    pub events: Vec<Event>,
}

/// The result of one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SystemOutcome {
    /// Result of `Begin`.
    Begun(ChangeBegun),
    /// Result of `Decide`.
    Decided(ChangeDecided),
    /// Result of `Increment`.
    Number(Fence),
    /// Result of a fresh `Claim` or `Kill`: carry out the call, then propose `Complete`.
    Fresh,
    /// Result of `Plan`: the plan to carry out.
    Planned(ReleasePlan),
    /// The key was used before or cannot be stored; nothing was done.
    Repeated(RepeatedKey),
    /// Result of `Auth`: the new version of the table.
    Auth(Result<u64, AuthRefusal>),
    /// The counter has reached its end; nothing was done.
    NumbersUsedUp,
    /// Result of every other command.
    Done,
}

/// The result of beginning a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeBegun {
    /// The row already has the requested value.
    Unchanged,
    /// The row is written; no group is concerned (R132: creating an equal row).
    Committed {
        /// The new version of the table.
        version: u64,
    },
    /// Groups must be frozen: see [`System::change`](super::System::change).
    Started {
        /// The change's number.
        change: u64,
    },
    /// The table has as many rows as it may have.
    Full,
    /// An overlapping change is in progress: finish it, then retry.
    Busy {
        /// That change's number.
        change: u64,
    },
}

/// The decision on a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeDecided {
    /// The row is written: the groups must apply it.
    Committed {
        /// The new version of the table.
        version: u64,
    },
    /// A live hold prevents the change: the groups must thaw (R133, R138).
    Refused {
        /// That hold.
        live: (Path, OwnerId),
    },
    /// No such change is in progress.
    Unknown,
}

/// Why a key is not fresh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepeatedKey {
    /// The same request got this answer.
    Answered(SystemAnswer),
    /// The same request is in progress, or its completion was never recorded.
    Open,
    /// The key was used for a different request (R103).
    KeyReused,
    /// No room to remember another answer (R102).
    Full,
}
