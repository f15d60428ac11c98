//! The world: one queue of events in virtual time, and everything that they happen to.
//!
//! ```text
//!   clients ──requests──▶ seats (node + journal + disk + clock) ◀──frames──▶ network
//!      └── facts ──▶ judges            ▲
//!   faults, operator ──────────────────┘
//! ```
//!
//! Everything here is deterministic: one thread, one generator per part, ordered maps.

mod clients;
mod disks;
mod processes;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use bytes::Bytes;
use tenure_log::SimDisk;
use tenure_node::{Answer, Failure, GroupId, Input, Membership, NodeId, ReplicaId, Role};

use crate::calm::Probes;
use crate::check::{Judges, Violation};
use crate::counts::Counts;
use crate::faults::{Fault, Undo};
use crate::load::{Client, Store};
use crate::network::Network;
use crate::operator::Operator;
use crate::plan::Plan;
use crate::pulse::Pulses;
use crate::random::Random;
use crate::seat::{HEALTHY_DISK, Seat};
use crate::time::{Clock, SECOND, Time};
use crate::trace::Trace;
use crate::weather::Weather;

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
        answer: Result<Answer, Failure>,
    },
    /// An event arrives at a client.
    Told {
        client: usize,
        event: Box<tenure_core::event::Event>,
    },
    /// A client wants to do something.
    Client(usize),
    /// Everybody looks at a leader that was cut off.
    Rush(usize),
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
    /// A leadership is handed over, in the calm.
    Stir,
    /// The judge of gray failures asks again.
    Pulse,
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
    /// The seat that most clients turn to, if there is one.
    pub(crate) favourite: Option<usize>,
    /// Leaderships are handed over, though all is well.
    pub(crate) stirring: bool,
    pub(crate) pulses: Pulses,
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
        let mut network = Network::new(plan.nodes, random.split());
        network.late = plan.late;
        let clients = Client::all(&plan, &mut random);
        let faults = Fault::all(&plan, &mut random);
        let operator = Operator::new(&plan, &mut random);
        let judges = Judges::new(&plan);
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
            stirring: false,
            favourite: None,
            pulses: Pulses::default(),
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
        if world.plan.weather == Weather::Stalled {
            world.at(world.now + 5 * SECOND, Event::Pulse);
        }
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
            } => self.reach_node(seat, client, ask, *input),
            Event::ToClient {
                client,
                ask,
                answer,
            } => {
                self.client(client, |client, env| client.answered(env, ask, &answer));
            }
            Event::Told { client, event } => {
                self.client(client, |client, env| client.told(env, &event));
            }
            Event::Client(at) => self.client(at, Client::wake),
            Event::Rush(at) => self.client(at, Client::rush),
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
            Event::Stir => {
                if self.stirring {
                    self.stir();
                    let pause = self.random.between(SECOND / 5, SECOND);
                    self.at(self.now + pause, Event::Stir);
                }
            }
            Event::Pulse => self.pulse(),
            Event::Look => {
                self.look();
                self.at(self.now + SECOND, Event::Look);
            }
        }
    }

    fn look(&mut self) {
        for at in 0..self.seats.len() {
            let Some(node) = &self.seats[at].node else {
                continue;
            };
            let status = node.status();
            if status.malformed_appends + status.unreadable_frames > 0 {
                let what = format!(
                    "{} met {} appends with a gap and {} frames that it could not read",
                    self.seats[at].member, status.malformed_appends, status.unreadable_frames
                );
                self.judges.object("contract", self.now, what);
            }
            for group in status.groups {
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
        self.favourite = None;
        self.network.calm();
        for at in 0..self.seats.len() {
            self.seats[at].disk_delay = HEALTHY_DISK;
            self.disk_recovers(at);
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
pub(crate) fn member(at: usize, incarnation: u32) -> ReplicaId {
    let number = u32::try_from(at + 1).expect("a handful of nodes");
    let node = NodeId::new(number).expect("numbers begin at one");
    ReplicaId::new(node, incarnation)
}
