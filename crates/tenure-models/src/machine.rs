//! Interned state machines: the shipped `Space` and `System` inside of a model's state.
//!
//! A model's state holds a number instead of a machine. Two machines with the same snapshot are the same machine, and
//! what a command does to a machine is computed once. So a state stays small, and the search spends no time on
//! applying the same command to the same machine again.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Debug;
use std::rc::Rc;

use tenure_core::command::Command;
use tenure_core::namespace_table::NamespaceTable;
use tenure_core::outcome::Applied;
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::Algorithm;
use tenure_core::space::{HashSeed, RULES, Space, SpaceLimits};
use tenure_core::system::{System, SystemApplied, SystemCommand};
use tenure_core::value::{Key, OwnerId, Stamp};

/// All times are this one. No time passes in the models: what is kept for 300 s is kept.
pub const NOW: Stamp = Stamp { time: 1, wall: 1 };

/// A machine that can be interned.
pub trait Machine: Clone {
    /// What is applied to it.
    type Command: Debug;
    /// What comes of that.
    type Outcome: Clone;

    /// Bytes that are the same only for machines that behave alike.
    fn bytes(&self) -> Vec<u8>;
    /// Applies a command.
    fn act(&mut self, command: Self::Command) -> Self::Outcome;
}

/// The number of an interned machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(u32);

/// All machines of one kind that were met.
pub struct Interned<M: Machine> {
    inner: RefCell<Inner<M>>,
}

struct Inner<M: Machine> {
    machines: Vec<Rc<M>>,
    numbers: HashMap<Vec<u8>, Id>,
    /// By the machine and the command in words.
    applied: HashMap<(Id, String), (Id, M::Outcome)>,
}

impl<M: Machine> Default for Interned<M> {
    fn default() -> Self {
        Interned {
            inner: RefCell::new(Inner {
                machines: Vec::new(),
                numbers: HashMap::new(),
                applied: HashMap::new(),
            }),
        }
    }
}

impl<M: Machine> Interned<M> {
    /// The number of a machine.
    pub fn id(&self, machine: M) -> Id {
        let mut inner = self.inner.borrow_mut();
        let bytes = machine.bytes();
        if let Some(id) = inner.numbers.get(&bytes) {
            return *id;
        }
        let id = Id(inner.machines.len() as u32);
        inner.machines.push(Rc::new(machine));
        inner.numbers.insert(bytes, id);
        id
    }

    /// The machine of a number.
    pub fn get(&self, id: Id) -> Rc<M> {
        Rc::clone(&self.inner.borrow().machines[id.0 as usize])
    }

    /// Applies a command to a machine, which becomes another one.
    pub fn apply(&self, id: &mut Id, command: M::Command) -> M::Outcome {
        let key = (*id, format!("{command:?}"));
        if let Some((after, outcome)) = self.inner.borrow().applied.get(&key) {
            *id = *after;
            return outcome.clone();
        }
        let mut machine = M::clone(&self.get(*id));
        let outcome = machine.act(command);
        let after = self.id(machine);
        let result = (after, outcome.clone());
        self.inner.borrow_mut().applied.insert(key, result);
        *id = after;
        outcome
    }
}

impl Machine for Space {
    type Command = Command;
    type Outcome = Rc<Applied>;

    fn bytes(&self) -> Vec<u8> {
        self.encode_snapshot(Vec::new())
    }

    fn act(&mut self, command: Command) -> Rc<Applied> {
        Rc::new(self.apply(NOW, command))
    }
}

impl Machine for System {
    type Command = SystemCommand;
    type Outcome = Rc<SystemApplied>;

    fn bytes(&self) -> Vec<u8> {
        self.encode_snapshot(Vec::new())
    }

    fn act(&mut self, command: SystemCommand) -> Rc<SystemApplied> {
        Rc::new(self.apply(NOW, command))
    }
}

/// An empty space under the newest rules.
pub fn space() -> Space {
    let mut space = Space::new(SpaceLimits::default(), HashSeed(1));
    space.apply(NOW, Command::Rules { number: RULES });
    space
}

/// A system machine without rows under the newest rules. Namespaces without a row have one segment.
pub fn system() -> System {
    let mut system = System::new(NamespaceTable::new(1, Algorithm::RecursiveRw));
    system.apply(NOW, SystemCommand::Rules { number: RULES });
    system
}

/// A constant path.
pub fn path(text: &str) -> Path {
    Path::parse(text).expect("a constant of a model")
}

/// A constant namespace.
pub fn namespace(text: &str) -> Namespace {
    Namespace::parse(text).expect("a constant of a model")
}

/// A constant owner.
pub fn owner(text: &str) -> OwnerId {
    OwnerId::new(text).expect("a constant of a model")
}

/// A constant key.
pub fn key(text: &str) -> Key {
    let key = Key::new(text).expect("a constant of a model");
    key.expect("a constant of a model")
}
