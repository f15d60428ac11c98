//! The node thread's inbox: anybody drops jobs in, the node takes all of them at once.
//!
//! One turn of the node handles everything that came together, so the busier it is, the bigger its
//! batches. A sender wakes the thread only when it sleeps, or steps the node for it (see the node runner): a busy
//! node costs no system call here.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::thread::{self, Thread};
use std::time::Duration;

use bytes::Bytes;
use tenure_node::{
    Answer, Channel, ClientRequest, Failure, GroupId, Input, NodeId, Status, StreamId,
};
use tokio::sync::oneshot;

use crate::call_batch::TaggedReply;
use crate::metrics::NodeMetrics;
use crate::peers::FrameWriter;
use crate::placement_plan::PlacementView;
use crate::reply_channel::Sender;
use crate::stream::StreamSender;

/// What the node thread is asked to do.
pub(crate) enum Job {
    /// A client's call.
    Call {
        request: Box<ClientRequest>,
        timeout_ms: u64,
        reply: ReplyTo,
    },
    /// A subscription or a watch begins, as the input says.
    Listen {
        id: StreamId,
        input: Input,
        listener: StreamSender,
    },
    /// A subscription or a watch is over.
    Unlisten { id: StreamId },
    /// Somebody wants to know that what came before this is taken.
    Reached(oneshot::Sender<()>),
    /// Something for the node itself.
    Input(Input),
    /// Somebody wants to know how things are.
    Vitals(oneshot::Sender<NodeMetrics>),
    /// Frames for a peer go here from now on.
    Connected {
        node: NodeId,
        channel: Channel,
        frame_writer: FrameWriter,
    },
    /// Frames for a peer go nowhere.
    Disconnected { node: NodeId, channel: Channel },
    /// A frame that waited for the disk found its queue full or closed.
    Lost {
        node: NodeId,
        channel: Channel,
        frame_writer: FrameWriter,
    },
    /// What the groups that are led here should be brought in line with.
    View(PlacementView),
    /// Somebody wants to know how the node is.
    Inspect(oneshot::Sender<Status>),
    /// A backup wants to know the term in which a replica leads.
    LedTerm(GroupId, oneshot::Sender<Option<u64>>),
    /// A backup wants the state of a replica that leads.
    State(GroupId, oneshot::Sender<Option<LedState>>),
    /// A handshake wants to know how many entries of the system group are applied here.
    SystemApplied(oneshot::Sender<u64>),
    /// This node's cluster gave way to another one: the node ends at once and hands nothing over.
    Exclude(String),
    /// Hand over what is led and end.
    Stop,
}

/// The state of a replica that leads and serves, as a snapshot holds it.
pub(crate) struct LedState {
    /// The term that it leads in.
    pub(crate) term: u64,
    /// The last entry in it.
    pub(crate) index: u64,
    pub(crate) state: Bytes,
}

/// Where an answer goes. Dropped, it tells that the node is gone.
pub(crate) enum ReplyTo {
    /// To one who waits for nothing else.
    One(Sender),
    /// To one who waits for many.
    Tagged(TaggedReply),
}

impl ReplyTo {
    /// Whether the caller has given up.
    pub(crate) fn is_abandoned(&self) -> bool {
        match self {
            ReplyTo::One(one) => one.is_abandoned(),
            ReplyTo::Tagged(tagged) => tagged.is_abandoned(),
        }
    }

    /// Answers; the request goes back, if somebody has use for it. Who sleeps is to be woken.
    pub(crate) fn send(
        self,
        answer: Result<Answer, Failure>,
        request: Option<Box<ClientRequest>>,
    ) -> Option<Waker> {
        match self {
            ReplyTo::One(one) => one.send(answer, request),
            ReplyTo::Tagged(tagged) => tagged.send(answer, request),
        }
    }
}

thread_local! {
    /// Whose node this thread wakes later, and whether there is a reason by now.
    static HELD_BACK: Cell<Option<(*const Inbox, bool)>> = const { Cell::new(None) };
}

/// The end of [`Inbox::defer_wake`], also when the work panics.
struct DeferredWakes<F: Fn()> {
    wake: F,
    outer: Option<(*const Inbox, bool)>,
}

impl<F: Fn()> Drop for DeferredWakes<F> {
    fn drop(&mut self) {
        if let Some((_, true)) = HELD_BACK.replace(self.outer) {
            (self.wake)();
        }
    }
}

/// Frames of so many bytes take no time worth speaking of.
pub(crate) const MUCH: usize = 64 * 1024;

/// So many turns are taken by a stand-in, if more comes meanwhile.
const TURNS: usize = 2;

/// Who looks after what is dropped in: the low bits of [`Inbox::state`].
///
/// The bits above count stand-ins. Without the count, the end of one stand-in could be taken for that of a later
/// one (ABA): the first has done its turn and is descheduled, the node's thread wakes and sleeps again, a second
/// stands in, and the compare-and-swap of the first succeeds on the state of the second, which then finds its own
/// state gone and does not wake the thread that its turn needs.
mod state {
    /// The node's thread, which looks again before it sleeps.
    pub(super) const AWAKE: u64 = 0;
    /// Nobody: whoever drops something in sees to it.
    pub(super) const ASLEEP: u64 = 1;
    /// A stand-in for the node's thread, who looks again before it goes.
    pub(super) const STEPPED_INLINE: u64 = 2;
    /// Which bits say so.
    pub(super) const WHO: u64 = 3;
    /// One stand-in more.
    pub(super) const NEXT: u64 = 4;
}

#[derive(Default)]
pub(crate) struct Inbox {
    jobs: Mutex<Vec<Job>>,
    /// Bytes of frames that were dropped in and not taken yet.
    frame_bytes: AtomicUsize,
    /// Whether one of them is a part of a state: what follows from it may take long.
    has_bulk: AtomicBool,
    /// One of [`state`], and a count.
    ///
    /// Memory order: a producer pushes a job (under the mutex of `jobs`) and then reads `state`; a consumer
    /// publishes in `state` that it goes and then looks at `jobs` again. This is the store-buffering pattern:
    /// with sequential consistency on both accesses of `state`, at least one of the two sees the other, so no
    /// job is left without a thread that takes it. The mutex orders the accesses to `jobs` themselves. All
    /// changes of `state` are read-modify-writes, except that of the node's thread from AWAKE, when no other
    /// thread may change it.
    state: AtomicU64,
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
    pub(crate) fn defer_wake<T>(&self, work: impl FnOnce() -> T, wake: impl Fn()) -> T {
        let outer = HELD_BACK.replace(Some((std::ptr::from_ref(self), false)));
        let _later = DeferredWakes { wake, outer };
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
        let mut seen = self.state.load(Ordering::SeqCst);
        while seen & state::WHO == state::ASLEEP {
            match self.change(seen, seen & !state::WHO | state::AWAKE) {
                Ok(()) => {
                    if let Some(thread) = self.thread.get() {
                        thread.unpark();
                    }
                    return;
                }
                Err(now) => seen = now,
            }
        }
    }

    fn change(&self, from: u64, to: u64) -> Result<(), u64> {
        self.state
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
            .map(|_| ())
    }

    /// Says that the node's thread goes. Only that thread does, while it is awake.
    fn fall_asleep(&self) {
        let count = self.state.load(Ordering::SeqCst) & !state::WHO;
        self.state.store(count | state::ASLEEP, Ordering::SeqCst);
    }

    /// Says that the node's thread is there, whoever steps the node for it.
    fn awake(&self) {
        const { assert!(state::AWAKE == 0) };
        self.state.fetch_and(!state::WHO, Ordering::SeqCst);
    }

    /// Drops a peer's frame in, as [`leave`](Inbox::leave). Says how many bytes of frames wait now.
    pub(crate) fn leave_frame(&self, from: NodeId, channel: Channel, bytes: Bytes) -> usize {
        if channel == Channel::Bulk {
            self.has_bulk.store(true, Ordering::Relaxed);
        }
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

    /// Whether a turn would take long: it is left to the node's own thread. A hint, so its order does not matter.
    pub(crate) fn holds_much(&self) -> bool {
        self.has_bulk.load(Ordering::Relaxed) || self.frame_bytes() > MUCH
    }

    /// The calling thread is the node's.
    pub(crate) fn attach(&self) {
        let _ = self.thread.set(thread::current());
    }

    /// Moves all jobs to `taken`, which must be empty.
    pub(crate) fn take(&self, taken: &mut Vec<Job>) {
        std::mem::swap(&mut *self.jobs(), taken);
        self.frame_bytes.store(0, Ordering::Relaxed);
        self.has_bulk.store(false, Ordering::Relaxed);
    }

    /// Whether nothing is here.
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs().is_empty()
    }

    #[cfg(test)]
    fn who(&self) -> u64 {
        self.state.load(Ordering::SeqCst) & state::WHO
    }

    /// Whether nobody looks after what is here.
    #[cfg(test)]
    pub(crate) fn is_unattended(&self) -> bool {
        self.who() == state::ASLEEP && !self.is_empty()
    }

    /// The node's thread sleeps, until somebody wakes it or for so long.
    pub(crate) fn sleep(&self, longest: Duration) {
        if !self.is_empty() {
            return;
        }
        self.fall_asleep();
        if self.is_empty() {
            thread::park_timeout(longest);
        }
        self.awake();
    }

    /// Sees to what was left here: the caller takes turns while the node's thread sleeps and there is
    /// something, for a while. A turn says whether that thread is needed.
    pub(crate) fn try_step_inline(&self, mut turn: impl FnMut() -> ThreadWake) {
        for _ in 0..TURNS {
            let seen = self.state.load(Ordering::SeqCst);
            let count = (seen & !state::WHO).wrapping_add(state::NEXT);
            if seen & state::WHO != state::ASLEEP
                || self.change(seen, count | state::STEPPED_INLINE).is_err()
            {
                // Somebody looks after it who will look again.
                return;
            }
            let needed = turn();
            if self
                .change(count | state::STEPPED_INLINE, count | state::ASLEEP)
                .is_err()
            {
                // The node's thread woke up by itself.
                return;
            }
            match needed {
                ThreadWake::Yes => break,
                ThreadWake::No if self.is_empty() => return,
                ThreadWake::No => {}
            }
        }
        self.wake();
    }
}

/// Whether the node's thread is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadWake {
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
        let sleeps = |inbox: &Inbox| inbox.who() == state::ASLEEP;
        for inbox in [&inbox, &other] {
            inbox.fall_asleep();
        }
        inbox.defer_wake(
            || {
                inbox.push(Job::Stop);
                other.push(Job::Stop);
                assert!(sleeps(&inbox));
                assert!(!sleeps(&other));
            },
            || inbox.wake(),
        );
        assert!(!sleeps(&inbox));
        inbox.fall_asleep();
        inbox.defer_wake(|| {}, || inbox.wake());
        assert!(sleeps(&inbox), "there was nothing to wake it for");
    }

    /// While somebody stands in, nobody wakes the node's thread, and nothing is overlooked.
    #[test]
    fn whoever_stands_in_looks_again_before_it_goes() {
        let inbox = Inbox::default();
        let state = || inbox.who();
        inbox.try_step_inline(|| panic!("the node is awake"));
        inbox.fall_asleep();
        let mut turns = 0;
        inbox.try_step_inline(|| {
            turns += 1;
            inbox.try_step_inline(|| panic!("one is enough"));
            inbox.take(&mut Vec::new());
            if turns == 1 {
                inbox.push(Job::Stop);
                assert_eq!(state(), state::STEPPED_INLINE);
            }
            ThreadWake::No
        });
        assert_eq!((turns, state()), (2, state::ASLEEP));
        inbox.try_step_inline(|| {
            inbox.push(Job::Stop);
            ThreadWake::No
        });
        assert_eq!(state(), state::AWAKE, "there was no end to it");
        inbox.fall_asleep();
        inbox.try_step_inline(|| ThreadWake::Yes);
        assert_eq!(state(), state::AWAKE);
    }

    /// A stand-in that comes late does not end the turn of the next one: the thread that this turn needs is
    /// woken.
    #[test]
    fn the_end_of_one_stand_in_is_not_that_of_the_next() {
        let inbox = Inbox::default();
        inbox.fall_asleep();
        let both = std::sync::Barrier::new(2);
        let (first_is_done, second_waits) = std::sync::mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                inbox.try_step_inline(|| {
                    both.wait();
                    // The node's thread wakes and sleeps again, and another one stands in.
                    both.wait();
                    ThreadWake::No
                });
                first_is_done.send(()).unwrap();
            });
            both.wait();
            inbox.awake();
            inbox.fall_asleep();
            inbox.try_step_inline(|| {
                both.wait();
                second_waits.recv().unwrap();
                assert_eq!(
                    inbox.who(),
                    state::STEPPED_INLINE,
                    "it ended the turn of another"
                );
                ThreadWake::Yes
            });
        });
        assert_eq!(inbox.who(), state::AWAKE, "the node's thread was not woken");
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
                return ThreadWake::No;
            };
            let mut jobs = Vec::new();
            inbox.take(&mut jobs);
            taken.fetch_add(jobs.len(), Ordering::SeqCst);
            // Others drop something in before this is over.
            thread::yield_now();
            ThreadWake::No
        };
        let all = 3 * EACH;
        let (begun, long) = (Instant::now(), Duration::from_secs(60));
        let timeout = || assert!(begun.elapsed() < long, "nobody takes what is there");
        thread::scope(|scope| {
            scope.spawn(|| {
                inbox.attach();
                while taken.load(Ordering::SeqCst) < all {
                    inbox.sleep(long);
                    timeout();
                    let _one_at_a_time = place.lock().unwrap();
                    let mut jobs = Vec::new();
                    inbox.take(&mut jobs);
                    taken.fetch_add(jobs.len(), Ordering::SeqCst);
                }
            });
            for steps_inline in [true, true, false] {
                let (inbox, taken) = (&inbox, &taken);
                scope.spawn(move || {
                    for number in 0..EACH {
                        if steps_inline {
                            inbox.leave(Job::Stop);
                            inbox.try_step_inline(turn);
                        } else {
                            inbox.push(Job::Stop);
                        }
                        // Everybody sleeps now and then.
                        while number % 16 == 0 && !inbox.is_empty() {
                            timeout();
                            thread::yield_now();
                        }
                    }
                    // The node's thread need not have been woken for the last of them.
                    while taken.load(Ordering::SeqCst) < all {
                        timeout();
                        thread::yield_now();
                    }
                    inbox.wake();
                });
            }
        });
        assert_eq!(taken.into_inner(), all);
    }
}
