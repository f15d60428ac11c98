//! The replicated state machine of a group: a lock space, or the system machine.

use tenure_core::command::Command;
use tenure_core::event::EventIdStride;
use tenure_core::namespace_table::NamespaceTable;
use tenure_core::outcome::Outcome;
use tenure_core::query::{EventsAfter, FenceCheck};
use tenure_core::space::{Effects, HashSeed, Space, SpaceLimits};
use tenure_core::system::{System, SystemCommand, SystemOutcome};
use tenure_core::value::Stamp;

use crate::group_op::{GroupOp, GroupQuery, QueryResult};

/// A command for either machine. Space commands are not boxed: moving one costs less than an
/// allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AnyCommand {
    Space(Command),
    System(Box<SystemCommand>),
}

impl AnyCommand {
    /// The operation that asked for it. A renewal that was to be written down is asked again as a
    /// renewal: under another leader it may need no entry.
    pub(crate) fn into_op(self) -> GroupOp {
        match self {
            AnyCommand::Space(command) => match command {
                Command::Renew(renew) => GroupOp::Renew(renew),
                other => GroupOp::Command(other),
            },
            AnyCommand::System(command) => GroupOp::System(command),
        }
    }
}

/// The answer of either machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AnyOutcome {
    Space(Outcome),
    System(SystemOutcome),
}

/// The kind of a group's state machine, with its initial settings.
#[derive(Clone, Debug)]
pub(crate) enum MachineInit {
    Space(SpaceLimits, HashSeed),
    System(NamespaceTable),
}

/// The replicated state machine of a group.
pub(crate) enum StateMachine {
    Space(Box<Space>),
    System(Box<System>),
}

impl StateMachine {
    pub(crate) fn new(machine_init: &MachineInit) -> StateMachine {
        match machine_init {
            MachineInit::Space(limits, seed) => {
                StateMachine::Space(Box::new(Space::new(limits.clone(), *seed)))
            }
            MachineInit::System(table) => {
                StateMachine::System(Box::new(System::new(table.clone())))
            }
        }
    }

    /// Sets the event ids of this machine (R121: event ids).
    pub(crate) fn number_events(&mut self, channel: EventIdStride) {
        match self {
            StateMachine::Space(space) => space.number_events(channel),
            StateMachine::System(system) => system.number_events(channel),
        }
    }

    /// Keeps the recent changes of holds and waiters (E22: History).
    pub(crate) fn keep_history(&mut self, bytes: usize, wall: u64) {
        if let StateMachine::Space(space) = self {
            space.keep_history(bytes, wall);
        }
    }

    pub(crate) fn space(&self) -> Option<&Space> {
        match self {
            StateMachine::Space(space) => Some(space),
            StateMachine::System(_) => None,
        }
    }

    pub(crate) fn space_mut(&mut self) -> Option<&mut Space> {
        match self {
            StateMachine::Space(space) => Some(space),
            StateMachine::System(_) => None,
        }
    }

    pub(crate) fn system(&self) -> Option<&System> {
        match self {
            StateMachine::System(system) => Some(system),
            StateMachine::Space(_) => None,
        }
    }

    /// Returns the rules number that it applies.
    pub(crate) fn rules(&self) -> u32 {
        match self {
            StateMachine::Space(space) => space.rules(),
            StateMachine::System(system) => system.rules(),
        }
    }

    /// Returns about how many bytes its snapshot has.
    pub(crate) fn approximate_bytes(&self) -> usize {
        let Some(space) = self.space() else {
            return 0;
        };
        let counts = space.counts();
        let bytes = 80 * counts.claims
            + 40 * counts.leases
            + 200 * counts.waiters
            + 80 * counts.answers
            + 60 * (counts.namespaces + counts.marks);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// Returns the largest time stamp applied.
    pub(crate) fn time(&self) -> u64 {
        match self {
            StateMachine::Space(space) => space.time(),
            StateMachine::System(system) => system.time(),
        }
    }

    /// The sequence of the last event.
    pub(crate) fn last_event(&self) -> u64 {
        match self {
            StateMachine::Space(space) => space.last_event(),
            StateMachine::System(system) => system.last_event(),
        }
    }

    /// The events that followed a sequence.
    pub(crate) fn events_after(&self, sequence: u64) -> EventsAfter {
        match self {
            StateMachine::Space(space) => space.events_after(sequence),
            StateMachine::System(system) => system.events_after(sequence),
        }
    }

    /// Applies one command; `None` if it is meant for the other machine. `effects`, which comes
    /// empty, gets all that it did beside its answer.
    pub(crate) fn apply(
        &mut self,
        stamp: Stamp,
        command: AnyCommand,
        effects: &mut Effects,
    ) -> Option<AnyOutcome> {
        match (self, command) {
            (StateMachine::Space(space), AnyCommand::Space(command)) => {
                let outcome = space.act(stamp, command);
                std::mem::swap(space.effects(), effects);
                Some(AnyOutcome::Space(outcome))
            }
            (StateMachine::System(system), AnyCommand::System(command)) => {
                let applied = system.apply(stamp, *command);
                effects.events = applied.events;
                Some(AnyOutcome::System(applied.outcome))
            }
            (StateMachine::Space(_), AnyCommand::System(_))
            | (StateMachine::System(_), AnyCommand::Space(_)) => None,
        }
    }

    /// Answers a query at this lease time; `None` if it is meant for the other machine.
    pub(crate) fn query(&self, query: &GroupQuery, now: u64) -> Option<QueryResult> {
        match self {
            StateMachine::Space(space) => query_space(space, query, now),
            StateMachine::System(system) => query_system(system, query, now),
        }
    }
}

/// The table version that a query needs, if one of its paths was resolved by an older one (R25:
/// policy rows are durable).
fn outdated(space: &Space, query: &GroupQuery) -> Option<u64> {
    match query {
        GroupQuery::Assert { paths, .. } => paths
            .iter()
            .find_map(|(route, path)| space.route_outdated(route, path)),
        GroupQuery::Inspect { route, path }
        | GroupQuery::Blocking { route, path, .. }
        | GroupQuery::Explain { route, path, .. } => space.route_outdated(route, path),
        GroupQuery::Dump { .. }
        | GroupQuery::Survey { .. }
        | GroupQuery::Edge { .. }
        | GroupQuery::Table { .. }
        | GroupQuery::Change { .. }
        | GroupQuery::Policy { .. }
        | GroupQuery::Policies { .. }
        | GroupQuery::Born { .. }
        | GroupQuery::Claimed { .. }
        | GroupQuery::Ended { .. }
        | GroupQuery::Auth { .. }
        | GroupQuery::Nothing => None,
    }
}

fn query_space(space: &Space, query: &GroupQuery, now: u64) -> Option<QueryResult> {
    if let Some(version) = outdated(space, query) {
        return Some(QueryResult::Outdated { version });
    }
    Some(match query {
        GroupQuery::Assert {
            owner,
            fence,
            paths,
        } => {
            let checks = paths.iter().zip(0u32..).map(|((route, path), at)| {
                let check = space.assert_fencing(&route.namespace, owner, path, *fence);
                (at, check)
            });
            let mut failed = checks.filter(|(_, check)| *check != FenceCheck::Valid);
            QueryResult::Assert(failed.next())
        }
        GroupQuery::Inspect { route, path } => {
            QueryResult::Inspect(space.inspect(&route.namespace, path, now))
        }
        GroupQuery::Blocking {
            route,
            owner,
            path,
            reason,
        } => QueryResult::Blocking(space.is_blocking(&route.namespace, owner, path, *reason, now)),
        GroupQuery::Explain {
            route,
            owner,
            path,
            mode,
        } => QueryResult::Explain {
            explanation: space.explain(route, owner, path, *mode, now),
            left: Vec::new(),
        },
        GroupQuery::Dump { after, page } => {
            QueryResult::Dump(space.dump(*after, usize::try_from(*page).unwrap_or(512)))
        }
        GroupQuery::Survey { below, after, page } => {
            let page = usize::try_from(*page).unwrap_or(512);
            QueryResult::Survey(space.survey(below.as_ref(), *after, page, now))
        }
        GroupQuery::Born { namespace, owner } => {
            // A lease that a renewal would call lost is none that a repeat may call renewed.
            QueryResult::Born(space.renewal(namespace, owner).ok().map(|view| view.born))
        }
        GroupQuery::Nothing => QueryResult::Nothing,
        GroupQuery::Edge { .. }
        | GroupQuery::Table { .. }
        | GroupQuery::Change { .. }
        | GroupQuery::Claimed { .. }
        | GroupQuery::Ended { .. }
        | GroupQuery::Auth { .. }
        | GroupQuery::Policy { .. }
        | GroupQuery::Policies { .. } => return None,
    })
}

fn query_system(system: &System, query: &GroupQuery, now: u64) -> Option<QueryResult> {
    let table = system.table();
    Some(match query {
        GroupQuery::Edge { owner } => QueryResult::Edge(system.edge(owner, now).cloned()),
        GroupQuery::Table { known } => {
            QueryResult::Table((*known != Some(table.version())).then(|| table.clone()))
        }
        GroupQuery::Change { change } => QueryResult::Change(system.change(*change)),
        GroupQuery::Claimed { claim } => QueryResult::Claimed {
            rules: system.rules(),
            before: system.lookup(claim, now),
            work: system.work(claim, now).cloned(),
        },
        GroupQuery::Ended { change } => QueryResult::Ended(system.change_end(*change).cloned()),
        GroupQuery::Auth { known } => {
            let auth = system.auth();
            QueryResult::Auth((*known != Some(auth.version())).then(|| auth.clone()))
        }
        GroupQuery::Policy { namespace } => QueryResult::Policy {
            algorithm: table.algorithm(namespace),
            explicit: table.row(namespace).is_some(),
        },
        GroupQuery::Policies { after, page } => {
            let page = usize::try_from(*page).unwrap_or(512);
            let own =
                |(name, algorithm): (&tenure_core::path::Namespace, _)| (name.clone(), algorithm);
            let mut rows: Vec<_> = match after {
                None => table.rows().take(page + 1).map(own).collect(),
                Some(after) => table.rows_after(after).take(page + 1).map(own).collect(),
            };
            let done = rows.len() <= page;
            rows.truncate(page);
            QueryResult::Policies { rows, done }
        }
        GroupQuery::Nothing => QueryResult::Nothing,
        GroupQuery::Assert { .. }
        | GroupQuery::Inspect { .. }
        | GroupQuery::Blocking { .. }
        | GroupQuery::Explain { .. }
        | GroupQuery::Born { .. }
        | GroupQuery::Survey { .. }
        | GroupQuery::Dump { .. } => return None,
    })
}
