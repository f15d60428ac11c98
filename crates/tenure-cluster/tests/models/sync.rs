//! The items of `src/sync.rs` on top of the model checker, and the faults that a model can plant.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;

pub(crate) use std::sync::Arc;

/// A mistake in the primitives, as a compiler, a processor or an author could make it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// The check before a wait and the wait are two critical sections: the thread checks, and
    /// publishes only later that it waits.
    CheckBeforeWait,
    /// A notification does not reach the waiting thread.
    LostNotification,
}

thread_local! {
    static FAULT: Cell<Fault> = const { Cell::new(Fault::None) };
}

/// Plants a fault for all later executions on this test's thread.
pub(crate) fn plant(fault: Fault) {
    FAULT.set(fault);
}

#[derive(Default)]
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Mutex<T> {
        Mutex(shuttle::sync::Mutex::new(value))
    }
}

pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    guard: shuttle::sync::MutexGuard<'a, T>,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    MutexGuard {
        mutex,
        guard: mutex.0.lock().unwrap(),
    }
}

#[derive(Default)]
pub(crate) struct Condvar(shuttle::sync::Condvar);

impl Condvar {
    pub(crate) fn new() -> Condvar {
        Condvar::default()
    }

    pub(crate) fn notify_one(&self) {
        if FAULT.get() != Fault::LostNotification {
            self.0.notify_one();
        }
    }
}

/// A time: models have no clock. Any finite time may pass at any moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WakeTime {
    /// Has passed.
    Now,
    /// Passes at a random moment.
    Soon,
    /// Does not pass during the model.
    Never,
}

pub(crate) fn has_passed(time: WakeTime) -> bool {
    match time {
        WakeTime::Now => true,
        WakeTime::Soon => thread_rng().gen_bool(0.5),
        WakeTime::Never => false,
    }
}

pub(crate) fn wait_until<'a, T>(
    notified: &Condvar,
    mut guard: MutexGuard<'a, T>,
    time: Option<WakeTime>,
) -> MutexGuard<'a, T> {
    // A blocked thread and a thread that the scheduler does not run look alike, so a timeout is a
    // pause of random length. A wait without a timeout is a real one: if its notification is lost,
    // all threads are blocked and the checker reports a deadlock.
    let mutex = guard.mutex;
    let is_long = matches!(time, None | Some(WakeTime::Never));
    if !is_long || FAULT.get() == Fault::CheckBeforeWait {
        drop(guard);
        thread::yield_now();
        guard = lock(mutex);
    }
    if is_long {
        guard.guard = notified.0.wait(guard.guard).unwrap();
    }
    guard
}
