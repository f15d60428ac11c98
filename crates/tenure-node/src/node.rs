//! [`Node::step`]: one step of the node.
//!
//! ```text
//!   due lease expiries ─▶ ticks ─▶ inputs ─▶ groups ⇄ calls, until both are idle ─▶ writes, frames
//! ```

mod batch_split;
mod frames;
mod peers;
mod status;
mod storage;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use tenure_core::event::EventIdStride;
use tenure_core::namespace_table::NamespaceTable;
use tenure_core::space::HashSeed;

use crate::clock::Clock;
use crate::config::Config;
use crate::consensus::{Consensus, Message, MessageKind, Replica, RestoredState};
use crate::coordinator::Coordinator;
use crate::group::{Group, GroupEvent, MoreWork, StepContext};
use crate::read_index::RoundCounter;
use crate::recovery::{Recovery, RecoveryError};
use crate::snapshot;
use crate::state_machine::{MachineInit, StateMachine};
use crate::{
    GroupId, Input, LogWrite, Mark, Output, ReplicaId, Snapshot, StepTime, SyncMode, WriteBatch,
};
use tenure_random::SplitMix64;

pub use batch_split::MAX_BATCH_BYTES;
pub(crate) use frames::item as frames_item;
pub(crate) use peers::Announced;
pub use status::{GroupStatus, Status};

/// Raft tick interval. An election timeout is ten to twenty ticks. Nearly all the cost of 256 idle
/// groups is heartbeats, one every other tick.
pub(crate) const TICK_MS: u64 = 120;

/// One replicated node. See the [contract](crate).
pub struct Node {
    pub(crate) config: Config,
    pub(crate) me: ReplicaId,
    pub(crate) clock: Clock,
    pub(crate) random: SplitMix64,
    /// Indexed by group number; the system group is the last.
    pub(crate) groups: Vec<Option<Group>>,
    pub(crate) turn: StepContext,
    pub(crate) outputs: Vec<Output>,
    pub(crate) coordinator: Coordinator,
    pub(crate) peers: peers::Peers,
    frames: frames::Frames,
    /// Groups with work in this step.
    active: Vec<GroupId>,
    is_active: Vec<bool>,
    /// Groups that continue in the next step.
    again: BTreeSet<GroupId>,
    /// Groups that were settled in this step.
    pub(crate) touched: Vec<GroupId>,
    /// Times at which groups have due endings; the earliest known time of each group is also in
    /// `due_at`.
    due: BinaryHeap<Reverse<(u64, GroupId)>>,
    due_at: Vec<u64>,
    next_tick: u64,
    last_mark: Mark,
    persisted: Mark,
    storage: storage::Storage,
    replicas_opened: u64,
    /// Snapshots that must be durable before the batch of this step.
    pub(crate) installs: Vec<Snapshot>,
    pub(crate) transfers: crate::coordinator::SnapshotTransfers,
    /// Tombstones of removed replicas.
    pub(crate) tombstones: BTreeMap<GroupId, Tombstone>,
    pub(crate) changes_asked: BTreeMap<GroupId, (crate::RequestId, crate::LogPosition)>,
    stopped: bool,
}

impl Node {
    /// Starts a node from its recovered state. Returns the node and the outputs of its first step.
    pub fn start(
        config: Config,
        recovery: Recovery,
        now: StepTime,
    ) -> Result<(Node, Vec<Output>), RecoveryError> {
        let count = config.cluster.group_count as usize + 1;
        let me = config.me;
        let clock = Clock::new(now);
        let table = NamespaceTable::new(
            config.cluster.prefix_segments,
            config.cluster.default_algorithm,
        );
        let rounds = RoundCounter::new(me.node, config.start ^ (u64::from(me.incarnation) << 32));
        let mut node = Node {
            random: SplitMix64::new(config.seed),
            turn: StepContext::new(rounds, clock.now_ms(), clock.wall()),
            coordinator: Coordinator::new(&config, table),
            peers: peers::Peers::new(&config),
            frames: frames::Frames::new(me, config.start),
            groups: (0..count).map(|_| None).collect(),
            outputs: Vec::new(),
            active: Vec::new(),
            is_active: vec![false; count],
            again: BTreeSet::new(),
            touched: Vec::new(),
            due: BinaryHeap::new(),
            due_at: vec![u64::MAX; count],
            next_tick: clock.now_ms() + TICK_MS,
            last_mark: Mark(0),
            persisted: Mark(0),
            storage: storage::Storage::default(),
            replicas_opened: 0,
            installs: Vec::new(),
            transfers: crate::coordinator::SnapshotTransfers::default(),
            tombstones: BTreeMap::new(),
            changes_asked: BTreeMap::new(),
            stopped: false,
            clock,
            me,
            config,
        };
        for (id, opened) in recovery.take()? {
            if id.0 as usize >= count {
                continue;
            }
            if opened.newborn {
                let base = opened.found.base.clone();
                let state = opened.found.hard_state;
                node.turn.writes.push((id, LogWrite::Born(Box::new(base))));
                node.turn.writes.push((id, LogWrite::HardState(state)));
                node.turn.must_sync = true;
            }
            if opened.found.is_blank() {
                let hard_state = opened.found.hard_state;
                let index = 0;
                node.tombstones.insert(id, Tombstone { hard_state, index });
                continue;
            }
            let machine = match &opened.state {
                Some(bytes) => snapshot::decode(bytes, &node.machine_init(id), node.hash_seed())
                    .map_err(|error| RecoveryError::Codec { group: id, error })?,
                None => StateMachine::new(&node.machine_init(id)),
            };
            let mut found = opened.found;
            let me = me.numbered(found.hard_state.replica);
            if opened.suspect && !found.is_alone(me) {
                found.suspect(me);
                node.turn
                    .writes
                    .push((id, LogWrite::HardState(found.hard_state)));
                node.turn.must_sync = true;
                node.open_with(id, found, machine, Replica::doubt);
            } else {
                node.open(id, found, machine);
            }
        }
        node.coordinator_started();
        node.settle();
        let outputs = node.finish();
        Ok((node, outputs))
    }

    /// Returns the groups whose local replica may have lost acknowledged entries and has not caught
    /// up yet ([`Recovery::suspect`]).
    pub fn suspects(&self) -> impl Iterator<Item = GroupId> {
        let groups = self.groups.iter().flatten();
        groups
            .filter(|group| group.replica.is_suspect())
            .map(|group| group.id)
    }

    fn hash_seed(&self) -> HashSeed {
        HashSeed(self.config.seed)
    }

    /// Returns the initial state of a group's state machine.
    pub(crate) fn machine_init(&self, id: GroupId) -> MachineInit {
        if id == self.system() {
            MachineInit::System(NamespaceTable::new(
                self.config.cluster.prefix_segments,
                self.config.cluster.default_algorithm,
            ))
        } else {
            MachineInit::Space(self.config.limits.space.clone(), self.hash_seed())
        }
    }

    /// The system group.
    pub(crate) fn system(&self) -> GroupId {
        GroupId(self.config.cluster.group_count)
    }

    pub(crate) fn decode_state(&self, id: GroupId, bytes: &[u8]) -> Option<StateMachine> {
        let mut machine = snapshot::decode(bytes, &self.machine_init(id), self.hash_seed()).ok()?;
        self.prepare(id, &mut machine);
        Some(machine)
    }

    /// Sets what a machine does not have from its state.
    fn prepare(&self, id: GroupId, machine: &mut StateMachine) {
        machine.number_events(self.channel(id));
        let groups = self.config.cluster.group_count.max(1) as usize;
        machine.keep_history(self.config.limits.history_bytes / groups, self.turn.wall);
    }

    /// Returns the event ids of a group (R121: event ids).
    fn channel(&self, id: GroupId) -> EventIdStride {
        EventIdStride::new(id.0, self.config.cluster.group_count + 1)
    }

    fn open(&mut self, id: GroupId, found: RestoredState, machine: StateMachine) {
        self.open_with(id, found, machine, |_| {});
    }

    /// Opens a replica, after an initial change to it.
    fn open_with(
        &mut self,
        id: GroupId,
        found: RestoredState,
        mut machine: StateMachine,
        first: impl FnOnce(&mut Replica),
    ) {
        self.prepare(id, &mut machine);
        let random = self.random.split_for(u64::from(id.0));
        let me = self.me.numbered(found.hard_state.replica);
        let mut replica = found.open(me, random);
        first(&mut replica);
        if id == self.system() {
            // Every node routes by its own copy of the namespace table, so commits of the system
            // group must reach all replicas quickly.
            replica.announce_commits();
        }
        if replica.is_alone() {
            // The only voter wins its election at once.
            replica.campaign();
        }
        self.replicas_opened += 1;
        let group = Group::new(id, self.replicas_opened, me, replica, machine);
        self.groups[id.0 as usize] = Some(group);
        self.activate(id);
    }

    /// Opens an empty replica after the first message from a leader. A new identity starts without
    /// a term and a vote; an identity that was here before keeps its own.
    pub(crate) fn open_empty(&mut self, id: GroupId, replica: u64) {
        let tombstone = self.tombstones.remove(&id);
        let hard_state = match tombstone {
            Some(tombstone) if tombstone.hard_state.replica == replica => tombstone.hard_state,
            _ => crate::HardState {
                replica,
                ..crate::HardState::default()
            },
        };
        let found = RestoredState {
            base: crate::Base::default(),
            hard_state,
            entries: Vec::new(),
        };
        let machine = StateMachine::new(&self.machine_init(id));
        self.open(id, found, machine);
    }

    pub(crate) fn group(&mut self, id: GroupId) -> Option<&mut Group> {
        self.groups.get_mut(id.0 as usize)?.as_mut()
    }

    pub(crate) fn group_ref(&self, id: GroupId) -> Option<&Group> {
        self.groups.get(id.0 as usize)?.as_ref()
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// Marks a group as having work in this step.
    pub(crate) fn activate(&mut self, id: GroupId) {
        let at = id.0 as usize;
        if !self.is_active[at] {
            self.is_active[at] = true;
            self.active.push(id);
        }
    }

    /// Runs one step: handles all inputs and returns the resulting outputs. The crate documentation
    /// has the contract. Returns nothing after [`Output::Stop`].
    pub fn step(&mut self, now: StepTime, inputs: impl IntoIterator<Item = Input>) -> Vec<Output> {
        if self.stopped {
            return Vec::new();
        }
        self.clock.advance(now);
        self.turn.now_ms = self.clock.now_ms();
        self.turn.wall = self.clock.wall();
        for id in std::mem::take(&mut self.again) {
            self.activate(id);
        }
        self.allow_edges();
        self.due_first();
        self.tick();
        for input in inputs {
            self.handle(input);
        }
        self.settle();
        self.finish()
    }

    /// Whether the node has stopped and gives no more output.
    pub(crate) fn has_stopped(&self) -> bool {
        self.stopped
    }

    /// Returns the number of milliseconds after which [`Node::step`] must be called again at the
    /// latest.
    pub fn wake_in(&self) -> u64 {
        if !self.again.is_empty() || self.has_edges_to_read() {
            return 0;
        }
        let due = self.due.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
        let next = due
            .min(self.next_tick)
            .min(self.coordinator.next_deadline());
        next.saturating_sub(self.clock.now_ms()).min(500)
    }

    /// Step 2 of leases.md, for all groups: before any input is handled.
    fn due_first(&mut self) {
        let now_ms = self.now_ms();
        while let Some(&Reverse((at, id))) = self.due.peek()
            && at <= now_ms
        {
            self.due.pop();
            // Entries of the heap are not removed when a group gets an earlier time; only the entry
            // that matches `due_at` counts.
            if self.due_at[id.0 as usize] == at {
                self.due_at[id.0 as usize] = u64::MAX;
                if let Some(Some(group)) = self.groups.get_mut(id.0 as usize) {
                    group.due(&mut self.turn);
                }
                self.activate(id);
            }
        }
    }

    fn register_due(&mut self, id: GroupId) {
        let at = id.0 as usize;
        let Some(due) = self.groups[at].as_ref().and_then(Group::next_due) else {
            return;
        };
        if due < self.due_at[at] {
            self.due_at[at] = due;
            self.due.push(Reverse((due, id)));
        }
    }

    fn tick(&mut self) {
        let now_ms = self.now_ms();
        self.coordinator_deadlines(now_ms);
        if self.next_tick <= now_ms {
            // At most one tick per step: missed ticks are not made up for. Otherwise a process that
            // was suspended would take its own pause for silence of the leader.
            self.next_tick = (self.next_tick + TICK_MS).max(now_ms);
            self.storage_tick();
            let number = self.coordinator.ticks();
            for at in 0..self.groups.len() {
                if let Some(group) = &mut self.groups[at] {
                    group.tick(number, &mut self.turn);
                    let id = group.id;
                    if group.has_work() {
                        self.activate(id);
                    }
                }
            }
            self.coordinator_tick();
        }
    }

    fn handle(&mut self, input: Input) {
        match input {
            Input::Request {
                id,
                request,
                timeout_ms,
            } => self.call(id, request, timeout_ms),
            Input::Cancel { id } => self.cancel(id),
            Input::Subscribe { id, owner } => self.subscribe(id, owner),
            Input::Watch { id, prefix, start } => self.watch(id, prefix, start),
            Input::Unsubscribe { id } => self.unsubscribe(id),
            Input::WatchRead { id } => self.watch_read(id),
            Input::Unwatch { id } => self.unwatch(id),
            Input::Frame { from, bytes } => self.receive(from, bytes),
            Input::PeerUp { node } => self.peer_up(node),
            Input::PeerDown { node } => self.peer_down(node),
            Input::BulkLost { node } => self.transfers_lost(node),
            Input::Cluster { nodes } => self.set_cluster(nodes),
            Input::Persisted { mark } => self.durable(mark),
            Input::WriteFailed { why } => {
                self.turn.stop = Some(format!("the log cannot be written: {why}"));
            }
            Input::SnapshotSaved { group, index } => self.snapshot_saved(group, index),
            Input::SnapshotEncoded(snapshot) => self.snapshot_encoded(snapshot),
            Input::CutLog { group } => self.cut_log(group),
            Input::Change { id, group, change } => self.ask_change(id, group, change),
            Input::Transfer { group, to } => {
                if self.may_be_given(to)
                    && let Some(group) = self.group(group)
                {
                    group.replica.transfer(to);
                    let id = group.id;
                    self.activate(id);
                }
            }
            Input::Drain => self.drain(),
        }
    }

    fn durable(&mut self, mark: Mark) {
        self.persisted = self.persisted.max(mark);
        while let Some(numbers) = self.storage.synced(mark) {
            for written in numbers {
                if let Some(group) = self.group(written.group) {
                    group.persisted(written);
                    self.activate(written.group);
                }
            }
        }
    }

    /// Runs groups and calls alternately until neither has more work.
    fn settle(&mut self) {
        loop {
            self.confirm_for_fanouts();
            self.read_edges();
            while let Some(id) = self.next_active() {
                if let Some(Some(group)) = self.groups.get_mut(id.0 as usize) {
                    if group.settle(&mut self.turn) == MoreWork::More {
                        self.again.insert(id);
                    }
                    self.register_due(id);
                    self.touched.push(id);
                }
                if self.turn.stop.is_some() {
                    return;
                }
            }
            let mut answers = std::mem::take(&mut self.turn.answers);
            let leadership_confirmed = std::mem::take(&mut self.turn.leadership_confirmed);
            let returned = std::mem::take(&mut self.turn.returned);
            let mut events_out = std::mem::take(&mut self.turn.events_out);
            let quiet =
                answers.is_empty() && leadership_confirmed.is_empty() && returned.is_empty();
            if quiet && events_out.is_empty() && self.coordinator_idle() {
                return;
            }
            for (id, events_out) in events_out.drain(..) {
                self.events_out(id, events_out);
            }
            keep_room(events_out, &mut self.turn.events_out);
            for (ticket, answer) in answers.drain(..) {
                self.answered(ticket, answer);
            }
            keep_room(answers, &mut self.turn.answers);
            for told in leadership_confirmed.chunk_by(|(one, ..), (two, ..)| one == two) {
                self.leadership_confirmed(told);
            }
            for (ticket, op) in returned {
                self.returned(ticket, op);
            }
            self.coordinator_step();
        }
    }

    fn next_active(&mut self) -> Option<GroupId> {
        let id = self.active.pop()?;
        self.is_active[id.0 as usize] = false;
        Some(id)
    }

    fn events_out(&mut self, id: GroupId, events_out: GroupEvent) {
        match events_out {
            GroupEvent::Led => self.group_led(id),
            GroupEvent::NotLed => self.group_not_led(id),
            GroupEvent::Leader => self.leader_changed(id),
            GroupEvent::Event(event) => self.event_made(id, event),
            GroupEvent::Change(change) => self.change_made(id, *change),
            GroupEvent::System => {
                self.system_changed();
                self.auth_applied();
            }
            GroupEvent::Membership => self.membership_changed(id),
            GroupEvent::Installed => self.installed(id),
        }
    }

    /// Collects the writes, frames and answers of the step.
    fn finish(&mut self) -> Vec<Output> {
        if let Some(why) = self.turn.stop.take() {
            self.stopped = true;
            return vec![Output::Stop { why }];
        }
        self.cut_logs();
        // Writes and frames come before answers: peers wait for them, and the disk can start.
        let mut first = Vec::new();
        // Before the frames: a frame of this step may confirm that the table is in use here.
        if let Some(table) = self.coordinator.auth_news() {
            first.push(Output::Auth(table));
        }
        if !self.turn.writes.is_empty() {
            self.write(&mut first);
        }
        let mut messages = std::mem::take(&mut self.turn.messages);
        for (group, message) in messages.drain(..) {
            self.send_message(group, message, SendAfter::Now);
        }
        keep_room(messages, &mut self.turn.messages);
        let mut after = std::mem::take(&mut self.turn.after);
        let due = if self.persisted < self.last_mark {
            SendAfter::AfterWrites
        } else {
            SendAfter::Now
        };
        for (group, mut message) in after.drain(..) {
            // A heartbeat answer only says that this replica follows the sender, which needs no
            // disk: votes are durable before they are sent, so a later leader is elected after this
            // answer even if a crash loses the term. If the answer waited for the disk, leaders
            // would lose followers with slow disks.
            let due = if message.kind == MessageKind::HeartbeatAnswer {
                let unsynced = |group: &Group| group.has_unsynced();
                if self.group_ref(group).is_some_and(unsynced) {
                    // The commit index may not be durable yet, and the leader relies on reported
                    // commit indexes: it lets a removed replica be deleted when a majority knows of
                    // the removal.
                    message.commit = 0;
                }
                SendAfter::Now
            } else {
                due
            };
            self.send_message(group, message, due);
        }
        keep_room(after, &mut self.turn.after);
        self.frames.flush(self.last_mark, &mut first);
        if self.outputs.is_empty() {
            // Keep the allocation for the next step.
            return first;
        }
        let mut outputs = take_as_long(&mut self.outputs);
        outputs.splice(..0, first);
        outputs
    }

    /// Emits the writes of the step as one batch, or as several if one would exceed the log's
    /// limit. Frames that wait for the disk wait for the last batch.
    fn write(&mut self, outputs: &mut Vec<Output>) {
        let sync = if std::mem::take(&mut self.turn.must_sync) {
            SyncMode::Now
        } else {
            SyncMode::Lazy
        };
        let records = take_as_long(&mut self.turn.writes);
        let mut numbers = take_as_long(&mut self.turn.numbers);
        let snapshots = std::mem::take(&mut self.installs);
        let now_ms = self.clock.now_ms();
        let mut before = 0;
        for part in batch_split::cut(records, snapshots, self.config.limits.batch_bytes) {
            self.last_mark = Mark(self.last_mark.0 + 1);
            before += part.taken;
            let done = numbers.partition_point(|(end, _)| *end <= before);
            let later = numbers.split_off(done);
            let done = std::mem::replace(&mut numbers, later);
            let done = done.into_iter().map(|(_, written)| written).collect();
            let states = part.snapshots.iter();
            let installed: usize = states.map(|snapshot| snapshot.data.len()).sum();
            let bytes = (part.bytes + installed) as u64;
            self.storage.wrote(self.last_mark, now_ms, bytes, done);
            outputs.push(Output::Write(WriteBatch {
                mark: self.last_mark,
                sync,
                snapshots: part.snapshots,
                records: part.records,
            }));
        }
    }

    fn send_message(&mut self, group: GroupId, message: Message, due: SendAfter) {
        if message.kind == MessageKind::Snapshot {
            self.send_snapshot(group, message);
            return;
        }
        self.frames.message(group, &message, due);
    }

    pub(crate) fn frames(&mut self) -> &mut frames::Frames {
        &mut self.frames
    }
}

/// Takes a list and reserves the same capacity for the next one.
fn take_as_long<T>(list: &mut Vec<T>) -> Vec<T> {
    let next = Vec::with_capacity(list.len().min(1 << 10));
    std::mem::replace(list, next)
}

/// Reuses the allocation of an empty list.
pub(crate) fn keep_room<T>(empty: Vec<T>, list: &mut Vec<T>) {
    if list.capacity() == 0 && empty.capacity() <= 1 << 14 {
        *list = empty;
    }
}

/// The record of a removed replica, or of one that is still empty after a restart: its number and
/// whether it was removed. Under the rules of release 0.1.0, where it may come back under the same
/// identity, also its term and vote, so that it cannot vote twice in a term, and where its log
/// ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tombstone {
    pub(crate) hard_state: crate::HardState,
    /// The leader had committed this much when it confirmed the removal; unknown, and 0, after a restart.
    pub(crate) index: u64,
}

impl Tombstone {
    /// Whether a leader that has committed this much in this term may have added the replica again
    /// under the same identity (rules of release 0.1.0). Messages sent before the removal must not
    /// revive it: their leader had committed less than the removal, and no more than the deleted
    /// log shows.
    pub(crate) fn may_be_over(&self, term: u64, commit: u64) -> bool {
        let floor = self.hard_state.floor;
        !self.hard_state.removed
            && commit > self.index
            && (commit > floor.index || term > floor.term)
    }
}

/// When a message may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendAfter {
    Now,
    AfterWrites,
}
