//! One node's place in the cluster: its process, its disk, its clock, and the driver between them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use tenure_core::value::OwnerId;
use tenure_log::SimDisk;
use tenure_node::{
    Channel, GroupId, Input, Mark, Node, NodeId, ReplicaId, RequestId, Snapshot, StreamId,
    WriteBatch,
};

use crate::random::SimRng;
use crate::sim_log::SimLog;
use crate::time::{MILLISECOND, SimClock, SimTime};

/// What the disk has to do, in order.
pub(crate) enum DiskJob {
    Write(WriteBatch),
    Save(Snapshot),
}

/// See the module.
pub(crate) struct SimNode {
    pub(crate) member: ReplicaId,
    pub(crate) node: Option<Node>,
    pub(crate) disk: SimDisk,
    pub(crate) sim_log: Option<SimLog>,
    pub(crate) clock: SimClock,
    pub(crate) starts: u64,
    /// Counts processes; what was meant for an earlier one is void.
    pub(crate) process: u64,
    pub(crate) inbox: Vec<Input>,
    /// When the node is stepped next; `SimTime::MAX` if it is not.
    pub(crate) next_step: SimTime,
    pub(crate) paused: bool,
    pub(crate) jobs: VecDeque<DiskJob>,
    /// A sync that is under way, and the snapshots saved with it.
    pub(crate) syncing: Option<RunningSync>,
    /// Frames that wait for a mark.
    pub(crate) held: VecDeque<(Mark, NodeId, Channel, Bytes)>,
    pub(crate) disk_begins: bool,
    /// How long a write takes, and a sync.
    pub(crate) disk_delay: (SimTime, SimTime),
    /// Its disk hangs until then.
    pub(crate) hangs_until: SimTime,
    /// Which clients wait for what.
    pub(crate) calls: BTreeMap<RequestId, (usize, u64)>,
    pub(crate) streams: BTreeMap<StreamId, (usize, SimStream)>,
    /// Its data is lost or damaged; it may start only in a new incarnation.
    pub(crate) needs_new_incarnation: bool,
    /// Groups that may have lost what was confirmed. (A real driver keeps this list in its log.)
    pub(crate) suspects: BTreeSet<GroupId>,
    /// Where its process is about to die, and after how many more times of being there.
    pub(crate) middle: Option<(MidStep, u64)>,
    /// The machine itself is about to lose power.
    pub(crate) power_ends: bool,
    /// Terms seen, to count elections.
    pub(crate) terms: BTreeMap<GroupId, u64>,
}

/// A moment between two things that belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MidStep {
    /// So many of the outputs of a turn were carried out, and the others were not.
    Outputs(usize),
    /// What was written is durable, and nothing that waited for it was said.
    Synced,
    /// It was said, and the node does not know that what it wrote is durable.
    Said,
}

/// What a client listens to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SimStream {
    /// What this owner is told.
    Events(OwnerId),
    /// What changes under a prefix.
    Watch,
}

/// See [`SimNode::syncing`].
pub(crate) struct RunningSync {
    pub(crate) sync: tenure_node::durable::Syncing,
    pub(crate) saved: Vec<(GroupId, u64)>,
}

/// How long a healthy disk takes to begin, and to sync.
pub(crate) const HEALTHY_DISK: (SimTime, SimTime) = (200, 3 * MILLISECOND);

impl SimNode {
    pub(crate) fn new(member: ReplicaId, disk: SimDisk, clock: SimClock) -> SimNode {
        SimNode {
            member,
            node: None,
            disk,
            sim_log: None,
            clock,
            starts: 0,
            process: 0,
            inbox: Vec::new(),
            next_step: SimTime::MAX,
            paused: false,
            jobs: VecDeque::new(),
            syncing: None,
            held: VecDeque::new(),
            disk_begins: false,
            disk_delay: HEALTHY_DISK,
            hangs_until: 0,
            calls: BTreeMap::new(),
            streams: BTreeMap::new(),
            needs_new_incarnation: false,
            suspects: BTreeSet::new(),
            middle: None,
            power_ends: false,
            terms: BTreeMap::new(),
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.node.is_some()
    }

    /// The process is gone, with all that it had in memory.
    pub(crate) fn end_process(&mut self) {
        self.process += 1;
        self.node = None;
        self.sim_log = None;
        self.inbox.clear();
        self.next_step = SimTime::MAX;
        self.paused = false;
        self.middle = None;
        self.jobs.clear();
        self.syncing = None;
        self.held.clear();
        self.disk_begins = false;
        self.calls.clear();
        self.streams.clear();
    }

    /// The process is dead. The machine goes on, unless its power is already failing.
    pub(crate) fn leave_disk(&mut self, rng: &mut SimRng) {
        self.disk = if std::mem::take(&mut self.power_ends) {
            self.disk.crash(&mut || rng.chance(500))
        } else {
            self.disk.kill()
        };
    }
}
