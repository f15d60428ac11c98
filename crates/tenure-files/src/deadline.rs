//! Wait modes and deadlines.

use std::time::{Duration, Instant};

use crate::wait::Cancel;

/// Whether and how long to wait for a held lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Do not wait.
    No,
    /// Wait at most this long.
    For(Duration),
    /// Wait without limit.
    #[default]
    Forever,
}

impl Wait {
    /// Returns the deadline, counted from now on the monotonic clock, or `None` for no limit (K43
    /// (poll jitter and deadlines)).
    pub fn deadline(self) -> Option<Instant> {
        let now = Instant::now();
        match self {
            Wait::No => Some(now),
            // A deadline beyond the range of the clock means no limit.
            Wait::For(time) => now.checked_add(time),
            Wait::Forever => None,
        }
    }
}

/// Returns `now + time`, limited to 100 years: an interval chosen by a caller may exceed the range
/// of the clock.
pub(crate) fn after(now: Instant, time: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
    now + time.min(CENTURY)
}

/// A running wait: its deadline and its cancellation handle.
#[derive(Clone, Debug)]
pub(crate) struct Deadline {
    pub(crate) deadline: Option<Instant>,
    pub(crate) cancel: Option<Cancel>,
}

impl Deadline {
    /// Starts the wait now.
    pub(crate) fn new(wait: Wait, cancel: Option<Cancel>) -> Deadline {
        Deadline {
            deadline: wait.deadline(),
            cancel,
        }
    }

    /// Returns whether the deadline has passed or the wait was cancelled.
    pub(crate) fn is_over(&self) -> bool {
        self.deadline
            .is_some_and(|deadline| deadline <= Instant::now())
            || self.cancel.as_ref().is_some_and(Cancel::is_cancelled)
    }

    /// Returns `at` or the deadline, whichever is earlier.
    pub(crate) fn until(&self, at: Instant) -> Instant {
        self.deadline.map_or(at, |deadline| deadline.min(at))
    }
}
