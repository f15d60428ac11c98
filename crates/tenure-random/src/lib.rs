//! SplitMix64: a small generator of pseudo-random numbers that a seed determines.
//!
//! It spreads timers and retries, and selects faults and inputs of tests, so that a run can be
//! repeated from its seed. Its numbers are predictable: never use them as secrets.

#![no_std]

/// A SplitMix64 generator. Equal seeds give equal numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Creates a generator.
    pub const fn new(seed: u64) -> SplitMix64 {
        SplitMix64(seed)
    }

    /// Returns the next number.
    #[allow(
        clippy::should_implement_trait,
        reason = "the sequence has no end, so an iterator's `Option` would only be in the way"
    )]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns an independent generator, so that the draws of one part do not change those of
    /// another.
    pub fn split(&mut self) -> SplitMix64 {
        SplitMix64(self.next() ^ 0x5851_f42d_4c95_7f2d)
    }

    /// Returns an independent generator for the part with number `salt`.
    pub fn split_for(&mut self, salt: u64) -> SplitMix64 {
        SplitMix64(self.next() ^ salt.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    /// Returns a number from 0 to `end` − 1, or 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next().checked_rem(end).unwrap_or(0)
    }

    /// Returns a number from `low` to `high`, both inclusive. `low` must not exceed `high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns an index from 0 to `end` − 1, or 0 if `end` is 0.
    pub fn index(&mut self, end: usize) -> usize {
        self.below(end as u64) as usize
    }

    /// Returns true with a probability of `per_mille` / 1000.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// Returns true with a probability of 1 / `count`.
    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// Returns one of the values, which must not be empty.
    pub fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.index(values.len())]
    }
}

/// The output function of SplitMix64: every bit of `z` affects every bit of the result.
pub const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::SplitMix64;

    /// The first numbers of the published reference implementation for the seed 1234567.
    #[test]
    fn the_numbers_are_those_of_splitmix64() {
        let mut random = SplitMix64::new(1_234_567);
        let first = [(); 3].map(|()| random.next());
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(first, expected);
    }
}
