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

use crate::handle::{Stopped, gone};
use crate::inbox::{Inbox, Job, Reply};
use crate::seat::Seat;
use crate::stream::{self, Listener, StreamEnd};

/// What a place with many calls hears.
#[derive(Debug)]
pub enum Heard {
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
pub struct Calls {
    inbox: Arc<Inbox>,
    seat: Arc<Seat>,
    stopped: Arc<Stopped>,
    ear: Arc<Ear>,
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

impl Calls {
    pub(crate) fn new(
        inbox: Arc<Inbox>,
        seat: Arc<Seat>,
        stopped: Arc<Stopped>,
        buffer: usize,
    ) -> Calls {
        Calls {
            inbox,
            seat,
            stopped,
            ear: Arc::new(Ear {
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
            reply: Reply::Tagged(Tagged {
                ear: Some(Arc::clone(&self.ear)),
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
            let listener = Listener::Heard(Arc::clone(&self.ear));
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
        self.seat.serve();
        if self.stopped.is_set() {
            // Nobody takes it any more; dropped, it is answered.
            self.inbox.abandon();
        }
    }

    /// Lets the caller look at the node, if that can be had at once, for reads that have come by now. Calls that
    /// are under way are not waited for.
    pub fn look(&self, look: impl FnOnce(Sight<'_>)) {
        self.seat.look(|node| look(Sight(node)));
    }

    /// Takes everything that was heard; waits if there is nothing.
    pub fn poll(&mut self, cx: &mut Context<'_>, heard: &mut Vec<Heard>) -> Poll<()> {
        let mut state = self.ear.lock();
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

impl Drop for Calls {
    fn drop(&mut self) {
        self.ear.lock().is_closed = true;
        if self.is_listening {
            self.inbox.push(Job::Unlisten { id: self.id });
        }
    }
}

/// The node, as one who only looks sees it. See [`Calls::look`].
pub struct Sight<'a>(&'a mut Node);

impl Sight<'_> {
    /// The answer to a read, unless it has to be called.
    pub fn answer(&mut self, request: &ClientRequest) -> Option<Answer> {
        self.0.answer_now(request)
    }
}

/// Where the node puts what is heard.
pub(crate) struct Ear {
    state: Mutex<State>,
    /// How many events may lie here.
    buffer: usize,
}

#[derive(Default)]
struct State {
    heard: Vec<Heard>,
    events: usize,
    /// Of whom nothing more is heard, because too much was.
    missed: HashSet<OwnerId>,
    waker: Option<Waker>,
    /// Whether nobody listens any more.
    is_closed: bool,
}

impl Ear {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, heard: Heard) -> Option<Waker> {
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
            Heard::Event(event)
        } else {
            state.missed.insert(event.owner);
            Heard::Ended(StreamEnd::Overflow)
        };
        state.heard.push(heard);
        state.waker.take()
    }

    pub(crate) fn end(&self, why: StreamEnd) {
        if let Some(waker) = self.put(Heard::Ended(why)) {
            waker.wake();
        }
    }
}

/// The answer to one call of many. Dropped without one, it says that the node is gone.
pub(crate) struct Tagged {
    ear: Option<Arc<Ear>>,
    tag: u64,
}

impl Tagged {
    /// Who sleeps is to be woken.
    pub(crate) fn send(
        mut self,
        answer: Result<Answer, Failure>,
        request: Option<Box<ClientRequest>>,
    ) -> Option<Waker> {
        let tag = self.tag;
        self.ear.take()?.put(Heard::Answer {
            tag,
            answer,
            request,
        })
    }
}

impl Tagged {
    /// Whether the caller has given up.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.ear.as_ref().is_some_and(|ear| ear.lock().is_closed)
    }
}

impl Drop for Tagged {
    fn drop(&mut self) {
        let Some(ear) = self.ear.take() else { return };
        let heard = Heard::Answer {
            tag: self.tag,
            answer: Err(gone()),
            request: None,
        };
        if let Some(waker) = ear.put(heard) {
            waker.wake();
        }
    }
}
