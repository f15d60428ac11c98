//! Disks that fail, fill up, slow down, rot, and vanish.
//!
//! At most one node at a time may lose data for good, and only when every group has replaced the
//! last one: what a majority forgets is lost, by any protocol.

use tenure_log::Disk as _;

use super::{Kind, Undo, crash};
use crate::random::Random;
use crate::time::{MILLISECOND, SECOND};
use crate::world::{Event, World};

pub(super) fn fail(world: &mut World, kind: Kind, random: &mut Random) -> Option<String> {
    let at = super::running(world, random)?;
    let soon = random.below(6);
    let disk = &world.seats[at].disk;
    match kind {
        Kind::SyncError => disk.fail_sync_after(soon),
        Kind::WriteError => disk.fail_write_after(soon),
        Kind::FullDisk => {
            disk.set_capacity(Some(disk.used() + random.below(4096)));
            let length = random.between(SECOND, 15 * SECOND);
            world.at(world.now + length, Event::Undo(Undo::Disk(at)));
        }
        _ => {
            disk.power_ends_at(disk.operations() + soon);
            world.seats[at].power_ends = true;
        }
    }
    Some(format!("seat {at}, after {soon}"))
}

pub(super) fn slow(world: &mut World, random: &mut Random) -> Option<String> {
    let at = random.index(world.seats.len());
    let sync = random.between(20, 1200) * MILLISECOND;
    world.seats[at].disk_delay = (sync / 4, sync);
    let length = random.between(SECOND, 20 * SECOND);
    world.at(world.now + length, Event::Undo(Undo::Disk(at)));
    Some(format!("seat {at}, {} ms a sync", sync / MILLISECOND))
}

/// Writes and syncs take no end for a while, of one disk or of all; reads go on.
pub(super) fn hang(world: &mut World, random: &mut Random) -> Option<String> {
    let most = random.pick(&[3 * SECOND, 15 * SECOND, 120 * SECOND]);
    let length = random.between(SECOND, most);
    let end = world.now + length;
    let all = random.chance(150);
    let one = random.index(world.seats.len());
    for (at, seat) in world.seats.iter_mut().enumerate() {
        if all || at == one {
            seat.hangs_until = seat.hangs_until.max(end);
        }
    }
    let who = if all {
        "all seats".to_owned()
    } else {
        format!("seat {one}")
    };
    Some(format!("{who} for {} ms", length / MILLISECOND))
}

pub(super) fn heal(world: &mut World, at: usize) {
    world.seats[at].disk_delay = crate::seat::HEALTHY_DISK;
    world.seats[at].disk.set_capacity(None);
}

/// A bit of what was durable flips, well before the tail; the node is started again and must notice.
pub(super) fn flip(world: &mut World, random: &mut Random) -> Option<String> {
    let at = may_lose(world, random)?;
    let disk = world.seats[at].disk.clone();
    let logs: Vec<String> = disk
        .list()
        .ok()?
        .into_iter()
        .filter(|name| name.starts_with("log-"))
        .collect();
    let name = logs.get(random.index(logs.len().max(1)))?.clone();
    let bytes = disk.bytes(&name)?;
    let used = bytes.iter().rposition(|byte| *byte != 0)?;
    if used < 4096 {
        return None;
    }
    world.operator.may_lose.insert(at);
    crash::end(world, at, random);
    world.seats[at].leave_disk(random);
    let offset = random.index(used / 2);
    let bit = random.below(8) as u8;
    world.seats[at].disk.flip_bit(&name, offset, bit);
    Some(format!("seat {at}, {name} at {offset}"))
}

/// The disk is replaced by an empty one.
pub(super) fn wipe(world: &mut World, random: &mut Random) -> Option<String> {
    let at = may_lose(world, random)?;
    world.operator.may_lose.insert(at);
    crash::end(world, at, random);
    world.seats[at].needs_new_life = true;
    Some(format!("seat {at}"))
}

fn may_lose(world: &mut World, random: &mut Random) -> Option<usize> {
    world.operate();
    let at = super::running(world, random)?;
    world.operator.can_spare_one().then_some(at)
}
