//! Blocking calls as futures: each runs on a thread of its own, without an async runtime.
//!
//! Dropping the future cancels the wait. A result that arrives nevertheless is dropped on that
//! thread, so a lock that is granted during the cancellation is released.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;

pub use tenure_base::block_on;

use crate::hold::{FileHolding, Loss};
use crate::wait::Cancel;

/// A blocking call that runs on its own thread.
///
/// Never completes again after it has returned its value once.
#[derive(Debug)]
#[must_use = "a dropped future withdraws its request"]
pub struct Blocking<T> {
    shared: Arc<Mutex<FutureSlot<T>>>,
    cancel: Option<Cancel>,
}

/// The outcome of a call: its value, or the panic of a callback that it ran.
type CallOutcome<T> = thread::Result<T>;

#[derive(Debug)]
enum FutureSlot<T> {
    Waiting(Option<Waker>),
    Ready(Option<CallOutcome<T>>),
    Abandoned,
}

/// Runs `work` on a new thread. `work` gets a handle that is cancelled when the future is dropped. A
/// panic of `work` continues where the future is polled.
///
/// # Panics
///
/// If the process has no thread or file descriptor left.
pub fn run<T: Send + 'static>(work: impl FnOnce(Cancel) -> T + Send + 'static) -> Blocking<T> {
    let cancel = Cancel::new().expect("the process has a descriptor left");
    let shared = Arc::new(Mutex::new(FutureSlot::Waiting(None)));
    let (inner, handed) = (Arc::clone(&shared), cancel.clone());
    thread::Builder::new()
        .name("tenure-wait".into())
        .spawn(move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| work(handed)));
            put(&inner, outcome);
        })
        .expect("the process has a thread left");
    Blocking {
        shared,
        cancel: Some(cancel),
    }
}

impl FileHolding {
    /// Returns a future that completes when the loss is detected, or immediately if the lock is
    /// already lost. It never completes after a release.
    pub fn lost(&self) -> Blocking<Loss> {
        let shared = Arc::new(Mutex::new(FutureSlot::Waiting(None)));
        let inner = Arc::clone(&shared);
        self.on_lost(move |loss| put(&inner, Ok(loss.clone())));
        Blocking {
            shared,
            cancel: None,
        }
    }
}

fn put<T>(shared: &Mutex<FutureSlot<T>>, value: CallOutcome<T>) {
    let mut slot = lock(shared);
    match std::mem::replace(&mut *slot, FutureSlot::Abandoned) {
        FutureSlot::Waiting(waker) => {
            *slot = FutureSlot::Ready(Some(value));
            drop(slot);
            waker.into_iter().for_each(Waker::wake);
        }
        // The future was dropped: drop the value here, outside the mutex, because its drop may
        // release a lock.
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
                Some(Ok(value)) => Poll::Ready(value),
                Some(Err(panic)) => resume_unwind(panic),
                None => Poll::Pending, // Polled again after completion.
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
