//! Storage faults that report no error: bit rot, lost, misdirected and repeated writes, and syncs that
//! report success too early.
//!
//! The node is restarted afterwards, and its verdict about its disk is compared with a table
//! ([`StorageFault::expected`]). A fault may cost a node its disk. So at most one node at a time has
//! one, like the other faults that lose data (`disk.rs`).

use tenure_log::{Disk as _, SilentFault};

use super::{FaultKind, Undo, crash};
use crate::random::SimRng;
use crate::simulator::{SimEvent, Simulator};
use crate::time::{MILLISECOND, SECOND};

/// A storage fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StorageFault {
    /// A flipped bit in the last 200 bytes of the newest log file.
    Tail,
    /// A flipped bit anywhere before that, in any log file.
    Middle,
    /// A flipped bit in the last 200 bytes of the newest log file, after an orderly end of the process and
    /// a restart of the machine.
    OrderlyEnd,
    /// A flipped bit in a snapshot.
    Snapshot,
    /// A write that never reaches the disk.
    Lost,
    /// A write that reaches another place of its file.
    Misdirected,
    /// A write that also reaches another place of its file.
    Duplicated,
    /// Syncs that report success and do nothing, and then a power loss.
    Lie,
}

/// What a restarted node finds out about its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskVerdict {
    /// Nothing that it has acknowledged is missing.
    Intact,
    /// It refuses to start.
    Refused,
    /// It starts, and takes no part in elections until a leader has repaired it.
    Suspect,
    /// It starts without something that it has acknowledged, and does not know it.
    Unnoticed,
}

impl DiskVerdict {
    pub(crate) fn name(self) -> &'static str {
        match self {
            DiskVerdict::Intact => "intact",
            DiskVerdict::Refused => "refused",
            DiskVerdict::Suspect => "suspect",
            DiskVerdict::Unnoticed => "unnoticed",
        }
    }
}

impl StorageFault {
    pub(crate) const ALL: [StorageFault; 8] = [
        StorageFault::Tail,
        StorageFault::OrderlyEnd,
        StorageFault::Middle,
        StorageFault::Snapshot,
        StorageFault::Lost,
        StorageFault::Misdirected,
        StorageFault::Duplicated,
        StorageFault::Lie,
    ];

    pub(crate) fn kind(self) -> FaultKind {
        match self {
            StorageFault::Tail => FaultKind::RotTail,
            StorageFault::OrderlyEnd => FaultKind::RotAfterEnd,
            StorageFault::Middle => FaultKind::RotMiddle,
            StorageFault::Snapshot => FaultKind::RotSnapshot,
            StorageFault::Lost => FaultKind::LostWrite,
            StorageFault::Misdirected => FaultKind::MisdirectedWrite,
            StorageFault::Duplicated => FaultKind::DuplicatedWrite,
            StorageFault::Lie => FaultKind::LyingSync,
        }
    }

    /// The verdicts that are right. `Unnoticed` is among them where no log can notice the fault: the
    /// last write is missing without a trace (docs/formats/log.md). `Intact`: the bytes were not
    /// needed any more.
    pub(crate) fn expected(self) -> &'static [DiskVerdict] {
        match self {
            StorageFault::Tail | StorageFault::OrderlyEnd | StorageFault::Middle => &[
                DiskVerdict::Intact,
                DiskVerdict::Refused,
                DiskVerdict::Suspect,
            ],
            StorageFault::Snapshot => &[DiskVerdict::Intact, DiskVerdict::Refused],
            StorageFault::Duplicated => &[
                DiskVerdict::Intact,
                DiskVerdict::Refused,
                DiskVerdict::Suspect,
            ],
            StorageFault::Lost | StorageFault::Misdirected | StorageFault::Lie => &[
                DiskVerdict::Intact,
                DiskVerdict::Refused,
                DiskVerdict::Suspect,
                DiskVerdict::Unnoticed,
            ],
        }
    }
}

/// Flips a bit on the disk of a node, which is restarted.
pub(super) fn rot(sim: &mut Simulator, fault: StorageFault, random: &mut SimRng) -> Option<String> {
    let at = super::disk::may_lose(sim, random)?;
    let disk = sim.node_slots[at].disk.clone();
    let prefix = match fault {
        StorageFault::Snapshot => "snapshot-",
        _ => "log-",
    };
    let names = disk.list().ok()?;
    let mut names: Vec<String> = names
        .into_iter()
        .filter(|name| name.starts_with(prefix))
        .collect();
    let name = match fault {
        StorageFault::Tail | StorageFault::OrderlyEnd => names.pop()?,
        _ if names.is_empty() => return None,
        _ => names.swap_remove(random.index(names.len())),
    };
    if fault == StorageFault::OrderlyEnd {
        // A disk that cannot confirm the end leaves nothing that could be noticed.
        let log = sim.node_slots[at].sim_log.as_mut()?;
        log.confirm_end().ok()?;
    }
    let bytes = disk.bytes(&name)?;
    let used = bytes.iter().rposition(|byte| *byte != 0)? + 1;
    let tail = used.saturating_sub(200);
    let offset = match fault {
        StorageFault::Tail | StorageFault::OrderlyEnd => tail + random.index(used - tail),
        StorageFault::Snapshot => random.index(used),
        _ if tail == 0 => return None,
        _ => random.index(tail),
    };
    begin(sim, at, fault);
    // Without a power loss what was written stays, and only the flipped bit is wrong. After a restart of
    // the machine only the confirmed end tells damage from a torn write.
    sim.node_slots[at].power_ends = fault == StorageFault::OrderlyEnd;
    crash::end(sim, at, random);
    sim.node_slots[at].leave_disk(random);
    let bit = random.below(8) as u8;
    sim.node_slots[at].disk.flip_bit(&name, offset, bit);
    Some(format!("node slot {at}, {name} at {offset}"))
}

/// Makes the next write of a disk go wrong without an error. The node is restarted seconds later.
pub(super) fn silent(
    sim: &mut Simulator,
    fault: StorageFault,
    random: &mut SimRng,
) -> Option<String> {
    let at = super::disk::may_lose(sim, random)?;
    let silent = match fault {
        StorageFault::Misdirected => SilentFault::Misdirected,
        StorageFault::Duplicated => SilentFault::Duplicated,
        _ => SilentFault::Lost,
    };
    begin(sim, at, fault);
    sim.node_slots[at].disk.next_write_is(silent);
    let later = random.between(20 * MILLISECOND, 5 * SECOND);
    restart_after(sim, at, later);
    Some(format!(
        "node slot {at}, restarted after {} ms",
        later / MILLISECOND
    ))
}

/// The next syncs of a disk report success and do nothing. Then the machine loses power.
pub(super) fn lie(sim: &mut Simulator, random: &mut SimRng) -> Option<String> {
    let at = super::disk::may_lose(sim, random)?;
    begin(sim, at, StorageFault::Lie);
    let syncs = random.between(1, 8);
    sim.node_slots[at].disk.lie_about_syncs(syncs);
    let later = random.between(5, 400) * MILLISECOND;
    restart_after(sim, at, later);
    Some(format!(
        "node slot {at}, {syncs} syncs, power loss after {} ms",
        later / MILLISECOND
    ))
}

fn begin(sim: &mut Simulator, at: usize, fault: StorageFault) {
    sim.operator.may_lose.insert(at);
    sim.node_slots[at].rotten = Some(fault);
}

fn restart_after(sim: &mut Simulator, at: usize, later: u64) {
    let process = sim.node_slots[at].process;
    let undo = Undo::Rotten {
        node_slot: at,
        process,
    };
    sim.at(sim.now + later, SimEvent::Undo(undo));
}

/// Next stage of [`silent`] and [`lie`]. Another fault may have restarted the node before.
pub(super) fn restart(sim: &mut Simulator, at: usize, process: u64) {
    let slot = &sim.node_slots[at];
    if slot.process != process || !slot.is_up() {
        return;
    }
    let mut random = sim.random.split();
    if slot.rotten == Some(StorageFault::Lie) {
        crash::lose_power(sim, at, &mut random);
    } else {
        crash::end(sim, at, &mut random);
        sim.node_slots[at].leave_disk(&mut random);
    }
}
