//! Runtime thread: one background thread with a Tokio runtime runs all locks of this process.
//!
//! Refreshes do not run on the caller's executor: a program that blocks its executor for a minute
//! would lose the lock while it works under it. The thread starts with the first operation and
//! never ends.

use std::future::Future;
use std::sync::{Mutex, PoisonError};

use tokio::runtime::{Builder, Handle};
use tokio::task::JoinHandle;

/// The process that started the runtime, and the handle of the runtime. A child of `fork` inherits
/// no threads, so it starts its own runtime.
static SHARED_RUNTIME: Mutex<Option<(u32, Handle)>> = Mutex::new(None);

/// Spawns `work` on the runtime thread. It runs to its end even if the caller stops waiting.
pub(crate) fn spawn<F>(work: F) -> Result<JoinHandle<F::Output>, std::io::Error>
where
    F: Future<Output: Send> + Send + 'static,
{
    Ok(shared_runtime()?.spawn(work))
}

fn shared_runtime() -> Result<Handle, std::io::Error> {
    let mut shared_runtime = SHARED_RUNTIME
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    if let Some((of, handle)) = &*shared_runtime
        && *of == pid
    {
        return Ok(handle.clone());
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name("tenure-store".into())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
    *shared_runtime = Some((pid, handle.clone()));
    Ok(handle)
}
