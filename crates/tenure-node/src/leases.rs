//! When leases end: deadlines on the leader's own clock.
//!
//! ```text
//!   set (acquire, grant, logged renewal) ──▶ deadline ──passed──▶ ending ──Expire applied──▶ gone
//!                                              ▲   │                 └── set again ──▶ deadline
//!                             unlogged renewal └───┘
//! ```
//!
//! All of this is volatile: it exists from the moment a leader has applied the first entry of its
//! own term, is built from the space there, and is dropped with leadership. A deadline that passes
//! ends nothing by itself; it makes the leader propose `Expire` with the lease's epoch, and only
//! the applied entry ends the lease. While a lease is in `ending` no renewal of it is decided.
//!
//! Cost: a renewal moves a number. The heap of deadlines holds one place per lease; a place that
//! comes up too early is put back at the time that is now true.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::{BuildHasher, Hash, Hasher};

use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;
use tenure_core::command::Expire;
use tenure_core::path::Namespace;
use tenure_core::value::OwnerId;

/// See the module. All times are readings.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    slots: Vec<Slot>,
    free: Vec<u32>,
    names: HashTable<u32>,
    heap: BinaryHeap<Reverse<(u64, u32, u32)>>,
    /// Places in the heap that mean nothing any more.
    stale: usize,
}

/// A renewal that is counted with its lease; given back when it is decided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Joined {
    slot: u32,
    generation: u32,
}

#[derive(Debug)]
struct Slot {
    namespace: Namespace,
    owner: OwnerId,
    epoch: u64,
    state: State,
    /// The earliest time at which the heap will bring this slot up; `u64::MAX` if it will not.
    queued_at: u64,
    /// Tells the heap's places for this lease from those of an earlier user of the slot.
    generation: u32,
    /// Renewals that were received in time and whose round is still out.
    renewals: u32,
}

/// There is one for every lock in the worst case, so it holds all that goes into its spare bytes:
/// `renewed` says whether the lease was renewed without an entry since it was set (R122).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running {
        deadline: u64,
        renewed: bool,
    },
    /// `Expire` was proposed; its number among all the leader's endings.
    Ending {
        number: u64,
        renewed: bool,
    },
    Free,
}

/// What a leader knows of one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It runs until this reading.
    Until(u64),
    /// Its end was proposed, as the ending of this number.
    Ending(u64),
}

fn hash(namespace: &Namespace, owner: &OwnerId) -> u64 {
    let mut hasher = FxBuildHasher.build_hasher();
    namespace.hash(&mut hasher);
    owner.hash(&mut hasher);
    hasher.finish()
}

impl Leases {
    fn find(&self, namespace: &Namespace, owner: &OwnerId) -> Option<u32> {
        self.names
            .find(hash(namespace, owner), |&slot| {
                let slot = &self.slots[slot as usize];
                slot.owner == *owner && slot.namespace == *namespace
            })
            .copied()
    }

    fn slot(&mut self, namespace: &Namespace, owner: &OwnerId) -> Option<(u32, &mut Slot)> {
        let at = self.find(namespace, owner)?;
        Some((at, &mut self.slots[at as usize]))
    }

    /// A lease was set by an applied entry, or is found by a new leader.
    pub(crate) fn set(&mut self, namespace: Namespace, owner: OwnerId, epoch: u64, deadline: u64) {
        let state = State::Running {
            deadline,
            renewed: false,
        };
        if let Some((at, slot)) = self.slot(&namespace, &owner) {
            slot.epoch = epoch;
            slot.state = state;
            self.enqueue(at);
            return;
        }
        let hash_of = hash(&namespace, &owner);
        let slot = Slot {
            namespace,
            owner,
            epoch,
            state,
            queued_at: u64::MAX,
            generation: 0,
            renewals: 0,
        };
        let at = match self.free.pop() {
            Some(at) => {
                let generation = self.slots[at as usize].generation.wrapping_add(1);
                self.slots[at as usize] = Slot { generation, ..slot };
                at
            }
            None => {
                let count = self.slots.len();
                if count == self.slots.capacity() {
                    // Twice as many would be half of them for nothing, and these are large.
                    self.slots.reserve_exact((count / 4).max(4));
                }
                self.slots.push(slot);
                u32::try_from(self.slots.len() - 1).expect("fewer leases than 2^32 fit in memory")
            }
        };
        let slots = &self.slots;
        self.names.insert_unique(hash_of, at, |&other| {
            let slot = &slots[other as usize];
            hash(&slot.namespace, &slot.owner)
        });
        self.enqueue(at);
    }

    /// A lease ended by an applied entry.
    pub(crate) fn ended(&mut self, namespace: &Namespace, owner: &OwnerId) {
        let Some(at) = self.find(namespace, owner) else {
            return;
        };
        if let Ok(place) = self
            .names
            .find_entry(hash(namespace, owner), |&other| other == at)
        {
            place.remove();
        }
        let slot = &mut self.slots[at as usize];
        slot.state = State::Free;
        if slot.queued_at != u64::MAX {
            slot.queued_at = u64::MAX;
            self.stale += 1;
        }
        self.free.push(at);
        self.tidy();
    }

    fn enqueue(&mut self, at: u32) {
        let slot = &mut self.slots[at as usize];
        if let State::Running { deadline, .. } = slot.state
            && deadline < slot.queued_at
        {
            self.stale += usize::from(slot.queued_at != u64::MAX);
            slot.queued_at = deadline;
            self.heap.push(Reverse((deadline, at, slot.generation)));
        }
    }

    /// Short holds under long leases would fill the heap with places of leases long gone.
    fn tidy(&mut self) {
        if self.stale > 1024 && self.stale * 2 > self.heap.len() {
            let slots = &self.slots;
            self.heap.retain(|Reverse((at, which, generation))| {
                let slot = &slots[*which as usize];
                slot.generation == *generation && slot.queued_at == *at
            });
            self.stale = 0;
        }
    }

    /// A renewal is received: until it is decided, a deadline that passes waits for it.
    pub(crate) fn renewal_joins(
        &mut self,
        namespace: &Namespace,
        owner: &OwnerId,
    ) -> Option<Joined> {
        let (at, slot) = self.slot(namespace, owner)?;
        slot.renewals += 1;
        Some(Joined {
            slot: at,
            generation: slot.generation,
        })
    }

    /// A renewal is decided, or will never be.
    pub(crate) fn renewal_leaves(&mut self, joined: Joined) {
        let slot = &mut self.slots[joined.slot as usize];
        if slot.generation == joined.generation && slot.state != State::Free {
            slot.renewals -= 1;
            if slot.renewals == 0 {
                self.enqueue(joined.slot);
            }
        }
    }

    /// A covered renewal, confirmed and decided: also an earlier deadline is taken (R77).
    pub(crate) fn renew(&mut self, namespace: &Namespace, owner: &OwnerId, deadline: u64) {
        if let Some((at, slot)) = self.slot(namespace, owner) {
            let is_running = matches!(slot.state, State::Running { .. });
            debug_assert!(is_running, "a lease in its end is not renewed");
            if is_running {
                slot.state = State::Running {
                    deadline,
                    renewed: true,
                };
                self.enqueue(at);
            }
        }
    }

    /// Whether it was renewed without an entry since it was set.
    pub(crate) fn renewed_since_set(&self, namespace: &Namespace, owner: &OwnerId) -> bool {
        self.find(namespace, owner)
            .is_some_and(|slot| match self.slots[slot as usize].state {
                State::Running { renewed, .. } | State::Ending { renewed, .. } => renewed,
                State::Free => false,
            })
    }

    /// How a lease stands.
    pub(crate) fn standing(&self, namespace: &Namespace, owner: &OwnerId) -> Option<Standing> {
        let slot = &self.slots[self.find(namespace, owner)? as usize];
        match slot.state {
            State::Running { deadline, .. } => Some(Standing::Until(deadline)),
            State::Ending { number, .. } => Some(Standing::Ending(number)),
            State::Free => None,
        }
    }

    /// When the next deadline may pass: not later than it does.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at, _, _))| *at)
    }

    /// Every lease whose deadline has passed and that no renewal waits for goes to `ending`, one
    /// after the other from `number` on.
    pub(crate) fn due(&mut self, reading: u64, mut number: u64) -> Vec<Expire> {
        let mut expires = Vec::new();
        while let Some(&Reverse((at, which, generation))) = self.heap.peek()
            && at <= reading
        {
            self.heap.pop();
            let slot = &mut self.slots[which as usize];
            if slot.generation != generation || slot.queued_at != at {
                self.stale = self.stale.saturating_sub(1);
                continue;
            }
            slot.queued_at = u64::MAX;
            let State::Running { deadline, renewed } = slot.state else {
                continue;
            };
            if deadline > reading {
                self.enqueue(which);
            } else if slot.renewals == 0 {
                slot.state = State::Ending { number, renewed };
                number += 1;
                expires.push(Expire {
                    namespace: slot.namespace.clone(),
                    owner: slot.owner.clone(),
                    epoch: slot.epoch,
                });
            }
            // Otherwise the last renewal that leaves puts it back.
        }
        expires
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ns() -> Namespace {
        Namespace::parse("t:/a").unwrap()
    }

    fn owner(name: &str) -> OwnerId {
        OwnerId::new(name).unwrap()
    }

    fn names(expires: &[Expire]) -> Vec<(&str, u64)> {
        expires
            .iter()
            .map(|expire| (expire.owner.as_str(), expire.epoch))
            .collect()
    }

    #[test]
    fn deadlines_come_due_in_order_and_once() {
        let mut leases = Leases::default();
        leases.set(ns(), owner("b"), 2, 200);
        leases.set(ns(), owner("a"), 1, 100);
        assert_eq!(leases.next_due(), Some(100));
        assert!(leases.due(99, 1).is_empty());
        assert_eq!(names(&leases.due(100, 1)), [("a", 1)]);
        assert_eq!(names(&leases.due(500, 2)), [("b", 2)]);
        assert!(leases.due(u64::MAX, 3).is_empty());
        assert_eq!(
            leases.standing(&ns(), &owner("b")),
            Some(Standing::Ending(2))
        );
    }

    #[test]
    fn a_lease_set_again_leaves_ending_and_has_its_new_epoch() {
        let mut leases = Leases::default();
        leases.set(ns(), owner("a"), 1, 100);
        assert_eq!(leases.due(100, 1).len(), 1);
        leases.set(ns(), owner("a"), 2, 300);
        assert!(leases.due(299, 2).is_empty());
        assert_eq!(names(&leases.due(300, 2)), [("a", 2)]);
    }

    #[test]
    fn a_moved_deadline_counts_in_both_directions() {
        let mut leases = Leases::default();
        leases.set(ns(), owner("a"), 1, 1_000);
        leases.renew(&ns(), &owner("a"), 2_000);
        assert!(leases.due(1_999, 1).is_empty());
        leases.renew(&ns(), &owner("a"), 2_500);
        leases.renew(&ns(), &owner("a"), 2_100);
        assert_eq!(names(&leases.due(2_100, 1)), [("a", 1)]);
    }

    /// Step 2: a renewal received before the deadline is waited for; afterwards the end is not lost.
    #[test]
    fn a_waiting_renewal_holds_the_end_back_until_it_is_decided() {
        let mut leases = Leases::default();
        leases.set(ns(), owner("a"), 1, 100);
        let first = leases.renewal_joins(&ns(), &owner("a")).unwrap();
        let second = leases.renewal_joins(&ns(), &owner("a")).unwrap();
        assert!(leases.due(150, 1).is_empty());
        leases.renewal_leaves(first);
        assert!(leases.due(150, 1).is_empty());
        leases.renewal_leaves(second);
        assert_eq!(names(&leases.due(150, 1)), [("a", 1)]);
    }

    #[test]
    fn an_ended_lease_leaves_nothing_behind() {
        let mut leases = Leases::default();
        for round in 0..3u64 {
            leases.set(ns(), owner("a"), round, 100 + round);
            leases.ended(&ns(), &owner("a"));
            assert_eq!(leases.standing(&ns(), &owner("a")), None);
        }
        assert!(leases.due(u64::MAX, 1).is_empty());
        assert_eq!(leases.slots.len(), 1);
    }

    #[test]
    fn a_renewal_of_a_lease_that_is_gone_does_not_count_for_the_next_one() {
        let mut leases = Leases::default();
        leases.set(ns(), owner("a"), 1, 100);
        let old = leases.renewal_joins(&ns(), &owner("a")).unwrap();
        leases.ended(&ns(), &owner("a"));
        leases.set(ns(), owner("a"), 2, 100);
        let new = leases.renewal_joins(&ns(), &owner("a")).unwrap();
        leases.renewal_leaves(old);
        assert!(leases.due(100, 1).is_empty(), "the new one still waits");
        leases.renewal_leaves(new);
        assert_eq!(names(&leases.due(100, 1)), [("a", 2)]);
    }

    /// Promise 5: what was held and released long ago costs nothing.
    #[test]
    fn short_holds_under_long_leases_do_not_pile_up() {
        let mut leases = Leases::default();
        for round in 0..100_000u64 {
            leases.set(ns(), owner("a"), round, 1_000_000 + round);
            leases.ended(&ns(), &owner("a"));
        }
        assert!(leases.heap.len() < 4_096, "{} places", leases.heap.len());
    }
}
