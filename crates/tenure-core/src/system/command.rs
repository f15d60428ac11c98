//! Commands and outcomes of the [`System`](super::System) machine.

use alloc::vec::Vec;

use crate::command::Selection;
use crate::event::Event;
use crate::outcome::FreezeReport;
use crate::path::{Namespace, Path};
use crate::policy::{Algorithm, BlockReason};
use crate::value::{Fence, Key, OwnerId, Ttl};

/// All that can change the system machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SystemCommand {
    /// Begins to set (`Some`) or delete (`None`) a row of the namespace table (R131–R138).
    Begin {
        /// Whose row.
        namespace: Namespace,
        /// What it is to become.
        to: Option<Algorithm>,
        /// Makes the call apply at most once (R103: key reuse with other content).
        claim: Option<KeyClaim>,
    },
    /// Decides a change by what the frozen groups reported, all of them together.
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
        /// Who waits.
        owner: OwnerId,
        /// For whom, and why.
        edge: Edge,
        /// How long this stands.
        ttl: Ttl,
        /// Makes the call apply at most once.
        claim: Option<KeyClaim>,
    },
    /// Forgets it (R108: ClearWaitEdge always succeeds).
    ClearEdge {
        /// Who waited.
        owner: OwnerId,
        /// Makes the call apply at most once.
        claim: Option<KeyClaim>,
    },
    /// Takes the next global number (R75: IncrFencingToken always grows).
    Increment {
        /// The highest fence that the groups which could be asked have minted, below [`Fence::DRIVEN`].
        above: Option<Fence>,
        /// Makes the call apply at most once.
        claim: Option<KeyClaim>,
    },
    /// Reserves a key before a call fans out (R102–R104).
    Claim(KeyClaim),
    /// Writes down what a keyed call is going to do, before it does anything. The first plan counts: whoever
    /// comes later is answered with it. Reserves the key if that is not done. Since rules 2.
    Plan {
        /// Which key, of which call.
        claim: KeyClaim,
        /// Whose leases and waiters end.
        owner: OwnerId,
        /// Which of them.
        plan: ReleasePlan,
        /// What happens at once, if this plan is the first.
        effect: ReleasePlanEffect,
    },
    /// Ends a reservation: the answer to remember, or `None` if the call failed and may be evaluated afresh.
    Complete {
        /// Which key, of which call.
        claim: KeyClaim,
        /// What a repeat is answered.
        answer: Option<SystemAnswer>,
        /// The plan that was carried out, if there was one: the key may stand for a later one by now, which is
        /// not. Since rules 2.
        plan: Option<ReleasePlan>,
    },
    /// ForceRelease: the KILLED event and the end of the wait edge; the groups are told afterwards
    /// (R101: ForceRelease always notifies the victim).
    Kill {
        /// The victim.
        owner: OwnerId,
        /// Reserved with it; completed when the groups have been told.
        claim: Option<KeyClaim>,
    },
    /// RequestRevoke: the REVOKE event; the groups are told afterwards (R115: RequestRevoke sends
    /// an event).
    Ask {
        /// Who is asked.
        owner: OwnerId,
    },
    /// Nothing but the passing of time.
    Tick,
    /// Raises the global counter and the table's version (after a restore that may have lost some).
    Lift {
        /// By how much.
        by: u64,
    },
    /// Moves the machine to newer rules, once all its replicas know them.
    Rules {
        /// The number of the rules.
        number: u32,
    },
}

impl SystemCommand {
    /// The form that a machine of these rules knows; `None` if it knows no such command.
    #[must_use]
    pub fn for_rules(mut self, rules: u32) -> Option<SystemCommand> {
        if rules < 2 {
            match &mut self {
                SystemCommand::Plan { .. } => return None,
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
    /// Who is waited for.
    pub blocker: OwnerId,
    /// Where and why, if the client said so (R16: SetWaitEdge path and reason).
    pub why: Option<(Path, BlockReason)>,
}

/// The calls whose answers are remembered here: those that are no single group's business (R104).
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

/// A key in its scope, and what it was used for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyClaim {
    /// The call.
    pub call: SystemCall,
    /// The caller's key.
    pub key: Key,
    /// A hash of the request: the same key for another request is refused (R103).
    pub fingerprint: u128,
}

/// What a ReleaseAll or ForceRelease ends: in each group whatever the owner had there at one moment.
///
/// Leases and waiters of a group are numbered in one order, so one number names all that were there, and
/// nothing that came later. A plan is thus as long as there are groups, however much the owner has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleasePlan {
    /// In which namespaces (R126–R128).
    pub selection: Selection,
    /// The groups in which the owner had something, by number, and up to which place in their orders.
    pub groups: Vec<(u32, u64)>,
}

/// What the first plan of a call does beside being written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReleasePlanEffect {
    /// Nothing.
    None,
    /// The owner's wait edge goes.
    ClearEdge,
    /// The owner's wait edge goes, and it gets KILLED (R101).
    Kill,
}

/// What the owner of a reserved key is doing. Since rules 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyWork {
    /// It ends what a plan names.
    Plan(ReleasePlan),
    /// It makes the change of this number.
    Change(u64),
}

/// How a change of the namespace table ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeEnd {
    /// It was made.
    Made,
    /// A live hold was in the way (R133 route changes need drained paths, R138).
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
    /// The leases that a renewal extended, and whether somebody asked (R105: replays report present
    /// truth).
    Renewed {
        /// Each lease by its birth.
        leases: Vec<(Namespace, u64)>,
        /// `revoke_requested`.
        asked: bool,
    },
    /// A number that was given out.
    Number(Fence),
}

/// All that one applied command did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemApplied {
    /// The answer to whoever proposed it.
    pub outcome: SystemOutcome,
    /// Events for owners, in order.
    pub events: Vec<Event>,
}

/// The answer to one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SystemOutcome {
    /// To `Begin`.
    Begun(ChangeBegun),
    /// To `Decide`.
    Decided(ChangeDecided),
    /// To `Increment`.
    Number(Fence),
    /// To a fresh `KeyClaim` or `Kill`: go on, then `Complete`.
    Fresh,
    /// To `ReleasePlan`: the plan that counts.
    Planned(ReleasePlan),
    /// The key says that this is no fresh request; nothing was done.
    Repeated(RepeatedKey),
    /// The counter has reached its end; nothing was done.
    NumbersUsedUp,
    /// To everything else.
    Done,
}

/// How a change began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeBegun {
    /// The row is as wanted already.
    Unchanged,
    /// The row is written; no group is concerned (R132: creating an equal row).
    Committed {
        /// The table's version since.
        version: u64,
    },
    /// Groups must be frozen: see [`System::change`](super::System::change).
    Started {
        /// The change's number.
        change: u64,
    },
    /// A change of an overlapping part is under way: finish it, then try again.
    Busy {
        /// That change's number.
        change: u64,
    },
}

/// How a change was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeDecided {
    /// The row is written: the groups must apply it.
    Committed {
        /// The table's version since.
        version: u64,
    },
    /// A live hold is in the way: the groups must thaw (R133, R138).
    Refused {
        /// That hold.
        live: (Path, OwnerId),
    },
    /// There is no such change under way.
    Unknown,
}

/// What a key that was used before says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepeatedKey {
    /// The same request was answered so.
    Answered(SystemAnswer),
    /// The same request is under way, or its end was never recorded.
    Open,
    /// The key was used for a different request (R103).
    KeyReused,
    /// No room to remember another answer (R102).
    Full,
}
