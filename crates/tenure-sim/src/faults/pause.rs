//! Pause faults: a process stands still while time passes, as after SIGSTOP, a suspend or a long
//! swap.

use super::Undo;
use crate::random::SimRng;
use crate::simulator::{SimEvent, Simulator};
use crate::time::{MILLISECOND, SECOND, SimTime};

pub(super) fn pause(sim: &mut Simulator, random: &mut SimRng) -> Option<String> {
    let node_slot = super::running(sim, random)?;
    let most = random.pick(&[SECOND / 2, 5 * SECOND, 20 * SECOND]);
    let length = random.between(MILLISECOND, most);
    for_so_long(sim, node_slot, length);
    Some(format!(
        "node slot {node_slot} for {} ms",
        length / MILLISECOND
    ))
}

pub(super) fn for_so_long(sim: &mut Simulator, node_slot: usize, length: SimTime) {
    if sim.node_slots[node_slot].is_up() {
        sim.node_slots[node_slot].paused = true;
        let process = sim.node_slots[node_slot].process;
        let end = Undo::Pause { node_slot, process };
        sim.at(sim.now + length, SimEvent::Undo(end));
    }
}

/// A node's thread rarely gets the processor: every step comes 5 ms to 2 s late.
pub(super) fn starve(sim: &mut Simulator, random: &mut SimRng) -> Option<String> {
    let node_slot = super::running(sim, random)?;
    let most = random.pick(&[50, 400, 2_000]);
    let late = random.between(5, most) * MILLISECOND;
    sim.node_slots[node_slot].starved = late;
    let length = random.between(2 * SECOND, 90 * SECOND);
    sim.at(sim.now + length, SimEvent::Undo(Undo::Starve(node_slot)));
    Some(format!(
        "node slot {node_slot}, {} ms late for {} ms",
        late / MILLISECOND,
        length / MILLISECOND
    ))
}

/// A node's thread stands still for up to three minutes. Its disk and its connections work on.
pub(super) fn hang(sim: &mut Simulator, random: &mut SimRng) -> Option<String> {
    let node_slot = super::running(sim, random)?;
    let length = random.between(20 * SECOND, 180 * SECOND);
    for_so_long(sim, node_slot, length);
    Some(format!(
        "node slot {node_slot} for {} ms",
        length / MILLISECOND
    ))
}

pub(super) fn end(sim: &mut Simulator, node_slot: usize, process: u64) {
    if sim.node_slots[node_slot].process == process && sim.node_slots[node_slot].paused {
        sim.node_slots[node_slot].paused = false;
        sim.reschedule(node_slot);
    }
}
