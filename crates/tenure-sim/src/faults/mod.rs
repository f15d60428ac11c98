//! Faults: each kind in its own file, each with its own dice, none knowing the judges.
//!
//! A kind strikes at random moments during the storm. Most strikes end by an [`Undo`] a while later;
//! all end when the storm does.

mod clock;
mod combo;
mod crash;
mod disk;
mod load;
mod membership;
mod net;
mod pause;

use self::combo::Trouble;
use crate::plan::Plan;
use crate::random::Random;
use crate::time::{SECOND, Time};
use crate::world::{Event, World};

/// All kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
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

impl Kind {
    /// Those that any cluster can be struck by. The others need a spare node ([`Kind::Forsaken`], [`Kind::Returning`])
    /// or are planned by a weather of their own.
    pub(crate) const ANYWHERE: [Kind; 25] = [
        Kind::Partition,
        Kind::PartialPartition,
        Kind::OneWay,
        Kind::Loss,
        Kind::Duplicates,
        Kind::SlowLink,
        Kind::Reconnect,
        Kind::Deposed,
        Kind::PowerLoss,
        Kind::Kill,
        Kind::PowerDuringWrite,
        Kind::SyncError,
        Kind::WriteError,
        Kind::BitFlip,
        Kind::FullDisk,
        Kind::SlowDisk,
        Kind::Wipe,
        Kind::Pause,
        Kind::ClockRate,
        Kind::ClockStep,
        Kind::Membership,
        Kind::Drain,
        Kind::Transfer,
        Kind::ClientPause,
        Kind::ClientDeath,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Partition => "partition",
            Kind::PartialPartition => "partial partition",
            Kind::OneWay => "one-way partition",
            Kind::Loss => "loss",
            Kind::Duplicates => "duplicates",
            Kind::SlowLink => "slow link",
            Kind::Reconnect => "reconnect",
            Kind::Deposed => "deposed leader",
            Kind::PowerLoss => "power loss",
            Kind::Kill => "kill",
            Kind::PowerDuringWrite => "power loss in a write",
            Kind::SyncError => "sync error",
            Kind::WriteError => "write error",
            Kind::BitFlip => "bit flip",
            Kind::FullDisk => "full disk",
            Kind::SlowDisk => "slow disk",
            Kind::HungDisk => "hung disk",
            Kind::Wipe => "wiped disk",
            Kind::Pause => "pause",
            Kind::ClockRate => "clock rate",
            Kind::ClockStep => "clock step",
            Kind::Membership => "membership",
            Kind::Forsaken => "forsaken learner",
            Kind::Returning => "returning replica",
            Kind::Drain => "drain",
            Kind::Transfer => "transfer",
            Kind::ClientPause => "client pause",
            Kind::ClientDeath => "client death",
            Kind::Combo => "combo",
            Kind::Middle => "death in the middle",
            Kind::CutLogs => "cut logs",
        }
    }

    /// The mean time between two strikes in the fiercest runs.
    pub(crate) fn mean_pause(self) -> Time {
        match self {
            Kind::Partition | Kind::PartialPartition | Kind::OneWay => 25 * SECOND,
            Kind::Loss | Kind::Duplicates | Kind::SlowLink => 25 * SECOND,
            Kind::Reconnect => 8 * SECOND,
            Kind::Deposed => 15 * SECOND,
            Kind::PowerLoss | Kind::Kill | Kind::PowerDuringWrite => 25 * SECOND,
            Kind::SyncError | Kind::WriteError | Kind::FullDisk => 45 * SECOND,
            Kind::BitFlip | Kind::Wipe => 60 * SECOND,
            Kind::SlowDisk | Kind::HungDisk | Kind::Pause => 20 * SECOND,
            Kind::ClockRate | Kind::ClockStep => 15 * SECOND,
            Kind::Membership | Kind::Forsaken => 20 * SECOND,
            Kind::Drain | Kind::Transfer | Kind::Returning => 15 * SECOND,
            Kind::ClientPause | Kind::ClientDeath => 6 * SECOND,
            Kind::Combo | Kind::Middle | Kind::CutLogs => 4 * SECOND,
        }
    }
}

/// A kind that strikes in this run.
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    mean: Time,
    random: Random,
}

/// How a strike ends.
pub(crate) enum Undo {
    /// Links carry again what they should.
    Links,
    /// The node at this seat goes on, if its process is still this one.
    Pause { seat: usize, process: u64 },
    /// The disk of this seat is quick again, and has room.
    Disk(usize),
    /// Not an end yet: what this seat says reaches nobody any more, and all others are told so.
    Silence(usize),
    /// Not an end yet: this seat is cut off before it can hear that nobody wants its replica.
    Forsake(usize),
    /// Not an end yet: the seat that was replaced in this group gets a replica again.
    Return { group: usize, seat: usize },
    /// Not an end yet: the leader of this group dies, unless it is one of these seats, and the first of them
    /// comes back.
    Succeed {
        group: usize,
        away: usize,
        back: usize,
    },
    /// Not an end yet: the next trouble of several for a group.
    Next {
        group: usize,
        trouble: Trouble,
        dice: u64,
    },
}

impl Fault {
    pub(crate) fn all(plan: &Plan, random: &mut Random) -> Vec<Fault> {
        let kinds = plan.faults.iter();
        kinds
            .map(|(kind, mean)| Fault {
                kind: *kind,
                mean: *mean,
                random: random.split(),
            })
            .collect()
    }

    pub(crate) fn pause(&mut self) -> Time {
        self.random.between(self.mean / 5, self.mean * 9 / 5)
    }
}

impl World {
    pub(crate) fn strike(&mut self, at: usize) {
        let pause = self.faults[at].pause();
        self.at(self.now + pause, Event::Strike(at));
        let kind = self.faults[at].kind;
        let mut random = self.faults[at].random.split();
        let struck = match kind {
            Kind::Partition | Kind::PartialPartition | Kind::OneWay => {
                net::cut(self, kind, &mut random)
            }
            Kind::Loss | Kind::Duplicates | Kind::SlowLink => net::worsen(self, kind, &mut random),
            Kind::Reconnect => net::reconnect(self, &mut random),
            Kind::Deposed => net::depose(self, &mut random),
            Kind::PowerLoss => crash::power(self, &mut random),
            Kind::Kill => crash::kill(self, &mut random),
            Kind::PowerDuringWrite | Kind::SyncError | Kind::WriteError | Kind::FullDisk => {
                disk::fail(self, kind, &mut random)
            }
            Kind::BitFlip => disk::flip(self, &mut random),
            Kind::SlowDisk => disk::slow(self, &mut random),
            Kind::HungDisk => disk::hang(self, &mut random),
            Kind::Wipe => disk::wipe(self, &mut random),
            Kind::Pause => pause::pause(self, &mut random),
            Kind::ClockRate => clock::rate(self, &mut random),
            Kind::ClockStep => clock::step(self, &mut random),
            Kind::Membership => membership::change(self),
            Kind::Forsaken => membership::forsake(self, &mut random),
            Kind::Returning => membership::come_back(self, &mut random),
            Kind::Drain => membership::drain(self, &mut random),
            Kind::Transfer => membership::transfer(self, &mut random),
            Kind::ClientPause => load::pause(self, &mut random),
            Kind::ClientDeath => load::die(self, &mut random),
            Kind::Combo => combo::strike(self, &mut random),
            Kind::Middle => crash::in_the_middle(self, &mut random),
            Kind::CutLogs => combo::cut_logs(self, &mut random),
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
            Undo::Pause { seat, process } => pause::end(self, seat, process),
            Undo::Disk(seat) => disk::heal(self, seat),
            Undo::Silence(seat) => net::silence(self, seat),
            Undo::Forsake(seat) => net::isolate(self, seat),
            Undo::Return { group, seat } => membership::want_again(self, group, seat),
            Undo::Succeed { group, away, back } => membership::succeed(self, group, away, back),
            Undo::Next {
                group,
                trouble,
                dice,
            } => combo::next(self, group, trouble, dice),
        }
    }
}

/// A seat with a running process.
fn running(world: &World, random: &mut Random) -> Option<usize> {
    let up: Vec<usize> = (0..world.seats.len())
        .filter(|at| world.seats[*at].is_up())
        .collect();
    (!up.is_empty()).then(|| up[random.index(up.len())])
}
