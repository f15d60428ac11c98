//! Seeded random numbers, so that a failure is reproducible.

use tenure_random::SplitMix64;

/// A small generator. Equal seeds give equal numbers.
#[derive(Clone)]
pub(crate) struct Rng(SplitMix64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        let spread = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Rng(SplitMix64::new(spread ^ 0x1234_5678_9abc_def0))
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.0.next()
    }

    /// Returns a number below `end`, which is not zero.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    /// Returns true with a probability of 1 / `n`.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// Returns a list of up to `most` elements.
    pub(crate) fn list<T>(&mut self, most: u64, mut make: impl FnMut(&mut Rng) -> T) -> Vec<T> {
        (0..self.below(most + 1)).map(|_| make(self)).collect()
    }

    pub(crate) fn maybe<T>(&mut self, make: impl FnOnce(&mut Rng) -> T) -> Option<T> {
        if self.one_in(2) {
            Some(make(self))
        } else {
            None
        }
    }
}
