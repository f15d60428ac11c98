//! How long a caller is willing to wait.

use std::time::{Duration, Instant};

use crate::wait::Cancel;

/// Whether and how long to wait for a lock that is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// At most this long.
    For(Duration),
    /// Until it is free.
    #[default]
    Forever,
}

impl Wait {
    /// The moment at which to give up; `None` is never. Counted from now, on the monotonic clock (K43).
    pub fn deadline(self) -> Option<Instant> {
        let now = Instant::now();
        match self {
            Wait::No => Some(now),
            // A time beyond the end of the clock is for ever.
            Wait::For(time) => now.checked_add(time),
            Wait::Forever => None,
        }
    }
}

/// `time` after `now`. An interval that a caller chose may be longer than the clock has room for; a
/// century is as good as never then.
pub(crate) fn after(now: Instant, time: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
    now + time.min(CENTURY)
}

/// A wait under way: until when, and who may call it off.
#[derive(Clone, Debug)]
pub(crate) struct Deadline {
    pub(crate) deadline: Option<Instant>,
    pub(crate) cancel: Option<Cancel>,
}

impl Deadline {
    /// Begins now.
    pub(crate) fn new(wait: Wait, cancel: Option<Cancel>) -> Deadline {
        Deadline {
            deadline: wait.deadline(),
            cancel,
        }
    }

    /// Whether the time is up, or the wait was called off.
    pub(crate) fn is_over(&self) -> bool {
        self.deadline
            .is_some_and(|deadline| deadline <= Instant::now())
            || self.cancel.as_ref().is_some_and(Cancel::is_cancelled)
    }

    /// `at`, or the deadline if that is earlier.
    pub(crate) fn until(&self, at: Instant) -> Instant {
        self.deadline.map_or(at, |deadline| deadline.min(at))
    }
}
