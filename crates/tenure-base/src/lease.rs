//! Client-side lease arithmetic (leases.md).
//!
//! A holder may rely on a lease for 80 % of its ttl, counted from the *sending* of the last
//! confirmed renewal, on a clock that includes suspended time. The last 20 % allow for clocks of
//! different speed.

use std::time::Duration;

/// Returns the time since boot, including suspended time: the clock of leases (K35 (lease time)).
#[cfg(any(target_os = "linux", target_os = "android"))]
pub fn boottime() -> Duration {
    read(rustix::time::ClockId::Boottime)
}

/// Returns the time since an arbitrary start, including suspended time: on other Unix systems that
/// this crate is built for, the monotonic clock counts it.
#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
pub fn boottime() -> Duration {
    read(rustix::time::ClockId::Monotonic)
}

/// Returns the time since the first call. The performance counter of Windows includes suspended time.
#[cfg(not(unix))]
pub fn boottime() -> Duration {
    static START: std::sync::LazyLock<std::time::Instant> =
        std::sync::LazyLock::new(std::time::Instant::now);
    START.elapsed()
}

#[cfg(unix)]
fn read(clock: rustix::time::ClockId) -> Duration {
    let now = rustix::time::clock_gettime(clock);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or(0),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}

/// The lease that a confirmed renewal grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// When the request was sent (`CLOCK_BOOTTIME`).
    pub sent: Duration,
    /// The length of the lease.
    pub ttl: Duration,
}

impl Lease {
    /// Returns the part of a lease that its holder may use: 80 % of the ttl.
    pub fn usable(ttl: Duration) -> Duration {
        ttl * 4 / 5
    }

    /// Creates a lease for a request that was sent at `sent`, a time of [`now`](Lease::now).
    pub fn new(sent: Duration, ttl: Duration) -> Lease {
        Lease { sent, ttl }
    }

    /// Returns the time since boot, including suspended time (`CLOCK_BOOTTIME`).
    pub fn now() -> Duration {
        boottime()
    }

    /// Returns the time by which the protected work must have stopped: 80 % of the ttl after the
    /// sending.
    pub fn safe_until(&self) -> Duration {
        self.sent + Lease::usable(self.ttl)
    }

    /// Returns the time until [`safe_until`](Lease::safe_until), or zero if it has passed.
    pub fn valid_for(&self) -> Duration {
        self.safe_until().saturating_sub(Lease::now())
    }

    /// Returns when the next renewal is due: a third of the ttl after the sending. This leaves time
    /// for retries.
    pub fn renew_at(&self) -> Duration {
        self.sent + self.ttl / 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lease is good for 80 % of its ttl from its sending, and for zero time after that.
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
