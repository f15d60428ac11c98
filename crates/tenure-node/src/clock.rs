//! Monotonic running time of this node, in milliseconds.
//!
//! The driver passes a monotonic instant to every step. The clock adds up the differences, at most
//! one second per step. Time in which the node did not run (stopped, suspended, stuck) therefore
//! does not expire any lease, and an instant that jumps or goes back is harmless.

use crate::StepTime;

/// The most that one step may add.
const MOST_PER_STEP_MS: u64 = 1000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    last: u64,
    now_ms: u64,
    wall: u64,
}

impl Clock {
    pub(crate) fn new(now: StepTime) -> Clock {
        Clock {
            last: now.monotonic_ms,
            // Not zero, so that nothing is confused with "never".
            now_ms: 1,
            wall: now.wall_ms,
        }
    }

    pub(crate) fn advance(&mut self, now: StepTime) {
        let passed = now.monotonic_ms.saturating_sub(self.last);
        self.now_ms += passed.min(MOST_PER_STEP_MS);
        self.last = now.monotonic_ms;
        self.wall = now.wall_ms;
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// For event ids only (R121: event ids).
    pub(crate) fn wall(&self) -> u64 {
        self.wall
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(monotonic_ms: u64) -> StepTime {
        StepTime {
            monotonic_ms,
            wall_ms: 0,
        }
    }

    /// R94 (leases use monotonic leader time): suspended time does not count, and no clock jump
    /// ends a lease.
    #[test]
    fn a_leap_counts_as_one_second_and_going_back_as_nothing() {
        let mut clock = Clock::new(at(5_000));
        let start = clock.now_ms();
        clock.advance(at(5_400));
        assert_eq!(clock.now_ms(), start + 400);
        clock.advance(at(3_600_000));
        assert_eq!(clock.now_ms(), start + 1_400);
        clock.advance(at(10));
        assert_eq!(clock.now_ms(), start + 1_400);
        clock.advance(at(20));
        assert_eq!(clock.now_ms(), start + 1_410);
    }
}
