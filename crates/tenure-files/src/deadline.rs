//! Wait modes and deadlines.

use std::time::{Duration, Instant};

pub use tenure_base::Wait;

use crate::wait::Cancel;

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
