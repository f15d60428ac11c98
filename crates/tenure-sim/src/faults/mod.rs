//! Fault injection. Each kind of fault has its own generator and does not know the checkers.
//!
//! A fault strikes at random times during the fault phase. Most strikes end with an [`Undo`] some
//! time later; all end with the fault phase.

mod clock;
mod combined;
mod crash;
mod disk;
mod load;
mod membership;
mod net;
mod pause;
mod storage;

use tenure_node::GroupId;

use self::combined::CombinedFault;
pub(crate) use self::membership::lose_change_of;
pub(crate) use self::storage::{DiskVerdict, StorageFault};
use crate::plan::RunPlan;
use crate::random::SimRng;
use crate::simulator::{SimEvent, Simulator};
use crate::time::{SECOND, SimTime};

/// All kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FaultKind {
    Partition,
    PartialPartition,
    OneWay,
    Loss,
    Duplicates,
    SlowLink,
    Reconnect,
    Deposed,
    PowerLoss,
    Kill,
    PowerDuringWrite,
    SyncError,
    WriteError,
    BitFlip,
    FullDisk,
    SlowDisk,
    HungDisk,
    Wipe,
    Pause,
    ClockRate,
    ClockStep,
    Membership,
    Forsaken,
    Returning,
    LostChange,
    Drain,
    Transfer,
    ClientPause,
    ClientDeath,
    Combo,
    Middle,
    CutLogs,
    Shrink,
    ClockExtremes,
    Starved,
    HungThread,
    HungLane,
    RotTail,
    RotAfterEnd,
    RotMiddle,
    RotSnapshot,
    LostWrite,
    MisdirectedWrite,
    DuplicatedWrite,
    LyingSync,
}

impl FaultKind {
    /// All kinds.
    pub(crate) fn all() -> impl Iterator<Item = FaultKind> {
        let special = [
            FaultKind::HungDisk,
            FaultKind::Forsaken,
            FaultKind::Returning,
            FaultKind::LostChange,
            FaultKind::Combo,
            FaultKind::Middle,
            FaultKind::CutLogs,
            FaultKind::Shrink,
            FaultKind::ClockExtremes,
            FaultKind::Starved,
            FaultKind::HungThread,
            FaultKind::HungLane,
        ];
        let storage = StorageFault::ALL.map(StorageFault::kind);
        FaultKind::ANYWHERE
            .into_iter()
            .chain(special)
            .chain(storage)
    }

    /// Kinds that need no special cluster. The others need a spare node ([`FaultKind::Forsaken`],
    /// [`FaultKind::Returning`], [`FaultKind::LostChange`]) or belong to one fault profile.
    pub(crate) const ANYWHERE: [FaultKind; 25] = [
        FaultKind::Partition,
        FaultKind::PartialPartition,
        FaultKind::OneWay,
        FaultKind::Loss,
        FaultKind::Duplicates,
        FaultKind::SlowLink,
        FaultKind::Reconnect,
        FaultKind::Deposed,
        FaultKind::PowerLoss,
        FaultKind::Kill,
        FaultKind::PowerDuringWrite,
        FaultKind::SyncError,
        FaultKind::WriteError,
        FaultKind::BitFlip,
        FaultKind::FullDisk,
        FaultKind::SlowDisk,
        FaultKind::Wipe,
        FaultKind::Pause,
        FaultKind::ClockRate,
        FaultKind::ClockStep,
        FaultKind::Membership,
        FaultKind::Drain,
        FaultKind::Transfer,
        FaultKind::ClientPause,
        FaultKind::ClientDeath,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            FaultKind::Partition => "partition",
            FaultKind::PartialPartition => "partial partition",
            FaultKind::OneWay => "one-way partition",
            FaultKind::Loss => "loss",
            FaultKind::Duplicates => "duplicates",
            FaultKind::SlowLink => "slow link",
            FaultKind::Reconnect => "reconnect",
            FaultKind::Deposed => "deposed leader",
            FaultKind::PowerLoss => "power loss",
            FaultKind::Kill => "kill",
            FaultKind::PowerDuringWrite => "power loss in a write",
            FaultKind::SyncError => "sync error",
            FaultKind::WriteError => "write error",
            FaultKind::BitFlip => "bit flip",
            FaultKind::FullDisk => "full disk",
            FaultKind::SlowDisk => "slow disk",
            FaultKind::HungDisk => "hung disk",
            FaultKind::Wipe => "wiped disk",
            FaultKind::Pause => "pause",
            FaultKind::ClockRate => "clock rate",
            FaultKind::ClockStep => "clock step",
            FaultKind::Membership => "membership",
            FaultKind::Forsaken => "forsaken learner",
            FaultKind::Returning => "returning replica",
            FaultKind::LostChange => "lost membership change",
            FaultKind::Drain => "drain",
            FaultKind::Transfer => "transfer",
            FaultKind::ClientPause => "client pause",
            FaultKind::ClientDeath => "client death",
            FaultKind::Combo => "combo",
            FaultKind::Middle => "death in the middle",
            FaultKind::CutLogs => "cut logs",
            FaultKind::Shrink => "shrunk group",
            FaultKind::ClockExtremes => "extreme clock rates",
            FaultKind::Starved => "starved thread",
            FaultKind::HungThread => "hung thread",
            FaultKind::HungLane => "hung connection",
            FaultKind::RotTail => "bit flip in the tail",
            FaultKind::RotAfterEnd => "bit flip after an orderly end",
            FaultKind::RotMiddle => "bit flip in the middle",
            FaultKind::RotSnapshot => "bit flip in a snapshot",
            FaultKind::LostWrite => "lost write",
            FaultKind::MisdirectedWrite => "misdirected write",
            FaultKind::DuplicatedWrite => "duplicated write",
            FaultKind::LyingSync => "lying sync",
        }
    }

    /// Returns the mean time between two strikes in the most intense runs.
    pub(crate) fn mean_pause(self) -> SimTime {
        match self {
            FaultKind::Partition | FaultKind::PartialPartition | FaultKind::OneWay => 25 * SECOND,
            FaultKind::Loss | FaultKind::Duplicates | FaultKind::SlowLink => 25 * SECOND,
            FaultKind::Reconnect => 8 * SECOND,
            FaultKind::Deposed => 15 * SECOND,
            FaultKind::PowerLoss | FaultKind::Kill | FaultKind::PowerDuringWrite => 25 * SECOND,
            FaultKind::SyncError | FaultKind::WriteError | FaultKind::FullDisk => 45 * SECOND,
            FaultKind::BitFlip | FaultKind::Wipe => 60 * SECOND,
            FaultKind::SlowDisk | FaultKind::HungDisk | FaultKind::Pause => 20 * SECOND,
            FaultKind::ClockRate | FaultKind::ClockStep => 15 * SECOND,
            FaultKind::Membership | FaultKind::Forsaken => 20 * SECOND,
            FaultKind::Drain | FaultKind::Transfer | FaultKind::Returning => 15 * SECOND,
            FaultKind::LostChange => 30 * SECOND,
            FaultKind::ClientPause | FaultKind::ClientDeath => 6 * SECOND,
            FaultKind::Combo | FaultKind::Middle | FaultKind::CutLogs => 4 * SECOND,
            FaultKind::Shrink | FaultKind::Starved => 20 * SECOND,
            FaultKind::ClockExtremes => 5 * SECOND,
            FaultKind::HungThread | FaultKind::HungLane => 30 * SECOND,
            FaultKind::RotTail | FaultKind::RotMiddle | FaultKind::RotSnapshot => 30 * SECOND,
            FaultKind::RotAfterEnd => 30 * SECOND,
            FaultKind::LostWrite | FaultKind::MisdirectedWrite => 30 * SECOND,
            FaultKind::DuplicatedWrite | FaultKind::LyingSync => 30 * SECOND,
        }
    }
}

/// A kind of fault that is active in this run.
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    mean: SimTime,
    random: SimRng,
}

/// The end of a strike, or its next stage.
pub(crate) enum Undo {
    /// Resets all links.
    Links,
    /// Resumes the node, if its process is still this one.
    Pause { node_slot: usize, process: u64 },
    /// Resets speed and capacity of the disk.
    Disk(usize),
    /// Next stage: drops everything that this node sends, and tells the other nodes that it is
    /// down.
    Silence(usize),
    /// Next stage: cuts this node off before it can learn that its replica was removed.
    Forsake(usize),
    /// Next stage: adds a replica again on the node slot that was replaced in this group.
    Return { group: usize, node_slot: usize },
    /// Next stage: kills the leader of this group, unless it is one of these node slots, and
    /// restarts `away`.
    Succeed {
        group: usize,
        away: usize,
        back: usize,
    },
    /// Next stage: this node slot is to lead the group again.
    Reelect { group: GroupId, node_slot: usize },
    /// Next stage: the group gets its wanted replicas again.
    Grow(usize),
    /// The node's thread runs as usual again.
    Starve(usize),
    /// Next stage: restarts a node whose disk has a silent fault.
    Rotten { node_slot: usize, process: u64 },
    /// Next stage: executes the next part of a combined fault.
    Next {
        group: usize,
        trouble: CombinedFault,
        rng: u64,
    },
}

impl Fault {
    pub(crate) fn all(plan: &RunPlan, random: &mut SimRng) -> Vec<Fault> {
        let kinds = plan.faults.iter();
        kinds
            .map(|(kind, mean)| Fault {
                kind: *kind,
                mean: *mean,
                random: random.split(),
            })
            .collect()
    }

    /// Returns the time until the next strike.
    pub(crate) fn pause(&mut self) -> SimTime {
        self.random.between(self.mean / 5, self.mean * 9 / 5)
    }
}

impl Simulator {
    /// Executes a strike of a fault and schedules the next one.
    pub(crate) fn strike(&mut self, at: usize) {
        let pause = self.faults[at].pause();
        self.at(self.now + pause, SimEvent::Strike(at));
        let kind = self.faults[at].kind;
        let mut random = self.faults[at].random.split();
        let struck = match kind {
            FaultKind::Partition | FaultKind::PartialPartition | FaultKind::OneWay => {
                net::cut(self, kind, &mut random)
            }
            FaultKind::Loss | FaultKind::Duplicates | FaultKind::SlowLink => {
                net::worsen(self, kind, &mut random)
            }
            FaultKind::Reconnect => net::reconnect(self, &mut random),
            FaultKind::Deposed => net::depose(self, &mut random),
            FaultKind::PowerLoss => crash::power(self, &mut random),
            FaultKind::Kill => crash::kill(self, &mut random),
            FaultKind::PowerDuringWrite
            | FaultKind::SyncError
            | FaultKind::WriteError
            | FaultKind::FullDisk => disk::fail(self, kind, &mut random),
            FaultKind::BitFlip => disk::flip(self, &mut random),
            FaultKind::SlowDisk => disk::slow(self, &mut random),
            FaultKind::HungDisk => disk::hang(self, &mut random),
            FaultKind::Wipe => disk::wipe(self, &mut random),
            FaultKind::Pause => pause::pause(self, &mut random),
            FaultKind::ClockRate => clock::rate(self, &mut random),
            FaultKind::ClockStep => clock::step(self, &mut random),
            FaultKind::Membership => membership::change(self),
            FaultKind::Forsaken => membership::forsake(self, &mut random),
            FaultKind::Returning => membership::come_back(self, &mut random),
            FaultKind::LostChange => membership::lose_change(self, &mut random),
            FaultKind::Drain => membership::drain(self, &mut random),
            FaultKind::Transfer => membership::transfer(self, &mut random),
            FaultKind::ClientPause => load::pause(self, &mut random),
            FaultKind::ClientDeath => load::die(self, &mut random),
            FaultKind::Combo => combined::strike(self, &mut random),
            FaultKind::Middle => crash::in_the_middle(self, &mut random),
            FaultKind::CutLogs => combined::cut_logs(self, &mut random),
            FaultKind::Shrink => membership::shrink(self, &mut random),
            FaultKind::ClockExtremes => clock::extremes(self, &mut random),
            FaultKind::Starved => pause::starve(self, &mut random),
            FaultKind::HungThread => pause::hang(self, &mut random),
            FaultKind::HungLane => net::hang(self, &mut random),
            FaultKind::RotTail => storage::rot(self, StorageFault::Tail, &mut random),
            FaultKind::RotAfterEnd => storage::rot(self, StorageFault::OrderlyEnd, &mut random),
            FaultKind::RotMiddle => storage::rot(self, StorageFault::Middle, &mut random),
            FaultKind::RotSnapshot => storage::rot(self, StorageFault::Snapshot, &mut random),
            FaultKind::LostWrite => storage::silent(self, StorageFault::Lost, &mut random),
            FaultKind::MisdirectedWrite => {
                storage::silent(self, StorageFault::Misdirected, &mut random)
            }
            FaultKind::DuplicatedWrite => {
                storage::silent(self, StorageFault::Duplicated, &mut random)
            }
            FaultKind::LyingSync => storage::lie(self, &mut random),
        };
        if let Some(what) = struck {
            *self.counts.faults.entry(kind.name()).or_default() += 1;
            self.trace.say(
                self.now,
                format_args!("fault"),
                format_args!("{}: {what}", kind.name()),
            );
        }
    }

    pub(crate) fn undo(&mut self, undo: Undo) {
        match undo {
            Undo::Links => net::heal(self),
            Undo::Pause { node_slot, process } => pause::end(self, node_slot, process),
            Undo::Disk(node_slot) => disk::heal(self, node_slot),
            Undo::Silence(node_slot) => net::silence(self, node_slot),
            Undo::Forsake(node_slot) => net::isolate(self, node_slot),
            Undo::Return { group, node_slot } => membership::want_again(self, group, node_slot),
            Undo::Succeed { group, away, back } => membership::succeed(self, group, away, back),
            Undo::Reelect { group, node_slot } => membership::reelect(self, group, node_slot),
            Undo::Grow(group) => membership::grow(self, group),
            Undo::Starve(node_slot) => self.node_slots[node_slot].starved = 0,
            Undo::Rotten { node_slot, process } => storage::restart(self, node_slot, process),
            Undo::Next {
                group,
                trouble,
                rng,
            } => combined::next(self, group, trouble, rng),
        }
    }
}

/// Returns a random node slot with a running process.
fn running(sim: &Simulator, random: &mut SimRng) -> Option<usize> {
    let up: Vec<usize> = (0..sim.node_slots.len())
        .filter(|at| sim.node_slots[*at].is_up())
        .collect();
    (!up.is_empty()).then(|| up[random.index(up.len())])
}
