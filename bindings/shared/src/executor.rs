//! One thread that runs the futures of asynchronous callers.

use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::task::AbortHandle;

/// The runtime and the process that it belongs to. A child of `fork` has no threads of its parent
/// and starts its own.
static RUNTIME: Mutex<Option<(u32, Handle)>> = Mutex::new(None);

/// A future that runs in the background. Dropping the handle does not stop it.
#[derive(Debug)]
pub struct Task(AbortHandle);

impl Task {
    /// Drops the future at its next await. An acquire that is dropped leaves nothing behind.
    pub fn cancel(&self) {
        self.0.abort();
    }
}

/// Runs `work` on the thread of the bindings.
///
/// # Panics
///
/// If the process cannot create another thread or descriptor.
pub fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Task {
    Task(handle().spawn(work).abort_handle())
}

/// Runs `work`, which blocks, on a thread of a pool. Dropping the future does not stop it, but drops its
/// value: a guard is released.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match handle().spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is never shut down.
            Err(_) => std::future::pending().await,
        },
    }
}

fn handle() -> Handle {
    let mut shared = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    if let Some((of, handle)) = &*shared
        && *of == pid
    {
        return handle.clone();
    }
    let runtime = Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("the process has a descriptor left");
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name("tenure-async".into())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))
        .expect("the process has a thread left");
    *shared = Some((pid, handle.clone()));
    handle
}

/// Waits for `work` at most `time`, in any executor or in none.
pub async fn timeout<T>(time: Duration, work: impl Future<Output = T>) -> Option<T> {
    let (ring, rung) = tokio::sync::oneshot::channel::<()>();
    let alarm = spawn(async move {
        tokio::time::sleep(time).await;
        drop(ring);
    });
    tokio::select! {
        value = work => {
            alarm.cancel();
            Some(value)
        }
        _ = rung => None,
    }
}
