//! Network faults: partitions (whole, partial, one-way), loss, duplicates, delay, reconnects.

use tenure_node::{GroupId, Input};

use super::{FaultKind, Undo};
use crate::fault_profile::FaultProfile;
use crate::random::SimRng;
use crate::simulator::{SimEvent, Simulator};
use crate::time::{MILLISECOND, SECOND};

/// Cuts links. In half of the cases the receivers learn that the peer is down; otherwise they
/// notice nothing.
pub(super) fn cut(sim: &mut Simulator, kind: FaultKind, random: &mut SimRng) -> Option<String> {
    let nodes = sim.node_slots.len();
    let lonely = random.index(nodes);
    let told = random.chance(500);
    let mut cut = Vec::new();
    match kind {
        // One node alone, or two of five.
        FaultKind::Partition => {
            let other = if nodes > 3 && random.chance(500) {
                (lonely + 1) % nodes
            } else {
                lonely
            };
            let inside = |at: usize| at == lonely || at == other;
            for one in 0..nodes {
                for two in 0..nodes {
                    if inside(one) != inside(two) {
                        cut.push((one, two));
                    }
                }
            }
        }
        FaultKind::PartialPartition => {
            let other = (lonely + 1 + random.index(nodes - 1)) % nodes;
            cut.extend([(lonely, other), (other, lonely)]);
        }
        _ => {
            // The node either receives nothing or reaches no other node, on most of its links.
            let deaf = random.chance(500);
            for other in (0..nodes).filter(|other| *other != lonely) {
                if random.chance(700) {
                    cut.push(if deaf {
                        (other, lonely)
                    } else {
                        (lonely, other)
                    });
                }
            }
        }
    }
    for (from, to) in &cut {
        sim.network.link(*from, *to).cut = true;
        if told {
            let node = sim.node_slots[*from].member.node;
            sim.input(*to, Input::PeerDown { node });
        }
    }
    let length = random.between(SECOND, 20 * SECOND);
    sim.at(sim.now + length, SimEvent::Undo(Undo::Links));
    Some(format!("{cut:?} for {} ms", length / MILLISECOND))
}

/// Sets loss, duplicates or delay on most links.
pub(super) fn worsen(sim: &mut Simulator, kind: FaultKind, random: &mut SimRng) -> Option<String> {
    let nodes = sim.node_slots.len();
    let much = random.pick(&[50, 200, 500]);
    let slow = random.between(20, 1500) * MILLISECOND;
    for from in 0..nodes {
        for to in 0..nodes {
            if from == to || random.chance(300) {
                continue;
            }
            let link = sim.network.link(from, to);
            match kind {
                FaultKind::Loss => link.loss = much,
                FaultKind::Duplicates => link.duplicates = much,
                _ => link.delay = (slow / 4, slow),
            }
        }
    }
    let length = random.between(SECOND, 20 * SECOND);
    sim.at(sim.now + length, SimEvent::Undo(Undo::Links));
    Some(format!(
        "{much} per mille, {slow} us, for {} ms",
        length / MILLISECOND
    ))
}

/// One channel of a connection hangs for up to two minutes; what was sent meanwhile arrives then. In
/// half of the cases only snapshots are held up. With clients that repeat their calls it hangs for
/// seconds, and snapshots are not held up.
pub(super) fn hang(sim: &mut Simulator, random: &mut SimRng) -> Option<String> {
    let nodes = sim.node_slots.len();
    let from = random.index(nodes);
    let to = (from + 1 + random.index(nodes - 1)) % nodes;
    let (lanes, length) = match sim.plan.fault_profile {
        FaultProfile::Repeats => (1, (100 * MILLISECOND, 4 * SECOND)),
        _ => (2, (2 * SECOND, 120 * SECOND)),
    };
    let lane = random.index(lanes);
    let length = random.between(length.0, length.1);
    let end = sim.now + length;
    sim.network.link(from, to).hangs_until[lane] = end;
    // Short hangs end by themselves, so that slow links stay slow meanwhile.
    if lanes > 1 {
        sim.at(end, SimEvent::Undo(Undo::Links));
    }
    let name = ["main", "bulk"][lane];
    Some(format!(
        "{from} to {to}, {name} for {} ms",
        length / MILLISECOND
    ))
}

/// Breaks a connection. Frames that are under way may arrive after frames of the new connection.
pub(super) fn reconnect(sim: &mut Simulator, random: &mut SimRng) -> Option<String> {
    let nodes = sim.node_slots.len();
    let one = random.index(nodes);
    let other = (one + 1 + random.index(nodes - 1)) % nodes;
    sim.network.reconnect(one, other);
    for (at, about) in [(one, other), (other, one)] {
        let node = sim.node_slots[about].member.node;
        sim.input(at, Input::PeerDown { node });
        sim.input(at, Input::PeerUp { node });
    }
    Some(format!("{one} and {other}"))
}

/// Deposes a leader without its knowledge. Its frames get lost, answers to its earlier frames still
/// arrive (late), and clients keep sending requests to it.
pub(super) fn depose(sim: &mut Simulator, random: &mut SimRng) -> Option<String> {
    // In its own profile: only the first lock group, and leaders are deposed most of the time.
    let (groups, slow_ms, soon_ms) = match sim.plan.fault_profile {
        FaultProfile::Deposed => (1, (300, 1500), (20, 150)),
        _ => (sim.operator.wanted.len(), (100, 2500), (50, 700)),
    };
    let group = GroupId(u32::try_from(random.index(groups)).ok()?);
    let (node_slot, _) = sim.leader(group)?;
    let slow = random.between(slow_ms.0, slow_ms.1) * MILLISECOND;
    for other in (0..sim.node_slots.len()).filter(|other| *other != node_slot) {
        sim.network.link(other, node_slot).delay = (slow / 4, slow);
    }
    let soon = random.between(soon_ms.0, soon_ms.1) * MILLISECOND;
    sim.at(sim.now + soon, SimEvent::Undo(Undo::Silence(node_slot)));
    let length = soon + random.between(SECOND / 2, 4 * SECOND);
    sim.at(sim.now + length, SimEvent::Undo(Undo::Links));
    Some(format!(
        "{group} at node slot {node_slot}, answers take {slow} us"
    ))
}

/// Second stage of [`depose`]: cuts all links from the leader.
pub(super) fn silence(sim: &mut Simulator, node_slot: usize) {
    if !sim.fault_phase {
        return;
    }
    let node = sim.node_slots[node_slot].member.node;
    for other in (0..sim.node_slots.len()).filter(|other| *other != node_slot) {
        sim.network.link(node_slot, other).cut = true;
        sim.input(other, Input::PeerDown { node });
    }
    sim.favourite = Some(node_slot);
    if sim.plan.fault_profile == FaultProfile::Deposed {
        // A new leader is elected within milliseconds. Reads from the old one must not return old
        // state.
        for client in 0..sim.clients.len() {
            for _ in 0..12 {
                let when = sim.now + sim.random.between(40, 1_200) * MILLISECOND;
                sim.at(when, SimEvent::Rush(client));
            }
        }
    }
}

/// Cuts all links to and from a node slot.
pub(super) fn isolate(sim: &mut Simulator, node_slot: usize) {
    if !sim.fault_phase {
        return;
    }
    for other in (0..sim.node_slots.len()).filter(|other| *other != node_slot) {
        sim.network.link(node_slot, other).cut = true;
        sim.network.link(other, node_slot).cut = true;
    }
}

pub(super) fn heal(sim: &mut Simulator) {
    sim.favourite = None;
    sim.network.heal();
    for at in 0..sim.node_slots.len() {
        sim.tell_peers(at, |node| Input::PeerUp { node });
    }
}
