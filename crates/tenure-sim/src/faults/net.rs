//! The network: partitions (whole, partial, one-way), loss, duplication, slowness, broken connections.

use tenure_node::{GroupId, Input};

use super::{Kind, Undo};
use crate::random::Random;
use crate::time::{MILLISECOND, SECOND};
use crate::weather::Weather;
use crate::world::{Event, World};

pub(super) fn cut(world: &mut World, kind: Kind, random: &mut Random) -> Option<String> {
    let nodes = world.seats.len();
    let lonely = random.index(nodes);
    let told = random.chance(500);
    let mut cut = Vec::new();
    match kind {
        Kind::Partition => {
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
        Kind::PartialPartition => {
            let other = (lonely + 1 + random.index(nodes - 1)) % nodes;
            cut.extend([(lonely, other), (other, lonely)]);
        }
        _ => {
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
        world.network.link(*from, *to).cut = true;
        if told {
            let node = world.seats[*from].member.node;
            world.input(*to, Input::PeerDown { node });
        }
    }
    let length = random.between(SECOND, 20 * SECOND);
    world.at(world.now + length, Event::Undo(Undo::Links));
    Some(format!("{cut:?} for {} ms", length / MILLISECOND))
}

pub(super) fn worsen(world: &mut World, kind: Kind, random: &mut Random) -> Option<String> {
    let nodes = world.seats.len();
    let much = random.pick(&[50, 200, 500]);
    let slow = random.between(20, 1500) * MILLISECOND;
    for from in 0..nodes {
        for to in 0..nodes {
            if from == to || random.chance(300) {
                continue;
            }
            let link = world.network.link(from, to);
            match kind {
                Kind::Loss => link.loss = much,
                Kind::Duplicates => link.duplicates = much,
                _ => link.delay = (slow / 4, slow),
            }
        }
    }
    let length = random.between(SECOND, 20 * SECOND);
    world.at(world.now + length, Event::Undo(Undo::Links));
    Some(format!(
        "{much} per mille, {slow} us, for {} ms",
        length / MILLISECOND
    ))
}

/// A connection breaks; frames under way arrive late, behind those of the next one.
pub(super) fn reconnect(world: &mut World, random: &mut Random) -> Option<String> {
    let nodes = world.seats.len();
    let one = random.index(nodes);
    let other = (one + 1 + random.index(nodes - 1)) % nodes;
    world.network.reconnect(one, other);
    for (at, about) in [(one, other), (other, one)] {
        let node = world.seats[about].member.node;
        world.input(at, Input::PeerDown { node });
        world.input(at, Input::PeerUp { node });
    }
    Some(format!("{one} and {other}"))
}

/// A leader is replaced and does not know: what it says reaches nobody, answers to what it said
/// before are still on their way, and clients go on asking it.
pub(super) fn depose(world: &mut World, random: &mut Random) -> Option<String> {
    // Where this is the weather: the group of the locks, and most of it spent deposed.
    let (groups, slow_ms, soon_ms) = match world.plan.weather {
        Weather::Deposed => (1, (300, 1500), (20, 150)),
        _ => (world.operator.wanted.len(), (100, 2500), (50, 700)),
    };
    let group = GroupId(u32::try_from(random.index(groups)).ok()?);
    let (seat, _) = world.leader(group)?;
    let slow = random.between(slow_ms.0, slow_ms.1) * MILLISECOND;
    for other in (0..world.seats.len()).filter(|other| *other != seat) {
        world.network.link(other, seat).delay = (slow / 4, slow);
    }
    let soon = random.between(soon_ms.0, soon_ms.1) * MILLISECOND;
    world.at(world.now + soon, Event::Undo(Undo::Silence(seat)));
    let length = soon + random.between(SECOND / 2, 4 * SECOND);
    world.at(world.now + length, Event::Undo(Undo::Links));
    Some(format!("{group} at seat {seat}, answers take {slow} us"))
}

pub(super) fn silence(world: &mut World, seat: usize) {
    if !world.storm {
        return;
    }
    let node = world.seats[seat].member.node;
    for other in (0..world.seats.len()).filter(|other| *other != seat) {
        world.network.link(seat, other).cut = true;
        world.input(other, Input::PeerDown { node });
    }
    world.favourite = Some(seat);
    if world.plan.weather == Weather::Deposed {
        // Others have its place within milliseconds: who looks at it now must not see what was.
        for client in 0..world.clients.len() {
            for _ in 0..12 {
                let when = world.now + world.random.between(40, 1_200) * MILLISECOND;
                world.at(when, Event::Rush(client));
            }
        }
    }
}

/// Nothing reaches this seat, and nothing that it says anybody.
pub(super) fn isolate(world: &mut World, seat: usize) {
    if !world.storm {
        return;
    }
    for other in (0..world.seats.len()).filter(|other| *other != seat) {
        world.network.link(seat, other).cut = true;
        world.network.link(other, seat).cut = true;
    }
}

pub(super) fn heal(world: &mut World) {
    world.favourite = None;
    world.network.heal();
    for at in 0..world.seats.len() {
        world.tell_peers(at, |node| Input::PeerUp { node });
    }
}
