//! Wait modes.

use std::time::{Duration, Instant};

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
