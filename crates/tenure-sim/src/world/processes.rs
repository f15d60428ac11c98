//! Processes: nodes that start, take turns, and say what they want done.

use bytes::Bytes;
use tenure_node::replica_view::promises_in;
use tenure_node::{
    ChangeRefused, Channel, Config, DurableAfter, Input, Membership, Node, NodeId, Output,
    RequestId, StreamId,
};

use super::{Event, World};
use crate::breach::Breach;
use crate::calm::is_probe;
use crate::check::Fact;
use crate::journal::{Blank, Journal, Unusable};
use crate::load::Client;
use crate::pulse::is_pulse;
use crate::seat::{Job, Middle};
use crate::time::{MILLISECOND, SECOND, Time};

impl World {
    pub(super) fn start(&mut self, at: usize) {
        if self.seats[at].is_up() {
            return;
        }
        if self.now < self.seats[at].hangs_until {
            // The log cannot be opened before it is synced.
            self.at(self.seats[at].hangs_until, Event::Start(at));
            return;
        }
        if self.seats[at].needs_new_life {
            let seat = &mut self.seats[at];
            seat.disk = seat.disk.wipe();
            if self.plan.breach != Some(Breach::WipedVoterVotes) {
                seat.member.incarnation += 1;
            }
            seat.starts = 0;
            seat.needs_new_life = false;
            seat.suspects.clear();
        }
        let (journal, mut recovery, blank) = match Journal::open(self.seats[at].disk.clone()) {
            Ok(opened) => opened,
            Err(Unusable::Later(why)) => {
                let who = self.seats[at].member;
                self.trace.say(
                    self.now,
                    format_args!("{who}"),
                    format_args!("cannot open its disk: {why}"),
                );
                // Somebody restarts the machine, too.
                self.seats[at].disk = self.seats[at].disk.crash(&mut || true);
                self.at(self.now + SECOND, Event::Start(at));
                return;
            }
            Err(Unusable::Never(why)) => {
                let who = self.seats[at].member;
                self.trace.say(
                    self.now,
                    format_args!("{who}"),
                    format_args!("refuses its disk: {why}"),
                );
                self.counts.refused_disks += 1;
                self.seats[at].needs_new_life = true;
                let expected = self.operator.may_lose.contains(&at);
                if !expected {
                    self.judges.object(
                        "disk",
                        self.now,
                        format!("{who} lost its disk to no fault: {why}"),
                    );
                }
                self.at(self.now + SECOND, Event::Start(at));
                return;
            }
        };
        let nodes: Vec<NodeId> = self.seats.iter().map(|seat| seat.member.node).collect();
        let born = blank == Blank::Yes
            && (self.seats[at].member.incarnation == 1)
            && (self.seats[at].starts == 0 || self.operator.newborn.contains(&at));
        let reused = self.plan.breach == Some(Breach::ReusedStart);
        let seat = &mut self.seats[at];
        if seat.starts == 0 || !reused {
            seat.starts += 1;
        }
        if born {
            for (group, voters) in self.operator.births() {
                if voters.contains(&seat.member) {
                    // Until its birth is durable it may be born again.
                    self.operator.newborn.insert(at);
                    recovery.born(group, voters);
                }
            }
        } else {
            self.operator.newborn.remove(&at);
        }
        for group in &seat.suspects {
            recovery.suspect(*group);
        }
        self.judges.starts(self.now, seat.member, &recovery);
        let config = Config {
            me: seat.member,
            cluster: self.plan.cluster.clone(),
            limits: self.plan.limits.clone(),
            start: seat.starts,
            seed: self.random.next(),
            nodes,
        };
        let moment = seat.clock.moment(self.now);
        let who = seat.member;
        match Node::start(config, recovery, moment) {
            Ok((node, outputs)) => {
                self.judges.started(self.now, &node);
                self.see_writes(at, &outputs);
                self.judges.stepped(self.now, who, &node);
                let seat = &mut self.seats[at];
                seat.suspects = node.suspects().collect();
                seat.node = Some(node);
                seat.journal = Some(journal);
                self.trace
                    .say(self.now, format_args!("{who}"), format_args!("starts"));
                self.take(at, outputs);
                self.reschedule(at);
                self.tell_peers(at, |node| Input::PeerUp { node });
            }
            Err(error) => {
                self.judges
                    .object("disk", self.now, format!("{who} cannot start: {error}"));
            }
        }
    }

    /// The process is gone, and with it whatever somebody listened to.
    pub(crate) fn end_process(&mut self, at: usize) {
        let streams: Vec<StreamId> = self.seats[at].streams.keys().copied().collect();
        for id in streams {
            self.hang_up(at, id);
        }
        self.seats[at].end_process();
    }

    /// Everybody else hears something about a node.
    pub(crate) fn tell_peers(&mut self, about: usize, input: impl Fn(NodeId) -> Input) {
        let node = self.seats[about].member.node;
        for at in 0..self.seats.len() {
            if at != about && self.seats[at].is_up() {
                self.input(at, input(node));
            }
        }
    }

    /// Something is put before a node; it takes its turn soon.
    pub(crate) fn input(&mut self, at: usize, input: Input) {
        let seat = &mut self.seats[at];
        if !seat.is_up() {
            return;
        }
        seat.inbox.push(input);
        if !seat.paused {
            let soon = self.now + 30;
            self.step_at(at, soon);
        }
    }

    fn step_at(&mut self, at: usize, when: Time) {
        if when < self.seats[at].next_step {
            self.seats[at].next_step = when;
            self.at(when, Event::Step(at));
        }
    }

    pub(crate) fn reschedule(&mut self, at: usize) {
        let seat = &self.seats[at];
        if let Some(node) = &seat.node
            && !seat.paused
        {
            let wait = seat.clock.takes(node.wake_in() * MILLISECOND).max(50);
            self.step_at(at, self.now + wait);
        }
    }

    pub(super) fn step(&mut self, at: usize) {
        let leap = self.plan.breach == Some(Breach::LeapingInstant) && self.random.chance(100);
        let now = self.now;
        let seat = &mut self.seats[at];
        seat.next_step = Time::MAX;
        if seat.paused {
            return;
        }
        if leap {
            seat.clock.set_forward(800 * MILLISECOND, now);
        }
        let moment = seat.clock.moment(now);
        let inputs = std::mem::take(&mut seat.inbox);
        let Some(node) = &mut seat.node else { return };
        self.counts.steps += 1;
        let outputs = node.step(moment, inputs);
        self.see_writes(at, &outputs);
        let seat = &mut self.seats[at];
        if let Some(node) = &seat.node {
            self.judges.stepped(now, seat.member, node);
            if !seat.suspects.is_empty() {
                seat.suspects = node.suspects().collect();
            }
        }
        self.take(at, outputs);
        self.reschedule(at);
    }

    /// The judges know a node's log before they look at what it has applied.
    fn see_writes(&mut self, at: usize, outputs: &[Output]) {
        for output in outputs {
            if let Output::Write(batch) = output {
                self.judges.written(self.now, self.seats[at].member, batch);
            }
        }
    }

    fn take(&mut self, at: usize, outputs: Vec<Output>) {
        for (done, output) in outputs.into_iter().enumerate() {
            if self.dies_at(at, Middle::Outputs(done)) {
                return;
            }
            match output {
                Output::Write(batch) => self.disk_job(at, Job::Write(batch)),
                Output::SaveSnapshot(snapshot) => {
                    self.counts.snapshots += 1;
                    self.judges
                        .snapshot(self.now, self.seats[at].member, &snapshot);
                    self.disk_job(at, Job::Save(snapshot));
                }
                Output::Send {
                    to,
                    channel,
                    after,
                    frame,
                } => match after {
                    DurableAfter::Persisted(mark)
                        if self.plan.breach != Some(Breach::VoteBeforeSync) =>
                    {
                        self.seats[at].held.push_back((mark, to, channel, frame));
                    }
                    DurableAfter::Nothing | DurableAfter::Persisted(_) => {
                        self.send(at, to, channel, frame)
                    }
                },
                Output::Answer { id, answer, .. } if is_probe(id) => {
                    self.probes.insert(id, answer);
                }
                Output::Answer { id, answer, .. } if is_pulse(id) => {
                    self.pulse_answered(id, &answer)
                }
                Output::Answer { id, answer, .. } => {
                    if let Some((client, ask)) = self.seats[at].calls.remove(&id) {
                        self.reach_client(client, ask, answer);
                    } else {
                        let who = self.seats[at].member;
                        self.judges.object(
                            "contract",
                            self.now,
                            format!("{who} answered {id:?}, which nobody waits for"),
                        );
                    }
                }
                Output::Event { id, event } => {
                    let Some((client, _)) = self.seats[at].streams.get(&id) else {
                        continue;
                    };
                    let (client, stream) = (*client, id.0);
                    let told = Fact::Told {
                        stream,
                        event: &event,
                    };
                    self.judges.see(self.now, &told);
                    if !(self.storm && self.random.chance(self.plan.client_loss)) {
                        let when = self.now + self.event_delay();
                        self.at(
                            when,
                            Event::Told {
                                client,
                                event: Box::new(event),
                            },
                        );
                    }
                }
                Output::Changed { id, result } => self.changed(id, result),
                Output::Stop { why } => {
                    let who = self.seats[at].member;
                    self.trace.say(
                        self.now,
                        format_args!("{who}"),
                        format_args!("stops: {why}"),
                    );
                    self.counts.stops += 1;
                    self.end_process(at);
                    let mut dice = self.random.split();
                    self.seats[at].leave_disk(&mut dice);
                    let pause = self.random.between(SECOND, 10 * SECOND);
                    self.at(self.now + pause, Event::Start(at));
                    return;
                }
                Output::Change { id, change } => {
                    if self.seats[at].streams.contains_key(&id) {
                        let who = self.seats[at].member;
                        self.trace.say(
                            self.now,
                            format_args!("{who}"),
                            format_args!("shows stream {} {change:?}", id.0),
                        );
                        self.judges.see(self.now, &Fact::Saw(id.0, &change));
                    }
                }
                Output::Closed { id, .. } => {
                    if let Some((client, _)) = self.hang_up(at, id) {
                        self.client(client, Client::closed);
                    }
                }
            }
        }
    }

    fn changed(&mut self, id: RequestId, result: Result<Membership, ChangeRefused>) {
        if result.is_ok() {
            self.counts.memberships += 1;
        }
        self.trace.say(
            self.now,
            format_args!("operator"),
            format_args!("change {} {result:?}", id.0),
        );
    }

    pub(super) fn send(&mut self, from: usize, to: NodeId, channel: Channel, frame: Bytes) {
        let to = to.number() as usize - 1;
        self.counts.frames += 1;
        self.trace.feed(&frame);
        if let Some(node) = &self.seats[from].node {
            for promised in promises_in(frame.clone()) {
                self.judges.sent(self.now, node, &promised);
            }
        }
        if to >= self.seats.len() {
            return;
        }
        let process = self.seats[to].process;
        for when in self.network.send(self.now, from, to, channel, frame.len()) {
            self.at(
                when,
                Event::Frame {
                    from,
                    to,
                    process,
                    bytes: frame.clone(),
                },
            );
        }
    }
}
