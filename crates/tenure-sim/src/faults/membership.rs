//! Replicas that come and go, leaderships that are handed over.

use tenure_node::{GroupId, Input, MembershipChange, MembershipStep};

use super::Undo;
use crate::random::Random;
use crate::time::{MILLISECOND, SECOND};
use crate::world::{Event, World};

pub(super) fn change(world: &mut World) -> Option<String> {
    if !world.operator.may_lose.is_empty() {
        return None;
    }
    let (nodes, replicas) = (world.plan.nodes, world.plan.replicas);
    let (group, seats) = world.operator.move_one(nodes, replicas);
    Some(format!("{group} to {seats:?}"))
}

/// A node becomes a learner of a group that it has no part in, and is cut off. The operator, who
/// does not want it there, removes it meanwhile.
pub(super) fn forsake(world: &mut World, random: &mut Random) -> Option<String> {
    let at = random.index(world.operator.wanted.len());
    let group = GroupId(u32::try_from(at).ok()?);
    let (leader, membership) = world.leader(group)?;
    let everybody = membership.everybody();
    let strangers: Vec<usize> = (0..world.seats.len())
        .filter(|seat| !world.operator.wanted[at].contains(seat))
        .filter(|seat| {
            let here = world.seats[*seat].member;
            !everybody.iter().any(|one| one.shares_disk(here))
        })
        .filter(|seat| world.seats[*seat].is_up())
        .collect();
    if strangers.is_empty() {
        return None;
    }
    let seat = strangers[random.index(strangers.len())];
    let id = world.operator.change_id();
    let steps = vec![MembershipStep::Learner(world.seats[seat].member)];
    let change = MembershipChange { steps };
    world.input(leader, Input::Change { id, group, change });
    let soon = random.between(50, 1_500) * MILLISECOND;
    world.at(world.now + soon, Event::Undo(Undo::Forsake(seat)));
    let length = soon + random.between(4 * SECOND, 15 * SECOND);
    world.at(world.now + length, Event::Undo(Undo::Links));
    Some(format!("{group} at seat {seat}"))
}

pub(super) fn drain(world: &mut World, random: &mut Random) -> Option<String> {
    let at = super::running(world, random)?;
    world.input(at, Input::Drain);
    Some(format!("seat {at}"))
}

pub(super) fn transfer(world: &mut World, random: &mut Random) -> Option<String> {
    let group = GroupId(u32::try_from(random.index(world.operator.wanted.len())).ok()?);
    let (at, membership) = world.leader(group)?;
    let to = membership.voters[random.index(membership.voters.len())];
    world.input(at, Input::Transfer { group, to });
    Some(format!("{group} to {to}"))
}
