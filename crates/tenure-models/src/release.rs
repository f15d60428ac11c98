//! A keyed Release while one of its paths moves to another namespace and back.
//!
//! The groups and the namespace table are the shipped machines. The coordinator follows `tenure-node/src/coordinator/release.rs`:
//! it splits the request by its copy of the table, releases each part, resolves again if the copy is too old, and asks all
//! groups for the key if a path has moved. The change of the table is carried out step by step by one driver; several drivers
//! are the subject of [`crate::policy`].
//!
//! Three nodes: two coordinate an attempt each with a table of their own, the third leads the groups and drives the
//! change. Two clients: the one that releases under a key, and the one that acquires again (the same owner).
//!
//! Properties:
//!
//! 1. The key ends at most one hold of each path (R102).
//! 2. After an attempt was answered OK, no attempt under the key ends a hold.
//! 3. OK means that what was held when the first attempt began is gone. A namespace that is frozen by a
//!    change refuses a release of what it does not know: the hold may be in the new namespace, which has applied the
//!    change already.

use std::cell::RefCell;
use std::collections::HashMap;

use tenure_core::command::{
    Acquire, Command, Expire, Hold, Release, Request, RequestKind as Wanted, Route, Selection,
    WaitMode, Whole,
};
use tenure_core::namespace_table::NamespaceTable;
use tenure_core::outcome::{FreezeReport, Outcome, Refusal};
use tenure_core::path::Namespace;
use tenure_core::policy::{Algorithm, Mode};
use tenure_core::space::Space;
use tenure_core::system::{AfterChange, ChangeBegun, System, SystemCommand, SystemOutcome};
use tenure_core::value::{Fence, Key, OwnerId, QueueTtl, Ttl};

use crate::explore::Model;
use crate::machine::{self, Id, Interned, NOW};

const GROUPS: usize = 2;

/// A protection that is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A namespace takes a key that is new to it without asking where the path was before.
    NeverAsks,
    /// Only the group of the path's new namespace is asked for the key.
    AsksOneGroup,
    /// A release that a frozen group refuses counts as done, because the owner holds nothing there.
    TakesFrozenForDone,
    /// A release that was asked for does not say for which change. The path may have moved again since the question.
    AskedForAnyChange,
}

/// How far the search goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Paths that the request names: the first one moves, the second one does not.
    pub paths: usize,
    /// Attempts under the key.
    pub attempts: usize,
    /// How often the owner acquires again.
    pub acquires: u8,
    /// How often a lease expires.
    pub expiries: u8,
    /// Changes of the table: the row is made, then deleted.
    pub changes: u8,
    /// Coordinators that crash.
    pub crashes: u8,
}

/// Model of a keyed release whose path moves to another namespace.
pub struct KeyedRelease {
    bounds: Bounds,
    mistake: Option<Mistake>,
    systems: Interned<System>,
    spaces: Interned<Space>,
    /// By the place of a hold in the request.
    holds: Vec<Hold>,
    /// What the owner holds in a space, as bits.
    held: RefCell<HashMap<Id, u8>>,
    /// The namespace of the path without the row, and with it: each has a group of its own.
    names: [Namespace; GROUPS],
    owner: OwnerId,
    key: Key,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Attempt {
    Idle,
    Running {
        /// What is under way, in order.
        parts: Vec<Part>,
        /// Holds that wait to be resolved, as bits, by a table of at least this version.
        unplaced: u8,
        version: u8,
    },
    Answered,
    Crashed,
}

/// Holds of one namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Part {
    /// As bits.
    holds: u8,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Phase {
    /// A release that was resolved by the table of this version, and the change for which all groups were asked.
    Sent(u8, Option<u8>),
    /// Asks for the key: the version of the change, and what each group has released, as bits.
    Asking(u8, [Option<u8>; GROUPS]),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Driven {
    change: u8,
    answered: [bool; GROUPS],
    live: bool,
    highest: Option<u64>,
}

/// State of the model: the shipped state machines, the attempts, and messages under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    system: Id,
    spaces: [Id; GROUPS],
    attempts: Vec<Attempt>,
    /// The version of each coordinator's table.
    tables: Vec<u8>,
    driven: Option<Driven>,
    changes: u8,
    acquires: u8,
    expiries: u8,
    crashes: u8,
    /// What was held when the first attempt began and has not ended yet, as bits.
    began: u8,
    /// What has ended under the key, as bits.
    ended: u8,
    fault: Option<&'static str>,
}

/// A step.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names are what a reader of a path sees")]
pub enum Step {
    AttemptBegins(usize),
    ReleasesInGroup(usize, usize, u8),
    ResolvesByTable(usize, u8),
    AsksGroupForKey(usize, usize),
    CoordinatorCrashes(usize),
    ChangeBegins,
    GroupIsFrozen(usize),
    GroupIsChanged(usize),
    GroupIsThawed(usize),
    ChangeIsDecided,
    ChangeIsFinished,
    OwnerAcquires(usize),
    LeaseExpiresInGroup(usize),
}

impl KeyedRelease {
    /// The model, with or without a mistake.
    pub fn new(bounds: Bounds, mistake: Option<Mistake>) -> KeyedRelease {
        KeyedRelease {
            bounds,
            mistake,
            systems: Interned::default(),
            spaces: Interned::default(),
            holds: ["h:/a/b", "h:/a/c"][..bounds.paths]
                .iter()
                .map(|path| Hold {
                    path: machine::path(path),
                    mode: Mode::Write,
                })
                .collect(),
            held: RefCell::default(),
            names: [machine::namespace("h:/a"), machine::namespace("h:/a/b")],
            owner: machine::owner("owner"),
            key: machine::key("key"),
        }
    }

    /// The table of a version: every second one has the row.
    fn table(version: u8, row: &Namespace) -> NamespaceTable {
        let rows = [(row.clone(), Algorithm::PointRw)];
        let rows = rows.into_iter().filter(|_| version % 2 == 1);
        NamespaceTable::restore(1, Algorithm::RecursiveRw, u64::from(version), rows)
    }

    fn route(&self, version: u8, hold: usize) -> (Route, usize) {
        let table = KeyedRelease::table(version, &self.names[1]);
        let route = table.route(&self.holds[hold].path);
        let group = usize::from(route.namespace == self.names[1]);
        (route, group)
    }

    fn bits(&self, holds: u8) -> impl Iterator<Item = usize> {
        (0..self.holds.len()).filter(move |hold| holds & (1 << hold) != 0)
    }

    fn version(&self, state: &State) -> u8 {
        self.systems.get(state.system).table().version() as u8
    }

    /// What the owner holds in a group, as bits.
    fn held_in(&self, state: &State, group: usize) -> u8 {
        let id = state.spaces[group];
        *self.held.borrow_mut().entry(id).or_insert_with(|| {
            let locks = self
                .spaces
                .get(id)
                .owner_locks(&self.owner, &Selection::All)
                .locks;
            let is_held = |hold: &Hold| locks.iter().any(|lock| lock.path == hold.path);
            let held = self.holds.iter().enumerate();
            held.map(|(at, hold)| u8::from(is_held(hold)) << at).sum()
        })
    }

    fn held(&self, state: &State) -> u8 {
        (0..GROUPS)
            .map(|group| self.held_in(state, group))
            .fold(0, |all, held| all | held)
    }

    /// The call is answered when nothing is left to do.
    fn go_on(state: &mut State, at: usize, next: Attempt) {
        state.attempts[at] = match next {
            Attempt::Running {
                parts, unplaced: 0, ..
            } if parts.is_empty() => {
                if state.began != 0 {
                    state.fault = Some("OK, and a hold of the beginning is still there");
                }
                Attempt::Answered
            }
            Attempt::Running {
                mut parts,
                unplaced,
                version,
            } => {
                parts.sort_unstable();
                Attempt::Running {
                    parts,
                    unplaced,
                    version,
                }
            }
            other => other,
        };
    }

    /// Holds that wait are resolved by the table that the node has then, and sent.
    fn place(&self, state: &State, at: usize, steps: &mut Vec<(Step, State)>) {
        let Attempt::Running {
            parts,
            unplaced,
            version,
        } = &state.attempts[at]
        else {
            return;
        };
        if *unplaced == 0 {
            return;
        }
        let oldest = state.tables[at].max(*version);
        for table in oldest..=self.version(state) {
            let mut after = state.clone();
            after.tables[at] = table;
            let mut parts = parts.clone();
            for group in 0..GROUPS {
                let here = |hold: &usize| self.route(table, *hold).1 == group;
                let holds = self
                    .bits(*unplaced)
                    .filter(here)
                    .map(|hold| 1 << hold)
                    .sum();
                if holds != 0 {
                    let phase = Phase::Sent(table, None);
                    parts.push(Part { holds, phase });
                }
            }
            let next = Attempt::Running {
                parts,
                unplaced: 0,
                version: 0,
            };
            KeyedRelease::go_on(&mut after, at, next);
            steps.push((Step::ResolvesByTable(at, table), after));
        }
    }

    /// A release arrives.
    fn release(&self, state: &State, at: usize, part: usize) -> Option<(Step, State)> {
        let Attempt::Running {
            parts,
            unplaced,
            version,
        } = &state.attempts[at]
        else {
            return None;
        };
        let (mut parts, mut unplaced, mut needed) = (parts.clone(), *unplaced, *version);
        let Part { holds, phase } = parts.remove(part);
        let Phase::Sent(table, asked) = phase else {
            return None;
        };
        let mut after = state.clone();
        // The first path says where a part goes.
        let (route, group) = self.route(table, self.bits(holds).next()?);
        let whole = Whole {
            fingerprint: 1,
            asked: match self.mistake {
                Some(Mistake::NeverAsks) => Some(u64::MAX),
                Some(Mistake::AskedForAnyChange) => asked.map(|_| u64::MAX),
                _ => asked.map(u64::from),
            },
        };
        let command = Command::Release(Release {
            route,
            owner: self.owner.clone(),
            holds: self
                .bits(holds)
                .map(|hold| self.holds[hold].clone())
                .collect(),
            key: Some(self.key.clone()),
            whole: Some(whole),
        });
        let applied = self.spaces.apply(&mut after.spaces[group], command);
        let ended = self.held(state) & !self.held(&after);
        if ended & state.ended != 0 {
            after.fault = Some("the key ends two holds of a path");
        }
        if ended != 0 && state.attempts.contains(&Attempt::Answered) {
            after.fault = Some("a late attempt ends a hold that was acquired after the answer");
        }
        after.began &= !ended;
        after.ended |= ended;
        match &applied.outcome {
            Outcome::Release(Ok(())) => {}
            Outcome::Release(Err(Refusal::Outdated { version })) => {
                unplaced |= holds;
                needed = needed.max(*version as u8);
            }
            Outcome::Release(Err(Refusal::Frozen { .. }))
                if self.mistake == Some(Mistake::TakesFrozenForDone) => {}
            // The coordinator tries again after a while, by the table that is valid then.
            Outcome::Release(Err(Refusal::Frozen { .. })) => unplaced |= holds,
            Outcome::Release(Err(Refusal::Moved { version })) => parts.push(Part {
                holds,
                phase: Phase::Asking(*version as u8, [None; GROUPS]),
            }),
            _ => after.fault = Some("an answer that was not expected"),
        }
        let next = Attempt::Running {
            parts,
            unplaced,
            version: needed,
        };
        KeyedRelease::go_on(&mut after, at, next);
        Some((Step::ReleasesInGroup(at, group, holds), after))
    }

    /// A group answers what it has released under the key. The last answer sends what is left.
    fn ask(&self, state: &State, at: usize, part: usize, steps: &mut Vec<(Step, State)>) {
        let Attempt::Running {
            parts,
            unplaced,
            version: needed,
        } = &state.attempts[at]
        else {
            return;
        };
        let Part { holds, phase } = parts[part];
        let Phase::Asking(version, said) = phase else {
            return;
        };
        for group in (0..GROUPS).filter(|group| said[*group].is_none()) {
            let mut said = said;
            let space = self.spaces.get(state.spaces[group]);
            let mut paths = self.bits(holds).map(|hold| &self.holds[hold].path);
            if space.holds_back(&mut paths) {
                continue;
            }
            let new = self
                .bits(holds)
                .next()
                .map(|hold| self.route(version, hold).1);
            let counts = self.mistake != Some(Mistake::AsksOneGroup) || new == Some(group);
            let knows =
                |hold: &usize| space.was_released(&self.key, 1, &self.holds[*hold], NOW.time);
            let known = self.bits(holds).filter(|hold| counts && knows(hold));
            said[group] = Some(known.map(|hold| 1 << hold).sum());
            let mut sent = Vec::new();
            match said {
                [Some(one), Some(two)] => {
                    let left = holds & !(one | two);
                    let tables = state.tables[at]..=self.version(state);
                    for table in tables {
                        let phase = Phase::Sent(table, Some(version));
                        let part = Some(Part { holds: left, phase }).filter(|_| left != 0);
                        sent.push((table, part));
                    }
                }
                _ => {
                    let phase = Phase::Asking(version, said);
                    sent.push((state.tables[at], Some(Part { holds, phase })));
                }
            }
            for (table, sent) in sent {
                let mut after = state.clone();
                after.tables[at] = table;
                let mut parts = parts.clone();
                parts.remove(part);
                parts.extend(sent);
                let next = Attempt::Running {
                    parts,
                    unplaced: *unplaced,
                    version: *needed,
                };
                KeyedRelease::go_on(&mut after, at, next);
                steps.push((Step::AsksGroupForKey(at, group), after));
            }
        }
    }

    fn change(&self, state: &State, steps: &mut Vec<(Step, State)>) {
        let Some(driven) = state.driven else {
            if state.changes > 0 {
                let mut after = state.clone();
                after.changes -= 1;
                let has_row = self.version(state) % 2 == 1;
                let begin = SystemCommand::Begin {
                    namespace: self.names[1].clone(),
                    to: Some(Algorithm::PointRw).filter(|_| !has_row),
                    claim: None,
                };
                let applied = self.systems.apply(&mut after.system, begin);
                if let SystemOutcome::Begun(ChangeBegun::Started { change }) = applied.outcome {
                    after.driven = Some(Driven {
                        change: change as u8,
                        answered: [false; GROUPS],
                        live: false,
                        highest: None,
                    });
                    steps.push((Step::ChangeBegins, after));
                }
            }
            return;
        };
        let system = self.systems.get(state.system);
        let Some(view) = system.change(u64::from(driven.change)) else {
            return;
        };
        for group in (0..GROUPS).filter(|group| !driven.answered[*group]) {
            let mut after = state.clone();
            let command = view.command.clone();
            let applied = self.spaces.apply(&mut after.spaces[group], command);
            let mut driven = driven;
            driven.answered[group] = true;
            if let Outcome::Frozen(report) = &applied.outcome {
                driven.live |= report.live.is_some();
                driven.highest = driven.highest.max(report.highest.map(Fence::number));
            }
            after.driven = Some(driven);
            let step = match view.command {
                Command::Freeze(_) => Step::GroupIsFrozen(group),
                Command::Change(_) => Step::GroupIsChanged(group),
                _ => Step::GroupIsThawed(group),
            };
            steps.push((step, after));
        }
        if driven.answered != [true; GROUPS] {
            return;
        }
        let mut after = state.clone();
        let change = u64::from(driven.change);
        if view.then == AfterChange::Decide {
            let live = (self.holds[0].path.clone(), self.owner.clone());
            let report = FreezeReport {
                live: Some(live).filter(|_| driven.live),
                highest: driven.highest.and_then(Fence::from_number),
            };
            let decide = SystemCommand::Decide { change, report };
            self.systems.apply(&mut after.system, decide);
            after.driven = Some(Driven {
                answered: [false; GROUPS],
                ..driven
            });
            steps.push((Step::ChangeIsDecided, after));
        } else {
            let finish = SystemCommand::Finish { change };
            self.systems.apply(&mut after.system, finish);
            after.driven = None;
            steps.push((Step::ChangeIsFinished, after));
        }
    }

    fn acquire(&self, spaces: &mut [Id; GROUPS], version: u8, hold: usize) {
        let (route, group) = self.route(version, hold);
        let acquire = Acquire {
            route,
            owner: self.owner.clone(),
            ttl: Ttl::from_millis(10_000).expect("a constant"),
            queue_ttl: QueueTtl::from_millis(10_000).expect("a constant"),
            requests: vec![Request {
                path: self.holds[hold].path.clone(),
                mode: Mode::Write,
                state: Wanted::New,
                permits: None,
            }],
            releases: Vec::new(),
            fence: None,
            key: None,
            wait: WaitMode::No,
            holder: None,
        };
        self.spaces
            .apply(&mut spaces[group], Command::Acquire(acquire));
    }
}

impl Model for KeyedRelease {
    type State = State;
    type Step = Step;

    fn first(&self) -> Vec<State> {
        let mut spaces = [self.spaces.id(machine::space()); GROUPS];
        for hold in 0..self.holds.len() {
            self.acquire(&mut spaces, 0, hold);
        }
        vec![State {
            system: self.systems.id(machine::system()),
            spaces,
            attempts: vec![Attempt::Idle; self.bounds.attempts],
            tables: vec![0; self.bounds.attempts],
            driven: None,
            changes: self.bounds.changes,
            acquires: self.bounds.acquires,
            expiries: self.bounds.expiries,
            crashes: self.bounds.crashes,
            began: 0,
            ended: 0,
            fault: None,
        }]
    }

    fn next(&self, state: &State, steps: &mut Vec<(Step, State)>) {
        for (at, attempt) in state.attempts.iter().enumerate() {
            match attempt {
                // Attempts are alike: they begin in order. The table of the node is as old as it may be.
                Attempt::Idle => {
                    if at == 0 || state.attempts[at - 1] != Attempt::Idle {
                        let mut after = state.clone();
                        after.attempts[at] = Attempt::Running {
                            parts: Vec::new(),
                            unplaced: (1 << self.holds.len()) - 1,
                            version: 0,
                        };
                        if at == 0 {
                            after.began = self.held(state);
                        }
                        steps.push((Step::AttemptBegins(at), after));
                    }
                    continue;
                }
                Attempt::Running { parts, .. } => {
                    self.place(state, at, steps);
                    for part in 0..parts.len() {
                        steps.extend(self.release(state, at, part));
                        self.ask(state, at, part, steps);
                    }
                }
                Attempt::Answered | Attempt::Crashed => continue,
            }
            if state.crashes > 0 {
                let mut after = state.clone();
                after.crashes -= 1;
                after.attempts[at] = Attempt::Crashed;
                steps.push((Step::CoordinatorCrashes(at), after));
            }
        }
        self.change(state, steps);
        let held = self.held(state);
        let free = (0..self.holds.len()).filter(|hold| held & (1 << hold) == 0);
        for hold in free.filter(|_| state.acquires > 0) {
            let mut after = state.clone();
            self.acquire(&mut after.spaces, self.version(state), hold);
            // Refused while the path is frozen.
            if self.held(&after) != held {
                after.acquires -= 1;
                steps.push((Step::OwnerAcquires(hold), after));
            }
        }
        for group in (0..GROUPS).filter(|_| state.expiries > 0) {
            let space = self.spaces.get(state.spaces[group]);
            if let Some(lease) = space.lease(&self.names[group], &self.owner) {
                let mut after = state.clone();
                after.expiries -= 1;
                after.began &= !self.held_in(state, group);
                let expire = Command::Expire(Expire {
                    namespace: self.names[group].clone(),
                    owner: self.owner.clone(),
                    epoch: lease.epoch,
                });
                self.spaces.apply(&mut after.spaces[group], expire);
                steps.push((Step::LeaseExpiresInGroup(group), after));
            }
        }
    }

    fn check(&self, state: &State) -> Result<(), String> {
        match state.fault {
            Some(fault) => Err(fault.to_owned()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore::{explore, is_full};

    const BOUNDS: Bounds = Bounds {
        paths: 1,
        attempts: 2,
        acquires: 2,
        expiries: 2,
        changes: 2,
        crashes: 1,
    };

    fn bounds() -> Bounds {
        if is_full() {
            Bounds {
                attempts: 3,
                acquires: 3,
                changes: 3,
                ..BOUNDS
            }
        } else {
            BOUNDS
        }
    }

    /// R102.
    #[test]
    fn a_keyed_release_ends_one_hold() {
        let model = KeyedRelease::new(bounds(), None);
        let report = explore(&model, 30_000_000);
        eprintln!("keyed release, {:?}: {report}", bounds());
        assert_eq!(report.fault, None);
    }

    /// R102. One part is applied where another one was before, and a part is split.
    #[test]
    fn a_keyed_release_of_two_paths_ends_each_hold_once() {
        let bounds = Bounds {
            paths: 2,
            expiries: if is_full() { 2 } else { 1 },
            crashes: u8::from(is_full()),
            ..BOUNDS
        };
        let report = explore(&KeyedRelease::new(bounds, None), 30_000_000);
        eprintln!("keyed release, {bounds:?}: {report}");
        assert_eq!(report.fault, None);
    }

    fn finds(mistake: Mistake) {
        let model = KeyedRelease::new(BOUNDS, Some(mistake));
        let report = explore(&model, 30_000_000);
        eprintln!("keyed release, {mistake:?}: {report}");
        let fault = report.fault.expect("the mistake is found");
        assert!(fault.why.contains("hold"), "{}", fault.why);
    }

    #[test]
    fn a_namespace_that_does_not_ask_ends_a_new_hold() {
        finds(Mistake::NeverAsks);
    }

    #[test]
    fn asking_only_the_new_group_ends_a_new_hold() {
        finds(Mistake::AsksOneGroup);
    }

    #[test]
    fn a_frozen_group_that_answers_misses_a_hold_in_the_new_namespace() {
        finds(Mistake::TakesFrozenForDone);
    }

    #[test]
    fn a_second_move_after_the_question_lets_a_late_attempt_end_a_new_hold() {
        finds(Mistake::AskedForAnyChange);
    }
}
