//! The world: one queue of events in virtual time, and everything that they happen to.
//!
//! ```text
//!   clients ──requests──▶ seats (node + journal + disk + clock) ◀──frames──▶ network
//!      └── facts ──▶ judges            ▲
//!   faults, operator ──────────────────┘
//! ```
//!
//! Everything here is deterministic: one thread, one generator per part, ordered maps.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use bytes::Bytes;
use tenure_log::SimDisk;
use tenure_node::{
    After, Answer, ChangeRefused, Config, Failure, GroupId, Input, Lane, Mark, Member, Membership,
    Node, NodeId, Output, RequestId, Role, StreamId,
};

use crate::breach::Breach;
use crate::calm::{Probes, is_probe};
use crate::check::{Judges, Violation};
use crate::counts::Counts;
use crate::faults::{Fault, Undo};
use crate::journal::{Blank, Journal, Unusable};
use crate::load::{Action, Client, Env, Store};
use crate::network::Network;
use crate::operator::Operator;
use crate::plan::Plan;
use crate::random::Random;
use crate::seat::{HEALTHY_DISK, Job, Seat, Syncing};
use crate::time::{Clock, MILLISECOND, SECOND, Time};
use crate::trace::Trace;

/// All that can happen.
pub(crate) enum Event {
    /// A node takes a turn, if this is still its time.
    Step(usize),
    /// A frame arrives, if the process it was meant for still runs.
    Frame {
        from: usize,
        to: usize,
        process: u64,
        bytes: Bytes,
    },
    /// The disk takes up what waits.
    DiskBegins { seat: usize, process: u64 },
    /// The sync that is under way ends.
    DiskEnds { seat: usize, process: u64 },
    /// Something from a client arrives at a node.
    ToNode {
        seat: usize,
        client: usize,
        ask: u64,
        input: Box<Input>,
    },
    /// An answer arrives at a client.
    ToClient {
        client: usize,
        ask: u64,
        answer: Result<Box<Answer>, Failure>,
    },
    /// An event arrives at a client.
    Told {
        client: usize,
        event: Box<tenure_core::event::Event>,
    },
    /// A client wants to do something.
    Client(usize),
    /// A write arrives at the fenced store.
    StoreWrite {
        client: usize,
        write: crate::load::StoreWrite,
    },
    /// The process of a node starts.
    Start(usize),
    /// A fault strikes.
    Strike(usize),
    /// A fault is over.
    Undo(Undo),
    /// The operator looks after membership.
    Operate,
    /// Somebody looks at all nodes, to count elections.
    Look,
}

struct Scheduled {
    at: Time,
    number: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Scheduled) -> bool {
        (self.at, self.number) == (other.at, other.number)
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Scheduled) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Scheduled) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// See the module.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) now: Time,
    queue: BinaryHeap<Reverse<Scheduled>>,
    scheduled: u64,
    pub(crate) random: Random,
    pub(crate) seats: Vec<Seat>,
    pub(crate) network: Network,
    pub(crate) clients: Vec<Client>,
    pub(crate) store: Store,
    pub(crate) faults: Vec<Fault>,
    pub(crate) operator: Operator,
    pub(crate) judges: Judges,
    pub(crate) trace: Trace,
    pub(crate) counts: Counts,
    next_request: u64,
    /// Answers to questions of the judges of liveness.
    pub(crate) probes: Probes,
    /// Faults strike and clients lose messages only while this is on.
    pub(crate) storm: bool,
}

impl World {
    pub(crate) fn new(plan: Plan, mut random: Random, trace: Trace) -> World {
        let seats = (0..plan.nodes)
            .map(|at| {
                let rate = random.between(905, 1095);
                let clock = Clock::new(rate, 0);
                Seat::new(member(at, 1), SimDisk::new(random.next()), clock)
            })
            .collect();
        let network = Network::new(plan.nodes, random.split());
        let clients = Client::all(&plan, &mut random);
        let faults = Fault::all(&plan, &mut random);
        let operator = Operator::new(&plan, &mut random);
        let judges = Judges::new();
        let mut world = World {
            now: SECOND,
            queue: BinaryHeap::new(),
            scheduled: 0,
            seats,
            network,
            clients,
            store: Store::default(),
            faults,
            operator,
            judges,
            trace,
            counts: Counts::default(),
            next_request: 0,
            probes: Probes::new(),
            storm: true,
            random,
            plan,
        };
        for at in 0..world.seats.len() {
            world.at(world.now, Event::Start(at));
        }
        for at in 0..world.clients.len() {
            let when = world.now + world.random.between(SECOND, 4 * SECOND);
            world.at(when, Event::Client(at));
        }
        for at in 0..world.faults.len() {
            let pause = world.faults[at].pause();
            world.at(world.now + 3 * SECOND + pause, Event::Strike(at));
        }
        world.at(world.now + 3 * SECOND, Event::Operate);
        world.at(world.now + SECOND, Event::Look);
        world
    }

    pub(crate) fn at(&mut self, at: Time, event: Event) {
        self.scheduled += 1;
        let number = self.scheduled;
        self.queue.push(Reverse(Scheduled {
            at: at.max(self.now),
            number,
            event,
        }));
    }

    /// Lets virtual time pass until `end`, or until a judge objects.
    pub(crate) fn run_until(&mut self, end: Time) -> Result<(), Violation> {
        while let Some(Reverse(next)) = self.queue.peek()
            && next.at <= end
        {
            let Some(Reverse(next)) = self.queue.pop() else {
                break;
            };
            self.now = next.at;
            self.happen(next.event);
            if let Some(violation) = self.judges.verdict.take() {
                return Err(violation);
            }
        }
        self.now = self.now.max(end);
        Ok(())
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Step(at) => {
                if self.seats[at].next_step == self.now {
                    self.step(at);
                }
            }
            Event::Frame {
                from,
                to,
                process,
                bytes,
            } => {
                let seat = &self.seats[to];
                if seat.process == process && seat.is_up() && !self.network.is_cut(from, to) {
                    let from = self.seats[from].member.node;
                    self.input(to, Input::Frame { from, bytes });
                }
            }
            Event::DiskBegins { seat, process } => {
                if self.seats[seat].process == process {
                    self.disk_begins(seat);
                }
            }
            Event::DiskEnds { seat, process } => {
                if self.seats[seat].process == process {
                    self.disk_ends(seat);
                }
            }
            Event::ToNode {
                seat,
                client,
                ask,
                input,
            } => self.to_node(seat, client, ask, *input),
            Event::ToClient {
                client,
                ask,
                answer,
            } => {
                self.client(client, |client, env| {
                    client.answered(env, ask, &answer.map(|a| *a))
                });
            }
            Event::Told { client, event } => {
                self.client(client, |client, env| client.told(env, &event));
            }
            Event::Client(at) => self.client(at, Client::wake),
            Event::StoreWrite { client, write } => {
                let accepted = self.store.write(&write);
                self.client(client, |client, env| client.wrote(env, &write, accepted));
            }
            Event::Start(at) => self.start(at),
            Event::Strike(at) => {
                if self.storm {
                    self.strike(at);
                }
            }
            Event::Undo(undo) => self.undo(undo),
            Event::Operate => {
                self.operate();
                let pause = self.operator.pause();
                self.at(self.now + pause, Event::Operate);
            }
            Event::Look => {
                self.look();
                self.at(self.now + SECOND, Event::Look);
            }
        }
    }

    // ---- processes ----

    fn start(&mut self, at: usize) {
        if self.seats[at].is_up() {
            return;
        }
        if self.seats[at].needs_new_life {
            let seat = &mut self.seats[at];
            seat.disk = seat.disk.wipe();
            if self.plan.breach != Some(Breach::WipedVoterVotes) {
                seat.member.life += 1;
            }
            seat.starts = 0;
            seat.needs_new_life = false;
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
            && (self.seats[at].member.life == 1)
            && (self.seats[at].starts == 0 || self.operator.newborn.contains(&at));
        let reused = self.plan.breach == Some(Breach::ReusedStart);
        let seat = &mut self.seats[at];
        if seat.starts == 0 || !reused {
            seat.starts += 1;
        }
        if born {
            // Until its birth is durable it may be born again.
            self.operator.newborn.insert(at);
            for (group, voters) in self.operator.births() {
                if voters.contains(&seat.member) {
                    recovery.born(group, voters);
                }
            }
        } else {
            self.operator.newborn.remove(&at);
        }
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

    fn step(&mut self, at: usize) {
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
        self.take(at, outputs);
        self.reschedule(at);
    }

    fn take(&mut self, at: usize, outputs: Vec<Output>) {
        for output in outputs {
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
                    lane,
                    after,
                    frame,
                } => match after {
                    After::Persisted(mark) if self.plan.breach != Some(Breach::VoteBeforeSync) => {
                        self.seats[at].held.push_back((mark, to, lane, frame));
                    }
                    After::Nothing | After::Persisted(_) => self.send(at, to, lane, frame),
                },
                Output::Answer { id, answer } if is_probe(id) => {
                    self.probes.insert(id, answer);
                }
                Output::Answer { id, answer } => {
                    if let Some((client, ask)) = self.seats[at].calls.remove(&id) {
                        self.to_client(client, ask, answer);
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
                    if let Some(client) = self.seats[at].streams.get(&id).copied()
                        && !(self.storm && self.random.chance(self.plan.client_loss))
                    {
                        let when = self.now + self.client_delay();
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
                    self.seats[at].end_process();
                    let mut dice = self.random.split();
                    self.seats[at].leave_disk(&mut dice);
                    let pause = self.random.between(SECOND, 10 * SECOND);
                    self.at(self.now + pause, Event::Start(at));
                    return;
                }
                Output::Change { .. } | Output::Closed { .. } | Output::Removed { .. } => {}
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

    fn send(&mut self, from: usize, to: NodeId, lane: Lane, frame: Bytes) {
        let to = to.number() as usize - 1;
        self.counts.frames += 1;
        self.trace.feed(&frame);
        if to >= self.seats.len() {
            return;
        }
        let process = self.seats[to].process;
        for when in self.network.send(self.now, from, to, lane, frame.len()) {
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

    // ---- disks ----

    fn disk_job(&mut self, at: usize, job: Job) {
        self.seats[at].jobs.push_back(job);
        self.disk_wanted(at);
    }

    fn disk_wanted(&mut self, at: usize) {
        let seat = &mut self.seats[at];
        if seat.syncing.is_some() || seat.disk_begins || seat.jobs.is_empty() {
            return;
        }
        seat.disk_begins = true;
        let process = seat.process;
        let when = self.now + self.random.between(10, seat.disk_delay.0);
        self.at(when, Event::DiskBegins { seat: at, process });
    }

    fn disk_begins(&mut self, at: usize) {
        let seat = &mut self.seats[at];
        seat.disk_begins = false;
        let jobs = std::mem::take(&mut seat.jobs);
        let Some(journal) = &mut seat.journal else {
            return;
        };
        let mut syncing = Syncing {
            ticket: None,
            mark: None,
            saved: Vec::new(),
        };
        let mut failed = None;
        for job in jobs {
            let done = match &job {
                Job::Write(batch) => journal.append(batch).map(|mark| syncing.mark = Some(mark)),
                Job::Save(snapshot) => journal
                    .save(snapshot)
                    .map(|()| syncing.saved.push((snapshot.group, snapshot.index))),
            };
            if let Err(why) = done {
                failed = Some(why);
                break;
            }
        }
        if failed.is_none() && syncing.mark.is_some() {
            match journal.begin_sync() {
                Ok(ticket) => syncing.ticket = Some(ticket),
                Err(why) => failed = Some(why),
            }
        }
        let early = (self.plan.breach == Some(Breach::AnswerBeforeSync))
            .then_some(syncing.mark)
            .flatten();
        let process = seat.process;
        seat.syncing = Some(syncing);
        let delay = seat.disk_delay.1;
        if let Some(why) = failed {
            self.disk_failed(at, why);
            return;
        }
        if let Some(mark) = early {
            self.durable(at, mark);
        }
        let when = self.now + self.random.between(delay / 4, delay);
        self.at(when, Event::DiskEnds { seat: at, process });
    }

    fn disk_ends(&mut self, at: usize) {
        let seat = &mut self.seats[at];
        let (Some(syncing), Some(journal)) = (seat.syncing.take(), &mut seat.journal) else {
            return;
        };
        let mut cut = Vec::new();
        if let Some(ticket) = syncing.ticket {
            match journal.finish_sync(ticket) {
                Ok(groups) => cut = groups,
                Err(why) => {
                    self.disk_failed(at, why);
                    return;
                }
            }
        }
        self.counts.syncs += 1;
        self.operator.newborn.remove(&at);
        if let Some(mark) = syncing.mark {
            self.durable(at, mark);
        }
        for (group, index) in syncing.saved {
            self.input(at, Input::SnapshotSaved { group, index });
        }
        for group in cut {
            self.input(at, Input::CutLog { group });
        }
        self.disk_wanted(at);
    }

    fn durable(&mut self, at: usize, mark: Mark) {
        while self.seats[at]
            .held
            .front()
            .is_some_and(|held| held.0 <= mark)
        {
            if let Some((_, to, lane, frame)) = self.seats[at].held.pop_front() {
                self.send(at, to, lane, frame);
            }
        }
        self.input(at, Input::Persisted { mark });
    }

    fn disk_failed(&mut self, at: usize, why: String) {
        self.seats[at].syncing = None;
        self.seats[at].held.clear();
        self.seats[at].journal = None;
        self.input(at, Input::WriteFailed { why });
    }

    // ---- clients ----

    fn client(&mut self, at: usize, act: impl FnOnce(&mut Client, &mut Env<'_>)) {
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
    fn client_delay(&mut self) -> Time {
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

    fn to_node(&mut self, at: usize, client: usize, ask: u64, input: Input) {
        if !self.seats[at].is_up() {
            if ask != 0 {
                let answer = Err(Failure::Unavailable {
                    why: "nobody is there",
                    nothing_happened: tenure_node::Certain::Yes,
                });
                self.to_client(client, ask, answer);
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

    fn to_client(&mut self, client: usize, ask: u64, answer: Result<Box<Answer>, Failure>) {
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

    // ---- looking ----

    fn look(&mut self) {
        for at in 0..self.seats.len() {
            let Some(node) = &self.seats[at].node else {
                continue;
            };
            for group in node.status().groups {
                if group.role == Role::Leader {
                    let seen = self.seats[at].terms.insert(group.group, group.term);
                    if seen != Some(group.term) {
                        self.counts.elections += 1;
                        let who = self.seats[at].member;
                        self.trace.say(
                            self.now,
                            format_args!("{who}"),
                            format_args!("leads {} in term {}", group.group, group.term),
                        );
                    }
                }
            }
        }
    }

    /// The serving leader of a group with the highest term, and its membership.
    pub(crate) fn leader(&self, group: GroupId) -> Option<(usize, Membership)> {
        let mut best: Option<(u64, usize, Membership)> = None;
        for (at, seat) in self.seats.iter().enumerate() {
            let Some(node) = &seat.node else { continue };
            for one in node.status().groups {
                if one.group == group
                    && one.serves
                    && best.as_ref().is_none_or(|(term, ..)| *term < one.term)
                {
                    best = Some((one.term, at, one.membership));
                }
            }
        }
        best.map(|(_, at, membership)| (at, membership))
    }

    /// How every node stands, for whoever reads the trace of a run that failed.
    pub(crate) fn show(&mut self) {
        for seat in &self.seats {
            let who = seat.member;
            let Some(node) = &seat.node else {
                self.trace
                    .say(self.now, format_args!("{who}"), format_args!("is down"));
                continue;
            };
            for group in node.status().groups {
                self.trace
                    .say(self.now, format_args!("{who}"), format_args!("{group:?}"));
            }
        }
    }

    /// Everything is well again: no fault is left, and none comes.
    pub(crate) fn heal(&mut self) {
        self.storm = false;
        self.network.heal();
        for at in 0..self.seats.len() {
            self.seats[at].disk_delay = HEALTHY_DISK;
            self.seats[at].disk.set_capacity(None);
            if self.seats[at].paused {
                self.seats[at].paused = false;
                self.reschedule(at);
            }
            self.at(self.now + SECOND, Event::Start(at));
            self.tell_peers(at, |node| Input::PeerUp { node });
        }
        self.trace
            .say(self.now, format_args!("world"), format_args!("is healed"));
    }
}

/// The member at a seat, in a life.
pub(crate) fn member(at: usize, life: u32) -> Member {
    let number = u32::try_from(at + 1).expect("a handful of nodes");
    let node = NodeId::new(number).expect("numbers begin at one");
    Member { node, life }
}
