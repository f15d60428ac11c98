//! Virtual time, and simulated clocks that run fast or slow.

/// Microseconds since the start of the run.
pub(crate) type SimTime = u64;

pub(crate) const MILLISECOND: SimTime = 1_000;
pub(crate) const SECOND: SimTime = 1_000_000;

/// A clock of one node: it runs at its own rate, and its wall clock can be set.
#[derive(Clone, Debug)]
pub(crate) struct SimClock {
    /// Rate per mille of true time. `docs/design/leases.md` allows 900 to 1100.
    rate: u64,
    /// The reading at `since`, in microseconds.
    shown: u64,
    since: SimTime,
    /// Offset of the wall clock, in milliseconds.
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

    /// Returns the monotonic reading, in microseconds.
    pub(crate) fn shows(&self, now: SimTime) -> u64 {
        self.shown + (now - self.since) * self.rate / 1000
    }

    pub(crate) fn set_rate(&mut self, rate: u64, now: SimTime) {
        self.shown = self.shows(now);
        self.since = now;
        self.rate = rate;
    }

    /// Sets the monotonic clock back. No lease may end earlier because of it.
    pub(crate) fn set_back(&mut self, by: u64, now: SimTime) {
        self.shown = self.shows(now).saturating_sub(by);
        self.since = now;
    }

    /// Moves the monotonic clock ahead, which a real one never does. Only a contract violation uses
    /// it.
    pub(crate) fn set_forward(&mut self, by: u64, now: SimTime) {
        self.shown = self.shows(now) + by;
        self.since = now;
    }

    pub(crate) fn step_wall(&mut self, by_ms: i64) {
        self.wall_off += by_ms;
    }

    /// Returns the time that the driver passes to a step.
    pub(crate) fn moment(&self, now: SimTime) -> tenure_node::StepTime {
        let wall =
            1_700_000_000_000_i64 + i64::try_from(now / MILLISECOND).unwrap_or(0) + self.wall_off;
        tenure_node::StepTime {
            monotonic_ms: self.shows(now) / MILLISECOND,
            wall_ms: u64::try_from(wall).unwrap_or(0),
        }
    }

    /// Returns the true time in which this clock advances by `shown`.
    pub(crate) fn takes(&self, shown: u64) -> SimTime {
        shown * 1000 / self.rate
    }
}
