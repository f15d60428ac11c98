//! Pseudo-random numbers of a procedure, seeded by the caller so that a run can be repeated.

use std::time::Duration;

use tenure_random::mix;

/// SplitMix64 generator with a 128-bit seed. Its numbers separate processes and add jitter to
/// waits; they are not used as secrets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Rng {
    high: u64,
    low: u64,
}

impl Rng {
    pub(super) fn new(seed: u128) -> Rng {
        let [high, low] = [seed >> 64, seed].map(|half| (half & u128::from(u64::MAX)) as u64);
        Rng { high, low }
    }

    /// Returns the next number.
    pub(super) fn number(&mut self) -> u64 {
        self.low = self.low.wrapping_add(0x9e37_79b9_7f4a_7c15);
        // Mix in the other half of the seed, so that all 128 bits separate two processes.
        self.high = mix(self.high ^ self.low);
        self.high
    }

    /// Returns a token of 32 hex digits (K6 (the `tenure` block)).
    pub(super) fn token(&mut self) -> String {
        format!("{:016x}{:016x}", self.number(), self.number())
    }

    /// Returns `span` with a jitter of ±10 % (K43 (poll jitter and deadlines)).
    pub(super) fn around(&mut self, span: Duration) -> Duration {
        let per_mille = 900 + u32::try_from(self.number() % 201).unwrap_or(0);
        span * per_mille / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// K43: ±10 %, and both bounds occur.
    #[test]
    fn jitter_stays_within_a_tenth() {
        let mut rng = Rng::new(7);
        let spans: Vec<_> = (0..2000)
            .map(|_| rng.around(Duration::from_secs(2)))
            .collect();
        assert_eq!(spans.iter().min(), Some(&Duration::from_millis(1800)));
        assert_eq!(spans.iter().max(), Some(&Duration::from_millis(2200)));
    }

    /// K6: every token is new and depends on both halves of the seed.
    #[test]
    fn tokens_differ() {
        let mut rng = Rng::new(1);
        assert_ne!(rng.token(), rng.token());
        assert_ne!(Rng::new(1).token(), Rng::new(1 << 64).token());
        assert_eq!(Rng::new(9).token().len(), 32);
    }
}
