//! The runtime thread: one thread of our own that runs every lock of this process.
//!
//! Refreshes do not run on the caller's executor: a program that blocks it for a minute would lose
//! its lock while working under it. The thread starts with the first operation and stays.

use std::future::Future;
use std::sync::{Mutex, PoisonError};

use tokio::runtime::{Builder, Handle};
use tokio::task::JoinHandle;

/// Of which process, and how to reach it. A child of `fork` has no threads of its parent, so it
/// starts a runtime thread of its own.
static SHARED_RUNTIME: Mutex<Option<(u32, Handle)>> = Mutex::new(None);

/// Starts `work` on the runtime thread. It runs to its end whether or not anybody waits for it.
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
