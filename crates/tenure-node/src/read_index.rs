//! ReadIndex batching: one confirmation of leadership for all reads and renewals that wait for it.
//!
//! ```text
//!   join ──▶ [next] ──start──▶ [flying] ──confirmed──▶ [held until applied] ──▶ answered
//!              ▲                   └── no answer for a second: again, as a new round
//!              └───────────────────┘
//! ```
//!
//! A round starts after all its waiters were received, and its context is never reused. So its
//! confirmation proves that this node led the group at a moment after it received each of them. A
//! waiter is then held until the index of the round, and every ending proposed before the waiter
//! was received, are applied (leases.md, steps 4 and 5).

use std::collections::VecDeque;

use crate::NodeId;
use crate::consensus::ReadRound;

/// A round without an answer for this long is abandoned, and its waiters join a new one.
const GIVE_UP_AFTER_MS: u64 = 1000;

/// Numbers the rounds of one process: node, start and counter make a context that is never reused.
#[derive(Clone, Debug)]
pub(crate) struct RoundCounter {
    node: NodeId,
    nonce: u64,
    last: u64,
}

impl RoundCounter {
    pub(crate) fn new(node: NodeId, nonce: u64) -> RoundCounter {
        RoundCounter {
            node,
            nonce,
            last: 0,
        }
    }

    pub(crate) fn next(&mut self) -> ReadRound {
        self.last += 1;
        ReadRound {
            node: self.node,
            nonce: self.nonce,
            number: self.last,
        }
    }
}

/// What must be applied before a confirmed waiter can be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AppliedUntil {
    /// The index of its round.
    pub(crate) index: u64,
    /// The number of the last ending proposed before it was received.
    pub(crate) endings: u64,
}

/// The ReadIndex rounds of one group. `W` is the type of a waiter.
#[derive(Debug)]
pub(crate) struct ReadIndexRounds<W> {
    next: Vec<(W, u64)>,
    flying: VecDeque<PendingRound<W>>,
    held: VecDeque<(W, AppliedUntil)>,
    flying_waiters: usize,
}

#[derive(Debug)]
struct PendingRound<W> {
    round: ReadRound,
    started: u64,
    waiters: Vec<(W, u64)>,
}

impl<W> Default for ReadIndexRounds<W> {
    fn default() -> ReadIndexRounds<W> {
        ReadIndexRounds {
            next: Vec::new(),
            flying: VecDeque::new(),
            held: VecDeque::new(),
            flying_waiters: 0,
        }
    }
}

impl<W> ReadIndexRounds<W> {
    /// Adds a waiter to the next round. `endings` is the number of endings proposed before it was
    /// received.
    pub(crate) fn join(&mut self, waiter: W, endings: u64) {
        self.next.push((waiter, endings));
    }

    /// Starts the next round and returns its context, if it has waiters.
    pub(crate) fn start(&mut self, counter: &mut RoundCounter, now_ms: u64) -> Option<ReadRound> {
        if self.next.is_empty() {
            return None;
        }
        let round = counter.next();
        self.flying_waiters += self.next.len();
        self.flying.push_back(PendingRound {
            round,
            started: now_ms,
            waiters: std::mem::take(&mut self.next),
        });
        Some(round)
    }

    /// A quorum has confirmed a round: at its start everything up to `index` was committed.
    pub(crate) fn confirmed(&mut self, round: ReadRound, index: u64) {
        let Some(at) = self.flying.iter().position(|other| other.round == round) else {
            return;
        };
        if let Some(flying) = self.flying.remove(at) {
            self.flying_waiters -= flying.waiters.len();
            for (waiter, endings) in flying.waiters {
                self.held
                    .push_back((waiter, AppliedUntil { index, endings }));
            }
        }
    }

    /// Confirms the waiters of the next round without a round: this replica is the only voter and
    /// has committed everything up to `index`.
    pub(crate) fn confirmed_alone(&mut self, index: u64) {
        let confirmed = |(waiter, endings)| (waiter, AppliedUntil { index, endings });
        self.held.extend(self.next.drain(..).map(confirmed));
    }

    /// Puts a confirmed waiter back until more is applied.
    pub(crate) fn hold(&mut self, waiter: W, until: AppliedUntil) {
        self.held.push_back((waiter, until));
    }

    /// Returns the number of waiters that are confirmed and held.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    /// Takes the first held waiter if everything that it needs is applied; otherwise moves it to
    /// the end. [`Self::held`] calls in a row check every held waiter, in the order of
    /// confirmation.
    pub(crate) fn ripe(&mut self, applied: u64, endings_applied: u64) -> Option<(W, AppliedUntil)> {
        let (waiter, until) = self.held.pop_front()?;
        if until.index <= applied && until.endings <= endings_applied {
            return Some((waiter, until));
        }
        self.held.push_back((waiter, until));
        None
    }

    /// Restarts rounds that got no answer, under a new context. Removes and returns waiters that
    /// are `over`.
    pub(crate) fn tick(&mut self, now_ms: u64, over: impl Fn(&W) -> bool) -> Vec<W> {
        let mut left = Vec::new();
        while self
            .flying
            .front()
            .is_some_and(|flying| flying.started + GIVE_UP_AFTER_MS <= now_ms)
        {
            if let Some(flying) = self.flying.pop_front() {
                self.flying_waiters -= flying.waiters.len();
                for (waiter, endings) in flying.waiters {
                    if over(&waiter) {
                        left.push(waiter);
                    } else {
                        self.next.push((waiter, endings));
                    }
                }
            }
        }
        left
    }

    /// Removes and returns all waiters: leadership is lost.
    pub(crate) fn clear(&mut self) -> Vec<W> {
        self.flying_waiters = 0;
        let next = self.next.drain(..).map(|(waiter, _)| waiter);
        let flying = self
            .flying
            .drain(..)
            .flat_map(|flying| flying.waiters)
            .map(|(waiter, _)| waiter);
        let held = self.held.drain(..).map(|(waiter, _)| waiter);
        next.chain(flying).chain(held).collect()
    }

    /// Whether a round can be started now.
    pub(crate) fn wants_start(&self) -> bool {
        !self.next.is_empty()
    }

    /// Returns the number of waiters.
    pub(crate) fn len(&self) -> usize {
        self.next.len() + self.flying_waiters + self.held.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter() -> RoundCounter {
        RoundCounter::new(NodeId::new(1).unwrap(), 99)
    }

    /// A renewal must be confirmed by a round that started after it was received.
    #[test]
    fn whoever_comes_after_the_start_of_a_round_waits_for_the_next() {
        let (mut rounds, mut counter) = (ReadIndexRounds::default(), counter());
        rounds.join("early", 0);
        let first = rounds.start(&mut counter, 0).unwrap();
        rounds.join("late", 0);
        rounds.confirmed(first, 5);
        assert_eq!(ripe(&mut rounds, 5, 0), ["early"]);
        let second = rounds.start(&mut counter, 1).unwrap();
        assert_ne!(first, second);
        rounds.confirmed(second, 5);
        assert_eq!(ripe(&mut rounds, 5, 0), ["late"]);
    }

    fn ripe<'a>(rounds: &mut ReadIndexRounds<&'a str>, applied: u64, endings: u64) -> Vec<&'a str> {
        let looks = 0..rounds.held();
        let ripe = looks.filter_map(|_| rounds.ripe(applied, endings));
        ripe.map(|(waiter, _)| waiter).collect()
    }

    #[test]
    fn a_confirmed_read_waits_for_its_index_and_for_earlier_endings() {
        let (mut rounds, mut counter) = (ReadIndexRounds::default(), counter());
        rounds.join("read", 3);
        let round = rounds.start(&mut counter, 0).unwrap();
        assert!(ripe(&mut rounds, 9, 9).is_empty(), "not confirmed yet");
        rounds.confirmed(round, 8);
        assert!(ripe(&mut rounds, 7, 3).is_empty());
        assert!(ripe(&mut rounds, 8, 2).is_empty());
        assert_eq!(ripe(&mut rounds, 8, 3), ["read"]);
    }

    /// A single voter needs no round, but a waiter still waits for endings proposed before it.
    #[test]
    fn whoever_alone_decides_needs_no_round_but_waits_for_what_is_committed() {
        let mut rounds = ReadIndexRounds::default();
        rounds.join("read", 1);
        rounds.confirmed_alone(4);
        assert!(!rounds.wants_start());
        assert!(ripe(&mut rounds, 3, 1).is_empty());
        assert!(ripe(&mut rounds, 4, 0).is_empty());
        assert_eq!(ripe(&mut rounds, 4, 1), ["read"]);
    }

    #[test]
    fn those_held_back_keep_their_order() {
        let mut rounds = ReadIndexRounds::default();
        for (waiter, index) in [("a", 5), ("b", 1), ("c", 5)] {
            rounds.hold(waiter, AppliedUntil { index, endings: 0 });
        }
        assert_eq!(ripe(&mut rounds, 1, 0), ["b"]);
        assert_eq!(ripe(&mut rounds, 5, 0), ["a", "c"]);
    }

    /// A context is never used twice, not even for a retry.
    #[test]
    fn a_round_without_a_word_is_asked_again_under_a_new_context() {
        let (mut rounds, mut counter) = (ReadIndexRounds::default(), counter());
        rounds.join("read", 0);
        rounds.join("gone", 0);
        let first = rounds.start(&mut counter, 0).unwrap();
        assert!(rounds.tick(GIVE_UP_AFTER_MS - 1, |_| true).is_empty());
        assert_eq!(
            rounds.tick(GIVE_UP_AFTER_MS, |waiter| *waiter == "gone"),
            ["gone"]
        );
        let second = rounds.start(&mut counter, GIVE_UP_AFTER_MS).unwrap();
        assert_ne!(first, second);
        rounds.confirmed(first, 1);
        assert!(
            ripe(&mut rounds, 9, 9).is_empty(),
            "the late confirmation counts for no round"
        );
        rounds.confirmed(second, 1);
        assert_eq!(ripe(&mut rounds, 9, 9), ["read"]);
    }
}
