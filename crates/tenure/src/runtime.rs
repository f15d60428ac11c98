//! Background tokio runtime on one thread: renewals, timers, connections.
//!
//! It is separate from the executor of the program, so a busy or blocked executor does not lose a
//! lock. It starts on demand; lock files never need it.

#[cfg(feature = "daemon")]
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::task::AbortHandle;

/// The runtime and the process that it belongs to. A child of `fork` has no threads of its parent
/// and starts its own.
static SHARED_RUNTIME: Mutex<Option<(u32, Handle)>> = Mutex::new(None);

/// Returns the handle of the runtime; starts it if necessary.
///
/// # Panics
///
/// If the process cannot create another thread or descriptor.
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

/// Sleeps on the runtime thread, so that the caller may run in any executor or in none.
pub(crate) async fn sleep(time: Duration) {
    let task = handle().spawn(async move { tokio::time::sleep(time).await });
    let _ends_with_us = AbortOnDrop(task.abort_handle());
    let _ = task.await;
}

/// Runs `work` on the runtime thread and waits for it. Dropping the future aborts the work.
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
