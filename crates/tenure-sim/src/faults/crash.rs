//! Processes and machines that die.

use tenure_node::Input;

use crate::random::Random;
use crate::time::{MILLISECOND, SECOND};
use crate::world::{Event, World};

/// Power is lost: any part of what was not synced may be gone, a torn write among it.
pub(super) fn power(world: &mut World, random: &mut Random) -> Option<String> {
    let count = if random.chance(150) {
        world.seats.len()
    } else {
        1
    };
    let first = super::running(world, random)?;
    for step in 0..count {
        lose_power(world, (first + step) % world.seats.len(), random);
    }
    Some(format!("{count} from seat {first}"))
}

pub(super) fn lose_power(world: &mut World, at: usize, random: &mut Random) {
    if !world.seats[at].is_up() {
        return;
    }
    end(world, at, random);
    let keeps = random.pick(&[0, 300, 700, 1000]);
    let mut dice = random.split();
    let seat = &mut world.seats[at];
    seat.power_ends = false;
    seat.disk = seat.disk.crash(&mut || dice.chance(keeps));
}

/// The process is killed; what it wrote stays.
pub(super) fn kill(world: &mut World, random: &mut Random) -> Option<String> {
    let at = super::running(world, random)?;
    end(world, at, random);
    world.seats[at].leave_disk(random);
    Some(format!("seat {at}"))
}

/// The process is gone; it comes back after a while.
pub(super) fn end(world: &mut World, at: usize, random: &mut Random) {
    world.end_process(at);
    if random.chance(600) {
        world.tell_peers(at, |node| Input::PeerDown { node });
    }
    let rest = random.pick(&[10 * MILLISECOND, SECOND, 5 * SECOND, 15 * SECOND]);
    let pause = rest + random.below(rest);
    world.at(world.now + pause, Event::Start(at));
}
