//! Faults: each kind in its own file, each with its own random numbers, none knowing the checkers.
//!
//! A kind strikes at random moments during the fault phase. Most strikes end by an [`Undo`] a while later;
//! all end when the fault phase does.

mod clock;
mod combined;
mod crash;
mod disk;
mod load;
mod membership;
mod net;
mod pause;

use self::combined::CombinedFault;
use crate::plan::RunPlan;
use crate::random::SimRng;
use crate::simulator::{SimEvent, Simulator};
use crate::time::{SECOND, SimTime};

/// All kinds.
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
    Drain,
    Transfer,
    ClientPause,
    ClientDeath,
    Combo,
    Middle,
    CutLogs,
}

impl FaultKind {
    /// Those that any cluster can be struck by. The others need a spare node ([`FaultKind::Forsaken`], [`FaultKind::Returning`])
    /// or are planned by a fault profile of their own.
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
            FaultKind::Drain => "drain",
            FaultKind::Transfer => "transfer",
            FaultKind::ClientPause => "client pause",
            FaultKind::ClientDeath => "client death",
            FaultKind::Combo => "combo",
            FaultKind::Middle => "death in the middle",
            FaultKind::CutLogs => "cut logs",
        }
    }

    /// The mean time between two strikes in the fiercest runs.
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
            FaultKind::ClientPause | FaultKind::ClientDeath => 6 * SECOND,
            FaultKind::Combo | FaultKind::Middle | FaultKind::CutLogs => 4 * SECOND,
        }
    }
}

/// A kind that strikes in this run.
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    mean: SimTime,
    random: SimRng,
}

/// How a strike ends.
pub(crate) enum Undo {
    /// Links carry again what they should.
    Links,
    /// The node at this seat goes on, if its process is still this one.
    Pause { node_slot: usize, process: u64 },
    /// The disk of this seat is quick again, and has room.
    Disk(usize),
    /// Not an end yet: what this seat says reaches nobody any more, and all others are told so.
    Silence(usize),
    /// Not an end yet: this seat is cut off before it can hear that nobody wants its replica.
    Forsake(usize),
    /// Not an end yet: the node slot that was replaced in this group gets a replica again.
    Return { group: usize, node_slot: usize },
    /// Not an end yet: the leader of this group dies, unless it is one of these node slots, and the first of them
    /// comes back.
    Succeed {
        group: usize,
        away: usize,
        back: usize,
    },
    /// Not an end yet: the next trouble of several for a group.
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

    pub(crate) fn pause(&mut self) -> SimTime {
        self.random.between(self.mean / 5, self.mean * 9 / 5)
    }
}

impl Simulator {
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
            FaultKind::Drain => membership::drain(self, &mut random),
            FaultKind::Transfer => membership::transfer(self, &mut random),
            FaultKind::ClientPause => load::pause(self, &mut random),
            FaultKind::ClientDeath => load::die(self, &mut random),
            FaultKind::Combo => combined::strike(self, &mut random),
            FaultKind::Middle => crash::in_the_middle(self, &mut random),
            FaultKind::CutLogs => combined::cut_logs(self, &mut random),
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
            Undo::Next {
                group,
                trouble,
                rng,
            } => combined::next(self, group, trouble, rng),
        }
    }
}

/// A node slot with a running process.
fn running(sim: &Simulator, random: &mut SimRng) -> Option<usize> {
    let up: Vec<usize> = (0..sim.node_slots.len())
        .filter(|at| sim.node_slots[*at].is_up())
        .collect();
    (!up.is_empty()).then(|| up[random.index(up.len())])
}
