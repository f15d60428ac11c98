//! A minimal executor for blocking calls.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

/// Polls a future on this thread and parks between wake-ups. Needs no runtime.
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct UnparkWaker(thread::Thread);

    impl Wake for UnparkWaker {
        fn wake(self: Arc<UnparkWaker>) {
            self.0.unpark();
        }
    }

    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(UnparkWaker(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}
