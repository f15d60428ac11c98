//! Discrete-event simulator: one priority queue of events in virtual time.
//!
//! ```text
//!   clients ──requests──▶ node slots (node + log + disk + clock) ◀──frames──▶ network
//!      └── facts ──▶ checkers            ▲
//!   faults, operator ────────────────────┘
//! ```
//!
//! A *node slot* is the index of a node. It stays the same across restarts and incarnations.
//!
//! Everything is deterministic: one thread, seeded generators (one per part), ordered maps.

mod clients;
mod disks;
mod processes;
mod restore;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use bytes::Bytes;
use tenure_log::SimDisk;
use tenure_node::{Answer, Failure, GroupId, Input, Membership, Node, NodeId, ReplicaId, Role};

use crate::availability::AvailabilityCheck;
use crate::check::{Checkers, Violation};
use crate::convergence::ProgressProbes;
use crate::counts::Counts;
use crate::faults::{Fault, Undo};
use crate::load::{FencedStore, SimClient};
use crate::network::Network;
use crate::operator::Operator;
use crate::plan::RunPlan;
use crate::random::SimRng;
use crate::sim_node::{HEALTHY_DISK, NO_STEP, SimNode};
use crate::time::{SECOND, SimClock, SimTime};
use crate::trace::Trace;

/// All events.
pub(crate) enum SimEvent {
    /// A frame arrives, if the process that it was sent to still runs.
    Frame {
        from: usize,
        to: usize,
        process: u64,
        bytes: Bytes,
    },
    /// The disk executes the queued jobs and starts a sync.
    DiskBegins { node_slot: usize, process: u64 },
    /// The running sync ends.
    DiskEnds { node_slot: usize, process: u64 },
    /// A client's request or subscription arrives at a node.
    ToNode {
        node_slot: usize,
        client: usize,
        ask: u64,
        input: Box<Input>,
    },
    /// An answer arrives at a client.
    ToClient {
        client: usize,
        ask: u64,
        answer: Box<Result<Answer, Failure>>,
    },
    /// An event of a subscription arrives at a client.
    Told {
        client: usize,
        event: Box<tenure_core::event::Event>,
    },
    /// A client acts.
    Client(usize),
    /// A client reads at once, because a leader was just cut off. Only observers react.
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
    /// The next stage or the end of a fault.
    Undo(Undo),
    /// The operator takes one step towards the wanted membership.
    Operate,
    /// All nodes are inspected, to count elections and to find malformed frames.
    Look,
    /// A leadership is transferred, in the convergence phase.
    Stir,
    /// The availability checker evaluates its probes and sends new ones.
    AvailabilityProbe,
    /// The operator saves the state of a group.
    Backup(GroupId),
}

/// A queued event. Events of the same time run in the order in which they were scheduled
/// (`number`), so that the run is deterministic.
struct Scheduled {
    at: SimTime,
    number: u64,
    event: SimEvent,
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

/// The simulated cluster with its clients, faults and checkers.
pub(crate) struct Simulator {
    pub(crate) plan: RunPlan,
    pub(crate) now: SimTime,
    queue: BinaryHeap<Reverse<Scheduled>>,
    scheduled: u64,
    pub(crate) random: SimRng,
    pub(crate) node_slots: Vec<SimNode>,
    pub(crate) network: Network,
    pub(crate) clients: Vec<SimClient>,
    pub(crate) store: FencedStore,
    pub(crate) faults: Vec<Fault>,
    pub(crate) operator: Operator,
    pub(crate) checkers: Checkers,
    pub(crate) trace: Trace,
    pub(crate) counts: Counts,
    next_request: u64,
    /// Answers to the probes of the liveness checks.
    pub(crate) probes: ProgressProbes,
    /// True during the fault phase. Faults strike and client messages are lost only then.
    pub(crate) fault_phase: bool,
    /// The node slot that clients prefer, if any: a leader that was cut off.
    pub(crate) favourite: Option<usize>,
    /// Whether leaderships are transferred although no fault is active.
    pub(crate) stirring: bool,
    pub(crate) availability: AvailabilityCheck,
    /// The states that the operator has saved, and the cluster from which this one was restored.
    pub(crate) backup: restore::Backup,
}

impl Simulator {
    pub(crate) fn new(plan: RunPlan, mut random: SimRng, trace: Trace) -> Simulator {
        let node_slots = (0..plan.nodes)
            .map(|at| {
                let rate = random.between(905, 1095);
                let clock = SimClock::new(rate, 0);
                SimNode::new(member(at, 1), SimDisk::new(random.next()), clock)
            })
            .collect();
        let mut network = Network::new(plan.nodes, random.split());
        network.late = plan.late;
        let clients = match plan.restored {
            true => Vec::new(),
            false => SimClient::all(&plan, &mut random),
        };
        let faults = Fault::all(&plan, &mut random);
        let operator = Operator::new(&plan, &mut random);
        let checkers = Checkers::new(&plan);
        let mut sim = Simulator {
            now: SECOND,
            queue: BinaryHeap::new(),
            scheduled: 0,
            node_slots,
            network,
            clients,
            store: FencedStore::default(),
            faults,
            operator,
            checkers,
            trace,
            counts: Counts::default(),
            next_request: 0,
            probes: ProgressProbes::new(),
            fault_phase: true,
            stirring: false,
            favourite: None,
            availability: AvailabilityCheck::default(),
            backup: restore::Backup::default(),
            random,
            plan,
        };
        for at in 0..sim.node_slots.len() {
            sim.at(sim.now, SimEvent::Start(at));
        }
        for at in 0..sim.clients.len() {
            let when = sim.now + sim.random.between(SECOND, 4 * SECOND);
            sim.wake_client(at, when);
        }
        // No fault in the first three seconds: the cluster needs them for its first elections.
        for at in 0..sim.faults.len() {
            let pause = sim.faults[at].pause();
            sim.at(sim.now + 3 * SECOND + pause, SimEvent::Strike(at));
        }
        sim.at(sim.now + 3 * SECOND, SimEvent::Operate);
        sim.at(sim.now + SECOND, SimEvent::Look);
        sim.schedule_backup();
        if sim.plan.fault_profile.is_probed() {
            sim.at(sim.now + 5 * SECOND, SimEvent::AvailabilityProbe);
        }
        sim
    }

    /// Schedules a wake-up of a client.
    pub(crate) fn wake_client(&mut self, client: usize, when: SimTime) {
        let when = when.max(self.now);
        if self.clients[client].wants_wake(when) {
            self.at(when, SimEvent::Client(client));
        }
    }

    /// Returns the number of the next event. Events of the same time run in this order.
    fn next_number(&mut self) -> u64 {
        self.scheduled += 1;
        self.scheduled
    }

    /// Schedules an event. A time in the past becomes the present.
    pub(crate) fn at(&mut self, at: SimTime, event: SimEvent) {
        let number = self.next_number();
        self.queue.push(Reverse(Scheduled {
            at: at.max(self.now),
            number,
            event,
        }));
    }

    /// Advances virtual time to `end`, or until a checker reports a violation.
    pub(crate) fn run_until(&mut self, end: SimTime) -> Result<(), Violation> {
        loop {
            let queued = self.queue.peek();
            let queued = queued.map_or(NO_STEP, |Reverse(next)| (next.at, next.number));
            let steps = self.node_slots.iter().enumerate();
            let step = steps.map(|(at, slot)| (slot.next_step, at)).min();
            match step {
                Some((when, at)) if when < queued => {
                    if when.0 > end {
                        break;
                    }
                    self.now = when.0;
                    self.step(at);
                }
                _ => {
                    if queued.0 > end {
                        break;
                    }
                    let Some(Reverse(next)) = self.queue.pop() else {
                        break;
                    };
                    self.now = next.at;
                    self.happen(next.event);
                }
            }
            if let Some(violation) = self.checkers.verdict.take() {
                return Err(violation);
            }
        }
        self.now = self.now.max(end);
        Ok(())
    }

    /// Executes one event.
    fn happen(&mut self, event: SimEvent) {
        match event {
            SimEvent::Frame {
                from,
                to,
                process,
                bytes,
            } => {
                let node_slot = &self.node_slots[to];
                // A cut link also drops the frames that are under way on it.
                if node_slot.process == process
                    && node_slot.is_up()
                    && !self.network.is_cut(from, to)
                {
                    let from = self.node_slots[from].member.node;
                    self.input(to, Input::Frame { from, bytes });
                }
            }
            SimEvent::DiskBegins { node_slot, process } => {
                if self.node_slots[node_slot].process == process {
                    self.disk_begins(node_slot);
                }
            }
            SimEvent::DiskEnds { node_slot, process } => {
                if self.node_slots[node_slot].process == process {
                    self.disk_ends(node_slot);
                }
            }
            SimEvent::ToNode {
                node_slot,
                client,
                ask,
                input,
            } => self.reach_node(node_slot, client, ask, *input),
            SimEvent::ToClient {
                client,
                ask,
                answer,
            } => {
                self.client(client, |client, env| client.answered(env, ask, &answer));
            }
            SimEvent::Told { client, event } => {
                self.client(client, |client, env| client.told(env, &event));
            }
            SimEvent::Client(at) => {
                self.clients[at].wakes_now(self.now);
                self.client(at, SimClient::wake);
            }
            SimEvent::Rush(at) => self.client(at, SimClient::rush),
            SimEvent::StoreWrite { client, write } => {
                let accepted = self.store.write(&write);
                self.client(client, |client, env| client.wrote(env, &write, accepted));
            }
            SimEvent::Start(at) => self.start(at),
            SimEvent::Strike(at) => {
                if self.fault_phase {
                    self.strike(at);
                }
            }
            SimEvent::Undo(undo) => self.undo(undo),
            SimEvent::Operate => {
                self.operate();
                let pause = self.operator.pause();
                self.at(self.now + pause, SimEvent::Operate);
            }
            SimEvent::Stir => {
                if self.stirring {
                    self.stir();
                    let pause = self.random.between(SECOND / 5, SECOND);
                    self.at(self.now + pause, SimEvent::Stir);
                }
            }
            SimEvent::AvailabilityProbe => self.availability_probe(),
            SimEvent::Backup(group) => self.back_up(group),
            SimEvent::Look => {
                self.look();
                self.at(self.now + SECOND, SimEvent::Look);
            }
        }
    }

    /// Reports malformed frames, and counts a leadership when its term is seen for the first time.
    fn look(&mut self) {
        for at in 0..self.node_slots.len() {
            let Some(node) = &self.node_slots[at].node else {
                continue;
            };
            let status = node.status();
            if status.malformed_appends + status.unreadable_frames > 0 {
                let what = format!(
                    "{} met {} appends with a gap and {} frames that it could not read",
                    self.node_slots[at].member, status.malformed_appends, status.unreadable_frames
                );
                self.checkers.object("contract", self.now, what);
            }
            for group in status.groups {
                if group.role == Role::Leader {
                    let seen = self.node_slots[at].terms.insert(group.group, group.term);
                    if seen != Some(group.term) {
                        self.counts.elections += 1;
                        let who = self.node_slots[at].member;
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

    /// Returns the node slot of a group's serving leader with the highest term, and its membership.
    pub(crate) fn leader(&self, group: GroupId) -> Option<(usize, Membership)> {
        let nodes = self.node_slots.iter().enumerate();
        let led = nodes.filter_map(|(at, slot)| Some((at, slot.node.as_ref()?)));
        let mut best: Option<(u64, usize, &Node)> = None;
        for (at, node) in led {
            if let Some(term) = node.led_term(group)
                && best.is_none_or(|(highest, ..)| highest < term)
            {
                best = Some((term, at, node));
            }
        }
        let (_, at, node) = best?;
        let mut standings = node.standings();
        let standing = standings.find(|standing| standing.group == group)?;
        Some((at, standing.membership.clone()))
    }

    /// Adds the state of every node to the trace. Used after a violation.
    pub(crate) fn show(&mut self) {
        for node_slot in &self.node_slots {
            let who = node_slot.member;
            let Some(node) = &node_slot.node else {
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

    /// Ends the fault phase: undoes all faults and restarts all stopped nodes.
    pub(crate) fn heal(&mut self) {
        self.fault_phase = false;
        self.favourite = None;
        self.network.convergence();
        for at in 0..self.node_slots.len() {
            self.node_slots[at].disk_delay = HEALTHY_DISK;
            self.node_slots[at].starved = 0;
            self.disk_recovers(at);
            self.node_slots[at].disk.set_capacity(None);
            if self.node_slots[at].paused {
                self.node_slots[at].paused = false;
                self.reschedule(at);
            }
            // Does nothing if the process runs.
            self.at(self.now + SECOND, SimEvent::Start(at));
            self.tell_peers(at, |node| Input::PeerUp { node });
        }
        self.trace
            .say(self.now, format_args!("world"), format_args!("is healed"));
    }
}

/// The identity of the node at a node slot, in an incarnation.
pub(crate) fn member(at: usize, incarnation: u32) -> ReplicaId {
    let number = u32::try_from(at + 1).expect("a handful of nodes");
    let node = NodeId::new(number).expect("numbers begin at one");
    ReplicaId::new(node, incarnation)
}
