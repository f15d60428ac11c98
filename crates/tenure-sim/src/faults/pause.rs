//! A process that stands still while the world goes on: stopped, suspended, stuck.

use super::Undo;
use crate::random::Random;
use crate::time::{MILLISECOND, SECOND, Time};
use crate::world::{Event, World};

pub(super) fn pause(world: &mut World, random: &mut Random) -> Option<String> {
    let seat = super::running(world, random)?;
    let most = random.pick(&[SECOND / 2, 5 * SECOND, 20 * SECOND]);
    let length = random.between(MILLISECOND, most);
    for_so_long(world, seat, length);
    Some(format!("seat {seat} for {} ms", length / MILLISECOND))
}

pub(super) fn for_so_long(world: &mut World, seat: usize, length: Time) {
    if world.seats[seat].is_up() {
        world.seats[seat].paused = true;
        let process = world.seats[seat].process;
        let end = Undo::Pause { seat, process };
        world.at(world.now + length, Event::Undo(end));
    }
}

pub(super) fn end(world: &mut World, seat: usize, process: u64) {
    if world.seats[seat].process == process && world.seats[seat].paused {
        world.seats[seat].paused = false;
        world.reschedule(seat);
    }
}
