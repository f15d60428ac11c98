//! Wait modes and deadlines.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use tenure_base::Wait;

use crate::error::{Class, Error};
use crate::wait::Cancel;

/// Returns `now + time`, limited to 100 years: an interval chosen by a caller may exceed the range
/// of the clock.
pub(crate) fn after(now: Instant, time: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);
    now + time.min(CENTURY)
}

/// Callback of a waiting caller: gets the error that the wait would return if it ended now.
#[derive(Clone)]
pub struct OnWait(Arc<dyn Fn(&Error) + Send + Sync>);

impl OnWait {
    /// Creates a callback.
    pub fn new(tell: impl Fn(&Error) + Send + Sync + 'static) -> OnWait {
        OnWait(Arc::new(tell))
    }
}

impl fmt::Debug for OnWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnWait")
    }
}

/// Interval of reports to a waiting caller.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// A running wait: its deadline, its cancellation handle, and the reports to its caller.
///
/// A wait is one loop from its beginning to its end: rules that need a long observation see all of
/// it, and a report is a call inside that loop.
#[derive(Clone, Debug)]
pub(crate) struct Deadline {
    pub(crate) deadline: Option<Instant>,
    pub(crate) cancel: Option<Cancel>,
    wait: Wait,
    on_wait: Option<OnWait>,
    next_report: Cell<Instant>,
}

impl Deadline {
    /// Starts the wait now.
    pub(crate) fn new(wait: Wait, cancel: Option<Cancel>) -> Deadline {
        Deadline {
            deadline: wait.deadline(),
            cancel,
            wait,
            on_wait: None,
            next_report: Cell::new(Instant::now() + REPORT_EVERY),
        }
    }

    /// Sets the callback for reports. A caller that does not wait gets none.
    #[must_use]
    pub(crate) fn reports(mut self, on_wait: Option<OnWait>) -> Deadline {
        self.on_wait = on_wait.filter(|_| self.wait != Wait::No);
        self
    }

    /// Returns whether the deadline has passed or the wait was cancelled.
    pub(crate) fn is_over(&self) -> bool {
        self.deadline
            .is_some_and(|deadline| deadline <= Instant::now())
            || self.is_cancelled()
    }

    /// Returns whether the wait was cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(Cancel::is_cancelled)
    }

    /// Returns `at`, the deadline or the time of the next report, whichever is earliest.
    pub(crate) fn until(&self, at: Instant) -> Instant {
        let at = self.deadline.map_or(at, |deadline| deadline.min(at));
        match self.on_wait {
            Some(_) => at.min(self.next_report.get()),
            None => at,
        }
    }

    /// Returns whether a report is due.
    pub(crate) fn report_is_due(&self) -> bool {
        self.on_wait.is_some() && self.next_report.get() <= Instant::now()
    }

    /// Reports the error that the wait would return if it ended now, at most once a second. The
    /// caller holds no mutex: the callback may do anything.
    pub(crate) fn report(&self, error: impl FnOnce() -> Error) {
        if let Some(on_wait) = self.on_wait.as_ref().filter(|_| self.report_is_due()) {
            (on_wait.0)(&error());
            self.next_report.set(Instant::now() + REPORT_EVERY);
        }
    }

    /// Sleeps, at most until the wait is cancelled. Does not end at the deadline.
    pub(crate) fn pause(&self, time: Duration) {
        match &self.cancel {
            Some(cancel) => cancel.wait(time),
            None => std::thread::sleep(time),
        }
    }

    /// The class of the error of a wait that did not get what it waited for.
    pub(crate) fn class(&self) -> Class {
        match self.wait {
            Wait::No => Class::Held,
            Wait::For(_) | Wait::Forever => Class::Timeout,
        }
    }
}
