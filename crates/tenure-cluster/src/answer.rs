//! The answer to one call, from the node's thread to whoever waits for it.
//!
//! A channel for one value, whose sender does not wake: it says who is to be woken, so that the node
//! wakes everybody at the end of its turn, and many who share a task are woken once. What is left of
//! the request comes along: memory is freed best by the thread that found it.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tenure_node::{Answer, ClientRequest, Failure};

use crate::handle::gone;

type Answered = Result<Answer, Failure>;

enum State {
    Waiting(Option<Waker>),
    Answered(Answered, Option<Box<ClientRequest>>),
    Taken,
}

struct Slot(Mutex<State>);

impl Slot {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, answer: Answered, request: Option<Box<ClientRequest>>) -> Option<Waker> {
        match std::mem::replace(&mut *self.lock(), State::Answered(answer, request)) {
            State::Waiting(waker) => waker,
            State::Answered(..) | State::Taken => None,
        }
    }
}

/// A call that will be answered.
pub(crate) fn pair() -> (Answering, Awaited) {
    let slot = Arc::new(Slot(Mutex::new(State::Waiting(None))));
    (Answering(Some(Arc::clone(&slot))), Awaited(slot))
}

/// The node's side. Dropped, it tells that the node is gone.
pub(crate) struct Answering(Option<Arc<Slot>>);

impl Answering {
    /// Answers. Who sleeps is to be woken.
    pub(crate) fn send(
        mut self,
        answer: Answered,
        request: Option<Box<ClientRequest>>,
    ) -> Option<Waker> {
        self.0.take()?.put(answer, request)
    }
}

impl Answering {
    /// Whether the caller has given up.
    pub(crate) fn is_abandoned(&self) -> bool {
        let slot = self.0.as_ref();
        slot.is_some_and(|slot| Arc::strong_count(slot) == 1)
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        let waker = self.0.take().and_then(|slot| slot.put(Err(gone()), None));
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The caller's side.
pub(crate) struct Awaited(Arc<Slot>);

impl Future for Awaited {
    type Output = Answered;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answered> {
        let mut state = self.0.lock();
        if let State::Waiting(waker) = &mut *state {
            match waker {
                Some(waker) => waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        match std::mem::replace(&mut *state, State::Taken) {
            State::Answered(answer, _request) => Poll::Ready(answer),
            State::Waiting(_) | State::Taken => Poll::Ready(Err(gone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
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
        let woken = Arc::new(Woken::default());
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
