//! Lease deadlines, on the leader's running time.
//!
//! ```text
//!   set (acquire, grant, logged renewal) ──▶ deadline ──passed──▶ ending ──Expire applied──▶ gone
//!                                              ▲   │                 └── set again ──▶ deadline
//!                             unlogged renewal └───┘
//! ```
//!
//! All of this is volatile. A leader builds it from the space when it has applied the first entry
//! of its own term, and drops it when it loses leadership. A passed deadline ends nothing by
//! itself: the leader proposes `Expire` with the lease's epoch, and only the applied entry ends the
//! lease. While a lease is in `ending`, no renewal of it is decided.
//!
//! Cost: there may be a lease for every lock, and the space already stores its namespace, owner and
//! epoch. So a lease is identified here by its number in the space, and a renewal only moves a
//! deadline. The heap holds at most one entry per number; an entry that comes up too early is put
//! back with the current deadline.

use tenure_core::outcome::LeaseNumber;

use crate::deadline_heap::{DeadlineHeap, extend};

/// The lease deadlines of one group. All times are running time.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    /// Indexed by lease number.
    slots: Vec<LeaseSlot>,
    /// The earliest time at which each lease can be due. May contain leases that have ended.
    places: DeadlineHeap,
}

/// Proof that a renewal is counted in its lease's slot. Returned to [`Leases::renewal_leaves`] when
/// the renewal is decided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JoinedRenewal {
    lease: LeaseNumber,
    generation: u32,
}

/// Sixteen bytes: there may be one for every lock.
#[derive(Clone, Copy, Debug)]
struct LeaseSlot {
    state: PackedLease,
    /// Distinguishes a lease from an earlier one with the same number.
    generation: u32,
    /// Renewals that were received before the deadline and wait for their ReadIndex round.
    renewals: u32,
}

/// `renewed` says whether the lease was renewed without an entry since it was set (R122: events are
/// always delivered).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaseState {
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

/// A [`LeaseState`] in eight bytes: two bits say which, one whether it was renewed, the rest is the
/// number. Times are milliseconds, so 61 bits never overflow.
#[derive(Clone, Copy, Debug)]
struct PackedLease(u64);

impl PackedLease {
    const NUMBER: u64 = (1 << 61) - 1;
    const RENEWED: u64 = 1 << 61;
    const RUNNING: u64 = 1 << 62;
    const ENDING: u64 = 1 << 63;

    fn new(state: LeaseState) -> PackedLease {
        let (which, number, renewed) = match state {
            LeaseState::Running { deadline, renewed } => (PackedLease::RUNNING, deadline, renewed),
            LeaseState::Ending { number, renewed } => (PackedLease::ENDING, number, renewed),
            LeaseState::Free => (0, 0, false),
        };
        let renewed = if renewed { PackedLease::RENEWED } else { 0 };
        PackedLease(which | renewed | number.min(PackedLease::NUMBER))
    }

    fn state(self) -> LeaseState {
        let number = self.0 & PackedLease::NUMBER;
        let renewed = self.0 & PackedLease::RENEWED != 0;
        if self.0 & PackedLease::RUNNING != 0 {
            let deadline = number;
            LeaseState::Running { deadline, renewed }
        } else if self.0 & PackedLease::ENDING != 0 {
            LeaseState::Ending { number, renewed }
        } else {
            LeaseState::Free
        }
    }
}

/// What a leader knows of one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseStanding {
    /// The lease runs until this time.
    Until(u64),
    /// `Expire` was proposed, as the leader's ending with this number.
    Ending(u64),
}

impl Leases {
    fn state(&self, lease: LeaseNumber) -> LeaseState {
        let slot = self.slots.get(lease.0 as usize);
        slot.map_or(LeaseState::Free, |slot| slot.state.state())
    }

    /// Sets a deadline: an applied entry set the lease, or a new leader found it in the space.
    pub(crate) fn set(&mut self, lease: LeaseNumber, deadline: u64) {
        let at = lease.0 as usize;
        if at >= self.slots.len() {
            let free = LeaseSlot {
                state: PackedLease::new(LeaseState::Free),
                generation: 0,
                renewals: 0,
            };
            extend(&mut self.slots, at + 1, free);
        }
        let renewed = false;
        self.run(lease, LeaseState::Running { deadline, renewed });
    }

    /// Removes a lease that an applied entry ended. Its heap entry stays for the next lease with
    /// the same number.
    pub(crate) fn ended(&mut self, lease: LeaseNumber) {
        if let Some(slot) = self.slots.get_mut(lease.0 as usize) {
            slot.state = PackedLease::new(LeaseState::Free);
            slot.generation = slot.generation.wrapping_add(1);
            slot.renewals = 0;
        }
    }

    fn run(&mut self, lease: LeaseNumber, state: LeaseState) {
        self.slots[lease.0 as usize].state = PackedLease::new(state);
        self.enqueue(lease);
    }

    fn enqueue(&mut self, lease: LeaseNumber) {
        if let LeaseState::Running { deadline, .. } = self.state(lease) {
            self.places.look_at(lease.0, deadline);
        }
    }

    /// Counts a received renewal. Until it is decided, a passed deadline does not end the lease.
    pub(crate) fn renewal_joins(&mut self, lease: LeaseNumber) -> Option<JoinedRenewal> {
        let slot = self.slots.get_mut(lease.0 as usize)?;
        if slot.state.state() == LeaseState::Free {
            return None;
        }
        slot.renewals += 1;
        let generation = slot.generation;
        Some(JoinedRenewal { lease, generation })
    }

    /// Uncounts a renewal that is decided or abandoned.
    pub(crate) fn renewal_leaves(&mut self, joined: JoinedRenewal) {
        let slot = &mut self.slots[joined.lease.0 as usize];
        if slot.generation == joined.generation {
            slot.renewals -= 1;
            if slot.renewals == 0 {
                self.enqueue(joined.lease);
            }
        }
    }

    /// Applies an unlogged renewal that is confirmed and decided. The later deadline wins (R77: a
    /// renewal never shortens a lease): this may be a late copy of a renewal, and a later one may
    /// have set a longer lease since.
    pub(crate) fn renew(&mut self, lease: LeaseNumber, deadline: u64) {
        let LeaseState::Running {
            deadline: before, ..
        } = self.state(lease)
        else {
            debug_assert!(false, "a lease in its end is not renewed");
            return;
        };
        let (deadline, renewed) = (deadline.max(before), true);
        self.run(lease, LeaseState::Running { deadline, renewed });
    }

    /// Applies a logged renewal: like [`Leases::set`], but an earlier deadline is ignored (R77).
    /// The deadline of a lease in `ending` has already passed, so any deadline is later.
    pub(crate) fn set_later(&mut self, lease: LeaseNumber, deadline: u64) {
        let deadline = match self.state(lease) {
            LeaseState::Running {
                deadline: before, ..
            } => deadline.max(before),
            LeaseState::Ending { .. } | LeaseState::Free => deadline,
        };
        self.set(lease, deadline);
    }

    /// Whether the lease was renewed without a log entry since it was set.
    pub(crate) fn renewed_since_set(&self, lease: LeaseNumber) -> bool {
        match self.state(lease) {
            LeaseState::Running { renewed, .. } | LeaseState::Ending { renewed, .. } => renewed,
            LeaseState::Free => false,
        }
    }

    /// Returns the state of a lease.
    pub(crate) fn standing(&self, lease: LeaseNumber) -> Option<LeaseStanding> {
        match self.state(lease) {
            LeaseState::Running { deadline, .. } => Some(LeaseStanding::Until(deadline)),
            LeaseState::Ending { number, .. } => Some(LeaseStanding::Ending(number)),
            LeaseState::Free => None,
        }
    }

    /// Returns a lower bound of the next deadline.
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.places.next()
    }

    /// Moves leases with a passed deadline and without pending renewals to `ending`, earliest first
    /// and at most so many, numbered from `number` on, and returns them.
    pub(crate) fn due(&mut self, now_ms: u64, mut number: u64, most: usize) -> Vec<LeaseNumber> {
        let mut ending = Vec::new();
        while ending.len() < most
            && let Some(which) = self.places.take(now_ms)
        {
            let slot = &mut self.slots[which as usize];
            let LeaseState::Running { deadline, renewed } = slot.state.state() else {
                continue;
            };
            let lease = LeaseNumber(which);
            if deadline > now_ms {
                self.enqueue(lease);
            } else if slot.renewals == 0 {
                slot.state = PackedLease::new(LeaseState::Ending { number, renewed });
                number += 1;
                ending.push(lease);
            }
            // With pending renewals: `renewal_leaves` puts the lease back when the last one is
            // decided.
        }
        ending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: LeaseNumber = LeaseNumber(0);
    const B: LeaseNumber = LeaseNumber(1);

    #[test]
    fn deadlines_come_due_in_order_and_once() {
        let mut leases = Leases::default();
        leases.set(B, 200);
        leases.set(A, 100);
        assert_eq!(leases.next_due(), Some(100));
        assert!(leases.due(99, 1, 9).is_empty());
        assert_eq!(leases.due(100, 1, 9), [A]);
        assert_eq!(leases.due(500, 2, 9), [B]);
        assert!(leases.due(u64::MAX, 3, 9).is_empty());
        assert_eq!(leases.standing(B), Some(LeaseStanding::Ending(2)));
    }

    #[test]
    fn deadlines_come_due_in_batches() {
        let mut leases = Leases::default();
        leases.set(B, 100);
        leases.set(A, 100);
        let first = leases.due(100, 1, 1);
        assert_eq!(leases.next_due(), Some(100));
        let second = leases.due(100, 2, 1);
        assert_eq!(first.len() + second.len(), 2);
        assert_ne!(first, second);
        assert_eq!(leases.next_due(), None);
    }

    #[test]
    fn a_lease_set_again_leaves_ending() {
        let mut leases = Leases::default();
        leases.set(A, 100);
        assert_eq!(leases.due(100, 1, 9).len(), 1);
        leases.set(A, 300);
        assert!(leases.due(299, 2, 9).is_empty());
        assert_eq!(leases.due(300, 2, 9), [A]);
    }

    #[test]
    fn a_renewal_moves_a_deadline_later_and_never_earlier() {
        let mut leases = Leases::default();
        leases.set(A, 1_000);
        leases.renew(A, 2_000);
        assert!(leases.due(1_999, 1, 9).is_empty());
        leases.renew(A, 2_500);
        leases.renew(A, 2_100);
        leases.set_later(A, 2_200);
        leases.renew(A, 2_300);
        assert!(leases.renewed_since_set(A));
        assert!(leases.due(2_499, 1, 9).is_empty());
        assert_eq!(leases.due(2_500, 1, 9), [A]);
        assert!(leases.renewed_since_set(A));
        leases.set_later(A, 3_000);
        assert!(!leases.renewed_since_set(A));
        // An acquire may want less.
        leases.set(A, 2_700);
        assert_eq!(leases.due(2_700, 2, 9), [A]);
    }

    /// Step 2: a renewal received before the deadline is waited for; afterwards the end is not lost.
    #[test]
    fn a_waiting_renewal_holds_the_end_back_until_it_is_decided() {
        let mut leases = Leases::default();
        leases.set(A, 100);
        let first = leases.renewal_joins(A).unwrap();
        let second = leases.renewal_joins(A).unwrap();
        assert!(leases.due(150, 1, 9).is_empty());
        leases.renewal_leaves(first);
        assert!(leases.due(150, 1, 9).is_empty());
        leases.renewal_leaves(second);
        assert_eq!(leases.due(150, 1, 9), [A]);
    }

    #[test]
    fn an_ended_lease_leaves_nothing_behind() {
        let mut leases = Leases::default();
        for round in 0..3u64 {
            leases.set(A, 100 + round);
            leases.ended(A);
            assert_eq!(leases.standing(A), None);
            assert!(leases.renewal_joins(A).is_none());
        }
        assert!(leases.due(u64::MAX, 1, 9).is_empty());
        assert_eq!(leases.slots.len(), 1);
        assert_eq!(leases.next_due(), None);
    }

    /// The place in the heap that the former lease has left comes up before this one's time.
    #[test]
    fn a_lease_of_a_used_number_has_its_own_deadline() {
        for (then, now) in [(100, 300), (300, 100)] {
            let mut leases = Leases::default();
            leases.set(A, then);
            leases.ended(A);
            leases.set(A, now);
            assert!(leases.due(now - 1, 1, 9).is_empty());
            assert_eq!(leases.due(now, 1, 9), [A]);
        }
    }

    #[test]
    fn a_renewal_of_a_lease_that_is_gone_does_not_count_for_the_next_one() {
        let mut leases = Leases::default();
        leases.set(A, 100);
        let old = leases.renewal_joins(A).unwrap();
        leases.ended(A);
        leases.set(A, 100);
        let new = leases.renewal_joins(A).unwrap();
        leases.renewal_leaves(old);
        assert!(leases.due(100, 1, 9).is_empty(), "the new one still waits");
        leases.renewal_leaves(new);
        assert_eq!(leases.due(100, 1, 9), [A]);
    }

    /// Promise 5: what was held and released long ago costs nothing.
    #[test]
    fn short_holds_under_long_leases_do_not_pile_up() {
        let mut leases = Leases::default();
        for round in 0..100_000u64 {
            leases.set(A, 1_000_000 + round);
            leases.ended(A);
        }
        assert_eq!(leases.places.len(), 1);
    }
}
