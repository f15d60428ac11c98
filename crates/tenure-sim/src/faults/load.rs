//! Client faults: clients that pause, and clients that die.

use crate::random::SimRng;
use crate::simulator::Simulator;
use crate::time::{MILLISECOND, SECOND};

pub(super) fn pause(sim: &mut Simulator, random: &mut SimRng) -> Option<String> {
    let at = random.index(sim.clients.len());
    let length = random.between(100 * MILLISECOND, 20 * SECOND);
    let until = sim.now + length;
    sim.clients[at].pause(until);
    sim.wake_client(at, until);
    Some(format!("client {at} for {} ms", length / MILLISECOND))
}

pub(super) fn die(sim: &mut Simulator, random: &mut SimRng) -> Option<String> {
    let at = random.index(sim.clients.len());
    sim.clients[at].die(sim.now + random.between(SECOND, 5 * SECOND));
    sim.wake_client(at, sim.now + 5 * SECOND);
    Some(format!("client {at}"))
}
