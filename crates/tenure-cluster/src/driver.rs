//! The node thread: takes what has come, steps the node once, and does what the step wants done.
//!
//! ```text
//!   inbox ──all jobs──▶ Node::step ──▶ writes ──▶ journal thread ──persisted──▶ inbox
//!                                  ├─▶ answers ──▶ callers
//!                                  ├─▶ events, changes ──▶ streams
//!                                  └─▶ snapshots ──▶ chores thread ──saved──▶ inbox
//! ```
//!
//! Time is read here and nowhere else: once a turn.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::task::Waker;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tenure_node::{Input, Moment, Node, Output, RequestId, StreamId};

use crate::chores::Chore;
use crate::handle::Stopped;
use crate::inbox::{Inbox, Job, Reply};
use crate::journal::Write;
use crate::stream::{Listener, StreamEnd, Wants};

/// A node is stepped at least twice a second (leases.md).
const LONGEST_SLEEP: Duration = Duration::from_millis(500);

/// Reads the clocks of this machine.
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn new() -> Clock {
        Clock {
            start: Instant::now(),
        }
    }

    pub(crate) fn now(&self) -> Moment {
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Moment {
            monotonic_ms: u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX),
            wall_ms: u64::try_from(wall.as_millis()).unwrap_or(0),
        }
    }
}

pub(crate) struct Driver {
    pub(crate) node: Node,
    pub(crate) clock: Clock,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) stopped: Arc<Stopped>,
    pub(crate) journal: Sender<Write>,
    pub(crate) chores: Sender<Chore>,
    pub(crate) replies: HashMap<u64, Reply>,
    pub(crate) listeners: HashMap<u64, Listener>,
    pub(crate) next_request: u64,
    /// Who is woken at the end of a turn: by then all that the turn tells them is there.
    pub(crate) wakers: Vec<Waker>,
}

impl Driver {
    /// Runs until the node stops or is told to. `first` is what its start wants done.
    pub(crate) fn run(mut self, first: Vec<Output>) {
        self.inbox.attach();
        let why = self.turns(first);
        self.stopped.set(why.clone());
        for listener in self.listeners.values() {
            listener.end(StreamEnd::Stopped);
        }
        let _ = self.journal.send(Write::End);
        // Whoever is still in the inbox is dropped, and so answered.
        let mut rest = Vec::new();
        self.inbox.take(&mut rest, Duration::ZERO);
        drop(rest);
        tracing::info!(why, "the node has ended");
    }

    fn turns(&mut self, first: Vec<Output>) -> String {
        let mut jobs = Vec::new();
        let mut inputs = Vec::new();
        let mut outputs = first;
        loop {
            for output in outputs {
                if let Some(why) = self.carry_out(output) {
                    return why;
                }
            }
            for waker in self.wakers.drain(..) {
                waker.wake();
            }
            let sleep = Duration::from_millis(self.node.wake_in()).min(LONGEST_SLEEP);
            self.inbox.take(&mut jobs, sleep);
            for job in jobs.drain(..) {
                match self.input(job) {
                    Next::Input(input) => inputs.push(input),
                    Next::Nothing => {}
                    Next::Stop => return "it was told to".to_owned(),
                }
            }
            outputs = self.node.step(self.clock.now(), inputs.drain(..));
        }
    }

    fn input(&mut self, job: Job) -> Next {
        match job {
            Job::Call {
                request,
                timeout_ms,
                reply,
            } => {
                let id = self.next_request;
                self.next_request += 1;
                self.replies.insert(id, reply);
                Next::Input(Input::Request {
                    id: RequestId(id),
                    request,
                    timeout_ms,
                })
            }
            Job::Listen(listener) => {
                let id = StreamId(listener.id);
                let input = match &listener.wants {
                    Wants::Events(owner, _) | Wants::Heard(owner, _) => Input::Subscribe {
                        id,
                        owner: owner.clone(),
                    },
                    Wants::Changes(prefix, start, _) => Input::Watch {
                        id,
                        prefix: prefix.clone(),
                        start: *start,
                    },
                };
                self.listeners.insert(listener.id, listener);
                Next::Input(input)
            }
            Job::Unlisten(id) => match self.listeners.remove(&id) {
                Some(_) => Next::Input(Input::Unsubscribe { id: StreamId(id) }),
                None => Next::Nothing,
            },
            Job::Input(input) => Next::Input(input),
            Job::Stop => Next::Stop,
        }
    }

    /// Does what a step wants done. Says why, when the node is over.
    fn carry_out(&mut self, output: Output) -> Option<String> {
        match output {
            Output::Write(batch) => {
                // A journal that is gone has said why already.
                let _ = self.journal.send(Write::Batch(batch));
            }
            Output::Answer { id, answer } => {
                if let Some(reply) = self.replies.remove(&id.0) {
                    self.wakers.extend(reply.send(answer));
                }
            }
            Output::Event { id, event } => {
                let wakers = &mut self.wakers;
                if self
                    .listeners
                    .get(&id.0)
                    .is_some_and(|listener| !listener.event(event, wakers))
                {
                    self.unlisten(id);
                }
            }
            Output::Change { id, change } => {
                if self
                    .listeners
                    .get(&id.0)
                    .is_some_and(|listener| !listener.change(change))
                {
                    self.unlisten(id);
                }
            }
            Output::Closed { id, why } => {
                if let Some(listener) = self.listeners.remove(&id.0) {
                    listener.end(StreamEnd::Failed(why));
                }
            }
            Output::SaveSnapshot(snapshot) => {
                let _ = self.chores.send(Chore::Save(snapshot));
            }
            Output::Removed { group } => {
                let _ = self.journal.send(Write::Forget(group));
            }
            Output::Stop { why } => return Some(why),
            // One machine has no peers, and nobody who changes its groups.
            Output::Send { .. } | Output::Changed { .. } => {}
        }
        None
    }

    fn unlisten(&mut self, id: StreamId) {
        self.listeners.remove(&id.0);
        self.inbox.push(Job::Input(Input::Unsubscribe { id }));
    }
}

enum Next {
    Input(Input),
    Nothing,
    Stop,
}
