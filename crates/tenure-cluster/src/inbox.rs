//! The node thread's inbox: anybody drops jobs in, the node takes all of them at once.
//!
//! One turn of the node handles everything that came together, so the busier it is, the bigger its
//! batches. A sender wakes the thread only when it sleeps: a busy node costs no system call here.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::task::Waker;
use std::thread::{self, Thread};
use std::time::Duration;

use bytes::Bytes;
use tenure_node::{Answer, ClientRequest, Failure, GroupId, Input, Lane, NodeId, Status, StreamId};
use tokio::sync::oneshot;

use crate::answer::Answering;
use crate::calls::Tagged;
use crate::measure::Vitals;
use crate::peers::Outlet;
use crate::reconcile::View;
use crate::stream::Listener;

/// What the node thread is asked to do.
pub(crate) enum Job {
    /// A client's call.
    Call {
        request: Box<ClientRequest>,
        timeout_ms: u64,
        reply: Reply,
    },
    /// A subscription or a watch begins, as the input says.
    Listen {
        id: StreamId,
        input: Input,
        listener: Listener,
    },
    /// A subscription or a watch is over.
    Unlisten { id: StreamId },
    /// Somebody wants to know that what came before this is taken.
    Reached(oneshot::Sender<()>),
    /// Something for the node itself.
    Input(Input),
    /// Somebody wants to know how things are.
    Vitals(oneshot::Sender<Vitals>),
    /// Frames for a peer go here from now on.
    Connected {
        node: NodeId,
        lane: Lane,
        outlet: Outlet,
    },
    /// Frames for a peer go nowhere.
    Disconnected { node: NodeId, lane: Lane },
    /// A frame that waited for the disk found its queue full or closed.
    Lost {
        node: NodeId,
        lane: Lane,
        outlet: Outlet,
    },
    /// What the groups that are led here should be brought in line with.
    View(View),
    /// Somebody wants to know how the node is.
    Inspect(oneshot::Sender<Status>),
    /// Somebody wants the state of a replica, and the entry it is at.
    State(GroupId, oneshot::Sender<Option<(u64, Bytes)>>),
    /// Hand over what is led and end.
    Stop,
}

/// Where an answer goes. Dropped, it tells that the node is gone.
pub(crate) enum Reply {
    /// To one who waits for nothing else.
    One(Answering),
    /// To one who waits for many.
    Tagged(Tagged),
}

impl Reply {
    /// Answers; the request goes back, if somebody has use for it. Who sleeps is to be woken.
    pub(crate) fn send(
        self,
        answer: Result<Answer, Failure>,
        request: Option<Box<ClientRequest>>,
    ) -> Option<Waker> {
        match self {
            Reply::One(one) => one.send(answer, request),
            Reply::Tagged(tagged) => tagged.send(answer, request),
        }
    }
}

thread_local! {
    /// Whose node this thread wakes later, and whether there is a reason by now.
    static HELD_BACK: Cell<Option<(*const Inbox, bool)>> = const { Cell::new(None) };
}

/// The end of [`Inbox::together`], also when the work panics.
struct Later<'a> {
    inbox: &'a Inbox,
    outer: Option<(*const Inbox, bool)>,
}

impl Drop for Later<'_> {
    fn drop(&mut self) {
        if let Some((_, true)) = HELD_BACK.replace(self.outer) {
            self.inbox.wake();
        }
    }
}

#[derive(Default)]
pub(crate) struct Inbox {
    jobs: Mutex<Vec<Job>>,
    /// Bytes of frames that were dropped in and not taken yet.
    frame_bytes: AtomicUsize,
    sleeping: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Inbox {
    /// Drops a job in and wakes the node if it sleeps.
    pub(crate) fn push(&self, job: Job) {
        self.jobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(job);
        self.wake();
    }

    /// Drops jobs in, in their order.
    pub(crate) fn push_all(&self, jobs: &mut Vec<Job>) {
        self.jobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .append(jobs);
        self.wake();
    }

    /// The node has ended: whatever is here is dropped, and so answered.
    pub(crate) fn abandon(&self) {
        let jobs = std::mem::take(&mut *self.jobs.lock().unwrap_or_else(PoisonError::into_inner));
        drop(jobs);
    }

    /// Wakes the node only when `work` is done, for all that it dropped in.
    pub(crate) fn together<T>(&self, work: impl FnOnce() -> T) -> T {
        let outer = HELD_BACK.replace(Some((std::ptr::from_ref(self), false)));
        let _later = Later { inbox: self, outer };
        work()
    }

    fn wake(&self) {
        if let Some((inbox, _)) = HELD_BACK.get()
            && std::ptr::eq(inbox, self)
        {
            HELD_BACK.set(Some((inbox, true)));
            return;
        }
        // The node says that it sleeps before it looks for jobs a last time, so either it sees
        // this one, or we see that it sleeps.
        if self.sleeping.swap(false, Ordering::SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// Drops a peer's frame in. Says how many bytes of frames wait now.
    pub(crate) fn push_frame(&self, from: NodeId, bytes: Bytes) -> usize {
        let waiting = self.frame_bytes.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len();
        self.push(Job::Input(Input::Frame { from, bytes }));
        waiting
    }

    /// How many bytes of frames wait.
    pub(crate) fn frame_bytes(&self) -> usize {
        self.frame_bytes.load(Ordering::Relaxed)
    }

    /// The calling thread is the one that takes.
    pub(crate) fn attach(&self) {
        let _ = self.thread.set(thread::current());
    }

    /// Moves all jobs to `taken`, which must be empty. Sleeps up to `longest` if there are none.
    pub(crate) fn take(&self, taken: &mut Vec<Job>, longest: Duration) {
        if self.swap(taken) || longest.is_zero() {
            return;
        }
        self.sleeping.store(true, Ordering::SeqCst);
        if !self.swap(taken) {
            thread::park_timeout(longest);
            self.swap(taken);
        }
        self.sleeping.store(false, Ordering::SeqCst);
    }

    fn swap(&self, taken: &mut Vec<Job>) -> bool {
        std::mem::swap(
            &mut *self.jobs.lock().unwrap_or_else(PoisonError::into_inner),
            taken,
        );
        self.frame_bytes.store(0, Ordering::Relaxed);
        !taken.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever works together wakes the node once, at the end, and nobody else's node later.
    #[test]
    fn the_node_is_woken_when_the_work_is_done() {
        let (inbox, other) = (Inbox::default(), Inbox::default());
        let sleeps = |inbox: &Inbox| inbox.sleeping.load(Ordering::SeqCst);
        for inbox in [&inbox, &other] {
            inbox.sleeping.store(true, Ordering::SeqCst);
        }
        inbox.together(|| {
            inbox.push(Job::Stop);
            other.push(Job::Stop);
            assert!(sleeps(&inbox));
            assert!(!sleeps(&other));
        });
        assert!(!sleeps(&inbox));
        inbox.sleeping.store(true, Ordering::SeqCst);
        inbox.together(|| {});
        assert!(sleeps(&inbox), "there was nothing to wake it for");
    }
}
