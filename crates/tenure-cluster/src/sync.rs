//! Synchronization primitives of the modules that the model tests compile a second time.
//!
//! `tests/models` includes `node_runner.rs`, `reply_channel.rs` and `commit_queue.rs` with a module
//! of this name that has the same items on top of the model checker `shuttle`.

use std::sync::PoisonError;
use std::time::Instant;

pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Locks a mutex. A panic in another critical section is ignored: all of them leave valid data.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A time at which a thread wakes up.
pub(crate) type WakeTime = Instant;

pub(crate) fn has_passed(time: WakeTime) -> bool {
    Instant::now() >= time
}

/// Waits for a notification, at most until `time`. May return early for no reason.
pub(crate) fn wait_until<'a, T>(
    notified: &Condvar,
    guard: MutexGuard<'a, T>,
    time: Option<WakeTime>,
) -> MutexGuard<'a, T> {
    let Some(time) = time else {
        return notified.wait(guard).unwrap_or_else(PoisonError::into_inner);
    };
    let longest = time.saturating_duration_since(Instant::now());
    let waited = notified.wait_timeout(guard, longest);
    waited.unwrap_or_else(PoisonError::into_inner).0
}
