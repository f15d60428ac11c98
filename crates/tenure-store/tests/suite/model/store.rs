//! The store of the model: what lies in it, told from now, and the conditions of its level.
//!
//! An object is its owner, its date and its age. The version is made of what the bytes are made of,
//! as on S3: equal bytes, equal version. That is the weakest version a store may have, so what is
//! safe here is safe with generations too.
//!
//! Ages stop at the scene's limit, where everything is stale for everybody. Two versions of one
//! record that are both older are one version here. What differs is a conditional write of somebody
//! who slept for so long: it would be refused, and he would begin again as a newcomer does; here it
//! passes, which is the more dangerous of the two.

use tenure_store::lock_terms::ConditionLevel;

/// Seats at the table.
pub(crate) const SLOTS: usize = 4;

/// Where an object lies. Every process has one shared key of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Cell {
    Exclusive,
    Shared(u8),
    Fence,
}

/// A lock that lies somewhere. Times in seconds from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Thing {
    pub(crate) owner: u8,
    /// The fencing number in it; 0 is none.
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

/// What a write rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Condition {
    None,
    Absent,
    Is(Mark),
}

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Body {
    Lock { number: u8, expires: i16 },
    Fence(u8),
}

/// What a process asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ask {
    Read(Cell),
    List,
    Write(Cell, Body, Condition),
    Delete(Cell, Condition),
    /// A wait; whether it is over.
    Wait(bool),
    /// Nothing: it stands still, it is gone, or it has ended.
    Nothing,
}

/// Shared locks in the order in which they are listed; [`SLOTS`] ends the list.
pub(crate) type Listed = [u8; SLOTS];

/// What it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Got {
    /// The lock, and whether its owner is known to be dead (P22 c).
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

/// Everything that is in the repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub(crate) struct Store {
    pub(crate) exclusive: Option<Thing>,
    pub(crate) shared: [Option<Thing>; SLOTS],
    /// The number that was given out last; 0 is none.
    fence: u8,
}

/// How far fencing numbers count before they begin again.
pub(crate) type Modulus = u8;

impl Store {
    /// An empty store in which numbers were given out before.
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

    /// Whether anything lies there that `owner` wrote.
    pub(crate) fn has_of(&self, owner: u8) -> bool {
        self.exclusive.is_some_and(|thing| thing.owner == owner)
            || self.shared[usize::from(owner)].is_some()
    }

    /// Those who have a shared lock there.
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

    /// The same with the slot changed: who sat at `n` sits at `slots[n]`.
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
        }
        store
    }

    fn version(&self, cell: Cell) -> Option<Mark> {
        match cell {
            Cell::Fence => (self.fence > 0).then_some(Mark::Fence(self.fence)),
            lock => self.at(lock).map(Thing::mark),
        }
    }

    /// A look, except at the list.
    pub(crate) fn read(&self, cell: Cell, is_dead: impl Fn(u8) -> bool) -> Got {
        match (cell, self.at(cell)) {
            (Cell::Fence, _) if self.fence > 0 => Got::Fence(self.fence),
            (_, Some(thing)) => Got::Lock(thing, is_dead(thing.owner)),
            (_, None) => Got::Absent,
        }
    }

    /// A write or deletion, all at once.
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

/// Whether the machines may ask for this on a store of this level.
pub(crate) fn is_lawful(ask: Ask, level: ConditionLevel) -> bool {
    match ask {
        Ask::Write(_, _, Condition::Absent | Condition::Is(_)) => level >= ConditionLevel::Writes,
        Ask::Delete(_, Condition::Is(_)) => level >= ConditionLevel::Deletes,
        _ => true,
    }
}
