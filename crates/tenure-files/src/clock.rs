//! Time: wall clock for ages of files (K45), `CLOCK_BOOTTIME` for leases (K35).
//!
//! A wall clock reading never proves on its own that a lock is dead when it lies in the future
//! (K46). Decisions take a [`Clock`], so that tests can hold it still.

use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

use crate::dir::Dir;
use crate::error::Result;

/// Added against reclaiming wherever two clocks may disagree (K45).
pub const SKEW: Duration = Duration::from_secs(10);

/// The wall clock that decisions go by.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock(Option<SystemTime>);

impl Clock {
    /// The clock of this machine.
    pub const SYSTEM: Clock = Clock(None);

    /// A clock that stands still: for tests, and for judging as of a given moment.
    pub fn fixed(now: SystemTime) -> Clock {
        Clock(Some(now))
    }

    /// What this clock says.
    pub fn now(&self) -> SystemTime {
        self.0.unwrap_or_else(SystemTime::now)
    }

    /// What the clock of the directory's file system says: this machine's on a local one,
    /// elsewhere the modification time of a private file made there for the purpose (K45).
    pub fn now_in(&self, dir: &Dir) -> Result<SystemTime> {
        match self.0 {
            Some(now) => Ok(now),
            None if dir.is_local() => Ok(SystemTime::now()),
            None => crate::publish::file_system_time(dir),
        }
    }
}

/// How old something of time `then` is. A time in the future is age zero, never evidence (K46).
pub fn age(now: SystemTime, then: SystemTime) -> Duration {
    now.duration_since(then).unwrap_or(Duration::ZERO)
}

/// Time since boot that also runs during suspend: what leases are measured by (K35).
pub fn boottime() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or(0),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}

/// When this kernel booted, by its wall clock (`btime` of `/proc/stat`), or nothing if it does not
/// say.
pub fn booted_at() -> Option<SystemTime> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let seconds = stat
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?
        .trim()
        .parse()
        .ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// A moment as RFC 3339 text in UTC, or nothing if it is beyond the calendar.
pub fn format(time: SystemTime) -> Option<String> {
    jiff::Timestamp::try_from(time)
        .ok()
        .map(|timestamp| timestamp.to_string())
}

/// A moment as ISO 8601 text in UTC with exactly three fractional digits, as JavaScript prints it.
pub fn format_millis(time: SystemTime) -> String {
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

    /// K19: the boot moment is known and lies before now.
    #[test]
    fn the_kernel_says_when_it_booted() {
        let booted = booted_at().expect("Linux has btime");
        let expected = SystemTime::now() - boottime();
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
}
