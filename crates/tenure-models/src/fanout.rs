//! A keyed call over several groups: ForceRelease of one owner, tried twice under one key.
//!
//! The system group and the two groups are the shipped machines ([`System`], [`Space`]). The coordinator follows
//! `tenure-node/src/coordinator/owner_calls.rs`: look, find, plan, end what the plan names, complete. Each of its operations is one
//! step, and any number of other steps may come between two of them. A message that is late or lost is a step that is
//! taken late or never. A group's replication is not modelled here: a group is one machine.
//!
//! Three nodes: two coordinate an attempt each (the second one is the client's retry elsewhere while the first attempt
//! lives), the third leads the groups. Two clients: the administrator with the key, and the owner that acquires again.
//! In addition a second owner, so that the first one may wait in line and be granted in between.
//!
//! Properties:
//!
//! 1. The call ends something at most once in each group (R102), and tells the owner KILLED at most once.
//! 2. After an attempt was answered OK, no late operation of any attempt ends anything.
//! 3. OK means that all that the owner had when the call began is gone, and that it got KILLED.

use tenure_core::command::{
    Acquire, Command, Hold, Release, ReleaseAll, ReleaseCause, Request, RequestKind as Wanted,
    Route, Selection, WaitMode,
};
use tenure_core::outcome::{AcquireOutcome, Outcome};
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::{Algorithm, Mode};
use tenure_core::space::Space;
use tenure_core::system::{
    KeyClaim, KeyWork, ReleasePlan, ReleasePlanEffect, RepeatedKey, System, SystemAnswer,
    SystemCall, SystemCommand, SystemOutcome,
};
use tenure_core::value::{OwnerId, QueueTtl, Ttl};

use crate::explore::Model;
use crate::machine::{self, Id, Interned};

const GROUPS: usize = 2;

/// A protection that is taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// Each attempt ends what it finds, as release 0.1.0 did: the key is claimed and there is no plan.
    NoPlan,
    /// An attempt carries out its own plan although another one counts.
    OwnPlanCounts,
    /// A plan names groups, and not what is in them.
    PlanWithoutNumbers,
    /// KILLED is sent beside the plan instead of in its entry.
    KilledApart,
}

/// How far the search goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Attempts under the key.
    pub attempts: usize,
    /// Operations that are sent a second time.
    pub resends: u8,
    /// How often the owner acquires again.
    pub acquires: u8,
    /// Coordinators that crash.
    pub crashes: u8,
}

/// Model of a keyed owner-wide call over several groups.
pub struct Fanout {
    bounds: Bounds,
    mistake: Option<Mistake>,
    systems: Interned<System>,
    spaces: Interned<Space>,
    places: [(Namespace, Path); GROUPS],
    victim: OwnerId,
    other: OwnerId,
    claim: KeyClaim,
}

/// What the owner has in each group at most: a place in the group's order.
type Named = [Option<u64>; GROUPS];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Attempt {
    Idle,
    Looking,
    /// What was found in each group that has answered.
    Finding([Option<Option<u64>>; GROUPS]),
    /// Only with [`Mistake::KilledApart`].
    Killing(Named),
    Planning(Named),
    /// Groups that have not answered yet and what ends there, and the plan that is carried out.
    Ending(Named, Option<Named>),
    /// The plan that was carried out.
    Completing(Option<Named>),
    Answered,
    Failed,
    Crashed,
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Op {
    Plan(Named),
    End(u8, u64),
    Complete(Option<Named>),
}

/// State of the model: the shipped state machines, the attempts, and messages under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    system: Id,
    spaces: [Id; GROUPS],
    attempts: Vec<Attempt>,
    /// Operations that were sent twice and not executed a second time, in order.
    copies: Vec<Op>,
    resends: u8,
    acquires: u8,
    crashes: u8,
    /// The other owner has acquired, has released.
    other: (bool, bool),
    /// What the owner had at the beginning ends here, by the order of each group.
    began: [u64; GROUPS],
    /// Groups in which the owner has acquired again.
    again: [bool; GROUPS],
    killed: u8,
    ended: [u8; GROUPS],
    fault: Option<&'static str>,
}

/// A step.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names are what a reader of a path sees")]
pub enum Step {
    AttemptBegins(usize),
    Looks(usize),
    FindsOutInGroup(usize, usize),
    SendsKilled(usize),
    WritesPlan(usize),
    EndsInGroup(usize, usize),
    Completes(usize),
    SendsAgain(usize),
    LateCopyOfPlan,
    LateCopyOfEndInGroup(u8),
    LateCopyOfComplete,
    CoordinatorCrashes(usize),
    OwnerAcquiresAgainInGroup(usize),
    OtherOwnerAcquires,
    OtherOwnerReleases,
}

impl Fanout {
    /// The model, with or without a mistake.
    pub fn new(bounds: Bounds, mistake: Option<Mistake>) -> Fanout {
        let place = |text| (machine::namespace(text), machine::path(text));
        Fanout {
            bounds,
            mistake,
            systems: Interned::default(),
            spaces: Interned::default(),
            places: [place("a:/one"), place("b:/two")],
            victim: machine::owner("victim"),
            other: machine::owner("other"),
            claim: KeyClaim {
                call: SystemCall::ForceRelease,
                key: machine::key("key"),
                fingerprint: 1,
            },
        }
    }

    fn acquire(&self, group: usize, owner: &OwnerId) -> Command {
        let (namespace, path) = self.places[group].clone();
        Command::Acquire(Acquire {
            route: Route {
                namespace,
                algorithm: Algorithm::RecursiveRw,
                version: 0,
            },
            owner: owner.clone(),
            ttl: Ttl::from_millis(10_000).expect("a constant"),
            queue_ttl: QueueTtl::from_millis(10_000).expect("a constant"),
            requests: vec![Request {
                path,
                mode: Mode::Write,
                state: Wanted::New,
                permits: None,
            }],
            releases: Vec::new(),
            fence: None,
            key: None,
            wait: WaitMode::Queue,
            holder: None,
        })
    }

    /// Reads of one group, as `fanout.rs` does for `FanoutOp::Plan`.
    fn find(&self, state: &State, group: usize) -> Option<u64> {
        let space = self.spaces.get(state.spaces[group]);
        space.has_owner(&self.victim).then(|| space.order())
    }

    fn end(&self, state: &mut State, group: usize, until: Option<u64>) {
        let release = ReleaseAll {
            owner: self.victim.clone(),
            selection: Selection::All,
            cause: ReleaseCause::Killed,
            until,
        };
        let command = Command::ReleaseAll(release);
        let applied = self.spaces.apply(&mut state.spaces[group], command);
        if let Outcome::Touched(met) = applied.outcome
            && met > 0
        {
            state.ended[group] += 1;
            if state.attempts.contains(&Attempt::Answered) {
                state.fault = Some("a late operation ends what was acquired after the answer");
            }
        }
    }

    fn tell_system(&self, state: &mut State, command: SystemCommand) -> SystemOutcome {
        let applied = self.systems.apply(&mut state.system, command);
        state.killed += applied.events.len() as u8;
        applied.outcome.clone()
    }

    fn write_plan(&self, state: &mut State, named: Named) -> SystemOutcome {
        let until = |until| match self.mistake {
            Some(Mistake::PlanWithoutNumbers) => ReleaseAll::EVERYTHING,
            _ => until,
        };
        let plan = plan_of(named.map(|named| named.map(until)));
        let command = SystemCommand::Plan {
            claim: self.claim.clone(),
            owner: self.victim.clone(),
            plan,
            effect: match self.mistake {
                Some(Mistake::KilledApart) => ReleasePlanEffect::None,
                _ => ReleasePlanEffect::Kill,
            },
        };
        self.tell_system(state, command)
    }

    fn complete(&self, state: &mut State, plan: Option<Named>) {
        let command = SystemCommand::Complete {
            claim: self.claim.clone(),
            answer: Some(SystemAnswer::Done),
            plan: plan.map(plan_of),
        };
        self.tell_system(state, command);
    }

    /// What follows when a plan counts.
    fn carry_out(plan: &ReleasePlan) -> Attempt {
        let mut named = [None; GROUPS];
        for (group, until) in &plan.groups {
            named[*group as usize] = Some(*until);
        }
        if plan.groups.is_empty() {
            Attempt::Completing(Some(named))
        } else {
            Attempt::Ending(named, Some(named))
        }
    }

    fn answer(&self, state: &mut State, at: usize) {
        state.attempts[at] = Attempt::Answered;
        if state.killed == 0 {
            state.fault = Some("OK, and the owner never got KILLED");
        }
        for group in 0..GROUPS {
            let space = self.spaces.get(state.spaces[group]);
            let lease = space.lease(&self.places[group].0, &self.victim);
            let stays = match lease {
                Some(lease) => lease.born <= state.began[group],
                // It waits.
                None => space.has_owner(&self.victim) && !state.again[group],
            };
            if stays {
                state.fault = Some("OK, and what the owner had at the beginning is still there");
            }
        }
    }

    /// The next operation of an attempt.
    fn advance(&self, state: &State, at: usize, steps: &mut Vec<(Step, State)>) {
        let mut after = state.clone();
        match state.attempts[at] {
            Attempt::Idle | Attempt::Answered | Attempt::Failed | Attempt::Crashed => {}
            Attempt::Looking if self.mistake == Some(Mistake::NoPlan) => {
                let command = SystemCommand::Kill {
                    owner: self.victim.clone(),
                    claim: Some(self.claim.clone()),
                };
                match self.tell_system(&mut after, command) {
                    SystemOutcome::Repeated(RepeatedKey::Answered(_)) => {
                        self.answer(&mut after, at)
                    }
                    _ => after.attempts[at] = Attempt::Ending([Some(0); GROUPS], None),
                }
                steps.push((Step::SendsKilled(at), after));
            }
            Attempt::Looking => {
                let system = self.systems.get(state.system);
                let (before, work) = (system.lookup(&self.claim, 0), system.work(&self.claim, 0));
                match (before, work) {
                    (Some(RepeatedKey::KeyReused | RepeatedKey::Full), _) => {
                        after.attempts[at] = Attempt::Failed;
                    }
                    (Some(RepeatedKey::Answered(_)), _) => self.answer(&mut after, at),
                    (_, Some(KeyWork::Plan(plan))) => after.attempts[at] = Fanout::carry_out(plan),
                    _ => after.attempts[at] = Attempt::Finding([None; GROUPS]),
                }
                steps.push((Step::Looks(at), after));
            }
            Attempt::Finding(found) => {
                for group in (0..GROUPS).filter(|group| found[*group].is_none()) {
                    let mut after = state.clone();
                    let mut found = found;
                    found[group] = Some(self.find(state, group));
                    after.attempts[at] = match found {
                        [Some(one), Some(two)] => match self.mistake {
                            Some(Mistake::KilledApart) => Attempt::Killing([one, two]),
                            _ => Attempt::Planning([one, two]),
                        },
                        _ => Attempt::Finding(found),
                    };
                    steps.push((Step::FindsOutInGroup(at, group), after));
                }
            }
            Attempt::Killing(named) => {
                let command = SystemCommand::Kill {
                    owner: self.victim.clone(),
                    claim: None,
                };
                self.tell_system(&mut after, command);
                after.attempts[at] = Attempt::Planning(named);
                steps.push((Step::SendsKilled(at), after));
            }
            Attempt::Planning(named) => {
                match self.write_plan(&mut after, named) {
                    SystemOutcome::Planned(plan) => {
                        after.attempts[at] = match self.mistake {
                            Some(Mistake::OwnPlanCounts) => Attempt::Ending(named, Some(named)),
                            _ => Fanout::carry_out(&plan),
                        };
                    }
                    SystemOutcome::Repeated(RepeatedKey::Answered(_)) => {
                        self.answer(&mut after, at)
                    }
                    _ => after.attempts[at] = Attempt::Failed,
                }
                steps.push((Step::WritesPlan(at), after));
            }
            Attempt::Ending(left, plan) => {
                for group in 0..GROUPS {
                    let Some(until) = left[group] else { continue };
                    let mut after = state.clone();
                    let until = Some(until).filter(|_| self.mistake != Some(Mistake::NoPlan));
                    self.end(&mut after, group, until);
                    let mut left = left;
                    left[group] = None;
                    after.attempts[at] = if left == [None; GROUPS] {
                        Attempt::Completing(plan)
                    } else {
                        Attempt::Ending(left, plan)
                    };
                    steps.push((Step::EndsInGroup(at, group), after));
                }
            }
            Attempt::Completing(plan) => {
                self.complete(&mut after, plan);
                self.answer(&mut after, at);
                steps.push((Step::Completes(at), after));
            }
        }
    }

    /// Operations that a coordinator may send again: those for which `GroupOp::may_repeat` is true.
    fn repeatable(&self, attempt: Attempt) -> Vec<Op> {
        match attempt {
            Attempt::Planning(named) => vec![Op::Plan(named)],
            Attempt::Ending(left, _) if self.mistake != Some(Mistake::NoPlan) => {
                let groups = left.iter().enumerate();
                groups
                    .filter_map(|(group, until)| Some(Op::End(group as u8, (*until)?)))
                    .filter(|op| *op != Op::End(op_group(*op), ReleaseAll::EVERYTHING))
                    .collect()
            }
            Attempt::Completing(plan) => vec![Op::Complete(plan)],
            _ => Vec::new(),
        }
    }
}

fn plan_of(named: Named) -> ReleasePlan {
    let groups = named.iter().enumerate();
    let groups = groups.filter_map(|(group, until)| Some((group as u32, (*until)?)));
    ReleasePlan {
        selection: Selection::All,
        groups: groups.collect(),
    }
}

fn op_group(op: Op) -> u8 {
    match op {
        Op::End(group, _) => group,
        _ => 0,
    }
}

impl Model for Fanout {
    type State = State;
    type Step = Step;

    fn first(&self) -> Vec<State> {
        // The owner holds in both groups; or it waits in the first one behind the other owner.
        [false, true]
            .into_iter()
            .map(|waits| {
                let system = self.systems.id(machine::system());
                let mut spaces = [self.spaces.id(machine::space()); GROUPS];
                if waits {
                    let first = self.acquire(0, &self.other);
                    self.spaces.apply(&mut spaces[0], first);
                }
                for (group, space) in spaces.iter_mut().enumerate() {
                    self.spaces.apply(space, self.acquire(group, &self.victim));
                }
                State {
                    system,
                    spaces,
                    attempts: vec![Attempt::Idle; self.bounds.attempts],
                    copies: Vec::new(),
                    resends: self.bounds.resends,
                    acquires: self.bounds.acquires,
                    crashes: self.bounds.crashes,
                    other: (waits, false),
                    began: spaces.map(|space| self.spaces.get(space).order()),
                    again: [false; GROUPS],
                    killed: 0,
                    ended: [0; GROUPS],
                    fault: None,
                }
            })
            .collect()
    }

    fn next(&self, state: &State, steps: &mut Vec<(Step, State)>) {
        for (at, attempt) in state.attempts.iter().enumerate() {
            if *attempt == Attempt::Idle {
                // Attempts are alike: they begin in order.
                if at == 0 || state.attempts[at - 1] != Attempt::Idle {
                    let mut after = state.clone();
                    after.attempts[at] = Attempt::Looking;
                    steps.push((Step::AttemptBegins(at), after));
                }
                continue;
            }
            self.advance(state, at, steps);
            if state.resends > 0 {
                for op in self.repeatable(*attempt) {
                    let mut after = state.clone();
                    after.resends -= 1;
                    after.copies.push(op);
                    after.copies.sort_unstable();
                    steps.push((Step::SendsAgain(at), after));
                }
            }
            let over = matches!(
                attempt,
                Attempt::Answered | Attempt::Failed | Attempt::Crashed
            );
            if state.crashes > 0 && !over {
                let mut after = state.clone();
                after.crashes -= 1;
                after.attempts[at] = Attempt::Crashed;
                steps.push((Step::CoordinatorCrashes(at), after));
            }
        }
        for (at, op) in state.copies.iter().enumerate() {
            let mut after = state.clone();
            after.copies.remove(at);
            let step = match *op {
                Op::Plan(named) => {
                    self.write_plan(&mut after, named);
                    Step::LateCopyOfPlan
                }
                Op::End(group, until) => {
                    self.end(&mut after, group as usize, Some(until));
                    Step::LateCopyOfEndInGroup(group)
                }
                Op::Complete(plan) => {
                    self.complete(&mut after, plan);
                    Step::LateCopyOfComplete
                }
            };
            steps.push((step, after));
        }
        if state.acquires > 0 {
            for group in 0..GROUPS {
                let space = self.spaces.get(state.spaces[group]);
                if space.has_owner(&self.victim) {
                    continue;
                }
                let mut after = state.clone();
                after.acquires -= 1;
                after.again[group] = true;
                let command = self.acquire(group, &self.victim);
                let applied = self.spaces.apply(&mut after.spaces[group], command);
                debug_assert!(matches!(
                    applied.outcome,
                    Outcome::Acquire(AcquireOutcome::Granted { .. } | AcquireOutcome::Queued(_))
                ));
                steps.push((Step::OwnerAcquiresAgainInGroup(group), after));
            }
        }
        if !state.other.0 {
            let mut after = state.clone();
            after.other.0 = true;
            let command = self.acquire(0, &self.other);
            self.spaces.apply(&mut after.spaces[0], command);
            steps.push((Step::OtherOwnerAcquires, after));
        } else if !state.other.1 {
            let mut after = state.clone();
            after.other.1 = true;
            let (namespace, path) = self.places[0].clone();
            let command = Command::Release(Release {
                route: Route {
                    namespace,
                    algorithm: Algorithm::RecursiveRw,
                    version: 0,
                },
                owner: self.other.clone(),
                holds: vec![Hold {
                    path,
                    mode: Mode::Write,
                }],
                key: None,
                whole: None,
            });
            self.spaces.apply(&mut after.spaces[0], command);
            steps.push((Step::OtherOwnerReleases, after));
        }
    }

    fn check(&self, state: &State) -> Result<(), String> {
        if let Some(fault) = state.fault {
            return Err(fault.to_owned());
        }
        if state.killed > 1 {
            return Err("the owner gets KILLED twice".to_owned());
        }
        match state.ended.iter().position(|ended| *ended > 1) {
            Some(group) => Err(format!("the call ends something twice in group {group}")),
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
        resends: 1,
        acquires: 2,
        crashes: 1,
    };

    fn holds(bounds: Bounds) {
        let report = explore(&Fanout::new(bounds, None), 30_000_000);
        eprintln!("fan-out, {bounds:?}: {report}");
        assert_eq!(report.fault, None);
    }

    /// R102, R106.
    #[test]
    fn a_keyed_call_over_groups_has_one_effect() {
        holds(BOUNDS);
        if is_full() {
            holds(Bounds {
                resends: 2,
                acquires: 3,
                ..BOUNDS
            });
            holds(Bounds {
                attempts: 3,
                resends: 0,
                ..BOUNDS
            });
        }
    }

    fn finds(mistake: Mistake, part: &str) {
        let report = explore(&Fanout::new(BOUNDS, Some(mistake)), 30_000_000);
        eprintln!("fan-out, {mistake:?}: {report}");
        let fault = report.fault.expect("the mistake is found");
        assert!(fault.why.contains(part), "{}", fault.why);
    }

    #[test]
    fn without_a_plan_a_late_attempt_ends_a_new_lease() {
        finds(Mistake::NoPlan, "ends");
    }

    #[test]
    fn a_second_plan_ends_a_new_lease() {
        finds(Mistake::OwnPlanCounts, "ends");
    }

    #[test]
    fn a_plan_without_numbers_ends_a_new_lease() {
        finds(Mistake::PlanWithoutNumbers, "ends");
    }

    #[test]
    fn killed_beside_the_plan_is_sent_twice() {
        finds(Mistake::KilledApart, "KILLED twice");
    }
}
