//! Clients that stand still in the middle of anything, and clients that die.

use crate::random::Random;
use crate::time::{MILLISECOND, SECOND};
use crate::world::World;

pub(super) fn pause(world: &mut World, random: &mut Random) -> Option<String> {
    let at = random.index(world.clients.len());
    let length = random.between(100 * MILLISECOND, 20 * SECOND);
    let until = world.now + length;
    world.clients[at].pause(until);
    world.at(until, crate::world::Event::Client(at));
    Some(format!("client {at} for {} ms", length / MILLISECOND))
}

pub(super) fn die(world: &mut World, random: &mut Random) -> Option<String> {
    let at = random.index(world.clients.len());
    world.clients[at].die(world.now + random.between(SECOND, 5 * SECOND));
    world.at(world.now + 5 * SECOND, crate::world::Event::Client(at));
    Some(format!("client {at}"))
}
