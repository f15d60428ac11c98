//! Changes of the namespace table with several drivers.
//!
//! The system group and the groups are the shipped machines. Calls and drivers follow `tenure-node/src/coordinator/policy.rs`: a
//! call begins a change or joins the one of its key, every node that has a reason drives a change from what the system
//! group says, and asks for the outcome by number if another node has finished it.
//!
//! Three nodes. Two administrators: one sets a row under a key at node 0 and again at node 1, the other sets the same row
//! to another algorithm at node 2 without a key. Node 2 also leads the system group and resumes unfinished changes. A
//! client holds a path in the region, which refuses a change that moves it, until its lease expires.
//!
//! Properties:
//!
//! 1. A call makes its change at most once, also if it is tried twice under a key, and never again over a later one.
//! 2. OK is answered only if the call's change was made, or nothing was to be changed; "a live hold" only if it was refused.
//! 3. A change that moves paths is never made while a hold is in its region (R133).
//! 4. Every change ends: nothing stays frozen (checked as: from every state a state without open changes is reachable).

use tenure_core::command::{Acquire, Command, Expire, Request, RequestKind as Wanted, WaitMode};
use tenure_core::namespace_table::{AffectedGroups, NamespaceTable};
use tenure_core::outcome::{FreezeReport, Outcome};
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::{Algorithm, Mode};
use tenure_core::space::Space;
use tenure_core::system::{
    AfterChange, ChangeBegun, ChangeDecided, ChangeEnd, KeyClaim, KeyWork, RepeatedKey, System,
    SystemAnswer, SystemCall, SystemCommand, SystemOutcome,
};
use tenure_core::value::{Fence, OwnerId, QueueTtl, Ttl};

use crate::explore::Model;
use crate::machine::{self, Id, Interned};

const GROUPS: usize = 2;
/// Node 0 and 1: the attempts of the keyed call; node 2: the other administrator.
const NODES: usize = 3;
/// Who leads the system group.
const LEADER: usize = 2;

/// A protection that is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A coordinator whose change was finished by another node begins again.
    BeginsAgain,
    /// The key does not say for which change it stands: a second attempt begins one of its own.
    KeyNamesNoChange,
    /// A driver decides when the first group has answered.
    DecidesEarly,
    /// The leader of the system group does not resume changes.
    NeverResumed,
}

/// How far the search goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Operations that are sent a second time.
    pub resends: u8,
    /// Steps of drivers that fail without an answer.
    pub failures: u8,
    /// Nodes that crash.
    pub crashes: u8,
    /// How often the client acquires.
    pub acquires: u8,
    /// Whether the second administrator acts.
    pub two: bool,
    /// Whether the leader of the system group resumes changes that others drive, and groups are asked in any order.
    /// Otherwise it resumes those that have no driver left.
    pub any_order: bool,
}

/// Model of a policy change with several drivers.
pub struct Policy {
    bounds: Bounds,
    mistake: Option<Mistake>,
    systems: Interned<System>,
    spaces: Interned<Space>,
    row: Namespace,
    path: Path,
    names: [Namespace; GROUPS],
    owner: OwnerId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum End {
    Made,
    Refused,
}

/// How a driver tells that its change ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Ended {
    By(End),
    Elsewhere,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Phase {
    Idle,
    Beginning,
    /// Waits for a driver on its node: of its own change, or of one in the way.
    Waiting {
        change: u8,
        own: bool,
    },
    AskingForClaim,
    AskingForEnd(u8),
    Completing(End),
    Answered,
    Failed,
    Crashed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Attempt {
    phase: Phase,
    /// The change that it began or joined.
    own: Option<u8>,
    reserved: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Report {
    live: bool,
    highest: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Told {
    Freeze,
    Change,
    Thaw,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Stage {
    Looking,
    Telling {
        what: Told,
        open: [bool; GROUPS],
        report: Report,
    },
    Deciding(Report),
    Finishing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Driver {
    node: u8,
    change: u8,
    stage: Stage,
    ended: Ended,
}

/// An operation that may be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Copy {
    /// A command as the system group described it when the driver looked: the snapshot of the machine then.
    Tell(Id, u8, u8),
    Decide(u8, Report),
    Finish(u8),
}

/// State of the model: the shipped state machines, the drivers, and messages under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    system: Id,
    spaces: [Id; GROUPS],
    attempts: [Attempt; NODES],
    drivers: Vec<(Driver, Id)>,
    copies: Vec<Copy>,
    resends: u8,
    failures: u8,
    crashes: u8,
    acquires: u8,
    expiries: u8,
    /// Which call each change is of (0: the keyed one), and how it ended.
    changes: Vec<(u8, Option<End>)>,
    fault: Option<&'static str>,
}

/// A step.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names are what a reader of a path sees")]
pub enum Step {
    CallBegins(usize),
    AsksSystemToBegin(usize),
    AsksWhichChange(usize),
    AsksHowItEnded(usize),
    CompletesKey(usize),
    DriverLooks { node: u8, change: u8 },
    DriverTellsGroup { node: u8, change: u8, group: usize },
    DriverDecides { node: u8, change: u8 },
    DriverFinishes { node: u8, change: u8 },
    DriverGetsNoAnswer { node: u8, change: u8 },
    LeaderResumes(u8),
    IsSentAgain,
    LateCopyReachesGroup(u8),
    LateCopyOfDecide,
    LateCopyOfFinish,
    NodeCrashes(usize),
    ClientAcquires,
    LeaseExpires,
}

impl Policy {
    /// The model, with or without a mistake.
    pub fn new(bounds: Bounds, mistake: Option<Mistake>) -> Policy {
        Policy {
            bounds,
            mistake,
            systems: Interned::default(),
            spaces: Interned::default(),
            row: machine::namespace("h:/a/b"),
            path: machine::path("h:/a/b"),
            names: [machine::namespace("h:/a"), machine::namespace("h:/a/b")],
            owner: machine::owner("client"),
        }
    }

    fn to(node: usize) -> Algorithm {
        if node == LEADER {
            Algorithm::PointWrite
        } else {
            Algorithm::PointRw
        }
    }

    fn claim(node: usize) -> Option<KeyClaim> {
        (node != LEADER).then(|| KeyClaim {
            call: SystemCall::SetNamespacePolicy,
            key: machine::key("key"),
            fingerprint: 1,
        })
    }

    fn whose(node: usize) -> u8 {
        u8::from(node == LEADER)
    }

    fn group_of(&self, table: &NamespaceTable) -> usize {
        usize::from(table.namespace_of(&self.path) == self.names[1])
    }

    fn held(&self, state: &State) -> Option<usize> {
        let holds = |group: &usize| {
            let space = self.spaces.get(state.spaces[*group]);
            space.lease(&self.names[*group], &self.owner).is_some()
        };
        (0..GROUPS).find(holds)
    }

    fn drive(state: &mut State, node: usize, change: u64) {
        let (node, change) = (node as u8, change as u8);
        let is_it = |(one, _): &(Driver, Id)| (one.node, one.change) == (node, change);
        if !state.drivers.iter().any(is_it) {
            let driver = Driver {
                node,
                change,
                stage: Stage::Looking,
                ended: Ended::Elsewhere,
            };
            state.drivers.push((driver, state.system));
            state.drivers.sort_unstable();
        }
    }

    fn answer(state: &mut State, node: usize, end: End) {
        let attempt = &mut state.attempts[node];
        attempt.phase = Phase::Answered;
        let made = state
            .changes
            .iter()
            .any(|(whose, end)| *whose == Policy::whose(node) && *end == Some(End::Made));
        let own = attempt.own.map(|own| state.changes[usize::from(own) - 1].1);
        match (end, own) {
            // Nothing was to be changed, or the key says so.
            (End::Made, None) => {}
            (End::Made, Some(Some(End::Made))) if made => {}
            (End::Refused, Some(Some(End::Refused))) => {}
            (End::Made, _) => state.fault = Some("OK, and the change was not made"),
            (End::Refused, _) => state.fault = Some("a refusal, and the change was not refused"),
        }
    }

    fn done(state: &mut State, node: usize, end: End) {
        if Policy::claim(node).is_some() && state.attempts[node].reserved {
            state.attempts[node].phase = Phase::Completing(end);
        } else {
            Policy::answer(state, node, end);
        }
    }

    fn begin(&self, state: &mut State, node: usize) {
        let claim = Policy::claim(node).filter(|_| !state.attempts[node].reserved);
        let has_key = Policy::claim(node).is_some();
        let command = SystemCommand::Begin {
            namespace: self.row.clone(),
            to: Some(Policy::to(node)),
            claim,
        };
        let applied = self.systems.apply(&mut state.system, command);
        match &applied.outcome {
            SystemOutcome::Begun(ChangeBegun::Unchanged | ChangeBegun::Committed { .. }) => {
                state.attempts[node].own = None;
                Policy::done(state, node, End::Made);
            }
            SystemOutcome::Begun(ChangeBegun::Started { change }) => {
                state.changes.push((Policy::whose(node), None));
                state.attempts[node] = Attempt {
                    phase: Phase::Waiting {
                        change: *change as u8,
                        own: true,
                    },
                    own: Some(*change as u8),
                    reserved: has_key,
                };
                Policy::drive(state, node, *change);
            }
            SystemOutcome::Begun(ChangeBegun::Busy { change }) => {
                state.attempts[node].own = None;
                state.attempts[node].phase = Phase::Waiting {
                    change: *change as u8,
                    own: false,
                };
                Policy::drive(state, node, *change);
            }
            SystemOutcome::Repeated(RepeatedKey::Open) => {
                state.attempts[node].phase = Phase::AskingForClaim;
                if self.mistake == Some(Mistake::KeyNamesNoChange) {
                    state.attempts[node].phase = Phase::Beginning;
                    state.attempts[node].reserved = true;
                }
            }
            SystemOutcome::Repeated(RepeatedKey::Answered(_)) => {
                state.attempts[node].own = None;
                Policy::answer(state, node, End::Made);
            }
            _ => state.attempts[node].phase = Phase::Failed,
        }
    }

    /// A step of a call.
    fn call(&self, state: &State, node: usize, steps: &mut Vec<(Step, State)>) {
        let mut after = state.clone();
        let attempt = &mut after.attempts[node];
        match state.attempts[node].phase {
            Phase::Idle => {
                // The second attempt under the key comes after the first one.
                let is_second = node == 1 && state.attempts[0].phase == Phase::Idle;
                if !is_second && (node != LEADER || self.bounds.two) {
                    attempt.phase = Phase::Beginning;
                    steps.push((Step::CallBegins(node), after));
                }
            }
            Phase::Beginning => {
                self.begin(&mut after, node);
                steps.push((Step::AsksSystemToBegin(node), after));
            }
            Phase::AskingForClaim => {
                let system = self.systems.get(state.system);
                if let Some(claim) = Policy::claim(node) {
                    match (system.lookup(&claim, 0), system.work(&claim, 0)) {
                        (_, Some(KeyWork::Change(change))) => {
                            attempt.own = Some(*change as u8);
                            attempt.reserved = true;
                            attempt.phase = Phase::Waiting {
                                change: *change as u8,
                                own: true,
                            };
                            Policy::drive(&mut after, node, *change);
                        }
                        (Some(RepeatedKey::Open), _) => {
                            attempt.reserved = true;
                            attempt.phase = Phase::Beginning;
                        }
                        (Some(RepeatedKey::Answered(_)), _) => {
                            attempt.own = None;
                            Policy::answer(&mut after, node, End::Made);
                        }
                        (Some(_), _) => attempt.phase = Phase::Failed,
                        // It was refused meanwhile: a repeat is evaluated afresh.
                        (None, _) => attempt.phase = Phase::Beginning,
                    }
                }
                steps.push((Step::AsksWhichChange(node), after));
            }
            Phase::AskingForEnd(change) => {
                let system = self.systems.get(state.system);
                match system.change_end(u64::from(change)) {
                    Some(ChangeEnd::Made) => Policy::done(&mut after, node, End::Made),
                    Some(ChangeEnd::Refused { .. }) => {
                        Policy::done(&mut after, node, End::Refused);
                    }
                    None => attempt.phase = Phase::Failed,
                }
                steps.push((Step::AsksHowItEnded(node), after));
            }
            Phase::Completing(end) => {
                if let Some(claim) = Policy::claim(node) {
                    let answer = Some(SystemAnswer::Done).filter(|_| end == End::Made);
                    let complete = SystemCommand::Complete {
                        claim,
                        answer,
                        plan: None,
                    };
                    self.systems.apply(&mut after.system, complete);
                }
                Policy::answer(&mut after, node, end);
                steps.push((Step::CompletesKey(node), after));
            }
            Phase::Waiting { .. } | Phase::Answered | Phase::Failed | Phase::Crashed => {}
        }
    }

    /// A change is over on a node: the calls that wait for it go on.
    fn over(&self, state: &mut State, at: usize) {
        let (driver, _) = state.drivers.remove(at);
        let node = usize::from(driver.node);
        let Phase::Waiting { change, own } = state.attempts[node].phase else {
            return;
        };
        if change != driver.change {
            return;
        }
        match (own, driver.ended) {
            (false, _) => state.attempts[node].phase = Phase::Beginning,
            (true, Ended::By(end)) => Policy::done(state, node, end),
            (true, Ended::Elsewhere) if self.mistake == Some(Mistake::BeginsAgain) => {
                state.attempts[node].phase = Phase::Beginning;
            }
            (true, Ended::Elsewhere) => state.attempts[node].phase = Phase::AskingForEnd(change),
        }
    }

    fn tell(&self, state: &mut State, seen: Id, change: u8, group: usize) -> Option<Report> {
        let view = self.systems.get(seen).change(u64::from(change))?;
        let applied = self.spaces.apply(&mut state.spaces[group], view.command);
        match &applied.outcome {
            Outcome::Frozen(report) => Some(Report {
                live: report.live.is_some(),
                highest: report.highest.map(Fence::number),
            }),
            _ => None,
        }
    }

    fn decide(&self, state: &mut State, change: u8, report: Report) {
        let view = self.systems.get(state.system).change(u64::from(change));
        let is_open = view.is_some_and(|view| view.then == AfterChange::Decide);
        let live = (self.path.clone(), self.owner.clone());
        let decide = SystemCommand::Decide {
            change: u64::from(change),
            report: FreezeReport {
                live: Some(live).filter(|_| report.live),
                highest: report.highest.and_then(Fence::from_number),
            },
        };
        let moves = self.systems.get(state.system).change(u64::from(change));
        let moves = moves.is_some_and(|view| view.reach == AffectedGroups::AllGroups);
        let applied = self.systems.apply(&mut state.system, decide);
        if !is_open {
            return;
        }
        let end = match applied.outcome {
            SystemOutcome::Decided(ChangeDecided::Committed { .. }) => End::Made,
            _ => End::Refused,
        };
        if end == End::Made && moves && self.held(state).is_some() {
            state.fault = Some("a change that moves paths is made over a live hold");
        }
        state.changes[usize::from(change) - 1].1 = Some(end);
    }

    /// A step of a driver.
    fn driver(&self, state: &State, at: usize, steps: &mut Vec<(Step, State)>) {
        let (driver, seen) = state.drivers[at];
        let Driver { node, change, .. } = driver;
        let mut after = state.clone();
        match driver.stage {
            Stage::Looking => {
                let system = self.systems.get(state.system);
                match system.change(u64::from(change)) {
                    None => self.over(&mut after, at),
                    Some(view) => {
                        let all = view.reach == AffectedGroups::AllGroups;
                        let mut open = [all; GROUPS];
                        // The region's root has the group of its row.
                        open[1] = true;
                        let what = match view.command {
                            Command::Freeze(_) => Told::Freeze,
                            Command::Change(_) => Told::Change,
                            _ => Told::Thaw,
                        };
                        let report = Report {
                            live: false,
                            highest: None,
                        };
                        after.drivers[at].0.stage = Stage::Telling { what, open, report };
                        after.drivers[at].1 = state.system;
                    }
                }
                after.drivers.sort_unstable();
                steps.push((Step::DriverLooks { node, change }, after));
            }
            Stage::Telling { what, open, report } => {
                let groups = if self.bounds.any_order { GROUPS } else { 1 };
                for group in (0..GROUPS).filter(|group| open[*group]).take(groups) {
                    let mut after = state.clone();
                    let (mut open, mut report) = (open, report);
                    open[group] = false;
                    if let Some(found) = self.tell(&mut after, seen, change, group) {
                        report.live |= found.live;
                        report.highest = report.highest.max(found.highest);
                    }
                    let early = self.mistake == Some(Mistake::DecidesEarly) && what == Told::Freeze;
                    let driver = &mut after.drivers[at].0;
                    driver.stage = Stage::Telling { what, open, report };
                    if open == [false; GROUPS] || early {
                        driver.stage = match what {
                            Told::Freeze => Stage::Deciding(report),
                            Told::Change | Told::Thaw => Stage::Finishing,
                        };
                        match what {
                            Told::Freeze => {}
                            Told::Change => driver.ended = Ended::By(End::Made),
                            Told::Thaw => driver.ended = Ended::By(End::Refused),
                        }
                    }
                    after.drivers.sort_unstable();
                    let step = Step::DriverTellsGroup {
                        node,
                        change,
                        group,
                    };
                    steps.push((step, after));
                }
            }
            Stage::Deciding(report) => {
                self.decide(&mut after, change, report);
                after.drivers[at].0.stage = Stage::Looking;
                after.drivers.sort_unstable();
                steps.push((Step::DriverDecides { node, change }, after));
            }
            Stage::Finishing => {
                let change = u64::from(change);
                let finish = SystemCommand::Finish { change };
                self.systems.apply(&mut after.system, finish);
                self.over(&mut after, at);
                let change = change as u8;
                steps.push((Step::DriverFinishes { node, change }, after));
            }
        }
        if state.failures > 0 && matches!(driver.stage, Stage::Deciding(_) | Stage::Finishing) {
            let mut after = state.clone();
            after.failures -= 1;
            after.drivers[at].0.stage = Stage::Looking;
            after.drivers.sort_unstable();
            steps.push((Step::DriverGetsNoAnswer { node, change }, after));
        }
        if state.resends > 0 {
            let copies: Vec<Copy> = match driver.stage {
                Stage::Telling { open, .. } => (0..GROUPS)
                    .filter(|group| open[*group])
                    .map(|group| Copy::Tell(seen, change, group as u8))
                    .collect(),
                Stage::Deciding(report) => vec![Copy::Decide(change, report)],
                Stage::Finishing => vec![Copy::Finish(change)],
                Stage::Looking => Vec::new(),
            };
            for copy in copies {
                let mut after = state.clone();
                after.resends -= 1;
                after.copies.push(copy);
                after.copies.sort_unstable();
                steps.push((Step::IsSentAgain, after));
            }
        }
    }

    fn client(&self, state: &State, steps: &mut Vec<(Step, State)>) {
        let held = self.held(state);
        if held.is_none() && state.acquires > 0 {
            let mut after = state.clone();
            after.acquires -= 1;
            let system = self.systems.get(state.system);
            self.acquire(&mut after.spaces, system.table());
            if self.held(&after).is_some() {
                steps.push((Step::ClientAcquires, after));
            }
        }
        if let Some(group) = held.filter(|_| state.expiries > 0) {
            let space = self.spaces.get(state.spaces[group]);
            if let Some(lease) = space.lease(&self.names[group], &self.owner) {
                let mut after = state.clone();
                after.expiries -= 1;
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

    fn acquire(&self, spaces: &mut [Id; GROUPS], table: &NamespaceTable) {
        let group = self.group_of(table);
        let acquire = Acquire {
            route: table.route(&self.path),
            owner: self.owner.clone(),
            ttl: Ttl::from_millis(10_000).expect("a constant"),
            queue_ttl: QueueTtl::from_millis(10_000).expect("a constant"),
            requests: vec![Request {
                path: self.path.clone(),
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

impl Model for Policy {
    type State = State;
    type Step = Step;

    fn first(&self) -> Vec<State> {
        let empty = self.spaces.id(machine::space());
        let mut held = [empty; GROUPS];
        self.acquire(&mut held, machine::system().table());
        let state = |spaces| State {
            system: self.systems.id(machine::system()),
            spaces,
            attempts: [Attempt {
                phase: Phase::Idle,
                own: None,
                reserved: false,
            }; NODES],
            drivers: Vec::new(),
            copies: Vec::new(),
            resends: self.bounds.resends,
            failures: self.bounds.failures,
            crashes: self.bounds.crashes,
            acquires: self.bounds.acquires,
            expiries: 1,
            changes: Vec::new(),
            fault: None,
        };
        vec![state([empty; GROUPS]), state(held)]
    }

    fn next(&self, state: &State, steps: &mut Vec<(Step, State)>) {
        for node in 0..NODES {
            self.call(state, node, steps);
        }
        for at in 0..state.drivers.len() {
            self.driver(state, at, steps);
        }
        for (at, copy) in state.copies.iter().enumerate() {
            let mut after = state.clone();
            after.copies.remove(at);
            let step = match *copy {
                Copy::Tell(seen, change, group) => {
                    self.tell(&mut after, seen, change, usize::from(group));
                    Step::LateCopyReachesGroup(group)
                }
                Copy::Decide(change, report) => {
                    self.decide(&mut after, change, report);
                    Step::LateCopyOfDecide
                }
                Copy::Finish(change) => {
                    let change = u64::from(change);
                    let finish = SystemCommand::Finish { change };
                    self.systems.apply(&mut after.system, finish);
                    Step::LateCopyOfFinish
                }
            };
            steps.push((step, after));
        }
        if self.mistake != Some(Mistake::NeverResumed) {
            for view in self.systems.get(state.system).changes() {
                let change = view.change as u8;
                let is_it = |(one, _): &(Driver, Id)| {
                    let counts = usize::from(one.node) == LEADER || !self.bounds.any_order;
                    counts && one.change == change
                };
                if !state.drivers.iter().any(is_it) {
                    let mut after = state.clone();
                    Policy::drive(&mut after, LEADER, view.change);
                    steps.push((Step::LeaderResumes(change), after));
                }
            }
        }
        if state.crashes > 0 {
            for node in 0..NODES {
                let drives = |(one, _): &(Driver, Id)| usize::from(one.node) == node;
                if !state.drivers.iter().any(drives) {
                    continue;
                }
                let mut after = state.clone();
                after.crashes -= 1;
                after.drivers.retain(|one| !drives(one));
                let phase = &mut after.attempts[node].phase;
                if !matches!(phase, Phase::Idle | Phase::Answered | Phase::Failed) {
                    *phase = Phase::Crashed;
                }
                steps.push((Step::NodeCrashes(node), after));
            }
        }
        self.client(state, steps);
    }

    fn check(&self, state: &State) -> Result<(), String> {
        if let Some(fault) = state.fault {
            return Err(fault.to_owned());
        }
        for whose in 0..2 {
            let made = |(one, end): &&(u8, Option<End>)| *one == whose && *end == Some(End::Made);
            if state.changes.iter().filter(made).count() > 1 {
                return Err("one call has made its change twice".to_owned());
            }
        }
        Ok(())
    }

    fn is_goal(&self, state: &State) -> Option<bool> {
        let over = |attempt: &Attempt| {
            matches!(
                attempt.phase,
                Phase::Answered | Phase::Failed | Phase::Crashed
            )
        };
        let mut attempts = state.attempts.iter().enumerate();
        let all_over = attempts.all(|(node, one)| over(one) || node == LEADER && !self.bounds.two);
        Some(all_over && self.systems.get(state.system).changes().is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore::{explore, is_full};

    const BOUNDS: Bounds = Bounds {
        resends: 0,
        failures: 0,
        crashes: 1,
        acquires: 0,
        two: true,
        any_order: false,
    };

    fn holds(bounds: Bounds) {
        let report = explore(&Policy::new(bounds, None), 60_000_000);
        eprintln!("policy, {bounds:?}: {report}");
        assert_eq!(report.fault, None);
    }

    /// R102, R131 to R138.
    #[test]
    fn a_change_is_made_once_and_every_caller_hears_the_truth() {
        holds(BOUNDS);
        if is_full() {
            holds(Bounds {
                resends: 1,
                ..BOUNDS
            });
            holds(Bounds {
                acquires: 1,
                any_order: true,
                ..BOUNDS
            });
        }
    }

    #[test]
    fn late_copies_and_lost_answers_change_nothing() {
        let bounds = Bounds {
            resends: 1,
            failures: 1,
            two: false,
            ..BOUNDS
        };
        holds(bounds);
        if is_full() {
            holds(Bounds {
                any_order: true,
                ..bounds
            });
        }
    }

    fn finds(mistake: Mistake, part: &str) {
        let bounds = Bounds {
            any_order: mistake == Mistake::DecidesEarly,
            ..BOUNDS
        };
        let report = explore(&Policy::new(bounds, Some(mistake)), 2_000_000);
        eprintln!("policy, {mistake:?}: {report}");
        let fault = report.fault.expect("the mistake is found");
        assert!(fault.why.contains(part), "{}", fault.why);
    }

    #[test]
    fn a_coordinator_that_begins_again_makes_its_change_twice() {
        finds(Mistake::BeginsAgain, "twice");
    }

    #[test]
    fn a_key_that_names_no_change_makes_it_twice() {
        finds(Mistake::KeyNamesNoChange, "twice");
    }

    #[test]
    fn a_decision_before_all_groups_answered_moves_a_live_hold() {
        finds(Mistake::DecidesEarly, "live hold");
    }

    #[test]
    fn a_change_without_a_driver_blocks_for_good() {
        finds(Mistake::NeverResumed, "finishes");
    }
}
