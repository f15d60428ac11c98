//! Lease arithmetic (leases.md): the leader's lease decisions as pure functions.

use crate::value::Ttl;

/// Leases up to this length are renewed without a log entry, whatever their cover.
pub const SHORT_LEASE_MS: u64 = 60_000;

/// How much longer than its ttl the log covers a lease.
pub const COVER_SLACK_MS: u64 = 60_000;

/// Returns whether a renewal with `new_ttl` at `lease_time` needs no log entry (step 4).
pub fn covered(ttl: Ttl, cover: u64, new_ttl: Ttl, lease_time: u64) -> bool {
    if ttl.millis() <= SHORT_LEASE_MS {
        return new_ttl <= ttl;
    }
    // `cover` must reach the promised end. It never lies further behind the lease's own end than
    // `COVER_SLACK_MS`, because a renewal never moves that end earlier (R77: a renewal never
    // shortens a lease).
    lease_time.saturating_add(new_ttl.millis()) <= cover
}

/// Returns the time that a new leader grants a lease, counted from its first own entry (step 1).
pub fn left(ttl: Ttl, cover: u64, time: u64) -> u64 {
    if ttl.millis() <= SHORT_LEASE_MS {
        ttl.millis()
    } else {
        cover.saturating_sub(time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ttl(millis: u64) -> Ttl {
        Ttl::from_millis(millis).unwrap()
    }

    #[test]
    fn a_short_lease_never_writes_unless_it_grows() {
        assert!(covered(ttl(60_000), 0, ttl(60_000), 1_000_000));
        assert!(covered(ttl(60_000), 0, ttl(1), 1_000_000));
        assert!(!covered(ttl(1_000), u64::MAX, ttl(1_001), 0));
    }

    #[test]
    fn a_long_lease_writes_once_a_minute() {
        // Set at 0 with 100 s: cover is 160 s.
        assert!(covered(ttl(100_000), 160_000, ttl(100_000), 60_000));
        assert!(!covered(ttl(100_000), 160_000, ttl(100_000), 60_001));
        // A shorter renewal has no effect, so it needs no entry (R77).
        assert!(covered(ttl(100_000), 160_000, ttl(61_000), 0));
    }

    #[test]
    fn a_new_leader_gives_at_least_what_was_promised() {
        assert_eq!(left(ttl(5_000), 65_000, 64_000), 5_000);
        assert_eq!(left(ttl(100_000), 160_000, 60_000), 100_000);
        assert_eq!(left(ttl(100_000), 160_000, 170_000), 0);
    }
}
