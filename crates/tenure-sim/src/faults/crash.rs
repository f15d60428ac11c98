//! Processes and machines that die.

use tenure_node::{GroupId, Input};

use crate::random::Random;
use crate::seat::Middle;
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

/// A process will die between two things that belong together, soon.
pub(super) fn in_the_middle(world: &mut World, random: &mut Random) -> Option<String> {
    let at = if random.chance(700) {
        let group = random.index(world.operator.wanted.len());
        world.leader(GroupId(u32::try_from(group).ok()?))?.0
    } else {
        super::running(world, random)?
    };
    let middle = match random.below(4) {
        0 => Middle::Synced,
        1 => Middle::Said,
        _ => Middle::Outputs(random.index(5)),
    };
    world.seats[at].middle = Some((middle, random.below(6)));
    Some(format!("seat {at}, {middle:?}"))
}

impl World {
    /// Whether the process of a seat dies here: then it is gone.
    pub(crate) fn dies_at(&mut self, at: usize, here: Middle) -> bool {
        match &mut self.seats[at].middle {
            Some((middle, left)) if *middle == here => {
                if *left > 0 {
                    *left -= 1;
                    return false;
                }
            }
            _ => return false,
        }
        let mut random = self.random.split();
        let who = self.seats[at].member;
        self.trace.say(
            self.now,
            format_args!("{who}"),
            format_args!("dies at {here:?}"),
        );
        if random.chance(500) {
            lose_power(self, at, &mut random);
        } else {
            end(self, at, &mut random);
            self.seats[at].leave_disk(&mut random);
        }
        true
    }
}
