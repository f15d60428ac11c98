//! Virtual time, and clocks that do not quite follow it.

/// Microseconds since the run began.
pub(crate) type SimTime = u64;

pub(crate) const MILLISECOND: SimTime = 1_000;
pub(crate) const SECOND: SimTime = 1_000_000;

/// A clock somewhere: it runs at its own rate, and its wall part may be set.
#[derive(Clone, Debug)]
pub(crate) struct SimClock {
    /// Per mille of true time; leases.md allows 900 to 1100.
    rate: u64,
    /// What it showed, in microseconds, at `since`.
    shown: u64,
    since: SimTime,
    /// How far the wall clock is off, in milliseconds.
    wall_off: i64,
}

impl SimClock {
    pub(crate) fn new(rate: u64, now: SimTime) -> SimClock {
        SimClock {
            rate,
            shown: 5 * SECOND,
            since: now,
            wall_off: 0,
        }
    }

    pub(crate) fn shows(&self, now: SimTime) -> u64 {
        self.shown + (now - self.since) * self.rate / 1000
    }

    pub(crate) fn set_rate(&mut self, rate: u64, now: SimTime) {
        self.shown = self.shows(now);
        self.since = now;
        self.rate = rate;
    }

    /// The monotonic clock is set back: nobody's lease may end sooner for it.
    pub(crate) fn set_back(&mut self, by: u64, now: SimTime) {
        self.shown = self.shows(now).saturating_sub(by);
        self.since = now;
    }

    /// The monotonic clock leaps, which no real one does: only a breach asks for it.
    pub(crate) fn set_forward(&mut self, by: u64, now: SimTime) {
        self.shown = self.shows(now) + by;
        self.since = now;
    }

    pub(crate) fn step_wall(&mut self, by_ms: i64) {
        self.wall_off += by_ms;
    }

    pub(crate) fn moment(&self, now: SimTime) -> tenure_node::StepTime {
        let wall =
            1_700_000_000_000_i64 + i64::try_from(now / MILLISECOND).unwrap_or(0) + self.wall_off;
        tenure_node::StepTime {
            monotonic_ms: self.shows(now) / MILLISECOND,
            wall_ms: u64::try_from(wall).unwrap_or(0),
        }
    }

    /// How long true time takes until this clock has advanced by so much.
    pub(crate) fn takes(&self, shown: u64) -> SimTime {
        shown * 1000 / self.rate
    }
}
