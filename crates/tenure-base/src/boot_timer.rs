//! Timer on `CLOCK_BOOTTIME` (timerfd): suspended time counts, so that a lease which ended while the
//! machine was suspended is noticed at once on resume.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// A timer. Its descriptor is readable after the time that was set.
#[derive(Debug)]
pub struct BootTimer(OwnedFd);

impl BootTimer {
    /// Creates a timer that is not set.
    ///
    /// # Errors
    ///
    /// Returns the OS error if the process has no descriptor left.
    pub fn new() -> io::Result<BootTimer> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(BootTimer(timerfd_create(TimerfdClockId::Boottime, flags)?))
    }

    /// Sets the timer to a time since boot ([`Lease::now`](crate::Lease::now)), or clears it.
    ///
    /// # Errors
    ///
    /// Returns the OS error.
    pub fn set(&self, at: Option<Duration>) -> io::Result<()> {
        let zero = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let once = Itimerspec {
            it_interval: zero,
            it_value: at.map_or(zero, |at| Timespec {
                tv_sec: i64::try_from(at.as_secs()).unwrap_or(i64::MAX),
                // Zero would clear the timer.
                tv_nsec: i64::from(at.subsec_nanos().max(1)),
            }),
        };
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &once)?;
        Ok(())
    }
}

impl AsFd for BootTimer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for BootTimer {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl From<BootTimer> for OwnedFd {
    fn from(timer: BootTimer) -> OwnedFd {
        timer.0
    }
}
