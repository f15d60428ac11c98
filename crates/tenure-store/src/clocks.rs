//! The clocks of this machine, and a sleep that notices when the machine slept too.

use std::time::Duration;

use jiff::Timestamp;

use crate::time::{BootTime, Now};

/// An ordinary timer stands still while the machine sleeps, and would let a lease lapse unnoticed
/// after it. So a long sleep is made of naps, with a look at the clock after each (K35).
const NAP: Duration = Duration::from_secs(1);

/// Both clocks, now.
pub fn now() -> Now {
    Now {
        boot: boot(),
        wall: Timestamp::now(),
    }
}

/// `CLOCK_BOOTTIME`, now.
pub(crate) fn boot() -> BootTime {
    BootTime(tenure_files::clock::boottime())
}

/// Sleeps until the clock shows `until`.
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
