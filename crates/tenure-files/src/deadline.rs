//! How long a caller is willing to wait.

use std::time::{Duration, Instant};

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
