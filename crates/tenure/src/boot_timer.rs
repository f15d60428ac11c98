//! Sleeps on `CLOCK_BOOTTIME`: one timerfd for all of them, with an ordered queue of deadlines.
//!
//! Suspended time counts, so a lease that ran out while the machine was suspended is noticed at
//! once on resume. Tokio's timers use a clock that stops meanwhile. One descriptor serves all
//! leases: with one each, a process with a thousand locks would have none left for the connection
//! that renews them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use tenure_base::Lease;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// How often deadlines are checked if the process has no descriptor for a timer.
const WITHOUT_TIMER: Duration = Duration::from_millis(100);

thread_local! {
    /// The queue belongs to the thread of the runtime, so it needs no lock, and a child of `fork`,
    /// which starts its own runtime thread, starts with an empty one.
    static QUEUE: RefCell<DeadlineQueue> = RefCell::default();
}

#[derive(Default)]
struct DeadlineQueue {
    /// Ordered by deadline; the number tells equal deadlines apart.
    waiting: BTreeMap<(Duration, u64), Waker>,
    next: u64,
    /// Tells the driver that the first deadline has changed.
    changed: Arc<Notify>,
    driver: Option<JoinHandle<()>>,
}

impl DeadlineQueue {
    /// Starts the task that owns the timer, unless it runs.
    fn drive(&mut self) {
        if self.driver.as_ref().is_none_or(JoinHandle::is_finished) {
            self.driver = Some(tokio::spawn(drive(Arc::clone(&self.changed))));
        }
    }
}

/// Removes a deadline when its future completes or is dropped.
struct Deadline((Duration, u64));

impl Deadline {
    fn new(moment: Duration) -> Deadline {
        QUEUE.with_borrow_mut(|queue| {
            queue.next += 1;
            Deadline((moment, queue.next))
        })
    }

    fn wait(&self, waker: &Waker) {
        QUEUE.with_borrow_mut(|queue| {
            let is_known = queue.waiting.insert(self.0, waker.clone()).is_some();
            let is_first = queue.waiting.keys().next() == Some(&self.0);
            if is_first && !is_known {
                queue.changed.notify_one();
            }
            queue.drive();
        });
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        // At the end of the thread the queue may be gone already.
        let _ = QUEUE.try_with(|queue| queue.borrow_mut().waiting.remove(&self.0));
    }
}

/// Completes at `moment` of [`Lease::now`]; immediately if it has passed. Must run on the runtime
/// thread.
pub(crate) async fn until(moment: Duration) {
    if moment <= Lease::now() {
        return;
    }
    let deadline = Deadline::new(moment);
    poll_fn(|context| {
        if moment <= Lease::now() {
            return Poll::Ready(());
        }
        deadline.wait(context.waker());
        Poll::Pending
    })
    .await;
}

/// Wakes each waiting future at its deadline.
async fn drive(changed: Arc<Notify>) {
    let timer = Timer::new();
    loop {
        let (due, next) = QUEUE.with_borrow_mut(|queue| {
            let later = queue.waiting.split_off(&(Lease::now(), u64::MAX));
            let due = std::mem::replace(&mut queue.waiting, later);
            (due, queue.waiting.keys().next().map(|(moment, _)| *moment))
        });
        // Outside the borrow: a waker may run the future at once.
        due.into_values().for_each(Waker::wake);
        let fired = async {
            match next {
                Some(moment) => timer.until(moment).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = changed.notified() => {}
            () = fired => {}
        }
    }
}

/// Completes at `moment` or a moment before it: checks the clock again and again.
async fn poll_until(moment: Duration) {
    let left = moment.saturating_sub(Lease::now());
    tokio::time::sleep(left.min(WITHOUT_TIMER)).await;
}

#[cfg(target_os = "linux")]
use kernel::Timer;
#[cfg(not(target_os = "linux"))]
use polling::Timer;

#[cfg(target_os = "linux")]
mod kernel {
    use std::time::Duration;

    use tenure_base::{BootTimer, Lease};
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    /// The timerfd; `None` if the process has no descriptor left.
    pub(super) struct Timer(Option<AsyncFd<BootTimer>>);

    impl Timer {
        #[allow(
            unsafe_code,
            reason = "a registered descriptor must not be closed by another owner"
        )]
        pub(super) fn new() -> Timer {
            let timer = BootTimer::new().ok().and_then(|timer| {
                // SAFETY: the timer moves into the `AsyncFd`, which never gives it out here. The
                // descriptor stays open and unchanged as long as it is registered.
                unsafe { AsyncFd::register_with_interest(timer, Interest::READABLE) }.ok()
            });
            Timer(timer)
        }

        pub(super) async fn until(&self, moment: Duration) {
            let set = self.0.as_ref();
            let set = set.filter(|timer| timer.get_ref().set(Some(moment)).is_ok());
            let Some(timer) = set else {
                return super::poll_until(moment).await;
            };
            while Lease::now() < moment {
                match timer.readable().await {
                    Ok(mut ready) => ready.clear_ready(),
                    Err(_) => return super::poll_until(moment).await,
                }
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod polling {
    use std::time::Duration;

    /// No timer of this platform counts suspended time and is known to tokio.
    pub(super) struct Timer;

    impl Timer {
        pub(super) fn new() -> Timer {
            Timer
        }

        pub(super) async fn until(&self, moment: Duration) {
            super::poll_until(moment).await;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// Deadlines complete in their order, also if an earlier one comes later and some are dropped.
    #[tokio::test]
    async fn deadlines_complete_in_order() {
        let now = Lease::now();
        let after = |millis: u64| until(now + Duration::from_millis(millis));
        let (send, mut order) = tokio::sync::mpsc::unbounded_channel();
        let mut tasks = tokio::task::JoinSet::new();
        for millis in [60, 20, 90, 40] {
            let (send, wait) = (send.clone(), after(millis));
            tasks.spawn(async move {
                wait.await;
                assert!(Lease::now() >= now + Duration::from_millis(millis));
                send.send(millis).unwrap();
            });
        }
        tokio::select! {
            () = after(10) => {}
            () = after(3_600_000) => panic!("an hour has not passed"),
        }
        tasks.join_all().await;
        drop(send);
        let mut seen = Vec::new();
        while let Some(millis) = order.recv().await {
            seen.push(millis);
        }
        assert_eq!(seen, [20, 40, 60, 90]);
        QUEUE.with_borrow(|queue| assert!(queue.waiting.is_empty()));
    }
}
