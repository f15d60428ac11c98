//! One-shot channel with a deferred wake, for the answer to one call.
//!
//! `send` returns the receiver's waker instead of waking it. The node wakes all receivers at the
//! end of its turn, so a task that waits for several answers is woken once.
//!
//! Synchronization: one mutex protects value and waker. The receiver checks for the value and
//! registers its waker in one critical section; the sender stores the value and takes the waker in
//! another. So either the receiver sees the value or the sender gets the waker, and no wake-up is
//! lost.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::sync::{Arc, Mutex, lock};

enum Slot<T> {
    Waiting(Option<Waker>),
    /// `None`: the sender was dropped, or the value was taken.
    Done(Option<T>),
}

impl<T> Slot<T> {
    fn put(slot: &Mutex<Slot<T>>, value: Option<T>) -> Option<Waker> {
        match std::mem::replace(&mut *lock(slot), Slot::Done(value)) {
            Slot::Waiting(waker) => waker,
            Slot::Done(_) => None,
        }
    }
}

/// Creates a channel for one value.
pub(crate) fn pair<T>() -> (Sender<T>, Receiver<T>) {
    let slot = Arc::new(Mutex::new(Slot::Waiting(None)));
    (Sender(Some(Arc::clone(&slot))), Receiver(slot))
}

/// The node's side. The receiver notices if it is dropped without a value.
pub(crate) struct Sender<T>(Option<Arc<Mutex<Slot<T>>>>);

impl<T> Sender<T> {
    /// Stores the value. Returns the waker of the task that waits; the caller wakes it.
    pub(crate) fn send(mut self, value: T) -> Option<Waker> {
        Slot::put(&*self.0.take()?, Some(value))
    }

    /// Returns whether the receiver was dropped. The count is read without ordering: a stale value
    /// only delays the cancellation until the next check, and a count of 1 never rises again.
    pub(crate) fn is_abandoned(&self) -> bool {
        let slot = self.0.as_ref();
        slot.is_some_and(|slot| Arc::strong_count(slot) == 1)
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let waker = self.0.take().and_then(|slot| Slot::put(&*slot, None));
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The caller's side: a future that yields the value, or `None` if the sender was dropped.
pub(crate) struct Receiver<T>(Arc<Mutex<Slot<T>>>);

impl<T> Future for Receiver<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        match &mut *lock(&self.0) {
            Slot::Waiting(Some(waker)) => waker.clone_from(cx.waker()),
            Slot::Waiting(none) => *none = Some(cx.waker().clone()),
            Slot::Done(value) => return Poll::Ready(value.take()),
        }
        Poll::Pending
    }
}
