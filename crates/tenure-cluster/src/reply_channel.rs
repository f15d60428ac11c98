//! One-shot channel with a deferred wake, for the answer to one call.
//!
//! `send` returns the receiver's waker instead of waking it. The node wakes all receivers at the
//! end of its turn, so a task that waits for several answers is woken once. The request travels
//! back with the answer, because the allocator frees memory fastest on the thread that allocated
//! it.
//!
//! Synchronization: one mutex protects answer and waker. The receiver checks for the answer and
//! registers its waker in one critical section; the sender stores the answer and takes the waker in
//! another. So either the receiver sees the answer or the sender gets the waker, and no wake-up is
//! lost.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tenure_node::{Answer, ClientRequest, Failure};

use crate::handle::gone;

type DeferredWake = Result<Answer, Failure>;

enum OneshotState {
    Waiting(Option<Waker>),
    Answered(DeferredWake, Option<Box<ClientRequest>>),
    Taken,
}

struct OneshotSlot(Mutex<OneshotState>);

impl OneshotSlot {
    fn lock(&self) -> MutexGuard<'_, OneshotState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, answer: DeferredWake, request: Option<Box<ClientRequest>>) -> Option<Waker> {
        match std::mem::replace(&mut *self.lock(), OneshotState::Answered(answer, request)) {
            OneshotState::Waiting(waker) => waker,
            OneshotState::Answered(..) | OneshotState::Taken => None,
        }
    }
}

/// Creates a channel for one answer.
pub(crate) fn pair() -> (Sender, Receiver) {
    let slot = Arc::new(OneshotSlot(Mutex::new(OneshotState::Waiting(None))));
    (Sender(Some(Arc::clone(&slot))), Receiver(slot))
}

/// The node's side. Dropping it without an answer reports that the node has stopped.
pub(crate) struct Sender(Option<Arc<OneshotSlot>>);

impl Sender {
    /// Stores the answer. Returns the waker of the task that waits; the caller wakes it.
    pub(crate) fn send(
        mut self,
        answer: DeferredWake,
        request: Option<Box<ClientRequest>>,
    ) -> Option<Waker> {
        self.0.take()?.put(answer, request)
    }
}

impl Sender {
    /// Returns whether the receiver was dropped. The count is read without ordering: a stale value
    /// only delays the cancellation until the next check, and a count of 1 never rises again.
    pub(crate) fn is_abandoned(&self) -> bool {
        let slot = self.0.as_ref();
        slot.is_some_and(|slot| Arc::strong_count(slot) == 1)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let waker = self.0.take().and_then(|slot| slot.put(Err(gone()), None));
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The caller's side: a future that yields the answer.
pub(crate) struct Receiver(Arc<OneshotSlot>);

impl Future for Receiver {
    type Output = DeferredWake;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<DeferredWake> {
        let mut state = self.0.lock();
        if let OneshotState::Waiting(waker) = &mut *state {
            match waker {
                Some(waker) => waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        match std::mem::replace(&mut *state, OneshotState::Taken) {
            OneshotState::Answered(answer, _request) => Poll::Ready(answer),
            OneshotState::Waiting(_) | OneshotState::Taken => Poll::Ready(Err(gone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct WakeCounter(AtomicBool);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_caller_that_gives_up_is_noticed() {
        let (answering, awaited) = pair();
        assert!(!answering.is_abandoned());
        drop(awaited);
        assert!(answering.is_abandoned());
    }

    #[test]
    fn an_answer_says_whom_to_wake_and_a_dropped_call_wakes() {
        let woken = Arc::new(WakeCounter::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut cx = Context::from_waker(&waker);

        let (answering, mut awaited) = pair();
        assert!(Pin::new(&mut awaited).poll(&mut cx).is_pending());
        let sleeper = answering.send(Ok(Answer::Done), None);
        assert!(sleeper.is_some_and(|sleeper| sleeper.will_wake(&waker)));
        assert!(!woken.0.load(Ordering::SeqCst));
        assert_eq!(
            Pin::new(&mut awaited).poll(&mut cx),
            Poll::Ready(Ok(Answer::Done))
        );

        let (answering, mut awaited) = pair();
        assert!(Pin::new(&mut awaited).poll(&mut cx).is_pending());
        drop(answering);
        assert!(woken.0.load(Ordering::SeqCst));
        let answer = Pin::new(&mut awaited).poll(&mut cx);
        assert_eq!(answer, Poll::Ready(Err(gone())));
    }
}
