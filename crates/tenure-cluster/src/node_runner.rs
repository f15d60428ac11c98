//! Flat combining: the thread that enqueues a job steps the node itself while the node thread
//! sleeps.
//!
//! When a lock passes from one holder to the next, each thread switch costs as much as the work
//! between two switches. Stepping on the calling thread removes one. With `FEW` or more calls in
//! flight, clients wake the node thread instead, so that batches stay large. Steps that may take
//! long (much data, see [`Inbox::holds_much`]) stay on the node thread.
//!
//! Two things protect the node. [`Inbox`]'s state word elects at most one stepping thread at a
//! time, and the mutex `place` enforces it: the node thread may wake by timeout during an inline
//! step, and then it waits or the inline stepper returns. Lock and unlock of `place`
//! (acquire/release) make the writes of one step visible to the next stepping thread.

use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::Duration;

use tenure_node::{Node, Output};

use crate::driver::Driver;
use crate::inbox::{Inbox, ThreadWake};

/// A node with at least this many calls in flight counts as busy: waiting for more calls makes
/// batches larger.
const FEW: usize = 8;

/// Owns the driver and decides which thread steps it. See the module documentation.
pub(crate) struct NodeRunner {
    inbox: Arc<Inbox>,
    place: Mutex<RunnerState>,
}

struct RunnerState {
    /// `None` after the node has ended.
    driver: Option<Driver>,
    /// Deadline of the node thread's current sleep, in running time. An inline step that makes an
    /// earlier turn due must wake the node thread.
    wakes_ms: u64,
}

impl NodeRunner {
    pub(crate) fn new(driver: Driver) -> Arc<NodeRunner> {
        Arc::new(NodeRunner {
            inbox: Arc::clone(&driver.inbox),
            place: Mutex::new(RunnerState {
                driver: Some(driver),
                wakes_ms: 0,
            }),
        })
    }

    /// Body of the node thread: steps the node until it ends. `first` are the outputs of the node's
    /// start.
    pub(crate) fn run(&self, first: Vec<Output>) {
        self.inbox.attach();
        self.begin(first);
        while let Some(rest) = self.next() {
            self.inbox.sleep(rest);
        }
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        let driver = place.driver.take();
        drop(place);
        if let Some(mut driver) = driver {
            let why = driver.over.take();
            driver.end(why.unwrap_or_else(|| "a turn broke off".to_owned()));
        }
    }

    fn begin(&self, first: Vec<Output>) {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(driver) = &mut place.driver {
            driver.finish(first);
        }
    }

    /// Takes a turn if a job or a deadline is due. Returns how long the thread may sleep, or `None`
    /// at the end.
    fn next(&self) -> Option<Duration> {
        // A poisoned mutex means that a turn panicked and the node's state is unknown: end.
        let mut place = self.place.lock().ok()?;
        let place = &mut *place;
        let driver = place.driver.as_mut()?;
        if driver.over.is_none() && (!self.inbox.is_empty() || driver.rest().is_zero()) {
            driver.turn();
        }
        if driver.over.is_some() {
            return None;
        }
        place.wakes_ms = driver.due_ms;
        Some(driver.rest())
    }

    /// Handles the jobs in the inbox: steps the node on this thread if the node thread sleeps. Only
    /// for threads that may be blocked for the length of a small turn.
    pub(crate) fn try_step_inline(&self) {
        self.inbox.try_step_inline(|| self.turn());
    }

    /// Handles the jobs in the inbox for a client. Below [`FEW`] calls in flight it steps inline,
    /// because no further calls are expected that could share the batch; otherwise it wakes the
    /// node thread.
    pub(crate) fn serve(&self) {
        if self.is_busy() {
            self.inbox.wake();
        } else {
            self.try_step_inline();
        }
    }

    /// Returns whether at least [`FEW`] calls were in flight after the last turn. A hint, read
    /// without ordering.
    pub(crate) fn is_busy(&self) -> bool {
        self.inbox.calls() >= FEW
    }

    /// Takes a turn on this thread and then passes the node to `look`. Does nothing if the node is
    /// busy or its thread is awake.
    pub(crate) fn read_view(&self, look: impl FnOnce(&mut Node)) {
        if self.is_busy() {
            return;
        }
        let mut look = Some(look);
        self.inbox.try_step_inline(|| {
            self.turn_and(|driver| {
                if let Some(look) = look.take() {
                    look(&mut driver.node);
                }
            })
        });
    }

    /// Takes an inline turn.
    fn turn(&self) -> ThreadWake {
        self.turn_and(|_| {})
    }

    /// Takes an inline turn and then calls `then`. Returns whether the node thread must be woken.
    fn turn_and(&self, then: impl FnOnce(&mut Driver)) -> ThreadWake {
        let mut place = match self.place.try_lock() {
            Ok(place) => place,
            // The node thread woke by timeout and holds the mutex. It has published AWAKE before it
            // locked, so it checks the inbox again before it sleeps.
            Err(TryLockError::WouldBlock) => return ThreadWake::No,
            // The node thread must wake: it sees the poisoned mutex and ends the node.
            Err(TryLockError::Poisoned(_)) => return ThreadWake::Yes,
        };
        let wakes_ms = place.wakes_ms;
        let Some(driver) = &mut place.driver else {
            return ThreadWake::No;
        };
        if driver.over.is_none() {
            driver.turn();
        }
        if driver.over.is_none() {
            then(driver);
        }
        // The node thread sleeps until `wakes_ms`. It must wake now if the node has ended (it does
        // the cleanup) or if the next turn is due before its deadline.
        if driver.over.is_some() || driver.due_ms < wakes_ms {
            ThreadWake::Yes
        } else {
            ThreadWake::No
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Wake, Waker};
    use std::thread::{self, ThreadId};
    use std::time::Instant;

    use tenure_core::policy::Algorithm;
    use tenure_node::{ClientRequest, ClusterConfig, Limits, NodeId};

    use super::*;
    use crate::{Options, SyncPolicy};

    /// Records the thread on which it was woken.
    #[derive(Default)]
    struct WakeCounter(Mutex<Option<ThreadId>>);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            *self.0.lock().unwrap() = Some(thread::current().id());
        }
    }

    fn lone(directory: &std::path::Path) -> crate::RunningNode {
        let options = Options {
            data_dir: directory.to_owned(),
            node: NodeId::new(1).unwrap(),
            name: "lone".to_owned(),
            cluster: ClusterConfig {
                group_count: 4,
                prefix_segments: 1,
                default_algorithm: Algorithm::RecursiveRw,
            },
            limits: Limits::default(),
            durable: SyncPolicy::Yes,
            peers: None,
        };
        crate::start(options).unwrap()
    }

    /// While the node is busy, `defer_wake_unless_busy` does not wake it; a later `serve` does.
    #[tokio::test]
    async fn a_busy_node_hears_of_calls_later() {
        let directory = tempfile::tempdir().unwrap();
        let node = lone(directory.path());
        let handle = node.handle();
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is not busy");
            // The node resets the count after each of its turns, so the loop sets it again.
            handle.inbox.set_calls(FEW);
            let mut answer = None;
            let told = std::cell::Cell::new(false);
            let call = || handle.call(Box::new(ClientRequest::Health), Duration::from_secs(60));
            handle.defer_wake_unless_busy(|| answer = Some(call()), || told.set(true));
            // Otherwise the node thread was awake or woke by timeout, and this round proves
            // nothing.
            let waited = told.get() && handle.inbox.is_unattended();
            handle.serve();
            assert!(
                !handle.inbox.is_unattended(),
                "the node thread was not woken"
            );
            let answer = answer.unwrap().await;
            assert!(answer.is_ok(), "{answer:?}");
            if waited {
                break;
            }
        }
        node.stop();
    }

    /// If the node thread sleeps, the caller steps the node and its answer is ready on return.
    #[test]
    fn a_caller_stands_in_for_a_node_that_sleeps() {
        let directory = tempfile::tempdir().unwrap();
        let node = lone(directory.path());
        let handle = node.handle();
        let asks = || {
            let woken = Arc::new(WakeCounter::default());
            let waker = Waker::from(Arc::clone(&woken));
            let mut cx = Context::from_waker(&waker);
            let mut answer = None;
            handle.defer_wake(|| {
                let call = handle.call(Box::new(ClientRequest::Health), Duration::from_secs(60));
                answer = Some(Box::pin(call));
                assert!(answer.as_mut().unwrap().as_mut().poll(&mut cx).is_pending());
            });
            let mut answer = answer.unwrap();
            let mut answered = answer.as_mut().poll(&mut cx);
            let by = *woken.0.lock().unwrap();
            let stepped_inline = answered.is_ready() && by == Some(thread::current().id());
            // The node must finish before the next attempt, or its thread would never sleep.
            while answered.is_pending() {
                thread::yield_now();
                answered = answer.as_mut().poll(&mut cx);
            }
            stepped_inline && matches!(answered, Poll::Ready(Ok(_)))
        };
        // The node thread does not sleep right after the start.
        let begun = Instant::now();
        while !asks() {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "no caller stepped the node"
            );
            thread::yield_now();
        }
        node.stop();
    }
}
