//! The node thread's inbox: anybody drops jobs in, the node takes all of them at once.
//!
//! One turn of the node handles everything that came together, so the busier it is, the bigger its
//! batches. A sender wakes the thread only when it sleeps, or stands in for it (see the seat): a busy
//! node costs no system call here.

use std::cell::Cell;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
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
    /// Whether the caller has given up.
    pub(crate) fn is_abandoned(&self) -> bool {
        match self {
            Reply::One(one) => one.is_abandoned(),
            Reply::Tagged(tagged) => tagged.is_abandoned(),
        }
    }

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
struct Later<F: Fn()> {
    wake: F,
    outer: Option<(*const Inbox, bool)>,
}

impl<F: Fn()> Drop for Later<F> {
    fn drop(&mut self) {
        if let Some((_, true)) = HELD_BACK.replace(self.outer) {
            (self.wake)();
        }
    }
}

/// So many turns are taken by a stand-in, if more comes meanwhile.
const TURNS: usize = 2;

/// Who looks after what is dropped in.
mod state {
    /// The node's thread, which looks again before it sleeps.
    pub(super) const AWAKE: u8 = 0;
    /// Nobody: whoever drops something in sees to it.
    pub(super) const ASLEEP: u8 = 1;
    /// A stand-in for the node's thread, who looks again before it goes.
    pub(super) const STOOD_IN: u8 = 2;
}

#[derive(Default)]
pub(crate) struct Inbox {
    jobs: Mutex<Vec<Job>>,
    /// Bytes of frames that were dropped in and not taken yet.
    frame_bytes: AtomicUsize,
    /// One of [`state`].
    state: AtomicU8,
    /// How many calls were under way after the last turn.
    calls: AtomicUsize,
    thread: OnceLock<Thread>,
}

impl Inbox {
    fn jobs(&self) -> MutexGuard<'_, Vec<Job>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops a job in and wakes the node if it sleeps.
    pub(crate) fn push(&self, job: Job) {
        self.leave(job);
        self.wake();
    }

    /// Drops a job in for whoever looks next: the node has to be woken, or stood in for.
    pub(crate) fn leave(&self, job: Job) {
        self.jobs().push(job);
    }

    /// Drops jobs in, in their order, as [`leave`](Inbox::leave).
    pub(crate) fn leave_all(&self, jobs: &mut Vec<Job>) {
        self.jobs().append(jobs);
    }

    /// The node has ended: whatever is here is dropped, and so answered.
    pub(crate) fn abandon(&self) {
        let jobs = std::mem::take(&mut *self.jobs());
        drop(jobs);
    }

    /// Calls `wake` only when `work` is done, instead of waking the node for all that it dropped in.
    pub(crate) fn together<T>(&self, work: impl FnOnce() -> T, wake: impl Fn()) -> T {
        let outer = HELD_BACK.replace(Some((std::ptr::from_ref(self), false)));
        let _later = Later { wake, outer };
        work()
    }

    /// Wakes the node if it sleeps.
    pub(crate) fn wake(&self) {
        if let Some((inbox, _)) = HELD_BACK.get()
            && std::ptr::eq(inbox, self)
        {
            HELD_BACK.set(Some((inbox, true)));
            return;
        }
        // Whoever looks after the inbox says that it goes before it looks a last time, so either it
        // sees what was dropped in, or we see that it went.
        if self.change(state::ASLEEP, state::AWAKE)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    fn change(&self, from: u8, to: u8) -> bool {
        self.state
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// Drops a peer's frame in, as [`leave`](Inbox::leave). Says how many bytes of frames wait now.
    pub(crate) fn leave_frame(&self, from: NodeId, bytes: Bytes) -> usize {
        let waiting = self.frame_bytes.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len();
        self.leave(Job::Input(Input::Frame { from, bytes }));
        waiting
    }

    /// How many calls were under way after the last turn.
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    pub(crate) fn set_calls(&self, calls: usize) {
        self.calls.store(calls, Ordering::Relaxed);
    }

    /// How many bytes of frames wait.
    pub(crate) fn frame_bytes(&self) -> usize {
        self.frame_bytes.load(Ordering::Relaxed)
    }

    /// The calling thread is the node's.
    pub(crate) fn attach(&self) {
        let _ = self.thread.set(thread::current());
    }

    /// Moves all jobs to `taken`, which must be empty.
    pub(crate) fn take(&self, taken: &mut Vec<Job>) {
        std::mem::swap(&mut *self.jobs(), taken);
        self.frame_bytes.store(0, Ordering::Relaxed);
    }

    /// Whether nothing is here.
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs().is_empty()
    }

    /// Whether nobody looks after what is here.
    #[cfg(test)]
    pub(crate) fn is_unattended(&self) -> bool {
        self.state.load(Ordering::SeqCst) == state::ASLEEP && !self.is_empty()
    }

    /// The node's thread sleeps, until somebody wakes it or for so long.
    pub(crate) fn sleep(&self, longest: Duration) {
        if !self.is_empty() {
            return;
        }
        self.state.store(state::ASLEEP, Ordering::SeqCst);
        if self.is_empty() {
            thread::park_timeout(longest);
        }
        self.state.store(state::AWAKE, Ordering::SeqCst);
    }

    /// Sees to what was left here: the caller takes turns while the node's thread sleeps and there is
    /// something, for a while. A turn says whether that thread is needed.
    pub(crate) fn stand_in(&self, mut turn: impl FnMut() -> Needed) {
        for _ in 0..TURNS {
            if !self.change(state::ASLEEP, state::STOOD_IN) {
                // Somebody looks after it who will look again.
                return;
            }
            let needed = turn();
            if !self.change(state::STOOD_IN, state::ASLEEP) {
                // The node's thread woke up by itself.
                return;
            }
            match needed {
                Needed::Yes => break,
                Needed::No if self.is_empty() => return,
                Needed::No => {}
            }
        }
        self.wake();
    }
}

/// Whether the node's thread is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needed {
    Yes,
    No,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// Whoever works together wakes the node once, at the end, and nobody else's node later.
    #[test]
    fn the_node_is_woken_when_the_work_is_done() {
        let (inbox, other) = (Inbox::default(), Inbox::default());
        let sleeps = |inbox: &Inbox| inbox.state.load(Ordering::SeqCst) == state::ASLEEP;
        for inbox in [&inbox, &other] {
            inbox.state.store(state::ASLEEP, Ordering::SeqCst);
        }
        inbox.together(
            || {
                inbox.push(Job::Stop);
                other.push(Job::Stop);
                assert!(sleeps(&inbox));
                assert!(!sleeps(&other));
            },
            || inbox.wake(),
        );
        assert!(!sleeps(&inbox));
        inbox.state.store(state::ASLEEP, Ordering::SeqCst);
        inbox.together(|| {}, || inbox.wake());
        assert!(sleeps(&inbox), "there was nothing to wake it for");
    }

    /// While somebody stands in, nobody wakes the node's thread, and nothing is overlooked.
    #[test]
    fn whoever_stands_in_looks_again_before_it_goes() {
        let inbox = Inbox::default();
        let state = || inbox.state.load(Ordering::SeqCst);
        inbox.stand_in(|| panic!("the node is awake"));
        inbox.state.store(state::ASLEEP, Ordering::SeqCst);
        let mut turns = 0;
        inbox.stand_in(|| {
            turns += 1;
            inbox.stand_in(|| panic!("one is enough"));
            inbox.take(&mut Vec::new());
            if turns == 1 {
                inbox.push(Job::Stop);
                assert_eq!(state(), state::STOOD_IN);
            }
            Needed::No
        });
        assert_eq!((turns, state()), (2, state::ASLEEP));
        inbox.stand_in(|| {
            inbox.push(Job::Stop);
            Needed::No
        });
        assert_eq!(state(), state::AWAKE, "there was no end to it");
        inbox.state.store(state::ASLEEP, Ordering::SeqCst);
        inbox.stand_in(|| Needed::Yes);
        assert_eq!(state(), state::AWAKE);
    }

    /// Whoever drops something in, in whatever way, need not see to it that it is taken.
    #[test]
    fn nothing_is_left_behind() {
        const EACH: usize = 4_000;
        let inbox = Inbox::default();
        let taken = AtomicUsize::new(0);
        let place = Mutex::new(());
        let turn = || {
            let Ok(_one_at_a_time) = place.try_lock() else {
                return Needed::No;
            };
            let mut jobs = Vec::new();
            inbox.take(&mut jobs);
            taken.fetch_add(jobs.len(), Ordering::SeqCst);
            // Others drop something in before this is over.
            thread::yield_now();
            Needed::No
        };
        let all = 3 * EACH;
        let (begun, long) = (Instant::now(), Duration::from_secs(60));
        let patience = || assert!(begun.elapsed() < long, "nobody takes what is there");
        thread::scope(|scope| {
            scope.spawn(|| {
                inbox.attach();
                while taken.load(Ordering::SeqCst) < all {
                    inbox.sleep(long);
                    patience();
                    let _one_at_a_time = place.lock().unwrap();
                    let mut jobs = Vec::new();
                    inbox.take(&mut jobs);
                    taken.fetch_add(jobs.len(), Ordering::SeqCst);
                }
            });
            for stands_in in [true, true, false] {
                let (inbox, taken) = (&inbox, &taken);
                scope.spawn(move || {
                    for number in 0..EACH {
                        if stands_in {
                            inbox.leave(Job::Stop);
                            inbox.stand_in(turn);
                        } else {
                            inbox.push(Job::Stop);
                        }
                        // Everybody sleeps now and then.
                        while number % 16 == 0 && !inbox.is_empty() {
                            patience();
                            thread::yield_now();
                        }
                    }
                    // The node's thread need not have been woken for the last of them.
                    while taken.load(Ordering::SeqCst) < all {
                        patience();
                        thread::yield_now();
                    }
                    inbox.wake();
                });
            }
        });
        assert_eq!(taken.into_inner(), all);
    }
}
