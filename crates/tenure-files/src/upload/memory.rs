//! The upload locker in memory, for one process and without files (U21 (locks in memory), U22
//! (reach of memory locks)).

use std::sync::Arc;

use super::held_table::{AlreadyHeld, UploadTable};
use super::{LockRequest, UploadGuard, UploadId, UploadLocker};
use crate::deadline::{Deadline, Wait};
use crate::error::{Class, Error, Result};

/// Locks uploads of a store without a shared directory.
///
/// Every waiter calls the holder's `on_request` immediately, so the callback may run several times.
/// A release wakes all waiters; the order in which they get the lock is not defined.
#[derive(Clone, Default)]
pub struct MemoryLocker {
    table: Arc<UploadTable<UploadId>>,
}

impl MemoryLocker {
    /// Creates a locker. Clones of one locker exclude each other; two separately created lockers do
    /// not.
    pub fn new() -> MemoryLocker {
        MemoryLocker::default()
    }
}

impl UploadLocker for MemoryLocker {
    fn lock_for(&self, id: &UploadId, request: LockRequest) -> Result<UploadGuard> {
        let asking = request.release_request();
        let wait_deadline =
            Deadline::new(request.wait, request.cancel.clone()).reports(request.on_wait.clone());
        let in_use = || {
            let (class, what) = match request.wait {
                Wait::No => (Class::Held, "another request of this process has it"),
                Wait::For(_) | Wait::Forever => (
                    Class::Timeout,
                    "another request of this process did not let go in time",
                ),
            };
            Error::new(class, id.as_str(), what)
        };
        let ticket = self
            .table
            .enter(id, &asking, &wait_deadline, &in_use)
            .map_err(|AlreadyHeld| in_use())?;
        ticket.hold(request.on_request);
        Ok(UploadGuard::in_memory(id.clone(), ticket))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Mutex, mpsc};
    use std::thread;
    use std::time::Duration;

    use super::*;

    const LONG: Wait = Wait::For(Duration::from_secs(30));

    fn id(text: &str) -> UploadId {
        UploadId::new(text).unwrap()
    }

    /// U21: the holder is asked immediately, and the waiter gets the lock after the release.
    #[test]
    fn a_newcomer_asks_the_holder_and_gets_the_lock() {
        let locker = MemoryLocker::new();
        let held: Arc<Mutex<Option<UploadGuard>>> = Arc::default();
        let asked = Arc::new(AtomicU32::new(0));
        let on_request = {
            let (held, asked) = (Arc::clone(&held), Arc::clone(&asked));
            Arc::new(move |_: &_| {
                asked.fetch_add(1, Ordering::SeqCst);
                drop(held.lock().unwrap().take());
            })
        };
        *held.lock().unwrap() = Some(locker.lock(&id("up"), Wait::No, on_request).unwrap());
        let second = locker.lock(&id("up"), LONG, Arc::new(|_| {})).unwrap();
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        second.release().unwrap();
    }

    /// U21, U12: every waiter asks the holder; if the holder does not release, they time out; no
    /// re-entrance.
    #[test]
    fn a_holder_that_does_not_answer_is_waited_for_in_vain() {
        let locker = MemoryLocker::new();
        let (asked, requests) = mpsc::channel();
        let on_request = Arc::new(move |_: &_| asked.send(()).unwrap());
        let guard = locker.lock(&id("up"), Wait::No, on_request).unwrap();
        let short = Wait::For(Duration::from_millis(20));
        for _ in 0..2 {
            let error = locker.lock(&id("up"), short, Arc::new(|_| {})).unwrap_err();
            assert_eq!(error.class(), Class::Timeout);
        }
        assert_eq!(requests.try_iter().count(), 2);
        let error = locker
            .lock(&id("up"), Wait::No, Arc::new(|_| {}))
            .unwrap_err();
        assert_eq!(error.class(), Class::Held);
        assert_eq!(
            requests.try_iter().count(),
            0,
            "who does not wait does not ask"
        );
        guard.release().unwrap();
        drop(locker.lock(&id("up"), Wait::No, Arc::new(|_| {})).unwrap());
    }

    /// U21: a release wakes all waiters; at most one holds the lock at a time.
    #[test]
    fn waiters_compete_and_one_at_a_time_is_inside() {
        let locker = MemoryLocker::new();
        let inside = AtomicU32::new(0);
        let passes = AtomicU32::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let guard = locker.lock(&id("up"), LONG, Arc::new(|_| {})).unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two inside");
                        passes.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(guard);
                    }
                });
            }
        });
        assert_eq!(passes.into_inner(), 1600);
    }

    /// Different uploads and different lockers do not exclude each other.
    #[test]
    fn other_uploads_and_other_lockers_are_free() {
        let locker = MemoryLocker::new();
        let _one = locker.lock(&id("one"), Wait::No, Arc::new(|_| {})).unwrap();
        let _two = locker.lock(&id("two"), Wait::No, Arc::new(|_| {})).unwrap();
        let _other = MemoryLocker::new()
            .lock(&id("one"), Wait::No, Arc::new(|_| {}))
            .unwrap();
    }
}
