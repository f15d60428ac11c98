//! The machine behind a group's log: a space of locks, or the system machine.

use tenure_core::command::Command;
use tenure_core::event::EventIdStride;
use tenure_core::namespace_table::NamespaceTable;
use tenure_core::outcome::Outcome;
use tenure_core::query::EventsAfter;
use tenure_core::space::{Effects, HashSeed, Space, SpaceLimits};
use tenure_core::system::{System, SystemCommand, SystemOutcome};
use tenure_core::value::Stamp;

use crate::op::{Found, Op, Query};

/// A command for either machine. Those of a space are not boxed: to move one costs less than to find
/// memory for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AnyCommand {
    Space(Command),
    System(Box<SystemCommand>),
}

impl AnyCommand {
    /// The operation that asked for it. A renewal that was to be written down is asked again as a
    /// renewal: under another leader it may need no entry.
    pub(crate) fn into_op(self) -> Op {
        match self {
            AnyCommand::Space(command) => match command {
                Command::Renew(renew) => Op::Renew(renew),
                other => Op::Command(other),
            },
            AnyCommand::System(command) => Op::System(command),
        }
    }
}

/// The answer of either machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AnyOutcome {
    Space(Outcome),
    System(SystemOutcome),
}

/// Which machine a group has, and how an empty one looks.
#[derive(Clone, Debug)]
pub(crate) enum Blank {
    Space(SpaceLimits, HashSeed),
    System(NamespaceTable),
}

/// See the module.
pub(crate) enum Machine {
    Space(Box<Space>),
    System(Box<System>),
}

impl Machine {
    pub(crate) fn new(blank: &Blank) -> Machine {
        match blank {
            Blank::Space(limits, seed) => {
                Machine::Space(Box::new(Space::new(limits.clone(), *seed)))
            }
            Blank::System(table) => Machine::System(Box::new(System::new(table.clone()))),
        }
    }

    /// Its events have the ids of this lane (R121).
    pub(crate) fn number_events(&mut self, lane: EventIdStride) {
        match self {
            Machine::Space(space) => space.number_events(lane),
            Machine::System(system) => system.number_events(lane),
        }
    }

    pub(crate) fn space(&self) -> Option<&Space> {
        match self {
            Machine::Space(space) => Some(space),
            Machine::System(_) => None,
        }
    }

    pub(crate) fn space_mut(&mut self) -> Option<&mut Space> {
        match self {
            Machine::Space(space) => Some(space),
            Machine::System(_) => None,
        }
    }

    pub(crate) fn system(&self) -> Option<&System> {
        match self {
            Machine::System(system) => Some(system),
            Machine::Space(_) => None,
        }
    }

    /// The number of the rules that it applies by.
    pub(crate) fn rules(&self) -> u32 {
        match self {
            Machine::Space(space) => space.rules(),
            Machine::System(system) => system.rules(),
        }
    }

    /// The largest stamp seen.
    pub(crate) fn time(&self) -> u64 {
        match self {
            Machine::Space(space) => space.time(),
            Machine::System(system) => system.time(),
        }
    }

    /// The sequence of the last event.
    pub(crate) fn last_event(&self) -> u64 {
        match self {
            Machine::Space(space) => space.last_event(),
            Machine::System(system) => system.last_event(),
        }
    }

    /// The events that followed a sequence.
    pub(crate) fn events_after(&self, sequence: u64) -> EventsAfter {
        match self {
            Machine::Space(space) => space.events_after(sequence),
            Machine::System(system) => system.events_after(sequence),
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
            (Machine::Space(space), AnyCommand::Space(command)) => {
                let outcome = space.act(stamp, command);
                std::mem::swap(space.effects(), effects);
                Some(AnyOutcome::Space(outcome))
            }
            (Machine::System(system), AnyCommand::System(command)) => {
                let applied = system.apply(stamp, *command);
                effects.events = applied.events;
                Some(AnyOutcome::System(applied.outcome))
            }
            (Machine::Space(_), AnyCommand::System(_))
            | (Machine::System(_), AnyCommand::Space(_)) => None,
        }
    }

    /// Answers a query at this lease time; `None` if it is meant for the other machine.
    pub(crate) fn query(&self, query: &Query, now: u64) -> Option<Found> {
        match self {
            Machine::Space(space) => query_space(space, query, now),
            Machine::System(system) => query_system(system, query, now),
        }
    }
}

/// The table version that a query needs, if one of its paths was resolved by an older one (R25).
fn outdated(space: &Space, query: &Query) -> Option<u64> {
    match query {
        Query::Assert { paths, .. } => paths
            .iter()
            .find_map(|(route, path)| space.route_outdated(route, path)),
        Query::Inspect { route, path }
        | Query::Blocking { route, path, .. }
        | Query::Explain { route, path, .. } => space.route_outdated(route, path),
        Query::Dump { .. }
        | Query::Edge { .. }
        | Query::Table { .. }
        | Query::Change { .. }
        | Query::Policy { .. }
        | Query::Policies { .. }
        | Query::Born { .. }
        | Query::Claimed { .. }
        | Query::Ended { .. }
        | Query::Nothing => None,
    }
}

fn query_space(space: &Space, query: &Query, now: u64) -> Option<Found> {
    if let Some(version) = outdated(space, query) {
        return Some(Found::Outdated { version });
    }
    Some(match query {
        Query::Assert {
            owner,
            fence,
            paths,
        } => {
            use tenure_core::query::FenceCheck;
            let checks = paths.iter().zip(0u32..).map(|((route, path), at)| {
                let check = space.assert_fencing(&route.namespace, owner, path, *fence);
                (at, check)
            });
            let mut failed = checks.filter(|(_, check)| *check != FenceCheck::Valid);
            Found::Assert(failed.next())
        }
        Query::Inspect { route, path } => {
            Found::Inspect(space.inspect(&route.namespace, path, now))
        }
        Query::Blocking {
            route,
            owner,
            path,
            reason,
        } => Found::Blocking(space.is_blocking(&route.namespace, owner, path, *reason, now)),
        Query::Explain {
            route,
            owner,
            path,
            mode,
        } => Found::Explain {
            explanation: space.explain(route, owner, path, *mode, now),
            left: Vec::new(),
        },
        Query::Dump { after, page } => {
            Found::Dump(space.dump(*after, usize::try_from(*page).unwrap_or(512)))
        }
        Query::Born { namespace, owner } => {
            // A lease that a renewal would call lost is none that a repeat may call renewed.
            Found::Born(space.renewal(namespace, owner).ok().map(|view| view.born))
        }
        Query::Nothing => Found::Nothing,
        Query::Edge { .. }
        | Query::Table { .. }
        | Query::Change { .. }
        | Query::Claimed { .. }
        | Query::Ended { .. }
        | Query::Policy { .. }
        | Query::Policies { .. } => return None,
    })
}

fn query_system(system: &System, query: &Query, now: u64) -> Option<Found> {
    let table = system.table();
    Some(match query {
        Query::Edge { owner } => Found::Edge(system.edge(owner, now).cloned()),
        Query::Table { known } => {
            Found::Table((*known != Some(table.version())).then(|| table.clone()))
        }
        Query::Change { change } => Found::Change(system.change(*change)),
        Query::Claimed { claim } => Found::Claimed {
            rules: system.rules(),
            before: system.lookup(claim, now),
            work: system.work(claim, now).cloned(),
        },
        Query::Ended { change } => Found::Ended(system.change_end(*change).cloned()),
        Query::Policy { namespace } => Found::Policy {
            algorithm: table.algorithm(namespace),
            explicit: table.row(namespace).is_some(),
        },
        Query::Policies { after, page } => {
            let page = usize::try_from(*page).unwrap_or(512);
            let own =
                |(name, algorithm): (&tenure_core::path::Namespace, _)| (name.clone(), algorithm);
            let mut rows: Vec<_> = match after {
                None => table.rows().take(page + 1).map(own).collect(),
                Some(after) => table.rows_after(after).take(page + 1).map(own).collect(),
            };
            let done = rows.len() <= page;
            rows.truncate(page);
            Found::Policies { rows, done }
        }
        Query::Nothing => Found::Nothing,
        Query::Assert { .. }
        | Query::Inspect { .. }
        | Query::Blocking { .. }
        | Query::Explain { .. }
        | Query::Born { .. }
        | Query::Dump { .. } => return None,
    })
}
