//! Crash faults: processes that are killed and machines that lose power.

use tenure_node::{GroupId, Input};

use crate::random::SimRng;
use crate::sim_node::MidStep;
use crate::simulator::{SimEvent, Simulator};
use crate::time::{MILLISECOND, SECOND};

/// Power loss of one node or of all nodes: any subset of the unsynced writes may be lost, and the
/// last one may be torn.
pub(super) fn power(sim: &mut Simulator, random: &mut SimRng) -> Option<String> {
    let count = if random.chance(150) {
        sim.node_slots.len()
    } else {
        1
    };
    let first = super::running(sim, random)?;
    for step in 0..count {
        lose_power(sim, (first + step) % sim.node_slots.len(), random);
    }
    Some(format!("{count} from node slot {first}"))
}

/// Ends a process and drops unsynced writes of its disk at random.
pub(super) fn lose_power(sim: &mut Simulator, at: usize, random: &mut SimRng) {
    if !sim.node_slots[at].is_up() {
        return;
    }
    end(sim, at, random);
    let keeps = random.pick(&[0, 300, 700, 1000]);
    let mut rng = random.split();
    let node_slot = &mut sim.node_slots[at];
    node_slot.power_ends = false;
    node_slot.disk = node_slot.disk.crash(&mut || rng.chance(keeps));
}

/// Kills a process. Its unsynced writes survive in the page cache.
pub(super) fn kill(sim: &mut Simulator, random: &mut SimRng) -> Option<String> {
    let at = super::running(sim, random)?;
    end(sim, at, random);
    sim.node_slots[at].leave_disk(random);
    Some(format!("node slot {at}"))
}

/// Ends a process. It is restarted 10 ms to 30 s later. Its peers notice in 60 % of the cases.
pub(super) fn end(sim: &mut Simulator, at: usize, random: &mut SimRng) {
    sim.end_process(at);
    if random.chance(600) {
        sim.tell_peers(at, |node| Input::PeerDown { node });
    }
    let rest = random.pick(&[10 * MILLISECOND, SECOND, 5 * SECOND, 15 * SECOND]);
    let pause = rest + random.below(rest);
    sim.at(sim.now + pause, SimEvent::Start(at));
}

/// Prepares a crash between two actions that belong together (see [`MidStep`]), mostly of a leader.
pub(super) fn in_the_middle(sim: &mut Simulator, random: &mut SimRng) -> Option<String> {
    let at = if random.chance(700) {
        let group = random.index(sim.operator.wanted.len());
        sim.leader(GroupId(u32::try_from(group).ok()?))?.0
    } else {
        super::running(sim, random)?
    };
    let middle = match random.below(4) {
        0 => MidStep::Synced,
        1 => MidStep::Said,
        _ => MidStep::Outputs(random.index(5)),
    };
    sim.node_slots[at].middle = Some((middle, random.below(6)));
    Some(format!("node slot {at}, {middle:?}"))
}

impl Simulator {
    /// Whether the process dies at this point. If so, it is ended before this returns.
    pub(crate) fn dies_at(&mut self, at: usize, here: MidStep) -> bool {
        match &mut self.node_slots[at].middle {
            Some((middle, left)) if *middle == here => {
                if *left > 0 {
                    *left -= 1;
                    return false;
                }
            }
            _ => return false,
        }
        let mut random = self.random.split();
        let who = self.node_slots[at].member;
        self.trace.say(
            self.now,
            format_args!("{who}"),
            format_args!("dies at {here:?}"),
        );
        if random.chance(500) {
            lose_power(self, at, &mut random);
        } else {
            end(self, at, &mut random);
            self.node_slots[at].leave_disk(&mut random);
        }
        true
    }
}
