//! How long a holder may believe (leases.md): from the *sending* of the last good renewal, on a clock that also
//! counts suspended time, to 80 % of the ttl. The last fifth belongs to slow clocks.

use std::time::Duration;

use tenure_files::clock::boottime;

/// What a renewal that was confirmed allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// When the request was sent, by `CLOCK_BOOTTIME`.
    pub sent: Duration,
    /// The lease's length.
    pub ttl: Duration,
}

impl Lease {
    /// A lease whose request was sent at this moment of [`now`](Lease::now).
    pub fn new(sent: Duration, ttl: Duration) -> Lease {
        Lease { sent, ttl }
    }

    /// The clock: time since the machine started, suspended or not.
    pub fn now() -> Duration {
        boottime()
    }

    /// The moment by which all work must have stopped.
    pub fn safe_until(&self) -> Duration {
        self.sent + self.ttl * 4 / 5
    }

    /// What is left until then; zero when it is used up.
    pub fn valid_for(&self) -> Duration {
        self.safe_until().saturating_sub(Lease::now())
    }

    /// When the next renewal is due: a third of the ttl after the last was sent.
    pub fn renew_at(&self) -> Duration {
        self.sent + self.ttl / 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last fifth is left unused, and nothing is left of a lease that was sent long ago.
    #[test]
    fn a_lease_is_good_for_four_fifths_from_its_sending() {
        let ttl = Duration::from_secs(10);
        let lease = Lease::new(Duration::from_secs(100), ttl);
        assert_eq!(lease.safe_until(), Duration::from_secs(108));
        let now = Lease::now();
        let sent = now.saturating_sub(Duration::from_secs(9));
        assert_eq!(Lease::new(sent, ttl).valid_for(), Duration::ZERO);
        let left = Lease::new(now, ttl).valid_for();
        assert!(
            left > Duration::from_secs(7) && left <= Duration::from_secs(8),
            "{left:?}"
        );
    }
}
