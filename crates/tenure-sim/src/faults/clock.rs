//! Clock faults: rates within the ten per cent that `docs/design/leases.md` allows, and steps of
//! the clocks, which must have no effect on leases.

use crate::random::SimRng;
use crate::simulator::Simulator;
use crate::time::{MILLISECOND, SECOND};

pub(super) fn rate(sim: &mut Simulator, random: &mut SimRng) -> Option<String> {
    let at = random.index(sim.node_slots.len());
    let rate = random.pick(&[905, 950, 1000, 1050, 1095]);
    let now = sim.now;
    sim.node_slots[at].clock.set_rate(rate, now);
    Some(format!("node slot {at}, {rate} per mille"))
}

pub(super) fn step(sim: &mut Simulator, random: &mut SimRng) -> Option<String> {
    let at = random.index(sim.node_slots.len());
    let now = sim.now;
    if random.chance(300) {
        let by = random.between(MILLISECOND, 10 * SECOND);
        sim.node_slots[at].clock.set_back(by, now);
        return Some(format!("node slot {at}, the instant goes back by {by} us"));
    }
    let by = random.pick(&[-86_400_000, -5_000, 5_000, 86_400_000]);
    sim.node_slots[at].clock.step_wall(by);
    Some(format!("node slot {at}, the wall clock moves by {by} ms"))
}

/// Sets all clocks to one of the extremes of the allowed rates, so that two of them differ as much
/// as possible.
pub(super) fn extremes(sim: &mut Simulator, random: &mut SimRng) -> Option<String> {
    let now = sim.now;
    for node_slot in &mut sim.node_slots {
        node_slot.clock.set_rate(random.pick(&[905, 1_095]), now);
    }
    Some("everywhere".to_owned())
}
