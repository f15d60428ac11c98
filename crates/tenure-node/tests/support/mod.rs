//! A cluster of nodes in one thread, driven as the contract says: every frame, record and snapshot
//! goes through bytes, disks forget what was not synced, time moves by hand.

#![allow(dead_code, reason = "each test uses its own part of this")]
#![allow(unreachable_pub, reason = "a module of several test crates")]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(missing_docs, reason = "helpers of tests")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use tenure_core::command::{Hold, Request, RequestKind, WaitMode};
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::{Algorithm, Mode};
use tenure_core::value::{Fence, OwnerId, QueueTtl, Ttl};
use tenure_node::*;

pub fn owner(name: &str) -> OwnerId {
    OwnerId::new(name).unwrap()
}

pub fn path(text: &str) -> Path {
    Path::parse(text).unwrap()
}

pub fn ns(text: &str) -> Namespace {
    Namespace::parse(text).unwrap()
}

pub fn node_id(number: u32) -> NodeId {
    NodeId::new(number).unwrap()
}

/// What a log holds for each group, in bytes, and snapshots beside it.
#[derive(Clone, Default)]
pub struct TestDisk {
    groups: BTreeMap<GroupId, RecoveredBytes>,
    snapshots: BTreeMap<(GroupId, u64), Bytes>,
    /// Batches not yet durable.
    pending: VecDeque<WriteBatch>,
    /// Frames that wait for a mark.
    held: Vec<(Mark, NodeId, Bytes)>,
    pub syncs: u64,
    pub born: Vec<(GroupId, Vec<ReplicaId>)>,
    /// Batches written so far, and the bytes of entries in the longest.
    pub batches: u64,
    pub longest_batch: usize,
    /// The log may have lost what was confirmed, and says so at the next start.
    pub suspect: bool,
}

impl TestDisk {
    /// Whether there is more of a replica than, perhaps, a term and a vote.
    pub fn holds(&self, group: GroupId) -> bool {
        let held = self.groups.get(&group);
        held.is_some_and(|held| held.base.is_some() || !held.entries.is_empty())
    }

    /// What the log holds of a group, to be put back with [`TestDisk::go_back`].
    pub fn remains(&self, group: GroupId) -> RecoveredBytes {
        self.groups[&group].clone()
    }

    /// The log of a group is as it was: what was written since is lost.
    pub fn go_back(&mut self, group: GroupId, remains: RecoveredBytes) {
        self.groups.insert(group, remains);
    }

    fn write(&mut self, group: GroupId, record: LogWrite) {
        let held = self.groups.entry(group).or_default();
        match record {
            LogWrite::Born(base) => {
                held.base = Some((base.place, base.membership.to_bytes()));
            }
            LogWrite::Cut(base) => {
                assert!(self.snapshots.contains_key(&(group, base.place.index)));
                held.entries
                    .retain(|(place, _)| place.index > base.place.index);
                held.base = Some((base.place, base.membership.to_bytes()));
            }
            LogWrite::Installed(base) => {
                assert!(self.snapshots.contains_key(&(group, base.place.index)));
                held.entries.clear();
                held.base = Some((base.place, base.membership.to_bytes()));
            }
            LogWrite::Entries(entries) => {
                for entry in entries {
                    held.entries
                        .retain(|(place, _)| place.index < entry.place.index);
                    held.entries.push((entry.place, entry.payload_bytes()));
                }
            }
            LogWrite::HardState(state) => held.hard_state = state.to_bytes(),
            LogWrite::Removed => {
                self.groups.remove(&group);
            }
        }
    }
}

pub struct TestNode {
    pub member: ReplicaId,
    pub node: Option<Node>,
    pub disk: TestDisk,
    start: u64,
    /// The test node's own clock: what it reads, and how fast it runs in per mille.
    pub clock_ms: u64,
    pub rate: u64,
    pub answers: BTreeMap<RequestId, Result<Answer, Failure>>,
    pub outputs: Vec<Output>,
    /// Frames held back for a test to look at.
    pub paused_disk: bool,
    pub stopped: Option<String>,
}

pub struct Cluster {
    pub test_nodes: Vec<TestNode>,
    pub now: u64,
    wire: VecDeque<(u64, NodeId, NodeId, Bytes)>,
    /// Links that carry nothing.
    pub cut: BTreeSet<(NodeId, NodeId)>,
    pub groups: u32,
    next_request: u64,
    pub limits: Limits,
    pub latency_ms: u64,
    seed: u64,
    pub frames: u64,
    /// How many bytes the longest frame had.
    pub longest_frame: usize,
    pub duplicate: bool,
    /// How many bytes a millisecond the bulk channel to each node carries, and how many may wait for it: beyond it
    /// the connection breaks, as on real machines.
    pub bulk: Option<BulkQueue>,
    /// Bulk frames are kept in `lost`.
    pub hold_bulk: bool,
    /// When the bulk channel to a node is free again, in microseconds.
    bulk_free: BTreeMap<NodeId, u64>,
    /// How often a bulk channel broke.
    pub bulk_broke: u64,
    /// What cut links did not carry, for a test to bring it after all.
    pub lost: Vec<(NodeId, NodeId, Bytes)>,
    /// No link carries states.
    pub bulk_lost: bool,
    /// Every group stays by the rules of release 0.1.0: one of the nodes never says what it knows.
    pub first_rules: bool,
}

#[derive(Clone, Copy)]
pub struct BulkQueue {
    pub bytes_per_ms: u64,
    pub most_waiting: u64,
}

impl Cluster {
    /// So many nodes that all replicate so many groups, and the system group.
    pub fn new(nodes: u32, groups: u32) -> Cluster {
        Cluster::with(nodes, groups, Limits::default())
    }

    pub fn with(nodes: u32, groups: u32, limits: Limits) -> Cluster {
        let mut cluster = Cluster::empty(groups, limits);
        let members: Vec<ReplicaId> = (1..=nodes).map(|number| member(number, 1)).collect();
        for me in &members {
            let born = (0..=groups)
                .map(|group| (GroupId(group), members.clone()))
                .collect();
            cluster.add(*me, born);
        }
        for at in 0..cluster.test_nodes.len() {
            cluster.start(at);
        }
        cluster
    }

    pub fn empty(groups: u32, limits: Limits) -> Cluster {
        Cluster {
            test_nodes: Vec::new(),
            now: 1_000,
            wire: VecDeque::new(),
            cut: BTreeSet::new(),
            groups,
            next_request: 0,
            limits,
            latency_ms: 1,
            seed: 7,
            frames: 0,
            longest_frame: 0,
            duplicate: false,
            bulk: None,
            hold_bulk: false,
            bulk_free: BTreeMap::new(),
            bulk_broke: 0,
            lost: Vec::new(),
            bulk_lost: false,
            first_rules: false,
        }
    }

    /// Three voters of every group, and more nodes that have no replica yet.
    pub fn fill_with_trio(&mut self, guests: u32) {
        let members: Vec<ReplicaId> = (1..=3).map(|number| member(number, 1)).collect();
        for me in &members {
            let born = (0..=self.groups)
                .map(|group| (GroupId(group), members.clone()))
                .collect();
            self.add(*me, born);
        }
        for number in 4..4 + guests {
            self.add(member(number, 1), Vec::new());
        }
        for at in 0..self.test_nodes.len() {
            self.start(at);
        }
        self.settle();
        if !self.first_rules {
            self.until(10_000, "every group has the newest rules", |cluster| {
                let newest = |group| {
                    let leader = cluster.leader(GroupId(group))?;
                    let known = status(cluster, leader, GroupId(group))?;
                    Some(known.rules == tenure_core::space::RULES)
                };
                (0..=cluster.groups).all(|group| newest(group) == Some(true))
            });
            self.run(50);
        }
    }

    pub fn add(&mut self, member: ReplicaId, born: Vec<(GroupId, Vec<ReplicaId>)>) -> usize {
        self.test_nodes.push(TestNode {
            member,
            node: None,
            disk: TestDisk {
                born,
                ..TestDisk::default()
            },
            start: 0,
            clock_ms: 5_000,
            rate: 1_000,
            answers: BTreeMap::new(),
            outputs: Vec::new(),
            paused_disk: false,
            stopped: None,
        });
        self.test_nodes.len() - 1
    }

    pub fn system(&self) -> GroupId {
        GroupId(self.groups)
    }

    fn moment(&self, at: usize) -> StepTime {
        StepTime {
            monotonic_ms: self.test_nodes[at].clock_ms,
            wall_ms: 1_700_000_000_000 + self.now,
        }
    }

    /// Starts a node from its disk.
    pub fn start(&mut self, at: usize) {
        let mut nodes: Vec<NodeId> = self
            .test_nodes
            .iter()
            .map(|test_node| test_node.member.node)
            .collect();
        if self.first_rules {
            nodes.push(node_id(99));
        }
        let moment = self.moment(at);
        let (groups, limits, seed) = (self.groups, self.limits.clone(), self.seed);
        let test_node = &mut self.test_nodes[at];
        test_node.start += 1;
        let mut recovery = Recovery::new();
        if test_node.disk.groups.is_empty() {
            for (group, voters) in test_node.disk.born.clone() {
                recovery.born(group, voters);
            }
        }
        for (group, remains) in test_node.disk.groups.clone() {
            recovery.group(group, remains).unwrap();
        }
        for (group, index) in recovery.snapshots() {
            let data = test_node.disk.snapshots[&(group, index)].clone();
            recovery.state(group, data);
        }
        if test_node.disk.suspect {
            let groups: Vec<GroupId> = recovery.groups().collect();
            groups.into_iter().for_each(|one| recovery.suspect(one));
        }
        let config = Config {
            me: test_node.member,
            cluster: ClusterConfig {
                group_count: groups,
                prefix_segments: 1,
                default_algorithm: Algorithm::RecursiveRw,
            },
            limits,
            start: test_node.start,
            seed: seed ^ u64::from(test_node.member.node.number()) ^ (test_node.start << 40),
            nodes,
        };
        let (node, outputs) = Node::start(config, recovery, moment).unwrap();
        test_node.node = Some(node);
        self.take(at, outputs);
    }

    /// The process dies: what was not durable is gone, and what it had to say too.
    pub fn crash(&mut self, at: usize) {
        let id = self.test_nodes[at].member.node;
        let test_node = &mut self.test_nodes[at];
        test_node.node = None;
        test_node.disk.pending.clear();
        test_node.disk.held.clear();
        self.wire
            .retain(|(_, from, to, _)| *from != id && *to != id);
    }

    pub fn tell_down(&mut self, gone: usize) {
        let gone = self.test_nodes[gone].member.node;
        for at in 0..self.test_nodes.len() {
            if self.test_nodes[at].member.node != gone {
                self.input(at, Input::PeerDown { node: gone });
            }
        }
    }

    /// One turn of one node.
    pub fn input(&mut self, at: usize, input: Input) {
        self.inputs(at, vec![input]);
    }

    pub fn inputs(&mut self, at: usize, inputs: Vec<Input>) {
        let moment = self.moment(at);
        let Some(node) = &mut self.test_nodes[at].node else {
            return;
        };
        let outputs = node.step(moment, inputs);
        self.take(at, outputs);
    }

    fn take(&mut self, at: usize, outputs: Vec<Output>) {
        let from = self.test_nodes[at].member.node;
        for output in outputs {
            let test_node = &mut self.test_nodes[at];
            match output {
                Output::Write(batch) => {
                    let entries = batch.records.iter().map(|(_, record)| match record {
                        LogWrite::Entries(entries) => entries.iter(),
                        _ => [].iter(),
                    });
                    let bytes = entries.flatten().map(|entry| entry.payload_bytes().len());
                    test_node.disk.longest_batch =
                        bytes.sum::<usize>().max(test_node.disk.longest_batch);
                    test_node.disk.batches += 1;
                    test_node.disk.pending.push_back(batch);
                }
                Output::Send {
                    to, channel, frame, ..
                } if channel == Channel::Bulk && self.hold_bulk => {
                    self.lost.push((from, to, frame))
                }
                Output::Send {
                    to, channel, frame, ..
                } if channel == Channel::Bulk && self.bulk.is_some() => {
                    self.send_bulk(at, to, frame);
                }
                Output::Send {
                    to,
                    channel: Channel::Bulk,
                    frame,
                    ..
                } if self.bulk_lost => self.lost.push((from, to, frame)),
                Output::Send {
                    to, after, frame, ..
                } => match after {
                    DurableAfter::Nothing => self.send(from, to, frame),
                    DurableAfter::Persisted(mark) => test_node.disk.held.push((mark, to, frame)),
                },
                Output::Answer { id, answer, .. } => {
                    let before = test_node.answers.insert(id, answer);
                    assert!(before.is_none(), "a request was answered twice");
                }
                Output::EncodeSnapshot(image) => {
                    self.input(at, Input::SnapshotEncoded(image.encode()));
                }
                Output::SaveSnapshot(image) => {
                    let snapshot = image.encode();
                    let key = (snapshot.group, snapshot.index);
                    test_node.disk.snapshots.insert(key, snapshot.data);
                    let input = Input::SnapshotSaved {
                        group: key.0,
                        index: key.1,
                    };
                    self.input(at, input);
                }
                Output::Stop { why } => test_node.stopped = Some(why),
                other @ (Output::Auth(_)
                | Output::Event { .. }
                | Output::Change { .. }
                | Output::Closed { .. }
                | Output::Changed { .. }) => test_node.outputs.push(other),
            }
        }
    }

    fn send_bulk(&mut self, at: usize, to: NodeId, frame: Bytes) {
        let Some(line) = self.bulk else { return };
        let from = self.test_nodes[at].member.node;
        let now = self.now * 1_000;
        let free = self.bulk_free.get(&to).copied().unwrap_or(0).max(now);
        if (free - now) * line.bytes_per_ms / 1_000 + frame.len() as u64 > line.most_waiting {
            self.bulk_broke += 1;
            let lost =
                |(_, one, other, _): &(u64, NodeId, NodeId, Bytes)| (*one, *other) == (from, to);
            self.wire.retain(|frame| !lost(frame));
            self.bulk_free.remove(&to);
            self.input(at, Input::BulkLost { node: to });
            return;
        }
        let free = free + frame.len() as u64 * 1_000 / line.bytes_per_ms;
        self.bulk_free.insert(to, free);
        self.longest_frame = self.longest_frame.max(frame.len());
        let arrives = free / 1_000 + self.latency_ms;
        self.wire.push_back((arrives, from, to, frame));
    }

    fn send(&mut self, from: NodeId, to: NodeId, frame: Bytes) {
        self.longest_frame = self.longest_frame.max(frame.len());
        self.frames += 1;
        if self.cut.contains(&(from, to)) {
            self.lost.push((from, to, frame));
            return;
        }
        let at = self.now + self.latency_ms;
        self.wire.push_back((at, from, to, frame.clone()));
        if self.duplicate {
            self.wire.push_back((at + 3, from, to, frame));
        }
    }

    /// Everything that was written is durable now.
    pub fn sync(&mut self, at: usize) {
        let from = self.test_nodes[at].member.node;
        let disk = &mut self.test_nodes[at].disk;
        if disk.pending.is_empty() {
            return;
        }
        let mut mark = Mark(0);
        disk.syncs += u64::from(disk.pending.iter().any(|batch| batch.sync == SyncMode::Now));
        for batch in std::mem::take(&mut disk.pending) {
            for snapshot in batch.snapshots {
                let key = (snapshot.group, snapshot.index);
                disk.snapshots.insert(key, snapshot.data);
            }
            for (group, record) in batch.records {
                disk.write(group, record);
            }
            mark = batch.mark;
        }
        let ready: Vec<(Mark, NodeId, Bytes)> = {
            let (ready, held) = disk.held.drain(..).partition(|(wait, _, _)| *wait <= mark);
            disk.held = held;
            ready
        };
        for (_, to, frame) in ready {
            self.send(from, to, frame);
        }
        self.input(at, Input::Persisted { mark });
    }

    /// A millisecond passes for everybody.
    pub fn tick(&mut self) {
        self.now += 1;
        let due: Vec<(NodeId, NodeId, Bytes)> = {
            let now = self.now;
            let (due, later): (Vec<_>, Vec<_>) =
                self.wire.drain(..).partition(|(at, _, _, _)| *at <= now);
            self.wire = later.into();
            due.into_iter()
                .map(|(_, from, to, frame)| (from, to, frame))
                .collect()
        };
        for (from, to, bytes) in due {
            if self.cut.contains(&(from, to)) {
                continue;
            }
            if let Some(at) = self
                .test_nodes
                .iter()
                .position(|test_node| test_node.member.node == to)
            {
                self.input(at, Input::Frame { from, bytes });
            }
        }
        for at in 0..self.test_nodes.len() {
            let rate = self.test_nodes[at].rate;
            let before = self.now * rate / 1_000;
            let after = (self.now + 1) * rate / 1_000;
            self.test_nodes[at].clock_ms += after - before;
            if !self.test_nodes[at].paused_disk {
                self.sync(at);
            }
            let wants = self.test_nodes[at]
                .node
                .as_ref()
                .is_some_and(|node| node.wake_in() == 0 || self.now.is_multiple_of(10));
            if wants {
                self.inputs(at, Vec::new());
            }
        }
    }

    pub fn run(&mut self, millis: u64) {
        for _ in 0..millis {
            self.tick();
        }
    }

    /// Runs until something holds, at most so long.
    pub fn until(&mut self, millis: u64, what: &str, holds: impl Fn(&Cluster) -> bool) {
        for _ in 0..millis {
            if holds(self) {
                return;
            }
            self.tick();
        }
        assert!(holds(self), "not within {millis} ms: {what}");
    }

    pub fn leader(&self, group: GroupId) -> Option<usize> {
        let led = self
            .test_nodes
            .iter()
            .enumerate()
            .filter_map(|(at, test_node)| {
                let status = test_node.node.as_ref()?.status();
                let group = status.groups.into_iter().find(|one| one.group == group)?;
                group.serves.then_some((group.term, at))
            });
        led.max().map(|(_, at)| at)
    }

    /// Waits until every group is led.
    pub fn settle(&mut self) {
        let groups: Vec<GroupId> = (0..=self.groups).map(GroupId).collect();
        self.until(10_000, "every group has a leader", |cluster| {
            groups.iter().all(|group| cluster.leader(*group).is_some())
        });
        self.run(50);
    }

    pub fn fresh_id(&mut self) -> RequestId {
        self.next_request += 1;
        RequestId(self.next_request)
    }

    pub fn ask(&mut self, at: usize, request: ClientRequest) -> RequestId {
        self.ask_for(at, request, 30_000)
    }

    pub fn ask_for(&mut self, at: usize, request: ClientRequest, timeout_ms: u64) -> RequestId {
        self.next_request += 1;
        let id = RequestId(self.next_request);
        self.input(
            at,
            Input::Request {
                id,
                request: Box::new(request),
                timeout_ms,
            },
        );
        id
    }

    /// Asks and waits for the answer.
    pub fn call(&mut self, at: usize, request: ClientRequest) -> Result<Answer, Failure> {
        let id = self.ask(at, request);
        self.wait(at, id)
    }

    pub fn wait(&mut self, at: usize, id: RequestId) -> Result<Answer, Failure> {
        self.until(40_000, "an answer", |cluster| {
            cluster.test_nodes[at].answers.contains_key(&id)
        });
        self.test_nodes[at].answers.remove(&id).unwrap()
    }

    pub fn write(&mut self, at: usize, who: &str, what: &str) -> AcquireAnswer {
        self.acquire(at, acquire(who, what, 10_000))
    }

    pub fn acquire(&mut self, at: usize, request: AcquireRequest) -> AcquireAnswer {
        match self.call(at, ClientRequest::Acquire(request)) {
            Ok(Answer::Acquire(answer)) => answer,
            other => panic!("an acquire was answered {other:?}"),
        }
    }

    pub fn release(&mut self, at: usize, who: &str, what: &str) {
        let request = ReleaseRequest {
            owner: owner(who),
            holds: vec![Hold {
                path: path(what),
                mode: Mode::Write,
            }],
            edge: WaitEdge::Keep,
            key: None,
        };
        let answer = self.call(at, ClientRequest::Release(request));
        assert_eq!(answer, Ok(Answer::Done));
    }

    pub fn renew(&mut self, at: usize, who: &str, domains: &[&str], ttl: u64) -> RenewAnswer {
        match self.call(at, renew(who, domains, ttl)) {
            Ok(Answer::Renew(answer)) => answer,
            other => panic!("a renewal was answered {other:?}"),
        }
    }

    pub fn holder(&mut self, at: usize, what: &str) -> Option<String> {
        match self.call(at, ClientRequest::InspectPath { path: path(what) }) {
            Ok(Answer::Inspect(found)) => found.writer.map(|owner| owner.to_string()),
            other => panic!("an inspection was answered {other:?}"),
        }
    }

    pub fn cut(&mut self, from: usize, to: usize) {
        let (from, to) = (
            self.test_nodes[from].member.node,
            self.test_nodes[to].member.node,
        );
        self.cut.insert((from, to));
    }

    /// Cuts a node off from all others, both ways.
    pub fn isolate(&mut self, at: usize) {
        for other in 0..self.test_nodes.len() {
            if other != at {
                self.cut(at, other);
                self.cut(other, at);
            }
        }
    }

    pub fn heal(&mut self) {
        self.cut.clear();
    }
}

pub fn small_logs() -> Limits {
    Limits {
        log_entries: 20,
        log_kept: 5,
        ..Limits::default()
    }
}

/// Three voters, and more nodes that have no replica yet.
pub fn trio_and(guests: u32, limits: Limits) -> Cluster {
    let mut cluster = Cluster::empty(1, limits);
    cluster.fill_with_trio(guests);
    cluster
}

/// The same where every group stays by the rules of release 0.1.0.
pub fn trio_of_the_first_release(guests: u32, limits: Limits) -> Cluster {
    let mut cluster = Cluster::empty(1, limits);
    cluster.first_rules = true;
    cluster.fill_with_trio(guests);
    cluster
}

pub fn change(
    cluster: &mut Cluster,
    group: GroupId,
    steps: Vec<MembershipStep>,
) -> Result<Membership, ChangeRefused> {
    let leader = cluster.leader(group).unwrap();
    let id = cluster.fresh_id();
    cluster.input(
        leader,
        Input::Change {
            id,
            group,
            change: MembershipChange { steps },
        },
    );
    let find = |cluster: &Cluster| {
        cluster.test_nodes[leader]
            .outputs
            .iter()
            .find_map(|output| match output {
                Output::Changed { id: done, result } if *done == id => Some(result.clone()),
                _ => None,
            })
    };
    cluster.until(10_000, "the change", |cluster| find(cluster).is_some());
    find(cluster).unwrap()
}

pub fn status(cluster: &Cluster, at: usize, group: GroupId) -> Option<GroupStatus> {
    let status = cluster.test_nodes[at].node.as_ref()?.status();
    status.groups.into_iter().find(|one| one.group == group)
}

/// The replica of a node in an incarnation, as its group's leader knows it.
pub fn running_nodes(cluster: &Cluster, group: GroupId, on: ReplicaId) -> ReplicaId {
    let known = status(cluster, cluster.leader(group).unwrap(), group).unwrap();
    let everybody = known.membership.everybody();
    let mut here = everybody
        .into_iter()
        .filter(|one| one.node == on.node && one.incarnation == on.incarnation);
    here.next().unwrap()
}

/// Asks for a change until nothing stands in its way, as the driver does.
pub fn change_soon(
    cluster: &mut Cluster,
    group: GroupId,
    steps: Vec<MembershipStep>,
) -> Result<Membership, ChangeRefused> {
    for _ in 0..50 {
        match change(cluster, group, steps.clone()) {
            Err(ChangeRefused::Busy) => cluster.run(100),
            other => return other,
        }
    }
    Err(ChangeRefused::Busy)
}

/// Three replicas, and a fourth node that has none and only forwards.
pub fn trio_and_a_guest() -> Cluster {
    let mut cluster = Cluster::empty(8, Limits::default());
    let members: Vec<ReplicaId> = (1..=3).map(|number| member(number, 1)).collect();
    for me in &members {
        let born = (0..=8)
            .map(|group| (GroupId(group), members.clone()))
            .collect();
        cluster.add(*me, born);
    }
    cluster.add(member(4, 1), Vec::new());
    for at in 0..4 {
        cluster.start(at);
    }
    cluster.settle();
    cluster
}

pub fn member(number: u32, incarnation: u32) -> ReplicaId {
    ReplicaId::new(node_id(number), incarnation)
}

pub fn acquire(who: &str, what: &str, ttl: u64) -> AcquireRequest {
    AcquireRequest {
        owner: owner(who),
        ttl: Ttl::from_millis(ttl).unwrap(),
        queue_ttl: QueueTtl::from_millis(0).unwrap(),
        requests: vec![Request {
            path: path(what),
            mode: Mode::Write,
            state: RequestKind::New,
            permits: None,
        }],
        releases: Vec::new(),
        fence: None,
        key: None,
        wait: WaitMode::Queue,
        holder: None,
        deadlock: Deadlock::Ignore,
    }
}

pub fn renew(who: &str, domains: &[&str], ttl: u64) -> ClientRequest {
    ClientRequest::Renew {
        owner: owner(who),
        ttl: Ttl::from_millis(ttl).unwrap(),
        domains: domains.iter().map(|name| ns(name)).collect(),
        key: None,
    }
}

pub fn granted(answer: &AcquireAnswer) -> Fence {
    match answer {
        AcquireAnswer::Granted {
            fence: Some(fence), ..
        } => *fence,
        other => panic!("not granted: {other:?}"),
    }
}

pub fn is_queued(answer: &AcquireAnswer) -> bool {
    matches!(answer, AcquireAnswer::Queued { .. })
}
