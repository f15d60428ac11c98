//! The same without `async`: each call waits on this thread, while the runtime thread works.
//!
//! ```no_run
//! use tenure_store::blocking::wait;
//! use tenure_store::{Mode, Options, Repository, Want};
//!
//! let repository = Repository::open("repo:/mnt/backup".parse()?, Options::default())?;
//! let guard = wait(repository.lock(Want::new(Mode::Exclusive, "prune")))?;
//! // … prune, checking guard.loss() as it goes …
//! wait(guard.release())?;
//! # Ok::<(), tenure_store::Error>(())
//! ```

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

/// Waits for one of this crate's futures. They need no runtime of the caller's: their work is done
/// by the runtime thread.
pub fn wait<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(UnparkWaker(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

struct UnparkWaker(Thread);

impl Wake for UnparkWaker {
    fn wake(self: Arc<UnparkWaker>) {
        self.0.unpark();
    }
}
