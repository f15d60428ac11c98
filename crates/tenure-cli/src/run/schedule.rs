//! When the child must be told, terminated and killed (C5). Pure: times come in as numbers.
//!
//! `safe_until` is the moment up to which nobody else can get the lock: the sending of the last good
//! renewal plus 80 % of the ttl. TERM and KILL come early enough that the tree is gone by then.

use std::time::Duration;

/// A moment of `CLOCK_BOOTTIME`, which also counts suspended time.
pub(crate) type BootInstant = Duration;

/// A lease as the supervisor knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChildLease {
    /// Nobody else can hold before.
    pub(crate) safe_until: BootInstant,
    /// The lease's length.
    pub(crate) ttl: Duration,
}

/// The two deadlines of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndDeadlines {
    /// When the tree is asked to end.
    pub(crate) term: BootInstant,
    /// When it is made to.
    pub(crate) kill: BootInstant,
}

impl ChildLease {
    /// What happens if no renewal comes any more.
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
    /// An end that begins now: TERM at once, KILL after the grace, but never later than a lease allows.
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
