//! Client side of the simulator: delivers requests to nodes and answers to clients, with delay and
//! loss.

use tenure_node::{Answer, Failure, Input, RequestId, StreamId, WatchStart};

use super::{SimEvent, Simulator};
use crate::check::Fact;
use crate::fault_profile::FaultProfile;
use crate::load::{Action, Env, SeenBy, SimClient};
use crate::sim_node::SimStream;
use crate::time::{MILLISECOND, SECOND, SimTime};

impl Simulator {
    /// Lets a client act, then carries out the actions that it requested.
    pub(super) fn client(&mut self, at: usize, act: impl FnOnce(&mut SimClient, &mut Env<'_>)) {
        let mut env = Env {
            now: self.now,
            plan: &self.plan,
            checkers: &mut self.checkers,
            trace: &mut self.trace,
            counts: &mut self.counts,
            actions: Vec::new(),
            fault_phase: self.fault_phase,
            seen_by: SeenBy::All,
        };
        act(&mut self.clients[at], &mut env);
        for action in std::mem::take(&mut env.actions) {
            self.act(at, action);
        }
    }

    fn act(&mut self, client: usize, action: Action) {
        match action {
            Action::Wake(when) => self.wake_client(client, when),
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
            Action::Unsubscribe { owner } => {
                self.hang_up_all(client, |stream| *stream == SimStream::Events(owner.clone()));
            }
            Action::Watch { prefix } => {
                self.hang_up_all(client, |stream| *stream == SimStream::Watch);
                self.next_request += 1;
                let id = StreamId(self.next_request);
                let start = WatchStart::Snapshot;
                self.client_sends(client, 0, Input::Watch { id, prefix, start });
            }
            Action::Store { write, delay } => {
                self.at(self.now + delay, SimEvent::StoreWrite { client, write });
            }
        }
    }

    /// Returns the delay of a message between a client and a node: short, but sometimes seconds in
    /// the fault phase.
    pub(super) fn client_delay(&mut self) -> SimTime {
        if self.fault_phase && self.random.chance(15) {
            return self.random.between(MILLISECOND, 6 * SECOND);
        }
        self.random.between(100, 3 * MILLISECOND)
    }

    /// Returns the delay of an event. Some profiles delay events by seconds.
    pub(super) fn event_delay(&mut self) -> SimTime {
        let late = self.plan.habits.late_events;
        if self.fault_phase && late > 0 && self.random.chance(late) {
            return self.random.between(SECOND / 2, 8 * SECOND);
        }
        self.client_delay()
    }

    /// Sends a request or subscription to a random node. The node of a deposed leader is preferred.
    fn client_sends(&mut self, client: usize, ask: u64, input: Input) {
        let mut node_slot = self.random.index(self.node_slots.len());
        if let Some(favourite) = self.favourite {
            // With a deposed leader: observers keep reading from it, lock clients mostly use other
            // nodes.
            let stays = match (self.plan.fault_profile, self.clients[client].is_locker()) {
                (FaultProfile::Deposed, true) => 100,
                (FaultProfile::Deposed, false) => 900,
                _ => 500,
            };
            if self.random.chance(stays) {
                node_slot = favourite;
            }
        }
        if self.fault_phase && self.random.chance(self.plan.client_loss) {
            return;
        }
        let when = self.now + self.client_delay();
        self.at(
            when,
            SimEvent::ToNode {
                node_slot,
                client,
                ask,
                input: Box::new(input),
            },
        );
    }

    /// Delivers a message to a node. If the node is down, the caller gets an error at once.
    pub(super) fn reach_node(&mut self, at: usize, client: usize, ask: u64, input: Input) {
        if !self.node_slots[at].is_up() {
            // Subscriptions have no call number and get no answer.
            if ask != 0 {
                let answer = Err(Failure::Unavailable {
                    why: "nobody is there",
                    nothing_happened: tenure_node::EffectCertainty::Yes,
                });
                self.reach_client(client, ask, answer);
            }
            return;
        }
        match &input {
            Input::Request { id, .. } => {
                self.node_slots[at].calls.insert(*id, (client, ask));
            }
            Input::Subscribe { id, owner } => {
                let stream = SimStream::Events(owner.clone());
                self.node_slots[at].streams.insert(*id, (client, stream));
                let stream = id.0;
                self.checkers
                    .see(self.now, &Fact::Subscribed { stream, owner });
            }
            Input::Watch { id, prefix, .. } => {
                self.node_slots[at]
                    .streams
                    .insert(*id, (client, SimStream::Watch));
                let stream = id.0;
                self.checkers
                    .see(self.now, &Fact::Watches { stream, prefix });
            }
            _ => {}
        }
        self.input(at, input);
    }

    /// Removes a stream and tells the checkers.
    pub(super) fn hang_up(&mut self, at: usize, id: StreamId) -> Option<(usize, SimStream)> {
        let (client, stream) = self.node_slots[at].streams.remove(&id)?;
        let fact = match &stream {
            SimStream::Events(_) => Fact::Unsubscribed(id.0),
            SimStream::Watch => Fact::Unwatched(id.0),
        };
        self.checkers.see(self.now, &fact);
        Some((client, stream))
    }

    fn hang_up_all(&mut self, client: usize, which: impl Fn(&SimStream) -> bool) {
        for at in 0..self.node_slots.len() {
            let streams = self.node_slots[at].streams.iter();
            let ids: Vec<StreamId> = streams
                .filter(|(_, (whose, stream))| *whose == client && which(stream))
                .map(|(id, _)| *id)
                .collect();
            for id in ids {
                let input = match self.hang_up(at, id) {
                    Some((_, SimStream::Events(_))) => Input::Unsubscribe { id },
                    Some((_, SimStream::Watch)) => Input::Unwatch { id },
                    None => continue,
                };
                self.input(at, input);
            }
        }
    }

    pub(super) fn reach_client(
        &mut self,
        client: usize,
        ask: u64,
        answer: Result<Answer, Failure>,
    ) {
        if self.fault_phase && self.random.chance(self.plan.client_loss) {
            return;
        }
        let when = self.now + self.client_delay();
        self.at(
            when,
            SimEvent::ToClient {
                client,
                ask,
                answer: Box::new(answer),
            },
        );
    }
}
