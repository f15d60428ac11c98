//! Explicit-state model checker: breadth-first search over all states of a model.
//!
//! States are compared in full, not by hash. The search stops at the first violation, so the path to it is a
//! shortest one. Each state keeps its predecessor and the index of the step: replaying them from the initial state
//! yields the counterexample. If the model has goals, one must be reachable from every state.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::{self, Debug, Display};
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// A protocol as a graph of states.
pub trait Model {
    /// All that decides what can happen next, and what the properties need of the past.
    type State: Clone + Eq + Hash;
    /// One step, as a reader of a counterexample sees it.
    type Step: Debug;

    /// Where it begins.
    fn first(&self) -> Vec<Self::State>;

    /// All steps that are possible in a state. The order must not depend on anything else.
    fn next(&self, state: &Self::State, steps: &mut Vec<(Self::Step, Self::State)>);

    /// Whether all properties hold in a state; otherwise which one does not, and why.
    fn check(&self, state: &Self::State) -> Result<(), String>;

    /// A state in which nothing is left undone. `None`: the model has no such property. Otherwise such a state must
    /// be reachable from every state.
    fn is_goal(&self, state: &Self::State) -> Option<bool> {
        let _ = state;
        None
    }
}

/// What a search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// States that were visited.
    pub states: usize,
    /// Steps between them.
    pub steps: usize,
    /// The longest of the shortest paths.
    pub depth: usize,
    /// The first fault, if there is one.
    pub fault: Option<Fault>,
}

/// A property that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which, and why.
    pub why: String,
    /// The steps that lead to it.
    pub path: Vec<String>,
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report {
            states,
            steps,
            depth,
            ..
        } = self;
        write!(f, "{states} states, {steps} steps, depth {depth}")?;
        if let Some(fault) = &self.fault {
            write!(f, "\n  {} after", fault.why)?;
            for (at, step) in fault.path.iter().enumerate() {
                write!(f, "\n  {:>3}. {step}", at + 1)?;
            }
        }
        Ok(())
    }
}

/// Multiply-rotate hash: the default one takes most of the time of a search.
#[derive(Clone, Copy, Debug, Default)]
pub struct QuickHasher(u64);

const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for QuickHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(u64::from(number));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(23) ^ number).wrapping_mul(FACTOR);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn finish(&self) -> u64 {
        let mixed = (self.0 ^ (self.0 >> 29)).wrapping_mul(FACTOR);
        mixed ^ (mixed >> 32)
    }
}

/// How states are found again.
pub type QuickBuild = BuildHasherDefault<QuickHasher>;

/// Visits every state of a model. Panics beyond `limit` states: a bound that was chosen too large.
pub fn explore<M: Model>(model: &M, limit: usize) -> Report {
    let wants_goals = model.first().iter().any(|one| model.is_goal(one).is_some());
    let mut known: HashMap<M::State, u32, QuickBuild> = HashMap::default();
    // From which state each was reached first, and by which of its steps.
    let mut from: Vec<(u32, u32)> = Vec::new();
    let mut edges: Vec<(u32, u32)> = Vec::new();
    let mut goals: Vec<bool> = Vec::new();
    let mut report = Report {
        states: 0,
        steps: 0,
        depth: 0,
        fault: None,
    };
    let mut level: Vec<(u32, M::State)> = Vec::new();
    for (at, state) in model.first().into_iter().enumerate() {
        let number = from.len() as u32;
        from.push((u32::MAX, at as u32));
        goals.push(model.is_goal(&state).unwrap_or(false));
        known.insert(state.clone(), number);
        if let Err(why) = model.check(&state) {
            report.fault = Some(fault(model, &from, number, why));
        }
        level.push((number, state));
    }
    let mut steps = Vec::new();
    while !level.is_empty() && report.fault.is_none() {
        let mut following = Vec::new();
        'level: for (number, state) in &level {
            steps.clear();
            model.next(state, &mut steps);
            for (at, (_, after)) in steps.drain(..).enumerate() {
                report.steps += 1;
                let reached = match known.entry(after) {
                    Entry::Occupied(there) => *there.get(),
                    Entry::Vacant(free) => {
                        let reached = from.len() as u32;
                        assert!(from.len() < limit, "more than {limit} states");
                        from.push((*number, at as u32));
                        goals.push(model.is_goal(free.key()).unwrap_or(false));
                        following.push((reached, free.key().clone()));
                        let checked = model.check(free.key());
                        free.insert(reached);
                        if let Err(why) = checked {
                            report.fault = Some(fault(model, &from, reached, why));
                            break 'level;
                        }
                        reached
                    }
                };
                if wants_goals {
                    edges.push((*number, reached));
                }
            }
        }
        report.depth += usize::from(!following.is_empty());
        level = following;
    }
    report.states = from.len();
    if wants_goals
        && report.fault.is_none()
        && let Some(stuck) = first_stuck(&edges, &goals)
    {
        let why = "nothing that can happen from here finishes it".to_owned();
        report.fault = Some(fault(model, &from, stuck, why));
    }
    report
}

/// The first state from which no goal can be reached.
fn first_stuck(edges: &[(u32, u32)], goals: &[bool]) -> Option<u32> {
    let mut starts = vec![0_usize; goals.len() + 1];
    for (_, to) in edges {
        starts[*to as usize + 1] += 1;
    }
    for at in 1..starts.len() {
        starts[at] += starts[at - 1];
    }
    let mut place = starts.clone();
    let mut before = vec![0_u32; edges.len()];
    for (one, to) in edges {
        before[place[*to as usize]] = *one;
        place[*to as usize] += 1;
    }
    let mut good = goals.to_vec();
    let mut todo: Vec<u32> = (0..goals.len() as u32)
        .filter(|at| goals[*at as usize])
        .collect();
    while let Some(at) = todo.pop() {
        let at = at as usize;
        for one in &before[starts[at]..starts[at + 1]] {
            if !good[*one as usize] {
                good[*one as usize] = true;
                todo.push(*one);
            }
        }
    }
    good.iter().position(|good| !good).map(|at| at as u32)
}

/// Repeats the steps that lead to a state.
fn fault<M: Model>(model: &M, from: &[(u32, u32)], state: u32, why: String) -> Fault {
    let mut choices = Vec::new();
    let mut at = state;
    loop {
        let (before, choice) = from[at as usize];
        choices.push(choice as usize);
        if before == u32::MAX {
            break;
        }
        at = before;
    }
    choices.reverse();
    let mut path = Vec::new();
    let mut now = model.first().swap_remove(choices[0]);
    for choice in &choices[1..] {
        let mut steps = Vec::new();
        model.next(&now, &mut steps);
        let (step, after) = steps.swap_remove(*choice);
        path.push(format!("{step:?}"));
        now = after;
    }
    Fault { why, path }
}

/// Whether the slow suite asks for the larger bounds: `TENURE_MODELS=full`.
pub fn is_full() -> bool {
    std::env::var_os("TENURE_MODELS").is_some_and(|value| value == "full")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts up and down between 0 and an end; one number may be forbidden, or have no way on.
    struct Counter {
        end: u8,
        forbidden: Option<u8>,
        trap: Option<u8>,
    }

    impl Model for Counter {
        type State = u8;
        type Step = &'static str;

        fn first(&self) -> Vec<u8> {
            vec![0]
        }

        fn next(&self, state: &u8, steps: &mut Vec<(&'static str, u8)>) {
            if self.trap == Some(*state) {
                return;
            }
            if *state < self.end {
                steps.push(("up", state + 1));
            }
            if *state > 0 {
                steps.push(("down", state - 1));
            }
        }

        fn check(&self, state: &u8) -> Result<(), String> {
            match self.forbidden {
                Some(forbidden) if forbidden == *state => Err(format!("{state} is forbidden")),
                _ => Ok(()),
            }
        }

        fn is_goal(&self, state: &u8) -> Option<bool> {
            Some(*state == 0)
        }
    }

    #[test]
    fn it_visits_every_state_once_and_counts_every_step() {
        let counter = Counter {
            end: 4,
            forbidden: None,
            trap: None,
        };
        let report = explore(&counter, 100);
        assert_eq!((report.states, report.steps, report.depth), (5, 8, 4));
        assert_eq!(report.fault, None);
    }

    #[test]
    fn it_finds_the_shortest_way_to_a_fault() {
        let counter = Counter {
            end: 4,
            forbidden: Some(2),
            trap: None,
        };
        let fault = explore(&counter, 100).fault.unwrap();
        assert_eq!(fault.path, ["\"up\"", "\"up\""]);
    }

    #[test]
    fn it_finds_a_state_from_which_no_goal_can_be_reached() {
        let counter = Counter {
            end: 4,
            forbidden: None,
            trap: Some(3),
        };
        let fault = explore(&counter, 100).fault.unwrap();
        assert_eq!(fault.path, ["\"up\"", "\"up\"", "\"up\""]);
    }
}
