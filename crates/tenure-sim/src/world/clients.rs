//! Clients: what they ask finds a node, and what they are told finds them, or not.

use tenure_node::{Answer, Failure, Input, RequestId, StreamId};

use super::{Event, World};
use crate::load::{Action, Client, Env};
use crate::time::{MILLISECOND, SECOND, Time};

impl World {
    pub(super) fn client(&mut self, at: usize, act: impl FnOnce(&mut Client, &mut Env<'_>)) {
        let mut env = Env {
            now: self.now,
            plan: &self.plan,
            judges: &mut self.judges,
            trace: &mut self.trace,
            counts: &mut self.counts,
            actions: Vec::new(),
            storm: self.storm,
        };
        act(&mut self.clients[at], &mut env);
        for action in std::mem::take(&mut env.actions) {
            self.act(at, action);
        }
    }

    fn act(&mut self, client: usize, action: Action) {
        match action {
            Action::Wake(when) => self.at(when, Event::Client(client)),
            Action::Ask {
                ask,
                request,
                timeout_ms,
            } => {
                self.next_request += 1;
                let id = RequestId(self.next_request);
                let input = Input::Request {
                    id,
                    request,
                    timeout_ms,
                };
                self.client_sends(client, ask, input);
            }
            Action::Subscribe { owner } => {
                self.next_request += 1;
                let id = StreamId(self.next_request);
                self.client_sends(client, 0, Input::Subscribe { id, owner });
            }
            Action::Store { write, delay } => {
                self.at(self.now + delay, Event::StoreWrite { client, write });
            }
        }
    }

    /// What goes between clients and nodes is quick, but now and then seconds late.
    pub(super) fn client_delay(&mut self) -> Time {
        if self.storm && self.random.chance(15) {
            return self.random.between(MILLISECOND, 6 * SECOND);
        }
        self.random.between(100, 3 * MILLISECOND)
    }

    fn client_sends(&mut self, client: usize, ask: u64, input: Input) {
        let seat = self.random.index(self.seats.len());
        if self.storm && self.random.chance(self.plan.client_loss) {
            return;
        }
        let when = self.now + self.client_delay();
        self.at(
            when,
            Event::ToNode {
                seat,
                client,
                ask,
                input: Box::new(input),
            },
        );
    }

    pub(super) fn reach_node(&mut self, at: usize, client: usize, ask: u64, input: Input) {
        if !self.seats[at].is_up() {
            if ask != 0 {
                let answer = Err(Failure::Unavailable {
                    why: "nobody is there",
                    nothing_happened: tenure_node::Certain::Yes,
                });
                self.reach_client(client, ask, answer);
            }
            return;
        }
        match &input {
            Input::Request { id, .. } => {
                self.seats[at].calls.insert(*id, (client, ask));
            }
            Input::Subscribe { id, .. } => {
                self.seats[at].streams.insert(*id, client);
            }
            _ => {}
        }
        self.input(at, input);
    }

    pub(super) fn reach_client(
        &mut self,
        client: usize,
        ask: u64,
        answer: Result<Box<Answer>, Failure>,
    ) {
        if self.storm && self.random.chance(self.plan.client_loss) {
            return;
        }
        let when = self.now + self.client_delay();
        self.at(
            when,
            Event::ToClient {
                client,
                ask,
                answer,
            },
        );
    }
}
