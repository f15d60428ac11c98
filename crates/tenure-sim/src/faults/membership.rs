//! Replicas that come and go, leaderships that are handed over.

use tenure_node::{GroupId, Input};

use crate::random::Random;
use crate::world::World;

pub(super) fn change(world: &mut World) -> Option<String> {
    if !world.operator.may_lose.is_empty() {
        return None;
    }
    let (nodes, replicas) = (world.plan.nodes, world.plan.replicas);
    let (group, seats) = world.operator.move_one(nodes, replicas);
    Some(format!("{group} to {seats:?}"))
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
