//! The runtime thread: one thread of our own for what must go on while the program does something else: renewals, timers,
//! connections. A busy or blocked executor does not lose a lock. It starts when it is first needed; lock files
//! never need it.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::task::AbortHandle;

/// Of which process, and how to reach it: a child of `fork` has no threads of its parent.
static SHARED_RUNTIME: Mutex<Option<(u32, Handle)>> = Mutex::new(None);

/// The runtime thread's runtime.
///
/// # Panics
///
/// If the process can have no more threads or descriptors.
pub(crate) fn handle() -> Handle {
    let mut shared_runtime = SHARED_RUNTIME
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    if let Some((of, handle)) = &*shared_runtime
        && *of == pid
    {
        return handle.clone();
    }
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("the process has a descriptor left");
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name("tenure".into())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))
        .expect("the process has a thread left");
    *shared_runtime = Some((pid, handle.clone()));
    handle
}

/// Sleeps, in whatever executor the caller runs in, or in none.
pub(crate) async fn sleep(time: Duration) {
    let task = handle().spawn(async move { tokio::time::sleep(time).await });
    let _ends_with_us = AbortOnDrop(task.abort_handle());
    let _ = task.await;
}

/// Runs `work` on the runtime thread and waits for it. Dropping the future ends the work.
#[cfg(feature = "daemon")]
pub(crate) async fn run<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    let task = handle().spawn(work);
    let _ends_with_us = AbortOnDrop(task.abort_handle());
    task.await.ok()
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Waits on this thread. Nothing here needs a runtime of the caller's.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
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
