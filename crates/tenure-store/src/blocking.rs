//! Blocking API: runs the futures of this crate to completion on the calling thread.
//!
//! ```no_run
//! use tenure_store::blocking::wait;
//! use tenure_store::{LockMode, LockPurpose, Options, Repository};
//!
//! let repository = Repository::open("repo:/mnt/backup".parse()?, Options::default())?;
//! let guard = wait(repository.lock(LockPurpose::new(LockMode::Exclusive, "prune")))?;
//! // … prune, checking guard.loss() as it goes …
//! wait(guard.release())?;
//! # Ok::<(), tenure_store::Error>(())
//! ```

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

/// Blocks the current thread until `future` completes.
///
/// The futures of this crate need no runtime of the caller, because the runtime thread of this
/// crate does their work.
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
