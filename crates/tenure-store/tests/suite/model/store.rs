//! The store of the model: objects with times relative to now, and the conditions of its level.
//!
//! An object is its owner, its date and its age. Its version depends only on its content, as in S3:
//! equal bytes, equal version. That is the weakest version that a store may have, so what is safe
//! here is safe with generations too.
//!
//! Ages are clipped at the scenario's limit, where everything is stale for every process. Two older
//! versions of one record are one version here. The difference is the conditional write of a
//! process that was paused that long: a real store refuses it, and the process starts again; here
//! it succeeds, which is the more dangerous case.

use tenure_store::ConditionLevel;

/// Number of slots for processes.
pub(crate) const SLOTS: usize = 4;

/// The key of an object. Every process has its own shared key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Cell {
    Exclusive,
    Shared(u8),
    Fence,
}

/// A stored lock. Times are in seconds from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Thing {
    pub(crate) owner: u8,
    /// Its fencing number; 0 if there is none.
    pub(crate) number: u8,
    pub(crate) expires: i16,
    pub(crate) modified: i16,
}

/// The version of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mark {
    Lock { owner: u8, number: u8, expires: i16 },
    Fence(u8),
}

impl Thing {
    pub(crate) fn mark(self) -> Mark {
        Mark::Lock {
            owner: self.owner,
            number: self.number,
            expires: self.expires,
        }
    }
}

/// The condition of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Condition {
    None,
    Absent,
    Is(Mark),
}

/// The content of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Body {
    Lock { number: u8, expires: i16 },
    Fence(u8),
}

/// A request of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ask {
    Read(Cell),
    List,
    Write(Cell, Body, Condition),
    Delete(Cell, Condition),
    /// A wait; whether it has ended.
    Wait(bool),
    /// None: the process is paused, dead, or has ended.
    Nothing,
}

/// Shared locks in the order of the list; [`SLOTS`] ends it.
pub(crate) type Listed = [u8; SLOTS];

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Got {
    /// The lock, and whether its owner is known to be dead (P22 evidence of staleness c).
    Lock(Thing, bool),
    Fence(u8),
    Absent,
    Listed(Listed),
    Written(Mark),
    Deleted,
    Refused,
    Failed,
    Waited,
}

/// All objects of the repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Store {
    pub(crate) exclusive: Option<Thing>,
    pub(crate) shared: [Option<Thing>; SLOTS],
    /// The last fencing number; 0 if there is none.
    fence: u8,
    /// Not part of the store, but of the history: the number with which each process held last, for
    /// [`Judge::Fences`](super::scenario::Judge::Fences).
    pub(crate) held_with: [u8; SLOTS],
}

/// Number after which fencing numbers wrap.
pub(crate) type Modulus = u8;

impl Store {
    /// Creates an empty store whose counter was used before.
    pub(crate) fn counted() -> Store {
        Store {
            fence: 1,
            ..Store::default()
        }
    }

    pub(crate) fn at(&self, cell: Cell) -> Option<Thing> {
        match cell {
            Cell::Exclusive => self.exclusive,
            Cell::Shared(slot) => self.shared[usize::from(slot)],
            Cell::Fence => None,
        }
    }

    /// Returns `true` if there is an object that `owner` wrote.
    pub(crate) fn has_of(&self, owner: u8) -> bool {
        self.exclusive.is_some_and(|thing| thing.owner == owner)
            || self.shared[usize::from(owner)].is_some()
    }

    /// Returns the owners of shared locks.
    pub(crate) fn sharers(&self) -> Vec<u8> {
        (0..SLOTS as u8)
            .filter(|slot| self.shared[usize::from(*slot)].is_some())
            .collect()
    }

    pub(crate) fn pass(&mut self, seconds: i16, limit: i16) {
        let locks = [&mut self.exclusive].into_iter().chain(&mut self.shared);
        for thing in locks.flatten() {
            thing.expires = (thing.expires - seconds).max(-limit);
            thing.modified = (thing.modified - seconds).max(-limit);
        }
    }

    /// Permutes the slots: `n` becomes `slots[n]`.
    pub(crate) fn reseated(&self, slots: [u8; SLOTS]) -> Store {
        let moved = |thing: Thing| Thing {
            owner: slots[usize::from(thing.owner)],
            ..thing
        };
        let mut store = Store {
            exclusive: self.exclusive.map(moved),
            ..*self
        };
        for (old, new) in slots.iter().enumerate() {
            store.shared[usize::from(*new)] = self.shared[old].map(moved);
            store.held_with[usize::from(*new)] = self.held_with[old];
        }
        store
    }

    fn version(&self, cell: Cell) -> Option<Mark> {
        match cell {
            Cell::Fence => (self.fence > 0).then_some(Mark::Fence(self.fence)),
            lock => self.at(lock).map(Thing::mark),
        }
    }

    /// A read of one object.
    pub(crate) fn read(&self, cell: Cell, is_dead: impl Fn(u8) -> bool) -> Got {
        match (cell, self.at(cell)) {
            (Cell::Fence, _) if self.fence > 0 => Got::Fence(self.fence),
            (_, Some(thing)) => Got::Lock(thing, is_dead(thing.owner)),
            (_, None) => Got::Absent,
        }
    }

    /// Applies a write or delete atomically.
    pub(crate) fn change(&mut self, owner: u8, ask: Ask, modulus: Modulus) -> Got {
        let (cell, condition) = match ask {
            Ask::Write(cell, _, condition) | Ask::Delete(cell, condition) => (cell, condition),
            other => unreachable!("{other:?} changes nothing"),
        };
        let there = self.version(cell);
        match (condition, there, ask) {
            (Condition::None, _, _) => {}
            (Condition::Absent, None, _) => {}
            (Condition::Is(mark), Some(seen), _) if mark == seen => {}
            (Condition::Is(_), None, Ask::Delete(..)) => {}
            (Condition::Absent | Condition::Is(_), _, _) => return Got::Refused,
        }
        match ask {
            Ask::Write(_, Body::Fence(number), _) => {
                self.fence = (number - 1) % modulus + 1;
                Got::Written(Mark::Fence(self.fence))
            }
            Ask::Write(_, Body::Lock { number, expires }, _) => {
                let thing = Thing {
                    owner,
                    number,
                    expires,
                    modified: 0,
                };
                self.put(cell, Some(thing));
                Got::Written(thing.mark())
            }
            _ => {
                self.put(cell, None);
                if there.is_some() {
                    Got::Deleted
                } else {
                    Got::Absent
                }
            }
        }
    }

    fn put(&mut self, cell: Cell, thing: Option<Thing>) {
        match cell {
            Cell::Exclusive => self.exclusive = thing,
            Cell::Shared(slot) => self.shared[usize::from(slot)] = thing,
            Cell::Fence => unreachable!("a counter is no lock"),
        }
    }
}

/// Returns `true` if the procedures may send this request to a store of this level.
pub(crate) fn is_lawful(ask: Ask, level: ConditionLevel) -> bool {
    match ask {
        Ask::Write(_, _, Condition::Absent | Condition::Is(_)) => level >= ConditionLevel::Writes,
        Ask::Delete(_, Condition::Is(_)) => level >= ConditionLevel::Deletes,
        _ => true,
    }
}
