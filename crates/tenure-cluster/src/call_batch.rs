//! Many calls from one place: they go in together, and what comes of them comes back together.
//!
//! ```text
//!   session ──push, push, flush──▶ inbox ──▶ node ──▶ Heard, Heard ──one wake-up a turn──▶ session
//! ```
//!
//! A caller of [`Handle::call`](crate::Handle::call) costs a channel and a wake-up per call; a
//! session with hundreds of calls under way would spend more on waking than on deciding.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tenure_core::event::Event;
use tenure_core::value::OwnerId;
use tenure_node::{Answer, ClientRequest, Failure, Input, Node, StreamId};

use crate::handle::{StopState, gone};
use crate::inbox::{Inbox, Job, ReplyTo};
use crate::node_runner::NodeRunner;
use crate::stream::{self, StreamEnd, StreamSender};

/// What a place with many calls hears.
#[derive(Debug)]
pub enum Completion {
    /// A call is answered.
    Answer {
        /// What the caller called it.
        tag: u64,
        /// How.
        answer: Result<Answer, Failure>,
        /// What is left of the request, to be freed where it was made, or used again.
        request: Option<Box<ClientRequest>>,
    },
    /// Something happened to an owner that is listened to (R119).
    Event(Event),
    /// Nothing more is heard of some owner.
    Ended(StreamEnd),
}

/// A place with many calls under way. Dropping it leaves them to happen unheard.
pub struct CallBatch {
    inbox: Arc<Inbox>,
    runner: Arc<NodeRunner>,
    stopped: Arc<StopState>,
    completion_queue: Arc<CompletionQueue>,
    /// Pushed, not flushed.
    jobs: Vec<Job>,
    /// Where events come in.
    id: StreamId,
    /// Whether anybody is listened to.
    is_listening: bool,
    /// Some of those who are: the node knows them all, and may be told again.
    owners: HashSet<OwnerId>,
}

/// So many owners are remembered to be listened to.
const OWNERS: usize = 1024;

impl CallBatch {
    pub(crate) fn new(
        inbox: Arc<Inbox>,
        runner: Arc<NodeRunner>,
        stopped: Arc<StopState>,
        buffer: usize,
    ) -> CallBatch {
        CallBatch {
            inbox,
            runner,
            stopped,
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

    /// Makes a call, when flushed. It is heard of once, under this tag.
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

    /// Listens to the events of an owner, when flushed, unless it does already.
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

    /// Hands over what was pushed.
    pub fn flush(&mut self) {
        if self.jobs.is_empty() {
            return;
        }
        self.inbox.leave_all(&mut self.jobs);
        self.runner.serve();
        if self.stopped.is_set() {
            // Nobody takes it any more; dropped, it is answered.
            self.inbox.abandon();
        }
    }

    /// Lets the caller look at the node, if that can be had at once, for reads that have come by now. Calls that
    /// are under way are not waited for.
    pub fn read_view(&self, look: impl FnOnce(ReadView<'_>)) {
        self.runner.read_view(|node| look(ReadView(node)));
    }

    /// Takes everything that was heard; waits if there is nothing.
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
            self.inbox.push(Job::Unlisten { id: self.id });
        }
    }
}

/// The node, as one who only looks sees it. See [`CallBatch::read_view`].
pub struct ReadView<'a>(&'a mut Node);

impl ReadView<'_> {
    /// The answer to a read, unless it has to be called.
    pub fn answer(&mut self, request: &ClientRequest) -> Option<Answer> {
        self.0.answer_now(request)
    }
}

/// Where the node puts what is heard.
pub(crate) struct CompletionQueue {
    state: Mutex<QueueState>,
    /// How many events may lie here.
    buffer: usize,
}

#[derive(Default)]
struct QueueState {
    heard: Vec<Completion>,
    events: usize,
    /// Of whom nothing more is heard, because too much was.
    missed: HashSet<OwnerId>,
    waker: Option<Waker>,
    /// Whether nobody listens any more.
    is_closed: bool,
}

impl CompletionQueue {
    fn lock(&self) -> std::sync::MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, heard: Completion) -> Option<Waker> {
        let mut state = self.lock();
        state.heard.push(heard);
        state.waker.take()
    }

    /// An event; where too many lie here already, the end of what is heard of its owner (R123). Who
    /// sleeps is to be woken.
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

/// The answer to one call of many. Dropped without one, it says that the node is gone.
pub(crate) struct TaggedReply {
    completion_queue: Option<Arc<CompletionQueue>>,
    tag: u64,
}

impl TaggedReply {
    /// Who sleeps is to be woken.
    pub(crate) fn send(
        mut self,
        answer: Result<Answer, Failure>,
        request: Option<Box<ClientRequest>>,
    ) -> Option<Waker> {
        let tag = self.tag;
        self.completion_queue.take()?.put(Completion::Answer {
            tag,
            answer,
            request,
        })
    }
}

impl TaggedReply {
    /// Whether the caller has given up.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.completion_queue
            .as_ref()
            .is_some_and(|completion_queue| completion_queue.lock().is_closed)
    }
}

impl Drop for TaggedReply {
    fn drop(&mut self) {
        let Some(completion_queue) = self.completion_queue.take() else {
            return;
        };
        let heard = Completion::Answer {
            tag: self.tag,
            answer: Err(gone()),
            request: None,
        };
        if let Some(waker) = completion_queue.put(heard) {
            waker.wake();
        }
    }
}
