//! Processes of nodes: start, step, and execution of a step's outputs.

use bytes::Bytes;
use tenure_log::TruncationKind;
use tenure_node::replica_view::promises_in;
use tenure_node::{
    ChangeRefused, Channel, Config, DurableAfter, Input, LogWrite, Membership, Node, NodeId,
    Output, RequestId, Role, StreamId, WriteBatch,
};

use super::{SimEvent, Simulator};
use crate::availability::is_availability_probe;
use crate::check::Fact;
use crate::contract_violation::ContractViolation;
use crate::convergence::is_probe;
use crate::faults::DiskVerdict;
use crate::load::SimClient;
use crate::rare_events::RareEvent;
use crate::sim_log::{EmptyDisk, SimLog, Unusable};
use crate::sim_node::{DiskJob, MidStep, NO_STEP};
use crate::time::{MILLISECOND, SECOND, SimTime};

impl Simulator {
    /// Starts the process of a node slot. Does nothing if it runs.
    pub(super) fn start(&mut self, at: usize) {
        if self.node_slots[at].is_up() {
            return;
        }
        if self.now < self.node_slots[at].hangs_until {
            // Opening the log syncs it, which a hung disk cannot do.
            self.at(self.node_slots[at].hangs_until, SimEvent::Start(at));
            return;
        }
        if self.node_slots[at].needs_new_incarnation {
            let node_slot = &mut self.node_slots[at];
            node_slot.disk = node_slot.disk.wipe();
            if self.plan.contract_violation != Some(ContractViolation::WipedVoterVotes) {
                node_slot.member.incarnation += 1;
            }
            node_slot.starts = 0;
            node_slot.needs_new_incarnation = false;
            node_slot.rotten = None;
            node_slot.suspects.clear();
        }
        let (sim_log, mut recovery, blank) = match SimLog::open(self.node_slots[at].disk.clone()) {
            Ok(opened) => opened,
            Err(Unusable::Later(why)) => {
                let who = self.node_slots[at].member;
                self.trace.say(
                    self.now,
                    format_args!("{who}"),
                    format_args!("cannot open its disk: {why}"),
                );
                // The machine is restarted as well. All unsynced writes survive here.
                self.node_slots[at].disk = self.node_slots[at].disk.crash(&mut || true);
                self.at(self.now + SECOND, SimEvent::Start(at));
                return;
            }
            Err(Unusable::Never(why)) => {
                let who = self.node_slots[at].member;
                self.trace.say(
                    self.now,
                    format_args!("{who}"),
                    format_args!("refuses its disk: {why}"),
                );
                self.counts.refused_disks += 1;
                self.checkers.rare.add(RareEvent::RefusedDisk);
                self.verdict(at, DiskVerdict::Refused);
                self.node_slots[at].needs_new_incarnation = true;
                let expected = self.operator.may_lose.contains(&at);
                if !expected {
                    self.checkers.object(
                        "disk",
                        self.now,
                        format!("{who} lost its disk to no fault: {why}"),
                    );
                }
                self.at(self.now + SECOND, SimEvent::Start(at));
                return;
            }
        };
        match sim_log.cut {
            Some(TruncationKind::Torn) => self.checkers.rare.add(RareEvent::TornTail),
            Some(TruncationKind::Suspicious) => self.checkers.rare.add(RareEvent::SuspectReplica),
            None => {}
        }
        if self.node_slots[at].rotten.is_some() {
            let member = self.node_slots[at].member;
            let found = if sim_log.cut == Some(TruncationKind::Suspicious) {
                DiskVerdict::Suspect
            } else if self.checkers.has_forgotten(member, &recovery) {
                DiskVerdict::Unnoticed
            } else {
                DiskVerdict::Intact
            };
            self.verdict(at, found);
            if found == DiskVerdict::Unnoticed {
                // No log can notice such a fault. Its operator does, and replaces the disk.
                self.node_slots[at].needs_new_incarnation = true;
                self.at(self.now + SECOND, SimEvent::Start(at));
                return;
            }
        }
        let nodes: Vec<NodeId> = self
            .node_slots
            .iter()
            .map(|node_slot| node_slot.member.node)
            .collect();
        // A node may create its groups only in its first incarnation, on an empty disk: at its
        // first start, or again if an earlier process died before that state was durable.
        let born = blank == EmptyDisk::Yes
            && (self.node_slots[at].member.incarnation == 1)
            && (self.node_slots[at].starts == 0 || self.operator.newborn.contains(&at));
        let reused = self.plan.contract_violation == Some(ContractViolation::ReusedStart);
        let node_slot = &mut self.node_slots[at];
        if node_slot.starts == 0 || !reused {
            node_slot.starts += 1;
        }
        if born {
            for (group, voters) in self.operator.births() {
                if voters.contains(&node_slot.member) {
                    // Until this state is durable, a crash makes the node bootstrap again.
                    self.operator.newborn.insert(at);
                    recovery.born(group, voters);
                }
            }
        } else {
            self.operator.newborn.remove(&at);
        }
        for group in &node_slot.suspects {
            recovery.suspect(*group);
        }
        // The checkers must know what is on the disk before the node acts on it.
        self.checkers.starts(self.now, node_slot.member, &recovery);
        let config = Config {
            me: node_slot.member,
            cluster: self.plan.cluster.clone(),
            limits: self.plan.limits.clone(),
            start: node_slot.starts,
            seed: self.random.next(),
            nodes,
        };
        let moment = node_slot.clock.moment(self.now);
        let who = node_slot.member;
        match Node::start(config, recovery, moment) {
            Ok((mut node, outputs)) => {
                self.checkers.started(self.now, &node);
                self.checkers.rare.started(node.standings());
                self.see_writes(at, &outputs);
                let effects = node.take_effects();
                self.checkers.stepped(self.now, who, &node, &effects);
                let node_slot = &mut self.node_slots[at];
                node_slot.suspects = node.suspects().collect();
                node_slot.node = Some(node);
                node_slot.sim_log = Some(sim_log);
                self.trace
                    .say(self.now, format_args!("{who}"), format_args!("starts"));
                self.take(at, outputs);
                self.reschedule(at);
                self.tell_peers(at, |node| Input::PeerUp { node });
            }
            Err(error) => {
                self.checkers
                    .object("disk", self.now, format!("{who} cannot start: {error}"));
            }
        }
    }

    /// Ends a process and closes its streams.
    pub(crate) fn end_process(&mut self, at: usize) {
        self.note_end(at);
        let streams: Vec<StreamId> = self.node_slots[at].streams.keys().copied().collect();
        for id in streams {
            self.hang_up(at, id);
        }
        self.node_slots[at].end_process();
    }

    /// Counts what is rare about the end of a process.
    fn note_end(&mut self, at: usize) {
        let others = self.node_slots.iter().enumerate();
        let up = others.filter(|(other, slot)| *other != at && slot.is_up());
        let nodes = (up.count(), self.node_slots.len());
        let slot = &self.node_slots[at];
        let Some(node) = &slot.node else {
            return;
        };
        let rare = &mut self.checkers.rare;
        if slot.syncing.is_some() {
            rare.add(RareEvent::DeathInSync);
        }
        if !slot.held.is_empty() {
            rare.add(RareEvent::UnsentPromises);
        }
        let disk = (slot.member.node, slot.member.incarnation);
        rare.ends(disk, node.standings().zip(node.replicas()), nodes);
    }

    /// Records what a restarted node finds out about its disk after a storage fault.
    fn verdict(&mut self, at: usize, found: DiskVerdict) {
        let Some(fault) = self.node_slots[at].rotten.take() else {
            return;
        };
        let row = (fault.kind().name(), found.name());
        *self.counts.verdicts.entry(row).or_default() += 1;
        if !fault.expected().contains(&found) {
            let what = format!("node slot {at} after {}: {}", row.0, row.1);
            self.checkers.object("disk", self.now, what);
        }
    }

    /// Sends an input about one node to all other running nodes.
    pub(crate) fn tell_peers(&mut self, about: usize, input: impl Fn(NodeId) -> Input) {
        let node = self.node_slots[about].member.node;
        for at in 0..self.node_slots.len() {
            if at != about && self.node_slots[at].is_up() {
                self.input(at, input(node));
            }
        }
    }

    /// Adds an input to a node's inbox and schedules a step.
    pub(crate) fn input(&mut self, at: usize, input: Input) {
        let node_slot = &mut self.node_slots[at];
        if !node_slot.is_up() {
            return;
        }
        if let Input::Transfer { group, .. } = &input {
            self.checkers.rare.transfer(self.now, *group);
        }
        node_slot.inbox.push(input);
        if !node_slot.paused {
            // 30 us: inputs that arrive within this time are handled in one step.
            let soon = self.now + node_slot.starved.max(30);
            self.step_at(at, soon);
        }
    }

    /// Schedules a step, unless an earlier one is scheduled already.
    fn step_at(&mut self, at: usize, when: SimTime) {
        if when < self.node_slots[at].next_step.0 {
            self.node_slots[at].next_step = (when, self.next_number());
        }
    }

    /// Schedules the step that the node asked for, converted from the node's clock to true time.
    pub(crate) fn reschedule(&mut self, at: usize) {
        let node_slot = &self.node_slots[at];
        if let Some(node) = &node_slot.node
            && !node_slot.paused
        {
            let wait = node_slot
                .clock
                .takes(node.wake_in() * MILLISECOND)
                .max(50)
                .max(node_slot.starved);
            self.step_at(at, self.now + wait);
        }
    }

    /// Steps a node and executes its outputs.
    pub(super) fn step(&mut self, at: usize) {
        let leap = self.plan.contract_violation == Some(ContractViolation::LeapingInstant)
            && self.random.chance(100);
        let now = self.now;
        let node_slot = &mut self.node_slots[at];
        node_slot.next_step = NO_STEP;
        if node_slot.paused {
            return;
        }
        if leap {
            node_slot.clock.set_forward(800 * MILLISECOND, now);
        }
        let moment = node_slot.clock.moment(now);
        let inputs = std::mem::take(&mut node_slot.inbox);
        let Some(node) = &mut node_slot.node else {
            return;
        };
        self.counts.steps += 1;
        let outputs = node.step(moment, inputs);
        let effects = node.take_effects();
        self.see_writes(at, &outputs);
        let node_slot = &mut self.node_slots[at];
        if let Some(node) = &node_slot.node {
            self.checkers.stepped(now, node_slot.member, node, &effects);
            if !node_slot.suspects.is_empty() {
                node_slot.suspects = node.suspects().collect();
            }
        }
        self.take(at, outputs);
        self.reschedule(at);
    }

    /// Passes the writes of a step to the checkers. They must know the log before they see what was
    /// applied.
    fn see_writes(&mut self, at: usize, outputs: &[Output]) {
        for output in outputs {
            if let Output::Write(batch) = output {
                self.checkers
                    .written(self.now, self.node_slots[at].member, batch);
                self.check_length(at, batch);
            }
        }
    }

    /// A log refuses records that are too long, which would stop the node. So a batch exceeds the limit
    /// only by its last entry, and by one more that stays with the hard state before it.
    fn check_length(&mut self, at: usize, batch: &WriteBatch) {
        let entries = batch.records.iter().flat_map(|(_, record)| match record {
            LogWrite::Entries(entries) => entries.as_slice(),
            _ => &[],
        });
        let mut lengths: Vec<usize> = entries.map(|entry| entry.payload_bytes().len()).collect();
        lengths.sort_unstable();
        let longest: usize = lengths.iter().rev().take(2).sum();
        let bytes: usize = lengths.iter().sum();
        if bytes - longest > self.plan.limits.batch_bytes {
            let who = self.node_slots[at].member;
            let what = format!("{who} writes a batch of {bytes} bytes");
            self.checkers.object("contract", self.now, what);
        }
    }

    /// Executes the outputs of a step, in order. The process may die between two of them.
    fn take(&mut self, at: usize, outputs: Vec<Output>) {
        for (done, output) in outputs.into_iter().enumerate() {
            if self.dies_at(at, MidStep::Outputs(done)) {
                return;
            }
            match output {
                Output::Write(batch) => self.disk_job(at, DiskJob::Write(batch)),
                Output::EncodeSnapshot(image) => {
                    self.input(at, Input::SnapshotEncoded(image.encode()));
                }
                Output::SaveSnapshot(image) => {
                    let snapshot = image.encode();
                    self.counts.snapshots += 1;
                    self.checkers
                        .snapshot(self.now, self.node_slots[at].member, &snapshot);
                    self.disk_job(at, DiskJob::Save(snapshot));
                }
                Output::Send {
                    to,
                    channel,
                    after,
                    frame,
                } => match after {
                    DurableAfter::Persisted(mark)
                        // The contract: the frame leaves only after its mark is durable.
                        if self.plan.contract_violation
                            != Some(ContractViolation::VoteBeforeSync) =>
                    {
                        self.node_slots[at]
                            .held
                            .push_back((mark, to, channel, frame));
                    }
                    DurableAfter::Nothing | DurableAfter::Persisted(_) => {
                        self.send(at, to, channel, frame)
                    }
                },
                // Probes of the checkers have ids of their own and no client.
                Output::Answer { id, answer, .. } if is_probe(id) => {
                    self.probes.insert(id, answer);
                }
                Output::Answer { id, answer, .. } if is_availability_probe(id) => {
                    self.availability_answered(id, &answer)
                }
                Output::Answer { id, answer, .. } => {
                    if let Some((client, ask)) = self.node_slots[at].calls.remove(&id) {
                        self.reach_client(client, ask, answer);
                    } else {
                        let who = self.node_slots[at].member;
                        self.checkers.object(
                            "contract",
                            self.now,
                            format!("{who} answered {id:?}, which nobody waits for"),
                        );
                    }
                }
                Output::Event { id, event } => {
                    // The client may have closed the stream after the node emitted the event.
                    let Some((client, _)) = self.node_slots[at].streams.get(&id) else {
                        continue;
                    };
                    let (client, stream) = (*client, id.0);
                    let told = Fact::Told {
                        stream,
                        event: &event,
                    };
                    // The checkers see the event even if the message to the client is lost below.
                    self.checkers.see(self.now, &told);
                    if !(self.fault_phase && self.random.chance(self.plan.client_loss)) {
                        let when = self.now + self.event_delay();
                        self.at(
                            when,
                            SimEvent::Told {
                                client,
                                event: Box::new(event),
                            },
                        );
                    }
                }
                Output::Changed { id, result } => self.changed(id, result),
                // The simulated clients call the node itself, below authentication.
                Output::Auth(_) => {}
                // The remaining outputs of the step are lost with the process.
                Output::Stop { why } => {
                    let who = self.node_slots[at].member;
                    self.trace.say(
                        self.now,
                        format_args!("{who}"),
                        format_args!("stops: {why}"),
                    );
                    self.counts.stops += 1;
                    let node = self.node_slots[at].node.as_ref();
                    if node.is_some_and(|node| {
                        let mut replicas = node.replicas();
                        replicas.any(|replica| replica.role == Role::Leader)
                    }) {
                        self.checkers.rare.add(RareEvent::LeaderStops);
                    }
                    self.end_process(at);
                    let mut rng = self.random.split();
                    self.node_slots[at].leave_disk(&mut rng);
                    let pause = self.random.between(SECOND, 10 * SECOND);
                    self.at(self.now + pause, SimEvent::Start(at));
                    return;
                }
                Output::Change { id, change } => {
                    if self.node_slots[at].streams.contains_key(&id) {
                        let who = self.node_slots[at].member;
                        self.trace.say(
                            self.now,
                            format_args!("{who}"),
                            format_args!("shows stream {} {change:?}", id.0),
                        );
                        self.checkers.see(self.now, &Fact::Saw(id.0, &change));
                    }
                }
                Output::Closed { id, .. } => {
                    if let Some((client, _)) = self.hang_up(at, id) {
                        self.client(client, SimClient::closed);
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

    /// Sends a frame to a peer.
    pub(super) fn send(&mut self, from: usize, to: NodeId, channel: Channel, frame: Bytes) {
        let to = to.number() as usize - 1;
        self.counts.frames += 1;
        self.trace.feed(&frame);
        // Votes and acknowledgements: the checkers verify that they are covered by durable data.
        if let Some(node) = &self.node_slots[from].node {
            for promised in promises_in(frame.clone()) {
                self.checkers.sent(self.now, node, &promised);
            }
        }
        if to >= self.node_slots.len() {
            return;
        }
        // A frame belongs to a connection, so it never reaches a later process of the receiver.
        let process = self.node_slots[to].process;
        for when in self.network.send(self.now, from, to, channel, frame.len()) {
            self.at(
                when,
                SimEvent::Frame {
                    from,
                    to,
                    process,
                    bytes: frame.clone(),
                },
            );
        }
    }
}
