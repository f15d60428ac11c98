//! A simulated node: its process, disk and clock, and the state of the driver between them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;
use tenure_core::value::OwnerId;
use tenure_log::SimDisk;
use tenure_node::{
    Channel, GroupId, Input, Mark, Node, NodeId, ReplicaId, RequestId, Snapshot, StreamId,
    WriteBatch,
};

use crate::faults::StorageFault;
use crate::random::SimRng;
use crate::sim_log::SimLog;
use crate::time::{MILLISECOND, SimClock, SimTime};

/// A job of the disk. Jobs are executed in order.
pub(crate) enum DiskJob {
    Write(WriteBatch),
    Save(Snapshot),
}

/// One node slot.
pub(crate) struct SimNode {
    pub(crate) member: ReplicaId,
    pub(crate) node: Option<Node>,
    pub(crate) disk: SimDisk,
    pub(crate) sim_log: Option<SimLog>,
    pub(crate) clock: SimClock,
    pub(crate) starts: u64,
    /// Number of the process. Events for an earlier process are ignored.
    pub(crate) process: u64,
    pub(crate) inbox: Vec<Input>,
    /// Time of the next step and its number among the events; [`NO_STEP`] if none is scheduled.
    /// Steps are not in the queue of events, because most inputs move the next step to an earlier
    /// time, which would leave a stale event behind.
    pub(crate) next_step: (SimTime, u64),
    pub(crate) paused: bool,
    pub(crate) jobs: VecDeque<DiskJob>,
    /// The running sync, and the snapshots that were saved before it began.
    pub(crate) syncing: Option<RunningSync>,
    /// Frames that wait until a mark is durable.
    pub(crate) held: VecDeque<(Mark, NodeId, Channel, Bytes)>,
    pub(crate) disk_begins: bool,
    /// The longest time until the disk begins, and the longest time of a sync.
    pub(crate) disk_delay: (SimTime, SimTime),
    /// The node's thread gets the processor only this long after it has become runnable.
    pub(crate) starved: SimTime,
    /// A storage fault whose verdict the next start gives.
    pub(crate) rotten: Option<StorageFault>,
    /// The disk hangs until this time.
    pub(crate) hangs_until: SimTime,
    /// The client and the call of each pending request.
    pub(crate) calls: BTreeMap<RequestId, (usize, u64)>,
    pub(crate) streams: BTreeMap<StreamId, (usize, SimStream)>,
    /// Its data is lost or damaged. It starts next in a new incarnation.
    pub(crate) needs_new_incarnation: bool,
    /// Groups that may have lost acknowledged entries. (A real driver keeps this list in its log.)
    pub(crate) suspects: BTreeSet<GroupId>,
    /// Where its process dies, and how many times it passes there before.
    pub(crate) middle: Option<(MidStep, u64)>,
    /// The machine loses power in a write that is already scheduled.
    pub(crate) power_ends: bool,
    /// The last term in which this node led each group, to count elections.
    pub(crate) terms: BTreeMap<GroupId, u64>,
}

/// A point between two actions that belong together, at which a process can die.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MidStep {
    /// After this many outputs of a step.
    Outputs(usize),
    /// The batch is durable, and no frame that waited for it was sent.
    Synced,
    /// The frames were sent, and the node does not know yet that its batch is durable.
    Said,
}

/// A stream of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SimStream {
    /// Events of this owner.
    Events(OwnerId),
    /// Changes under a prefix.
    Watch,
}

/// A running sync. See [`SimNode::syncing`].
pub(crate) struct RunningSync {
    pub(crate) sync: tenure_node::durable::Syncing,
    pub(crate) saved: Vec<(GroupId, u64)>,
}

/// A time and event number after all others: no step is scheduled.
pub(crate) const NO_STEP: (SimTime, u64) = (SimTime::MAX, u64::MAX);

/// The longest time that a healthy disk takes to begin, and to sync.
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
            next_step: NO_STEP,
            paused: false,
            jobs: VecDeque::new(),
            syncing: None,
            held: VecDeque::new(),
            disk_begins: false,
            disk_delay: HEALTHY_DISK,
            starved: 0,
            rotten: None,
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

    /// Ends the process. Its memory is lost.
    pub(crate) fn end_process(&mut self) {
        self.process += 1;
        self.node = None;
        self.sim_log = None;
        self.inbox.clear();
        self.next_step = NO_STEP;
        self.paused = false;
        self.middle = None;
        self.jobs.clear();
        self.syncing = None;
        self.held.clear();
        self.disk_begins = false;
        self.calls.clear();
        self.streams.clear();
    }

    /// Sets the state of the disk after the process died: unsynced writes stay, unless the power
    /// failed too.
    pub(crate) fn leave_disk(&mut self, rng: &mut SimRng) {
        self.disk = if std::mem::take(&mut self.power_ends) {
            self.disk.crash(&mut || rng.chance(500))
        } else {
            self.disk.kill()
        };
    }
}
