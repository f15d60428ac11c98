//! Sleeps on `CLOCK_BOOTTIME`.
//!
//! Suspended time counts, so a lease that ran out while the machine was suspended is noticed at
//! once on resume. Tokio's timers use a clock that stops meanwhile.

use std::os::fd::OwnedFd;
use std::time::Duration;

use tenure_files::internal::BootTimer;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use tenure_files::Lease;

/// Completes at `moment` of [`Lease::now`]; immediately if it has passed. Must run on the runtime
/// thread.
pub(crate) async fn until(moment: Duration) {
    if moment <= Lease::now() {
        return;
    }
    let armed = armed(moment).and_then(registered);
    match armed {
        Ok(timer) => drop(timer.readable().await),
        // No descriptor is available: poll instead.
        Err(_) => {
            while Lease::now() < moment {
                let left = moment.saturating_sub(Lease::now());
                tokio::time::sleep(left.min(Duration::from_millis(100))).await;
            }
        }
    }
}

#[allow(
    unsafe_code,
    reason = "a registered descriptor must not be closed by another owner"
)]
fn registered(timer: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the `OwnedFd` moves into the `AsyncFd`, which never gives it out here. The descriptor
    // stays open and unchanged as long as it is registered.
    let registered = unsafe { AsyncFd::register_with_interest(timer, Interest::READABLE) };
    registered.map_err(std::io::Error::from)
}

fn armed(moment: Duration) -> std::io::Result<OwnedFd> {
    let timer = BootTimer::new()?;
    timer.set(Some(moment))?;
    Ok(timer.into())
}
