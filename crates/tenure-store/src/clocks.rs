//! Readings of `CLOCK_BOOTTIME` and the wall clock, and a sleep that includes suspended time.

use std::time::Duration;

use jiff::Timestamp;

use crate::time::{BootTime, Now};

/// Longest single timer. A timer does not advance while the machine is suspended, so after resume a
/// long one would fire late and a lapsed lease would go unnoticed. [`sleep_until`] therefore sleeps
/// in short pieces and reads the clock after each (K35 (lease time)).
const NAP: Duration = Duration::from_secs(1);

/// Reads both clocks.
pub fn now() -> Now {
    Now {
        boot: boot(),
        wall: Timestamp::now(),
    }
}

/// Reads `CLOCK_BOOTTIME`.
pub(crate) fn boot() -> BootTime {
    BootTime(tenure_files::Lease::now())
}

/// Sleeps until `CLOCK_BOOTTIME` reaches `until`; [`BootTime::NEVER`] sleeps without end.
pub(crate) async fn sleep_until(until: BootTime) {
    if until == BootTime::NEVER {
        std::future::pending::<()>().await;
    }
    loop {
        let left = until.since(boot());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(NAP)).await;
    }
}
