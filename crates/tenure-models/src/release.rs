//! A keyed Release while its path moves to another namespace and back.
//!
//! The groups and the namespace table are the shipped machines. The coordinator follows `tenure-node/src/coordinator/release.rs`:
//! it resolves the path by its copy of the table, releases, resolves again if the copy is too old, and asks all groups
//! for the key if the path has moved. The change of the table is carried out step by step by one driver; several drivers
//! are the subject of [`crate::policy`].
//!
//! Three nodes: two coordinate an attempt each with a table of their own, the third leads the groups and drives the
//! change. Two clients: the one that releases under a key, and the one that acquires again (the same owner).
//!
//! Properties:
//!
//! 1. The key ends at most one hold (R102).
//! 2. After an attempt was answered OK, no attempt under the key ends a hold.
//! 3. OK means that the hold of the beginning is gone.

use tenure_core::command::{
    Acquire, Command, Expire, Hold, Release, Request, RequestKind as Wanted, Route, WaitMode, Whole,
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
    /// A group answers although it has frozen the path: it still takes releases by the routes before the change.
    AnswersWhileFrozen,
    /// A release that was asked for does not say for which change. The path may have moved again since the question.
    AskedForAnyChange,
}

/// How far the search goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
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

/// See the module.
pub struct KeyedRelease {
    bounds: Bounds,
    mistake: Option<Mistake>,
    systems: Interned<System>,
    spaces: Interned<Space>,
    hold: Hold,
    /// The namespace of the path without the row, and with it: each has a group of its own.
    names: [Namespace; GROUPS],
    owner: OwnerId,
    key: Key,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Attempt {
    Idle,
    /// To be resolved and released.
    Placing,
    /// Waits for a table of this version.
    AwaitingTable(u8),
    /// Asks for the key: the version of the change, and what the groups have said.
    Asking(u8, [Option<bool>; GROUPS]),
    /// No group knows the key; it was asked for the change of this version.
    Asked(u8),
    Answered,
    Crashed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Driven {
    change: u8,
    answered: [bool; GROUPS],
    live: bool,
    highest: Option<u64>,
}

/// See the module.
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
    /// The hold of the beginning was not ended yet.
    began: bool,
    ended: u8,
    fault: Option<&'static str>,
}

/// A step.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names are what a reader of a path sees")]
pub enum Step {
    AttemptBegins(usize),
    ReleasesInGroup(usize, usize),
    GetsTable(usize, u8),
    AsksGroupForKey(usize, usize),
    CoordinatorCrashes(usize),
    ChangeBegins,
    GroupIsFrozen(usize),
    GroupIsChanged(usize),
    GroupIsThawed(usize),
    ChangeIsDecided,
    ChangeIsFinished,
    OwnerAcquires,
    LeaseExpires,
}

impl KeyedRelease {
    /// The model, with or without a mistake.
    pub fn new(bounds: Bounds, mistake: Option<Mistake>) -> KeyedRelease {
        KeyedRelease {
            bounds,
            mistake,
            systems: Interned::default(),
            spaces: Interned::default(),
            hold: Hold {
                path: machine::path("h:/a/b"),
                mode: Mode::Write,
            },
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

    fn route(&self, version: u8) -> (Route, usize) {
        let route = KeyedRelease::table(version, &self.names[1]).route(&self.hold.path);
        let group = usize::from(route.namespace == self.names[1]);
        (route, group)
    }

    fn version(&self, state: &State) -> u8 {
        self.systems.get(state.system).table().version() as u8
    }

    /// The group in which the owner holds the path.
    fn held(&self, state: &State) -> Option<usize> {
        let holds = |group: &usize| {
            let space = self.spaces.get(state.spaces[*group]);
            space.lease(&self.names[*group], &self.owner).is_some()
        };
        (0..GROUPS).find(holds)
    }

    fn answer(&self, state: &mut State, at: usize) {
        state.attempts[at] = Attempt::Answered;
        if state.began && self.held(state).is_some() {
            state.fault = Some("OK, and the hold of the beginning is still there");
        }
    }

    fn release(&self, state: &State, at: usize, asked: Option<u8>) -> (Step, State) {
        let mut after = state.clone();
        let (route, group) = self.route(state.tables[at]);
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
            holds: vec![self.hold.clone()],
            key: Some(self.key.clone()),
            whole: Some(whole),
        });
        let held = self.held(state);
        let applied = self.spaces.apply(&mut after.spaces[group], command);
        if held.is_some() && self.held(&after).is_none() {
            after.began = false;
            after.ended += 1;
            if state.attempts.contains(&Attempt::Answered) {
                after.fault = Some("a late attempt ends a hold that was acquired after the answer");
            }
        }
        match &applied.outcome {
            Outcome::Release(Ok(())) => self.answer(&mut after, at),
            Outcome::Release(Err(Refusal::Outdated { version })) => {
                after.attempts[at] = Attempt::AwaitingTable(*version as u8);
            }
            Outcome::Release(Err(Refusal::Moved { version })) => {
                after.attempts[at] = Attempt::Asking(*version as u8, [None; GROUPS]);
            }
            _ => after.fault = Some("an answer that was not expected"),
        }
        (Step::ReleasesInGroup(at, group), after)
    }

    fn ask(&self, state: &State, at: usize, steps: &mut Vec<(Step, State)>) {
        let Attempt::Asking(version, said) = state.attempts[at] else {
            return;
        };
        for group in (0..GROUPS).filter(|group| said[*group].is_none()) {
            let mut said = said;
            let space = self.spaces.get(state.spaces[group]);
            let answers = self.mistake == Some(Mistake::AnswersWhileFrozen)
                || !space.holds_back(std::iter::once(&self.hold.path));
            if !answers {
                continue;
            }
            let counts = self.mistake != Some(Mistake::AsksOneGroup)
                || group == self.route(state.tables[at]).1;
            let knows = space.was_released(&self.key, 1, &self.hold, NOW.time);
            said[group] = Some(counts && knows);
            let mut after = state.clone();
            match said {
                [Some(one), Some(two)] if one || two => self.answer(&mut after, at),
                [Some(_), Some(_)] => after.attempts[at] = Attempt::Asked(version),
                _ => after.attempts[at] = Attempt::Asking(version, said),
            }
            steps.push((Step::AsksGroupForKey(at, group), after));
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
            let live = (self.hold.path.clone(), self.owner.clone());
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

    fn acquire(&self, spaces: &mut [Id; GROUPS], version: u8) {
        let (route, group) = self.route(version);
        let acquire = Acquire {
            route,
            owner: self.owner.clone(),
            ttl: Ttl::from_millis(10_000).expect("a constant"),
            queue_ttl: QueueTtl::from_millis(10_000).expect("a constant"),
            requests: vec![Request {
                path: self.hold.path.clone(),
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
        self.acquire(&mut spaces, 0);
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
            began: true,
            ended: 0,
            fault: None,
        }]
    }

    fn next(&self, state: &State, steps: &mut Vec<(Step, State)>) {
        for (at, attempt) in state.attempts.iter().enumerate() {
            let mut after = state.clone();
            match *attempt {
                // Attempts are alike: they begin in order. The table of the node is as new as it is then.
                Attempt::Idle => {
                    if at == 0 || state.attempts[at - 1] != Attempt::Idle {
                        after.attempts[at] = Attempt::Placing;
                        steps.push((Step::AttemptBegins(at), after));
                        let version = self.version(state);
                        if version > 0 {
                            let mut after = state.clone();
                            after.attempts[at] = Attempt::Placing;
                            after.tables[at] = version;
                            steps.push((Step::GetsTable(at, version), after));
                        }
                    }
                    continue;
                }
                Attempt::Placing => steps.push(self.release(state, at, None)),
                Attempt::Asked(version) => steps.push(self.release(state, at, Some(version))),
                Attempt::AwaitingTable(version) => {
                    let now = self.version(state);
                    if now >= version {
                        after.tables[at] = now;
                        after.attempts[at] = Attempt::Placing;
                        steps.push((Step::GetsTable(at, now), after));
                    }
                }
                Attempt::Asking(..) => self.ask(state, at, steps),
                Attempt::Answered | Attempt::Crashed => continue,
            }
            // The copy of the table is renewed at any time.
            let now = self.version(state);
            if now > state.tables[at] && !matches!(attempt, Attempt::AwaitingTable(_)) {
                let mut after = state.clone();
                after.tables[at] = now;
                steps.push((Step::GetsTable(at, now), after));
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
        if held.is_none() && state.acquires > 0 {
            let mut after = state.clone();
            self.acquire(&mut after.spaces, self.version(state));
            // Refused while the path is frozen.
            if self.held(&after).is_some() {
                after.acquires -= 1;
                steps.push((Step::OwnerAcquires, after));
            }
        }
        if let Some(group) = held.filter(|_| state.expiries > 0) {
            let space = self.spaces.get(state.spaces[group]);
            if let Some(lease) = space.lease(&self.names[group], &self.owner) {
                let mut after = state.clone();
                after.expiries -= 1;
                after.began = false;
                let expire = Command::Expire(Expire {
                    namespace: self.names[group].clone(),
                    owner: self.owner.clone(),
                    epoch: lease.epoch,
                });
                self.spaces.apply(&mut after.spaces[group], expire);
                steps.push((Step::LeaseExpires, after));
            }
        }
    }

    fn check(&self, state: &State) -> Result<(), String> {
        match state.fault {
            Some(fault) => Err(fault.to_owned()),
            None if state.ended > 1 => Err("the key ends two holds".to_owned()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore::{explore, is_full};

    const BOUNDS: Bounds = Bounds {
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
    fn a_frozen_group_that_answers_lets_a_late_attempt_end_a_new_hold() {
        finds(Mistake::AnswersWhileFrozen);
    }

    #[test]
    fn a_second_move_after_the_question_lets_a_late_attempt_end_a_new_hold() {
        finds(Mistake::AskedForAnyChange);
    }
}
