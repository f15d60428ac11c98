//! Flat combining: a thread that has work for an idle node steps the node itself. The node thread
//! steps it at deadlines, under load, and when a step may take long.
//!
//! When a lock passes from one holder to the next, each thread switch costs as much as the work
//! between two switches. Stepping on the calling thread removes one. With [`BUSY`] or more calls in
//! flight, clients wake the node thread instead, so that batches stay large.
//!
//! # Synchronization
//!
//! The runner is a monitor: one mutex protects the queued jobs, the node and the state of the node
//! thread; one condition variable wakes the node thread. The mutex puts all critical sections into
//! one order, and each unlock happens-before the next lock.
//!
//! - **One step at a time.** The node is a value. A thread takes it out of the monitor, steps it
//!   and puts it back. Only one thread can have it, and a thread that is late cannot put back the
//!   node of another one (no ABA). Taking and putting back are critical sections, so each step
//!   happens-before the next.
//! - **No lost wake-up.** A thread that leaves the node idle sees an empty queue in the same
//!   critical section. So a job that is queued at an idle node was enqueued later, and its producer
//!   sees the idle node: it takes the node or hands it to the node thread. A producer that finds
//!   the node taken does nothing, because the thread that has the node looks at the queue when it
//!   puts the node back. The node thread checks for work and starts to wait in one critical
//!   section, so no notification falls between the two.
//! - **No missed deadline.** A caller whose step makes the next one due before the node thread
//!   wakes up hands the node over. If the node thread wakes up while a caller steps, it records
//!   that it waits for the node, and every caller then hands the node over.
//! - **No step after the end.** After a step that ends the node, callers hand the node over, and
//!   the node thread consumes it: there is no value left to step. It then refuses new jobs and
//!   drops the queued ones in one critical section, so every job is either stepped or dropped.
//! - **Order.** A thread takes jobs only together with the node, all of them and in order. So jobs
//!   are stepped in the order of `enqueue`, and outputs, which leave during the step, in the order
//!   of the steps.
//!
//! `tests/models` checks these claims with the model checker `shuttle`.

use std::panic::{self, AssertUnwindSafe};

use crate::sync::{Condvar, Mutex, MutexGuard, WakeTime, has_passed, lock, wait_until};

/// A node with at least this many calls in flight counts as busy: the node thread steps it, because
/// more calls that can share a batch are likely to follow.
const BUSY: usize = 8;

/// Queued frames of more bytes than this are a long step, which callers leave to the node thread.
const HEAVY_BYTES: usize = 64 * 1024;

/// Maximum number of steps that a caller takes for the jobs of other threads and its own.
const MOST_INLINE_STEPS: usize = 2;

/// What a [`NodeRunner`] steps: the driver of the node, or a small machine in the models.
pub(crate) trait Step {
    /// An item of the queue.
    type Job;

    /// Handles the jobs in order. Jobs that are left in `jobs` come first in the next step, which
    /// must then be due at once.
    fn step(&mut self, jobs: &mut Vec<Self::Job>) -> NextStep;

    /// Ends the node, on the node thread, after a step that returned [`NextStep::Never`] or
    /// panicked.
    fn end(self);
}

/// When the next step is due.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NextStep {
    /// At `due`, or as soon as a job is queued.
    Due {
        due: WakeTime,
        /// Number of calls in flight.
        calls: usize,
    },
    /// The node has ended.
    Never,
}

/// What a thread does about the queued jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drive {
    /// Nothing now: the thread must call [`NodeRunner::drive`] afterwards.
    Later,
    /// Wakes the node thread, unless another thread steps the node.
    Wake,
    /// Steps the node on this thread, unless another thread steps it. Only for threads that may be
    /// blocked for the length of a short step.
    Inline,
    /// Like `Inline`, or like `Later` if the node is busy, so that more calls join the batch.
    InlineUnlessBusy,
}

/// Whether a thread has done its part for the queued jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driven {
    Yes,
    /// The node is busy: [`NodeRunner::drive`] must be called.
    NotYet,
}

/// Kind of an enqueued frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    Short,
    /// A part of a snapshot: the step may take long.
    Long,
}

/// A node, its queue, and the choice of the thread that steps it. See the module documentation.
pub(crate) struct NodeRunner<S: Step> {
    monitor: Mutex<Monitor<S>>,
    /// Notified when the node is handed to the node thread.
    handed_over: Condvar,
}

struct Monitor<S: Step> {
    jobs: Vec<S::Job>,
    /// Bytes of the frames in `jobs`.
    frame_bytes: usize,
    /// Whether `jobs` contains a long frame.
    has_long_frame: bool,
    /// `None`: a thread steps the node, or the node has ended.
    node: Option<Box<Stepper<S>>>,
    thread: ThreadState,
    /// Number of calls in flight after the last step.
    calls: usize,
}

struct Stepper<S: Step> {
    step: S,
    /// Jobs that the next step handles first. Otherwise empty, and kept for its capacity.
    jobs: Vec<S::Job>,
    next: NextStep,
}

/// State of the node thread.
#[derive(Clone, Copy)]
enum ThreadState {
    /// It steps the node, or was notified and takes the node next.
    Awake,
    /// It wakes up at this time. `None`: when the node is handed over.
    Asleep(Option<WakeTime>),
    /// It has ended the node.
    Ended,
}

impl<S: Step> Monitor<S> {
    fn is_busy(&self) -> bool {
        self.calls >= BUSY
    }

    fn is_heavy(&self) -> bool {
        self.has_long_frame || self.frame_bytes > HEAVY_BYTES
    }

    /// Takes the node out, with the queued jobs.
    fn take(&mut self) -> Option<Box<Stepper<S>>> {
        let mut node = self.node.take()?;
        if node.jobs.is_empty() {
            std::mem::swap(&mut node.jobs, &mut self.jobs);
            self.frame_bytes = 0;
            self.has_long_frame = false;
        }
        Some(node)
    }

    /// Takes the node for a caller. `None`: another thread has it or takes it next, or the step may
    /// take long.
    fn take_inline(&mut self) -> Option<Box<Stepper<S>>> {
        let may = matches!(self.thread, ThreadState::Asleep(_)) && !self.is_heavy();
        if may { self.take() } else { None }
    }

    fn put_back(&mut self, node: Box<Stepper<S>>) {
        if let NextStep::Due { calls, .. } = node.next {
            self.calls = calls;
        }
        self.node = Some(node);
    }

    /// Returns whether the next step is due before the node thread wakes up. The step that ends the
    /// node is always due.
    fn is_due_earlier(&self) -> bool {
        match (self.node.as_ref().map(|node| node.next), self.thread) {
            (Some(NextStep::Due { due, .. }), ThreadState::Asleep(Some(wakes))) => due < wakes,
            (Some(_), ThreadState::Asleep(_)) => true,
            _ => false,
        }
    }
}

impl<S: Step> Stepper<S> {
    /// Steps the node and then calls `then`, unless the step has ended the node.
    fn step(&mut self, then: impl FnOnce(&mut S)) {
        // After a panic the state of the node is unknown, so it is only ended. The panic hook has
        // reported the panic, and the calling thread can continue.
        let stepped = panic::catch_unwind(AssertUnwindSafe(|| {
            let next = self.step.step(&mut self.jobs);
            if let NextStep::Due { .. } = next {
                then(&mut self.step);
            }
            next
        }));
        self.next = stepped.unwrap_or(NextStep::Never);
    }
}

impl<S: Step> NodeRunner<S> {
    /// The first step is due at once, on the node thread.
    pub(crate) fn new(step: S, next: NextStep) -> NodeRunner<S> {
        NodeRunner {
            monitor: Mutex::new(Monitor {
                jobs: Vec::new(),
                frame_bytes: 0,
                has_long_frame: false,
                node: Some(Box::new(Stepper {
                    step,
                    jobs: Vec::new(),
                    next,
                })),
                thread: ThreadState::Awake,
                calls: 0,
            }),
            handed_over: Condvar::new(),
        }
    }

    /// Body of the node thread: steps the node until it ends.
    pub(crate) fn run(&self) {
        let mut monitor = lock(&self.monitor);
        let ended = loop {
            monitor = self.wait_for_work(monitor);
            let Some(mut node) = monitor.take() else {
                continue;
            };
            if let NextStep::Never = node.next {
                break node;
            }
            drop(monitor);
            node.step(|_| {});
            monitor = lock(&self.monitor);
            monitor.put_back(node);
        };
        drop(monitor);
        let Stepper { step, jobs, .. } = *ended;
        step.end();
        let mut monitor = lock(&self.monitor);
        monitor.thread = ThreadState::Ended;
        let queued = std::mem::take(&mut monitor.jobs);
        drop(monitor);
        // Dropping a job answers its caller, which may run code that enqueues: not under the lock.
        drop((jobs, queued));
    }

    /// Blocks the node thread until jobs are queued, the next step is due, or the node has ended.
    fn wait_for_work<'a>(
        &self,
        mut monitor: MutexGuard<'a, Monitor<S>>,
    ) -> MutexGuard<'a, Monitor<S>> {
        loop {
            let wakes = match monitor.node.as_ref().map(|node| node.next) {
                Some(NextStep::Due { due, .. }) if monitor.jobs.is_empty() && !has_passed(due) => {
                    Some(due)
                }
                Some(_) => break,
                // A caller steps the node and hands it over afterwards.
                None => None,
            };
            monitor.thread = ThreadState::Asleep(wakes);
            monitor = wait_until(&self.handed_over, monitor, wakes);
        }
        monitor.thread = ThreadState::Awake;
        monitor
    }

    /// Enqueues a job and wakes the node thread, unless another thread steps the node.
    pub(crate) fn push(&self, job: S::Job) {
        self.submit([job], Drive::Wake);
    }

    /// Enqueues jobs in order. A node that has ended drops them.
    pub(crate) fn submit(&self, jobs: impl IntoIterator<Item = S::Job>, drive: Drive) -> Driven {
        match self.locked_enqueue(jobs) {
            Some(monitor) => self.locked_drive(monitor, drive),
            None => Driven::Yes,
        }
    }

    /// Enqueues a frame of a peer for a later [`drive`](NodeRunner::drive). Wakes the node thread
    /// if the step may take long. Returns the number of frame bytes that wait.
    pub(crate) fn submit_frame(&self, job: S::Job, bytes: usize, kind: FrameKind) -> usize {
        let Some(mut monitor) = self.locked_enqueue([job]) else {
            return 0;
        };
        monitor.frame_bytes += bytes;
        monitor.has_long_frame |= kind == FrameKind::Long;
        let waiting = monitor.frame_bytes;
        if monitor.is_heavy() {
            self.hand_over(monitor);
        }
        waiting
    }

    fn locked_enqueue(
        &self,
        jobs: impl IntoIterator<Item = S::Job>,
    ) -> Option<MutexGuard<'_, Monitor<S>>> {
        let mut monitor = lock(&self.monitor);
        if let ThreadState::Ended = monitor.thread {
            // Dropping a job answers its caller, which may run code that enqueues: not under the
            // lock.
            drop(monitor);
            drop(jobs);
            return None;
        }
        monitor.jobs.extend(jobs);
        Some(monitor)
    }

    /// Returns the number of frame bytes that wait.
    pub(crate) fn frame_bytes(&self) -> usize {
        lock(&self.monitor).frame_bytes
    }

    /// Lets the node handle the jobs that are queued.
    pub(crate) fn drive(&self, drive: Drive) -> Driven {
        self.locked_drive(lock(&self.monitor), drive)
    }

    fn locked_drive(&self, monitor: MutexGuard<'_, Monitor<S>>, drive: Drive) -> Driven {
        match drive {
            _ if monitor.jobs.is_empty() => {}
            Drive::Later => {}
            Drive::InlineUnlessBusy if monitor.is_busy() => return Driven::NotYet,
            Drive::Wake => self.hand_over(monitor),
            Drive::Inline | Drive::InlineUnlessBusy => self.locked_step(monitor, |_| {}),
        }
        Driven::Yes
    }

    /// Steps the node on this thread and then passes it to `look`. Does nothing if the node is busy
    /// or another thread steps it.
    pub(crate) fn step_and_look(&self, look: impl FnOnce(&mut S)) {
        let monitor = lock(&self.monitor);
        if !monitor.is_busy() {
            self.locked_step(monitor, look);
        }
    }

    /// Takes inline steps until the queue is empty, at most [`MOST_INLINE_STEPS`]. Calls `then`
    /// after the first one.
    fn locked_step<'a>(
        &'a self,
        mut monitor: MutexGuard<'a, Monitor<S>>,
        then: impl FnOnce(&mut S),
    ) {
        let mut then = Some(then);
        for _ in 0..MOST_INLINE_STEPS {
            let Some(mut node) = monitor.take_inline() else {
                break;
            };
            drop(monitor);
            match then.take() {
                Some(then) => node.step(then),
                None => node.step(|_| {}),
            }
            monitor = lock(&self.monitor);
            monitor.put_back(node);
            if monitor.is_due_earlier() {
                break;
            }
            if monitor.jobs.is_empty() {
                return;
            }
        }
        self.hand_over(monitor);
    }

    /// Hands the node to the node thread, unless another thread has it.
    fn hand_over(&self, mut monitor: MutexGuard<'_, Monitor<S>>) {
        if let (ThreadState::Asleep(_), true) = (monitor.thread, monitor.node.is_some()) {
            monitor.thread = ThreadState::Awake;
            drop(monitor);
            self.handed_over.notify_one();
        }
    }
}
