//! Disk faults: write and sync errors, full, slow and hung disks, bit flips, lost disks.
//!
//! At most one node at a time may lose durable data, and only after every group has replaced the
//! replica that was lost before. No protocol survives the loss of data on a majority.

use tenure_log::Disk as _;

use super::{FaultKind, Undo, crash};
use crate::random::SimRng;
use crate::simulator::{SimEvent, Simulator};
use crate::time::{MILLISECOND, SECOND};

/// Makes one of the next few operations of a disk fail, or limits its capacity.
pub(super) fn fail(sim: &mut Simulator, kind: FaultKind, random: &mut SimRng) -> Option<String> {
    let at = super::running(sim, random)?;
    let soon = random.below(6);
    let disk = &sim.node_slots[at].disk;
    match kind {
        FaultKind::SyncError => disk.fail_sync_after(soon),
        FaultKind::WriteError => disk.fail_write_after(soon),
        FaultKind::FullDisk => {
            disk.set_capacity(Some(disk.used() + random.below(4096)));
            let length = random.between(SECOND, 15 * SECOND);
            sim.at(sim.now + length, SimEvent::Undo(Undo::Disk(at)));
        }
        _ => {
            disk.power_ends_at(disk.operations() + soon);
            sim.node_slots[at].power_ends = true;
        }
    }
    Some(format!("node slot {at}, after {soon}"))
}

pub(super) fn slow(sim: &mut Simulator, random: &mut SimRng) -> Option<String> {
    let at = random.index(sim.node_slots.len());
    let sync = random.between(20, 1200) * MILLISECOND;
    sim.node_slots[at].disk_delay = (sync / 4, sync);
    let length = random.between(SECOND, 20 * SECOND);
    sim.at(sim.now + length, SimEvent::Undo(Undo::Disk(at)));
    Some(format!("node slot {at}, {} ms a sync", sync / MILLISECOND))
}

/// Writes and syncs of one disk or of all disks hang for a while. Reads continue.
pub(super) fn hang(sim: &mut Simulator, random: &mut SimRng) -> Option<String> {
    let most = random.pick(&[3 * SECOND, 15 * SECOND, 120 * SECOND]);
    let length = random.between(SECOND, most);
    let end = sim.now + length;
    let all = random.chance(150);
    let one = random.index(sim.node_slots.len());
    for (at, node_slot) in sim.node_slots.iter_mut().enumerate() {
        if all || at == one {
            node_slot.hangs_until = node_slot.hangs_until.max(end);
        }
    }
    let who = if all {
        "all node slots".to_owned()
    } else {
        format!("node slot {one}")
    };
    Some(format!("{who} for {} ms", length / MILLISECOND))
}

pub(super) fn heal(sim: &mut Simulator, at: usize) {
    sim.node_slots[at].disk_delay = crate::sim_node::HEALTHY_DISK;
    sim.node_slots[at].disk.set_capacity(None);
}

/// Flips a bit of durable data in the first half of a log file. The node is restarted and must
/// notice.
pub(super) fn flip(sim: &mut Simulator, random: &mut SimRng) -> Option<String> {
    let at = may_lose(sim, random)?;
    let disk = sim.node_slots[at].disk.clone();
    let logs: Vec<String> = disk
        .list()
        .ok()?
        .into_iter()
        .filter(|name| name.starts_with("log-"))
        .collect();
    let name = logs.get(random.index(logs.len().max(1)))?.clone();
    let bytes = disk.bytes(&name)?;
    let used = bytes.iter().rposition(|byte| *byte != 0)?;
    // A nearly empty file: the bit would be in the tail, where damage looks like a torn write.
    if used < 4096 {
        return None;
    }
    sim.operator.may_lose.insert(at);
    crash::end(sim, at, random);
    sim.node_slots[at].leave_disk(random);
    let offset = random.index(used / 2);
    let bit = random.below(8) as u8;
    sim.node_slots[at].disk.flip_bit(&name, offset, bit);
    Some(format!("node slot {at}, {name} at {offset}"))
}

/// Replaces a disk by an empty one.
pub(super) fn wipe(sim: &mut Simulator, random: &mut SimRng) -> Option<String> {
    let at = may_lose(sim, random)?;
    sim.operator.may_lose.insert(at);
    crash::end(sim, at, random);
    sim.node_slots[at].needs_new_incarnation = true;
    Some(format!("node slot {at}"))
}

/// Returns a node that may lose its data now.
pub(super) fn may_lose(sim: &mut Simulator, random: &mut SimRng) -> Option<usize> {
    sim.operate();
    let at = super::running(sim, random)?;
    sim.operator.can_spare_one().then_some(at)
}
