//! Where the node is stepped: by its own thread, or by one who steps the node for it.
//!
//! Whoever has brought something small and finds the node's thread asleep takes the turn itself,
//! instead of waking another thread for it: on the way of a lock from one holder to the next each
//! change of thread costs as much as the work between two of them. A busy node's thread is awake, so
//! nobody steps the node for it, and turns are as large as ever. What may take long is left to the node's
//! thread.

use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::Duration;

use tenure_node::{Node, Output};

use crate::driver::Driver;
use crate::inbox::{Inbox, ThreadWake};

/// A node with fewer calls under way than this is not busy.
const FEW: usize = 8;

/// See the module.
pub(crate) struct NodeRunner {
    inbox: Arc<Inbox>,
    place: Mutex<RunnerState>,
}

struct RunnerState {
    /// Until the node has ended.
    driver: Option<Driver>,
    /// When the node's thread wakes up by itself.
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

    /// The node's thread: runs until the node stops or is told to. `first` is what its start wants done.
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

    /// A turn, if there is something to do, and how long there will be nothing. None at the end.
    fn next(&self) -> Option<Duration> {
        // If somebody's turn panicked, nobody knows what the node is in.
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

    /// Sees to what was left in the inbox: takes a turn if the node's thread sleeps. For threads that may
    /// be kept for as long as a small turn takes.
    pub(crate) fn try_step_inline(&self) {
        self.inbox.try_step_inline(|| self.turn());
    }

    /// Sees to what was left in the inbox on behalf of a client: while few calls are under way nobody gains
    /// from waiting for more of them.
    pub(crate) fn serve(&self) {
        if self.is_busy() {
            self.inbox.wake();
        } else {
            self.try_step_inline();
        }
    }

    /// Whether many calls are under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.inbox.calls() >= FEW
    }

    /// Takes a turn for a client that looks at the node afterwards, unless the node is busy.
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

    /// A turn of a stand-in.
    fn turn(&self) -> ThreadWake {
        self.turn_and(|_| {})
    }

    /// A turn of a stand-in, and what it is for.
    fn turn_and(&self, then: impl FnOnce(&mut Driver)) -> ThreadWake {
        let mut place = match self.place.try_lock() {
            Ok(place) => place,
            // The node's thread woke up by itself.
            Err(TryLockError::WouldBlock) => return ThreadWake::No,
            // It will find that out, too, and end.
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

    /// On which thread it was woken.
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

    /// A node that is busy is not told of calls before somebody says so.
    #[tokio::test]
    async fn a_busy_node_hears_of_calls_later() {
        let directory = tempfile::tempdir().unwrap();
        let node = lone(directory.path());
        let handle = node.handle();
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is not busy");
            // The node says otherwise after each of its turns.
            handle.inbox.set_calls(FEW);
            let mut answer = None;
            let told = std::cell::Cell::new(false);
            let call = || handle.call(Box::new(ClientRequest::Health), Duration::from_secs(60));
            handle.defer_wake_unless_busy(|| answer = Some(call()), || told.set(true));
            // Otherwise its thread was awake, or woke up by itself.
            let waited = told.get() && handle.inbox.is_unattended();
            handle.serve();
            assert!(!handle.inbox.is_unattended(), "nobody was told");
            let answer = answer.unwrap().await;
            assert!(answer.is_ok(), "{answer:?}");
            if waited {
                break;
            }
        }
        node.stop();
    }

    /// A node that sleeps has its turn where it is called, and whoever called has its answer at once.
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
            // The node must be done before it is asked again, or it would never sleep.
            while answered.is_pending() {
                thread::yield_now();
                answered = answer.as_mut().poll(&mut cx);
            }
            stepped_inline && matches!(answered, Poll::Ready(Ok(_)))
        };
        // It does not sleep at first.
        let begun = Instant::now();
        while !asks() {
            assert!(begun.elapsed() < Duration::from_secs(60), "nobody stood in");
            thread::yield_now();
        }
        node.stop();
    }
}
