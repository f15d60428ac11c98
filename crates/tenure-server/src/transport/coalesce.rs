//! Calls of all connections that are ready reach a busy node together.
//!
//! Every turn of a busy node ends in a write to the disk, and the threads for both take the processor from the
//! connections that are still to be read. So the node is told when those had their turn.

use std::sync::Arc;

use tenure_cluster::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// See the module. Over when it is dropped.
pub(crate) struct Coalescer {
    node: Handle,
    is_waited_for: Arc<Notify>,
    driver: AbortHandle,
}

impl Coalescer {
    /// A batch on this runtime.
    pub(crate) fn new(node: Handle) -> Coalescer {
        let is_waited_for = Arc::new(Notify::new());
        let driver = tokio::spawn(drive(node.clone(), Arc::clone(&is_waited_for)));
        Coalescer {
            node,
            is_waited_for,
            driver: driver.abort_handle(),
        }
    }

    /// Does the work of one connection. Calls that it makes reach the node when it is done, or, while the node is
    /// busy, when all connections that are ready have done theirs.
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
        // Behind all that is ready to run.
        tokio::task::yield_now().await;
        node.serve();
    }
}
