//! For callers that await: any blocking wait as a future, on a thread of its own, without a runtime.
//!
//! Dropping the future cancels the wait. What the wait brought all the same is dropped on its
//! thread, so a lock that crosses the cancellation is given back.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;

use crate::hold::{FileHolding, Loss};
use crate::wait::Cancel;

/// A blocking call under way on its own thread.
#[derive(Debug)]
#[must_use = "a dropped future withdraws its request"]
pub struct Blocking<T> {
    shared: Arc<Mutex<FutureSlot<T>>>,
    cancel: Option<Cancel>,
}

#[derive(Debug)]
enum FutureSlot<T> {
    Waiting(Option<Waker>),
    Ready(Option<T>),
    Abandoned,
}

/// Runs `work` on a thread of its own; it is handed what ends its waits when the future is dropped.
///
/// # Panics
///
/// If the process can have no more threads or descriptors.
pub fn run<T: Send + 'static>(work: impl FnOnce(Cancel) -> T + Send + 'static) -> Blocking<T> {
    let cancel = Cancel::new().expect("the process has a descriptor left");
    let shared = Arc::new(Mutex::new(FutureSlot::Waiting(None)));
    let (inner, handed) = (Arc::clone(&shared), cancel.clone());
    thread::Builder::new()
        .name("tenure-wait".into())
        .spawn(move || put(&inner, work(handed)))
        .expect("the process has a thread left");
    Blocking {
        shared,
        cancel: Some(cancel),
    }
}

/// Resolves when the loss of a hold is noticed; at once if it already was. A released hold never
/// resolves it.
pub fn lost(hold: &FileHolding) -> Blocking<Loss> {
    let shared = Arc::new(Mutex::new(FutureSlot::Waiting(None)));
    let inner = Arc::clone(&shared);
    hold.on_lost(move |loss| put(&inner, loss.clone()));
    Blocking {
        shared,
        cancel: None,
    }
}

fn put<T>(shared: &Mutex<FutureSlot<T>>, value: T) {
    let mut slot = lock(shared);
    match std::mem::replace(&mut *slot, FutureSlot::Abandoned) {
        FutureSlot::Waiting(waker) => {
            *slot = FutureSlot::Ready(Some(value));
            drop(slot);
            waker.into_iter().for_each(Waker::wake);
        }
        // Nobody waits any more: what came is given back here, outside the mutex.
        FutureSlot::Abandoned | FutureSlot::Ready(_) => {
            drop(slot);
            drop(value);
        }
    }
}

fn lock<T>(shared: &Mutex<FutureSlot<T>>) -> MutexGuard<'_, FutureSlot<T>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Future for Blocking<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match &mut *lock(&self.shared) {
            FutureSlot::Ready(value) => match value.take() {
                Some(value) => Poll::Ready(value),
                None => Poll::Pending, // Polled after it was ready.
            },
            waiting @ (FutureSlot::Waiting(_) | FutureSlot::Abandoned) => {
                *waiting = FutureSlot::Waiting(Some(context.waker().clone()));
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for Blocking<T> {
    fn drop(&mut self) {
        if let Some(cancel) = &self.cancel {
            cancel.cancel();
        }
        let slot = std::mem::replace(&mut *lock(&self.shared), FutureSlot::Abandoned);
        drop(slot);
    }
}
