//! State space exploration: visits every reachable state once.
//!
//! Visited states are stored completely, in 128 bits ([`Model::key`]), so two different states are
//! never confused.

use super::state::{Action, Model, ModelState};

/// The result of an exploration.
pub(crate) struct Explored {
    /// Number of distinct states.
    pub(crate) states: usize,
    /// Number of states with a holder.
    pub(crate) counted: usize,
    /// Number of transitions.
    pub(crate) transitions: usize,
    /// Number of states without a next action.
    pub(crate) ends: usize,
    /// Number of distinct states of a single process.
    pub(crate) locals: usize,
    /// The path to the first fault, and the fault.
    pub(crate) fault: Option<(Vec<String>, String)>,
}

/// A hash set of nonzero numbers.
struct Visited {
    slots: Vec<u128>,
    count: usize,
}

impl Visited {
    fn new() -> Visited {
        Visited {
            slots: vec![0; 1 << 12],
            count: 0,
        }
    }

    fn insert(&mut self, key: u128) -> bool {
        assert_ne!(key, 0, "an empty slot");
        if (self.count + 1) * 8 > self.slots.len() * 7 {
            let larger = vec![0; self.slots.len() * 2];
            for key in std::mem::replace(&mut self.slots, larger) {
                if key != 0 {
                    let at = self.find(key);
                    self.slots[at] = key;
                }
            }
        }
        let at = self.find(key);
        if self.slots[at] == key {
            return false;
        }
        self.slots[at] = key;
        self.count += 1;
        true
    }

    /// Returns the position of `key`, or where it must be inserted.
    fn find(&self, key: u128) -> usize {
        let mask = self.slots.len() - 1;
        let product = key.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let mut at = (product >> 72) as usize & mask;
        while self.slots[at] != 0 && self.slots[at] != key {
            at = (at + 1) & mask;
        }
        at
    }
}

struct Frame {
    model_state: ModelState,
    /// Start of its actions among the remaining actions of all frames.
    first: usize,
    taken: Option<Action>,
}

/// Explores all states depth first. Stops at the first fault.
pub(crate) fn explore(model: &mut Model) -> Explored {
    let start = model.start();
    let mut seen = Visited::new();
    seen.insert(model.key(&start));
    let mut explored = Explored::new();
    let mut left = Vec::new();
    model.actions(&start, &mut left);
    let mut path = vec![Frame {
        model_state: start,
        first: 0,
        taken: None,
    }];
    while let Some(frame) = path.last_mut() {
        if left.len() == frame.first {
            path.pop();
            continue;
        }
        let action = left.pop().expect("there is one");
        let (model_state, fault) = model.act(&frame.model_state, action);
        frame.taken = Some(action);
        explored.transitions += 1;
        if let Some(fault) = fault {
            let told = |frame: &Frame| Some(model.tell(&frame.model_state, frame.taken?));
            explored.fault = Some((path.iter().filter_map(told).collect(), fault));
            break;
        }
        if !seen.insert(model.key(&model_state)) {
            continue;
        }
        explored.states += 1;
        if explored.states.is_multiple_of(10_000_000) {
            println!("… {} million worlds", explored.states / 1_000_000);
        }
        explored.counted += usize::from(model.counts(&model_state));
        let first = left.len();
        model.actions(&model_state, &mut left);
        explored.ends += usize::from(left.len() == first);
        path.push(Frame {
            model_state,
            first,
            taken: None,
        });
    }
    explored.locals = model.local_states();
    explored
}

/// Searches the shortest path to a fault, breadth first.
pub(crate) fn shortest(model: &mut Model) -> Explored {
    let start = model.start();
    let mut seen = Visited::new();
    seen.insert(model.key(&start));
    let mut explored = Explored::new();
    let mut all: Vec<(ModelState, usize, Option<Action>)> = vec![(start, 0, None)];
    let mut at = 0;
    let mut actions = Vec::new();
    while at < all.len() {
        let model_state = all[at].0;
        model.actions(&model_state, &mut actions);
        explored.ends += usize::from(actions.is_empty());
        for action in actions.drain(..) {
            let (next, fault) = model.act(&model_state, action);
            explored.transitions += 1;
            if let Some(fault) = fault {
                let mut way = vec![model.tell(&model_state, action)];
                let mut back = at;
                while let (_, before, Some(action)) = all[back] {
                    way.push(model.tell(&all[before].0, action));
                    back = before;
                }
                way.reverse();
                explored.fault = Some((way, fault));
                explored.locals = model.local_states();
                return explored;
            }
            if seen.insert(model.key(&next)) {
                explored.states += 1;
                explored.counted += usize::from(model.counts(&next));
                all.push((next, at, Some(action)));
            }
        }
        at += 1;
    }
    explored.locals = model.local_states();
    explored
}

impl Explored {
    fn new() -> Explored {
        Explored {
            states: 1,
            counted: 0,
            transitions: 0,
            ends: 0,
            locals: 0,
            fault: None,
        }
    }
}
