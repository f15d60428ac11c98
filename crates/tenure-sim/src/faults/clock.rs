//! Clocks: their rates within the ten per cent that leases.md allows, and steps that must not matter.

use crate::random::Random;
use crate::time::{MILLISECOND, SECOND};
use crate::world::World;

pub(super) fn rate(world: &mut World, random: &mut Random) -> Option<String> {
    let at = random.index(world.seats.len());
    let rate = random.pick(&[905, 950, 1000, 1050, 1095]);
    let now = world.now;
    world.seats[at].clock.set_rate(rate, now);
    Some(format!("seat {at}, {rate} per mille"))
}

pub(super) fn step(world: &mut World, random: &mut Random) -> Option<String> {
    let at = random.index(world.seats.len());
    let now = world.now;
    if random.chance(300) {
        let by = random.between(MILLISECOND, 10 * SECOND);
        world.seats[at].clock.set_back(by, now);
        return Some(format!("seat {at}, the instant goes back by {by} us"));
    }
    let by = random.pick(&[-86_400_000, -5_000, 5_000, 86_400_000]);
    world.seats[at].clock.step_wall(by);
    Some(format!("seat {at}, the wall clock moves by {by} ms"))
}
