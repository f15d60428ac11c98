//! Deadlines for the end of the child: C5 (stop before the lease ends). Pure functions of time.
//!
//! Before `safe_until` no other owner can get the lock: it is the sending of the last confirmed
//! renewal plus 80 % of the ttl. TERM and KILL come early enough that the tree has ended by then.

use std::time::Duration;

/// A time of `CLOCK_BOOTTIME`, which includes suspended time.
pub(crate) type BootInstant = Duration;

/// A lease as the supervisor knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChildLease {
    /// No other owner can hold the lock before this time.
    pub(crate) safe_until: BootInstant,
    /// The length of the lease.
    pub(crate) ttl: Duration,
}

/// When TERM and KILL are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndDeadlines {
    /// TERM.
    pub(crate) term: BootInstant,
    /// KILL.
    pub(crate) kill: BootInstant,
}

impl ChildLease {
    /// Returns the deadlines if no further renewal arrives.
    pub(crate) fn deadlines(self, grace: Duration) -> EndDeadlines {
        let term = self.safe_until.saturating_sub(grace.min(self.ttl / 6));
        let kill = self
            .safe_until
            .saturating_sub(Duration::from_secs(1).min(self.ttl / 20));
        EndDeadlines {
            term: term.min(kill),
            kill,
        }
    }
}

impl EndDeadlines {
    /// Returns the deadlines of an end that begins now: TERM at once, KILL after `grace`, but never
    /// later than the lease allows.
    pub(crate) fn from_now(
        now: BootInstant,
        grace: Duration,
        lease: Option<ChildLease>,
    ) -> EndDeadlines {
        let kill = now + grace;
        let kill = lease.map_or(kill, |lease| kill.min(lease.deadlines(grace).kill));
        EndDeadlines {
            term: now,
            kill: kill.max(now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// C5: TERM at safe-until − min(grace, ttl/6), KILL at safe-until − min(1 s, ttl/20).
    #[test]
    fn a_lease_of_thirty_seconds_ends_in_time() {
        let lease = ChildLease {
            safe_until: 124 * SECOND,
            ttl: 30 * SECOND,
        };
        let deadlines = lease.deadlines(10 * SECOND);
        assert_eq!(deadlines.term, 119 * SECOND);
        assert_eq!(deadlines.kill, 123 * SECOND);
        assert_eq!(lease.deadlines(2 * SECOND).term, 122 * SECOND);
    }

    /// C5: a short lease leaves little time, but KILL still comes before safe-until and after TERM.
    #[test]
    fn a_short_lease_keeps_the_order() {
        let lease = ChildLease {
            safe_until: 10 * SECOND,
            ttl: SECOND,
        };
        let deadlines = lease.deadlines(10 * SECOND);
        assert!(deadlines.term < deadlines.kill && deadlines.kill < lease.safe_until);
        let none = lease.deadlines(Duration::ZERO);
        assert!(none.term <= none.kill);
    }

    /// C5: a known loss begins at once, but a lease never stretches.
    #[test]
    fn a_known_loss_begins_at_once() {
        let now = 100 * SECOND;
        assert_eq!(
            EndDeadlines::from_now(now, 10 * SECOND, None).kill,
            110 * SECOND
        );
        let lease = ChildLease {
            safe_until: 104 * SECOND,
            ttl: 30 * SECOND,
        };
        assert_eq!(
            EndDeadlines::from_now(now, 10 * SECOND, Some(lease)).kill,
            103 * SECOND
        );
        let over = ChildLease {
            safe_until: 90 * SECOND,
            ttl: 30 * SECOND,
        };
        assert_eq!(
            EndDeadlines::from_now(now, 10 * SECOND, Some(over)).kill,
            now
        );
    }
}
