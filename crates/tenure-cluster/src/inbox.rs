//! Multi-producer queue of the node thread, with deferred wake-ups.
//!
//! The consumer takes all queued jobs at once, so batches grow with the load. A producer makes a
//! system call only if the node thread sleeps; instead of waking it, the producer may step the node
//! itself (flat combining, see [`crate::node_runner`]).

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

/// A request to the node thread.
pub(crate) enum Job {
    /// A client's call.
    Call {
        request: Box<ClientRequest>,
        timeout_ms: u64,
        reply: ReplyTo,
    },
    /// Starts the subscription or watch in `input`.
    Listen {
        id: StreamId,
        input: Input,
        listener: StreamSender,
    },
    /// Ends a subscription or watch.
    Unlisten { id: StreamId },
    /// Replies when all jobs before this one have been taken.
    Reached(oneshot::Sender<()>),
    /// An input for the node, passed on unchanged.
    Input(Input),
    /// Requests the node's metrics.
    Vitals(oneshot::Sender<NodeMetrics>),
    /// A connection to a peer was established: its frames go to this writer from now on.
    Connected {
        node: NodeId,
        channel: Channel,
        frame_writer: FrameWriter,
    },
    /// The connection to a peer was lost: its frames are dropped.
    Disconnected { node: NodeId, channel: Channel },
    /// A frame that waited for a sync found its send queue full or closed.
    Lost {
        node: NodeId,
        channel: Channel,
        frame_writer: FrameWriter,
    },
    /// The cluster view from which the rebalancer plans the groups that this node leads.
    View(PlacementView),
    /// Requests the node's status.
    Inspect(oneshot::Sender<Status>),
    /// Requests the term in which this node leads a group (backup).
    LedTerm(GroupId, oneshot::Sender<Option<u64>>),
    /// Requests the state of a group that this node leads (backup).
    State(GroupId, oneshot::Sender<Option<LedState>>),
    /// Requests the index of the last applied entry of the system group (handshake).
    SystemApplied(oneshot::Sender<u64>),
    /// The node ends at once, without a hand-over: its cluster stopped for a rival cluster, or its
    /// data is an older copy.
    Exclude(String),
    /// Transfers leaderships to other nodes, then ends the node.
    Stop,
}

/// State of a group at its serving leader, in the snapshot format.
pub(crate) struct LedState {
    /// Term of the leadership.
    pub(crate) term: u64,
    /// Index of the last entry that the state contains.
    pub(crate) index: u64,
    pub(crate) state: Bytes,
}

/// Destination of an answer. Dropping it without an answer reports that the node has stopped.
pub(crate) enum ReplyTo {
    /// A caller that waits for this one answer.
    One(Sender),
    /// The completion queue of a call batch.
    Tagged(TaggedReply),
}

impl ReplyTo {
    /// Returns whether the caller no longer waits.
    pub(crate) fn is_abandoned(&self) -> bool {
        match self {
            ReplyTo::One(one) => one.is_abandoned(),
            ReplyTo::Tagged(tagged) => tagged.is_abandoned(),
        }
    }

    /// Delivers the answer and gives the request back for reuse. Returns the waker of the task that
    /// waits; the caller wakes it at the end of the turn.
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
    /// The inbox whose wake-ups this thread defers, and whether a wake-up was requested meanwhile.
    static HELD_BACK: Cell<Option<(*const Inbox, bool)>> = const { Cell::new(None) };
}

/// Guard of [`Inbox::defer_wake`]: performs the deferred wake-up on drop, also after a panic.
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

/// Frames of up to this many bytes are handled so fast that a calling thread may step the node for
/// them.
pub(crate) const MUCH: usize = 64 * 1024;

/// Maximum number of turns that a calling thread takes in one [`Inbox::try_step_inline`].
const TURNS: usize = 2;

/// The thread that is responsible for the queue: the low bits of [`Inbox::state`].
///
/// ```text
///             sleep                    CAS by an inline stepper
///   AWAKE ───────────▶ ASLEEP ──────────────────────────────▶ STEPPED_INLINE
///     ▲                  │ ▲                                     │   │
///     │  wake, timeout   │ └────────── CAS after the turn ───────┘   │
///     ├──────────────────┘                                           │
///     └────────── the node thread wakes by timeout ──────────────────┘
/// ```
///
/// The bits above count inline steppers. Without the count there is an ABA problem: stepper 1
/// finishes its turn and is descheduled; the node thread wakes and sleeps again; stepper 2 starts.
/// Then the compare-and-swap of stepper 1 would succeed on the state of stepper 2. Stepper 2 would
/// find its state gone and would not wake the node thread, although its turn requires that.
mod state {
    /// The node thread, which checks the queue again before it sleeps.
    pub(super) const AWAKE: u64 = 0;
    /// None: the producer must wake the node thread or step the node.
    pub(super) const ASLEEP: u64 = 1;
    /// A thread that steps the node inline and checks the queue again before it leaves.
    pub(super) const STEPPED_INLINE: u64 = 2;
    /// Mask of the bits that hold one of the three values.
    pub(super) const WHO: u64 = 3;
    /// Increment of the count of inline steppers.
    pub(super) const NEXT: u64 = 4;
}

#[derive(Default)]
pub(crate) struct Inbox {
    jobs: Mutex<Vec<Job>>,
    /// Bytes of queued frames.
    frame_bytes: AtomicUsize,
    /// Whether a queued frame belongs to a snapshot transfer: its turn may take long.
    has_bulk: AtomicBool,
    /// One of [`state`], and the count of inline steppers.
    ///
    /// Memory ordering (store-buffering pattern): a producer enqueues a job and then reads `state`;
    /// the consumer publishes in `state` that it leaves and then checks the queue again. At least
    /// one of the two must see the other's write, or a job stays in the queue while the node
    /// sleeps.
    ///
    /// The mutex of `jobs` guarantees that, because it orders the two critical sections. If the
    /// producer's comes first, the consumer's check sees the job. If the consumer's comes first,
    /// its unlock synchronizes with the producer's lock (release/acquire), so the producer reads
    /// the published state or a newer one. SeqCst on `state` is stronger than this argument needs.
    ///
    /// All changes of `state` are read-modify-writes, except the one from AWAKE to ASLEEP: in AWAKE
    /// only the node thread may change it.
    state: AtomicU64,
    /// Number of calls in flight after the last turn.
    calls: AtomicUsize,
    thread: OnceLock<Thread>,
}

impl Inbox {
    fn jobs(&self) -> MutexGuard<'_, Vec<Job>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enqueues a job and wakes the node thread if it sleeps.
    pub(crate) fn push(&self, job: Job) {
        self.leave(job);
        self.wake();
    }

    /// Enqueues a job without waking. The caller must then call [`wake`](Inbox::wake) or
    /// [`try_step_inline`](Inbox::try_step_inline).
    pub(crate) fn leave(&self, job: Job) {
        self.jobs().push(job);
    }

    /// Enqueues several jobs in order, without waking, like [`leave`](Inbox::leave).
    pub(crate) fn leave_all(&self, jobs: &mut Vec<Job>) {
        self.jobs().append(jobs);
    }

    /// Drops all queued jobs after the node has ended. Dropping a job's reply answers its caller.
    pub(crate) fn abandon(&self) {
        let jobs = std::mem::take(&mut *self.jobs());
        drop(jobs);
    }

    /// Runs `work` and defers its wake-ups of this inbox: calls `wake` once at the end, if any was
    /// requested.
    pub(crate) fn defer_wake<T>(&self, work: impl FnOnce() -> T, wake: impl Fn()) -> T {
        let outer = HELD_BACK.replace(Some((std::ptr::from_ref(self), false)));
        let _later = DeferredWakes { wake, outer };
        work()
    }

    /// Wakes the node thread if it sleeps. Inside [`defer_wake`](Inbox::defer_wake) it only records
    /// the request.
    pub(crate) fn wake(&self) {
        if let Some((inbox, _)) = HELD_BACK.get()
            && std::ptr::eq(inbox, self)
        {
            HELD_BACK.set(Some((inbox, true)));
            return;
        }
        // Second half of the store-buffering pattern (see `state`): the job is in the queue. If
        // this load does not read ASLEEP, the responsible thread will check the queue again.
        let mut seen = self.state.load(Ordering::SeqCst);
        while seen & state::WHO == state::ASLEEP {
            // Only the thread whose CAS succeeds unparks. `unpark` before `park` is not lost: the
            // token makes `park_timeout` return at once.
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

    /// Publishes that the node thread leaves the queue. Called only by that thread, in state AWAKE;
    /// so load and store need not be one atomic operation.
    fn fall_asleep(&self) {
        let count = self.state.load(Ordering::SeqCst) & !state::WHO;
        self.state.store(count | state::ASLEEP, Ordering::SeqCst);
    }

    /// Publishes that the node thread is responsible again, whatever the state was. A concurrent
    /// inline stepper notices by its failed compare-and-swap.
    fn awake(&self) {
        const { assert!(state::AWAKE == 0) };
        self.state.fetch_and(!state::WHO, Ordering::SeqCst);
    }

    /// Enqueues a peer's frame without waking, like [`leave`](Inbox::leave). Returns the number of
    /// frame bytes that wait now.
    pub(crate) fn leave_frame(&self, from: NodeId, channel: Channel, bytes: Bytes) -> usize {
        if channel == Channel::Bulk {
            self.has_bulk.store(true, Ordering::Relaxed);
        }
        let waiting = self.frame_bytes.fetch_add(bytes.len(), Ordering::Relaxed) + bytes.len();
        self.leave(Job::Input(Input::Frame { from, bytes }));
        waiting
    }

    /// Returns the number of calls in flight after the last turn.
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    pub(crate) fn set_calls(&self, calls: usize) {
        self.calls.store(calls, Ordering::Relaxed);
    }

    /// Returns the number of frame bytes that wait.
    pub(crate) fn frame_bytes(&self) -> usize {
        self.frame_bytes.load(Ordering::Relaxed)
    }

    /// Returns whether a turn may take long; then it is left to the node thread. Only a hint, so
    /// relaxed loads are enough.
    pub(crate) fn holds_much(&self) -> bool {
        self.has_bulk.load(Ordering::Relaxed) || self.frame_bytes() > MUCH
    }

    /// Registers the calling thread as the node thread.
    pub(crate) fn attach(&self) {
        let _ = self.thread.set(thread::current());
    }

    /// Moves all jobs to `taken`, which must be empty.
    pub(crate) fn take(&self, taken: &mut Vec<Job>) {
        std::mem::swap(&mut *self.jobs(), taken);
        self.frame_bytes.store(0, Ordering::Relaxed);
        self.has_bulk.store(false, Ordering::Relaxed);
    }

    /// Returns whether the queue is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs().is_empty()
    }

    #[cfg(test)]
    fn who(&self) -> u64 {
        self.state.load(Ordering::SeqCst) & state::WHO
    }

    /// Returns whether jobs are queued although no thread is responsible.
    #[cfg(test)]
    pub(crate) fn is_unattended(&self) -> bool {
        self.who() == state::ASLEEP && !self.is_empty()
    }

    /// Parks the node thread until it is woken, at most for `longest`. Returns at once if jobs are
    /// queued.
    pub(crate) fn sleep(&self, longest: Duration) {
        if !self.is_empty() {
            return;
        }
        // Store-buffering pattern: publish ASLEEP first, then check the queue again.
        self.fall_asleep();
        if self.is_empty() {
            thread::park_timeout(longest);
        }
        self.awake();
    }

    /// Handles the queued jobs on this thread: takes up to [`TURNS`] turns while the node thread
    /// sleeps and jobs are queued. `turn` returns whether the node thread must be woken.
    pub(crate) fn try_step_inline(&self, mut turn: impl FnMut() -> ThreadWake) {
        for _ in 0..TURNS {
            let seen = self.state.load(Ordering::SeqCst);
            let count = (seen & !state::WHO).wrapping_add(state::NEXT);
            if seen & state::WHO != state::ASLEEP
                || self.change(seen, count | state::STEPPED_INLINE).is_err()
            {
                // Another thread is responsible and checks the queue again before it leaves.
                return;
            }
            let needed = turn();
            if self
                .change(count | state::STEPPED_INLINE, count | state::ASLEEP)
                .is_err()
            {
                // The node thread woke by timeout and is responsible now.
                return;
            }
            // ASLEEP is published; the check of the queue comes after it, as in `sleep`.
            match needed {
                ThreadWake::Yes => break,
                ThreadWake::No if self.is_empty() => return,
                ThreadWake::No => {}
            }
        }
        self.wake();
    }
}

/// Whether the node thread must be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadWake {
    Yes,
    No,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// `defer_wake` wakes its own node once, at the end, and does not delay the wake-ups of other
    /// nodes.
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

    /// During an inline step no thread wakes the node thread, and no job is overlooked.
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

    /// A late inline stepper does not end the turn of the next one (ABA): the node thread is still
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
                    // The node thread wakes and sleeps again, and another thread steps inline.
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

    /// Every enqueued job is taken, whichever way it was enqueued.
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
            // Lets other threads enqueue jobs before this turn ends.
            thread::yield_now();
            ThreadWake::No
        };
        let all = 3 * EACH;
        let (begun, long) = (Instant::now(), Duration::from_secs(60));
        let timeout = || {
            assert!(
                begun.elapsed() < long,
                "the consumer does not take the queued jobs"
            )
        };
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
                        // Lets the queue become empty now and then, so that all threads reach their
                        // sleep paths.
                        while number % 16 == 0 && !inbox.is_empty() {
                            timeout();
                            thread::yield_now();
                        }
                    }
                    // The node thread need not have been woken for the last jobs.
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
