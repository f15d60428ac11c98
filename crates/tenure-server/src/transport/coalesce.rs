//! Call coalescing: while the node is busy, the calls of all readable connections are submitted as
//! one batch.
//!
//! Every step of a busy node ends in an fsync, and stepping takes CPU time from connections that
//! are still to be read. So the node is woken once, after the runtime has polled those connections.
//! An idle node is stepped at once by the connection's own thread.

use std::sync::Arc;

use tenure_cluster::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// Handle to the coalescing task, which ends when this is dropped.
pub(crate) struct Coalescer {
    node: Handle,
    is_waited_for: Arc<Notify>,
    driver: AbortHandle,
}

impl Coalescer {
    /// Starts the coalescing task on the current runtime.
    pub(crate) fn new(node: Handle) -> Coalescer {
        let is_waited_for = Arc::new(Notify::new());
        let driver = tokio::spawn(drive(node.clone(), Arc::clone(&is_waited_for)));
        Coalescer {
            node,
            is_waited_for,
            driver: driver.abort_handle(),
        }
    }

    /// Runs the work of one connection. If the node is idle, its calls are submitted when `work`
    /// returns. If the node is busy, they are submitted after all ready connections have run.
    pub(super) fn with<T>(&self, work: impl FnOnce() -> T) -> T {
        self.node
            .defer_wake_unless_busy(work, || self.is_waited_for.notify_one())
    }
}

impl Drop for Coalescer {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

async fn drive(node: Handle, is_waited_for: Arc<Notify>) {
    loop {
        is_waited_for.notified().await;
        // Yielding puts this task behind all tasks that are ready to run, so their calls join the
        // batch.
        tokio::task::yield_now().await;
        node.serve();
    }
}
