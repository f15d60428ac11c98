//! Clocks: wall clock for ages of files (K45 (age of files and objects)), `CLOCK_BOOTTIME` for
//! leases (K35 (lease time)).
//!
//! A time stamp in the future never proves that a lock is dead (K46 (future time stamps)).
//! Decisions take a [`Clock`], so that tests can set the time.

use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

pub use tenure_base::HumanDuration;

use crate::dir::Dir;
use crate::error::Result;
use crate::identity::Here;

/// Safety margin against removal where two clocks may disagree (K45).
pub(crate) const SKEW: Duration = Duration::from_secs(10);

/// The wall clock for decisions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock(Option<SystemTime>);

impl Clock {
    /// The clock of this machine.
    pub const SYSTEM: Clock = Clock(None);

    /// Returns a clock that always shows `now`: for tests, and for decisions as of a given time.
    pub fn fixed(now: SystemTime) -> Clock {
        Clock(Some(now))
    }

    /// Returns the current time.
    pub(crate) fn now(&self) -> SystemTime {
        self.0.unwrap_or_else(SystemTime::now)
    }

    /// Returns the current time by the clock of the directory's file system: this machine's clock
    /// if the file system is local, otherwise the modification time of a private file created for
    /// this purpose (K45).
    pub fn now_in(&self, dir: &Dir) -> Result<SystemTime> {
        match self.0 {
            Some(now) => Ok(now),
            None if dir.is_local() => Ok(SystemTime::now()),
            None => crate::publish::file_system_time(dir),
        }
    }
}

/// Returns the age of something with the time stamp `then`. A time in the future has age zero and
/// proves nothing (K46).
pub(crate) fn age(now: SystemTime, then: SystemTime) -> Duration {
    now.duration_since(then).unwrap_or(Duration::ZERO)
}

/// Returns the time since boot without suspended time (`CLOCK_MONOTONIC`).
pub(crate) fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or(0),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}

/// Returns the boot time by the wall clock (`btime` of `/proc/stat`), if available. A time namespace
/// shifts it, so it is not available there.
pub(crate) fn booted_at() -> Option<SystemTime> {
    if !Here::now().has_machine_clocks() {
        return None;
    }
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let seconds = stat
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?
        .trim()
        .parse()
        .ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// Formats a time as RFC 3339 text in UTC; `None` if it is out of the calendar's range.
pub(crate) fn format(time: SystemTime) -> Option<String> {
    jiff::Timestamp::try_from(time)
        .ok()
        .map(|timestamp| timestamp.to_string())
}

/// Formats a time as ISO 8601 text in UTC with exactly three fractional digits, as JavaScript does.
/// A time out of range gives the Unix epoch.
pub(crate) fn format_millis(time: SystemTime) -> String {
    let timestamp = jiff::Timestamp::try_from(time).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    format!("{timestamp:.3}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// K46: a future date is age zero.
    #[test]
    fn the_future_has_no_age() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        assert_eq!(age(now, now + Duration::from_secs(5)), Duration::ZERO);
        assert_eq!(
            age(now, now - Duration::from_secs(5)),
            Duration::from_secs(5)
        );
    }

    /// K19: the boot time is known and correct.
    #[test]
    fn the_kernel_says_when_it_booted() {
        let booted = booted_at().expect("Linux has btime");
        let expected = SystemTime::now() - tenure_base::boottime();
        let difference = age(expected, booted).max(age(booted, expected));
        assert!(difference < SKEW, "btime is {difference:?} off");
    }

    #[test]
    fn millis_have_three_digits() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_500);
        assert_eq!(format_millis(time), "1970-01-01T00:00:01.500Z");
        assert_eq!(
            format_millis(SystemTime::UNIX_EPOCH),
            "1970-01-01T00:00:00.000Z"
        );
    }

    #[test]
    fn durations_for_people_are_short() {
        let of = |seconds| HumanDuration(Duration::from_secs(seconds)).to_string();
        let short = HumanDuration(Duration::from_millis(250)).to_string();
        assert_eq!(
            [short, of(3), of(180), of(7200), of(200_000)],
            ["250 ms", "3 s", "3 min", "2 h", "2 days"]
        );
    }
}
