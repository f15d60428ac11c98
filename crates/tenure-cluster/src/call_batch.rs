//! Batched calls with a completion queue, for sessions with many calls in flight.
//!
//! ```text
//!   session ──push, push, flush──▶ queue ──▶ node ──▶ completion queue ──one wake-up──▶ session
//! ```
//!
//! A single [`Handle::call`](crate::Handle::call) costs a channel and a wake-up. With hundreds of
//! calls in flight a session would spend more time on wake-ups than the node spends on decisions.
//!
//! Synchronization: the mutex of the completion queue protects both the results and the waker.
//! `poll` checks for results and registers its waker in one critical section, a producer adds a
//! result and takes the waker in another, so no wake-up is lost. The producer takes the waker, so a
//! task is woken once however many results follow before it polls again.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tenure_core::event::Event;
use tenure_core::value::OwnerId;
use tenure_node::{Answer, ClientRequest, Failure, Input, Node, StreamId};

use crate::driver::Runner;
use crate::handle::{gone, is_deferred};
use crate::job::{Job, Reply, ReplyTo};
use crate::node_runner::{Drive, Driven};
use crate::stream::{self, StreamEnd, StreamSender};
use crate::sync::lock;

/// An item of the completion queue.
#[derive(Debug)]
pub enum Completion {
    /// The result of a call.
    Answer {
        /// Tag that the caller passed to [`CallBatch::push`].
        tag: u64,
        /// Answer or failure.
        answer: Result<Answer, Failure>,
        /// The request, given back to be dropped: the allocator frees it fastest on the thread
        /// that allocated it.
        request: Option<Box<ClientRequest>>,
    },
    /// An event of a subscribed owner (R119 (Subscribe delivers from now on)).
    Event(Event),
    /// No more events of some owner follow.
    Ended(StreamEnd),
}

/// Calls of one connection that are submitted and completed together.
///
/// Dropping it does not cancel calls that the node has taken; their results are discarded.
pub struct CallBatch {
    runner: Arc<Runner>,
    completion_queue: Arc<CompletionQueue>,
    /// Pushed, but not flushed.
    jobs: Vec<Job>,
    /// Stream id of all subscriptions of this batch.
    id: StreamId,
    /// Whether the stream is registered with the node.
    is_listening: bool,
    /// Cache of subscribed owners that saves repeated subscriptions. The node has the complete set,
    /// and subscribing twice is harmless.
    owners: HashSet<OwnerId>,
}

/// Size limit of the cache of subscribed owners; it is cleared when it is full.
const OWNERS: usize = 1024;

impl CallBatch {
    pub(crate) fn new(runner: Arc<Runner>, buffer: usize) -> CallBatch {
        CallBatch {
            runner,
            completion_queue: Arc::new(CompletionQueue {
                state: Mutex::default(),
                buffer: buffer.max(1),
            }),
            jobs: Vec::new(),
            id: stream::number(),
            is_listening: false,
            owners: HashSet::new(),
        }
    }

    /// Adds a call; [`flush`](CallBatch::flush) submits it. Exactly one [`Completion::Answer`] with
    /// this tag follows.
    pub fn push(&mut self, tag: u64, request: Box<ClientRequest>, timeout: Duration) {
        self.jobs.push(Job::Call {
            request,
            timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
            reply: ReplyTo::Tagged(TaggedReply {
                completion_queue: Some(Arc::clone(&self.completion_queue)),
                tag,
            }),
        });
    }

    /// Subscribes to the events of an owner at the next flush, unless it is subscribed already.
    pub fn listen(&mut self, owner: &OwnerId) {
        if self.owners.contains(owner) {
            return;
        }
        if self.owners.len() == OWNERS {
            self.owners.clear();
        }
        self.owners.insert(owner.clone());
        let id = self.id;
        let owner = owner.clone();
        let input = Input::Subscribe { id, owner };
        self.jobs.push(if self.is_listening {
            Job::Input(input)
        } else {
            self.is_listening = true;
            let listener = StreamSender::Heard(Arc::clone(&self.completion_queue));
            Job::Listen {
                id,
                input,
                listener,
            }
        });
    }

    /// Submits all pushed calls and subscriptions.
    pub fn flush(&mut self) {
        if self.jobs.is_empty() {
            return;
        }
        let jobs = self.jobs.drain(..);
        let driven = self.runner.submit(jobs, Drive::InlineUnlessBusy);
        if driven == Driven::NotYet && !is_deferred(&self.runner) {
            self.runner.drive(Drive::Wake);
        }
    }

    /// Takes a turn on this thread, if possible at once, and passes a read-only view of the node to
    /// `look`. Does nothing if the node is busy. Does not wait for calls in flight.
    pub fn read_view(&self, look: impl FnOnce(ReadView<'_>)) {
        self.runner
            .step_and_look(|driver| look(ReadView(&mut driver.node)));
    }

    /// Moves all completions to `heard`. Registers the task's waker and returns `Pending` if there
    /// are none.
    pub fn poll(&mut self, cx: &mut Context<'_>, heard: &mut Vec<Completion>) -> Poll<()> {
        let mut state = self.completion_queue.lock();
        if state.heard.is_empty() {
            match &mut state.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        state.events = 0;
        if heard.is_empty() {
            std::mem::swap(heard, &mut state.heard);
        } else {
            heard.append(&mut state.heard);
        }
        Poll::Ready(())
    }
}

impl Drop for CallBatch {
    fn drop(&mut self) {
        self.completion_queue.lock().is_closed = true;
        if self.is_listening {
            self.runner.push(Job::Unlisten { id: self.id });
        }
    }
}

/// Read-only view of the node. See [`CallBatch::read_view`].
pub struct ReadView<'a>(&'a mut Node);

impl ReadView<'_> {
    /// Answers a read from the local state. `None`: the read needs a call.
    pub fn answer(&mut self, request: &ClientRequest) -> Option<Answer> {
        self.0.answer_now(request)
    }
}

/// Where the node puts the results and events of one call batch.
pub(crate) struct CompletionQueue {
    state: Mutex<QueueState>,
    /// Maximum number of events that wait here.
    buffer: usize,
}

#[derive(Default)]
struct QueueState {
    heard: Vec<Completion>,
    events: usize,
    /// Owners whose events were cut off because the buffer was full.
    missed: HashSet<OwnerId>,
    waker: Option<Waker>,
    /// Whether the call batch was dropped.
    is_closed: bool,
}

impl CompletionQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        lock(&self.state)
    }

    fn put(&self, heard: Completion) -> Option<Waker> {
        let mut state = self.lock();
        state.heard.push(heard);
        state.waker.take()
    }

    /// Adds an event. If the buffer is full, ends the events of its owner instead (R123 (slow
    /// subscribers are closed)). Returns the waker of the task that waits.
    pub(crate) fn event(&self, event: Event) -> Option<Waker> {
        let mut state = self.lock();
        if !state.missed.is_empty() && state.missed.contains(&event.owner) {
            return None;
        }
        let heard = if state.events < self.buffer {
            state.events += 1;
            Completion::Event(event)
        } else {
            state.missed.insert(event.owner);
            Completion::Ended(StreamEnd::Overflow)
        };
        state.heard.push(heard);
        state.waker.take()
    }

    pub(crate) fn end(&self, why: StreamEnd) {
        if let Some(waker) = self.put(Completion::Ended(why)) {
            waker.wake();
        }
    }
}

/// Sender for the result of one call. Dropping it reports that the node has stopped.
pub(crate) struct TaggedReply {
    completion_queue: Option<Arc<CompletionQueue>>,
    tag: u64,
}

impl TaggedReply {
    /// Delivers the result. Returns the waker of the task that waits.
    pub(crate) fn send(mut self, reply: Reply) -> Option<Waker> {
        self.put(reply)
    }

    fn put(&mut self, Reply { answer, request }: Reply) -> Option<Waker> {
        let tag = self.tag;
        self.completion_queue.take()?.put(Completion::Answer {
            tag,
            answer,
            request,
        })
    }

    /// Returns whether the call batch was dropped.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.completion_queue
            .as_ref()
            .is_some_and(|completion_queue| completion_queue.lock().is_closed)
    }
}

impl Drop for TaggedReply {
    fn drop(&mut self) {
        let waker = self.put(Reply {
            answer: Err(gone()),
            request: None,
        });
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
