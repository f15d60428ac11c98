//! Visits every state that can be reached, depth first, each once.
//!
//! A state is remembered by a 64-bit hash of all of it. Two different states with one hash would
//! hide one of them; among the millions seen here the chance of a single such pair is below one in
//! a hundred thousand.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use super::part::digest;

/// Something that can go on in several ways.
pub(crate) trait State: Clone + Hash {
    /// One way to go on.
    type Action: Copy;

    /// All ways to go on from here.
    fn actions(&self) -> Vec<Self::Action>;

    /// Goes on.
    fn act(&mut self, action: Self::Action);

    /// What it means to go on like this, in one line.
    fn tell(&self, action: Self::Action) -> String;

    /// Whether this is a state for whose sake all this is done.
    fn counts(&self) -> bool;

    /// What is wrong with this state, if anything.
    fn fault(&self) -> Option<String>;
}

/// What an exploration found.
pub(crate) struct Explored {
    /// Different states.
    pub(crate) states: usize,
    /// Those that count.
    pub(crate) counted: usize,
    /// Ways from one state to another.
    pub(crate) transitions: usize,
    /// States in which nothing more can happen.
    pub(crate) ends: usize,
    /// The way to the first fault, and the fault.
    pub(crate) fault: Option<(Vec<String>, String)>,
}

/// Hashes are their own hash.
#[derive(Default)]
struct Same(u64);

impl Hasher for Same {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only hashes are kept")
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

struct Frame<S: State> {
    state: S,
    actions: Vec<S::Action>,
    taken: Option<S::Action>,
}

/// Explores everything from `start`. Stops at the first fault.
pub(crate) fn explore<S: State>(start: S) -> Explored {
    let mut seen: HashSet<u64, BuildHasherDefault<Same>> = HashSet::default();
    let mut explored = Explored {
        states: 1,
        counted: 0,
        transitions: 0,
        ends: 0,
        fault: None,
    };
    seen.insert(digest(&start));
    let actions = start.actions();
    let mut path = vec![Frame {
        state: start,
        actions,
        taken: None,
    }];
    while let Some(frame) = path.last_mut() {
        let Some(action) = frame.actions.pop() else {
            path.pop();
            continue;
        };
        let mut state = frame.state.clone();
        state.act(action);
        frame.taken = Some(action);
        explored.transitions += 1;
        if !seen.insert(digest(&state)) {
            continue;
        }
        explored.states += 1;
        explored.counted += usize::from(state.counts());
        if let Some(fault) = state.fault() {
            let told = |frame: &Frame<S>| frame.taken.map(|action| frame.state.tell(action));
            explored.fault = Some((path.iter().filter_map(told).collect(), fault));
            return explored;
        }
        let actions = state.actions();
        explored.ends += usize::from(actions.is_empty());
        path.push(Frame {
            state,
            actions,
            taken: None,
        });
    }
    explored
}
