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

/// A voter is away while another one is replaced, and the replaced one is added again. Then the leader dies
/// and the first voter comes back with what it knew: it must not lead by the vote of the replica that was
/// added again. States rarely arrive meanwhile, so that this one is empty or has an old one.
///
/// Or nobody is away, and the replaced replica has a slow disk: what it acknowledges leaves when the next one
/// of its node is there.
pub(super) fn come_back(world: &mut World, random: &mut Random) -> Option<String> {
    let at = random.index(world.operator.wanted.len());
    let group = GroupId(u32::try_from(at).ok()?);
    let (leader, membership) = world.leader(group)?;
    let mut voters: Vec<usize> = membership
        .voters
        .iter()
        .map(|one| one.node.number() as usize - 1)
        .filter(|seat| *seat != leader && world.seats[*seat].is_up())
        .collect();
    let guests: Vec<usize> = (0..world.seats.len())
        .filter(|seat| *seat != leader && !voters.contains(seat) && world.seats[*seat].is_up())
        .collect();
    if voters.len() < 2 || guests.is_empty() || !world.operator.may_lose.is_empty() {
        return None;
    }
    let away = voters.swap_remove(random.index(voters.len()));
    let back = voters.swap_remove(random.index(voters.len()));
    let guest = guests[random.index(guests.len())];
    world.operator.wanted[at].remove(&back);
    world.operator.wanted[at].insert(guest);
    let back_again = Undo::Return {
        group: at,
        seat: back,
    };
    if random.chance(400) {
        let again = world.now + random.between(2_500, 7_000) * MILLISECOND;
        world.at(again, Event::Undo(back_again));
        world.seats[back].disk_delay = (SECOND, 4 * SECOND);
        world.at(again + 3 * SECOND, Event::Undo(Undo::Disk(back)));
        return Some(format!("{group}: seat {back}, by a slow disk"));
    }
    world.end_process(away);
    world.seats[away].leave_disk(random);
    for from in 0..world.seats.len() {
        for to in (0..world.seats.len()).filter(|to| *to != from) {
            world.network.link(from, to).bulk_loss = 800;
        }
    }
    let again = world.now + random.between(8 * SECOND, 14 * SECOND);
    world.at(again, Event::Undo(back_again));
    let then = again + random.between(2 * SECOND, 6 * SECOND);
    let succession = Undo::Succeed {
        group: at,
        away,
        back,
    };
    world.at(then, Event::Undo(succession));
    let end = then + random.between(3 * SECOND, 8 * SECOND);
    world.at(end, Event::Undo(Undo::Links));
    Some(format!(
        "{group}: seat {away} is away, {back} is replaced by {guest}"
    ))
}

pub(super) fn want_again(world: &mut World, group: usize, seat: usize) {
    if world.storm {
        world.operator.wanted[group].insert(seat);
    }
}

pub(super) fn succeed(world: &mut World, group: usize, away: usize, back: usize) {
    if !world.storm {
        return;
    }
    let id = GroupId(u32::try_from(group).unwrap_or(0));
    if let Some((leader, _)) = world.leader(id)
        && leader != away
        && leader != back
    {
        let mut dice = world.random.split();
        world.end_process(leader);
        world.seats[leader].leave_disk(&mut dice);
        world.tell_peers(leader, |node| Input::PeerDown { node });
        world.at(world.now + 6 * SECOND, Event::Start(leader));
    }
    world.at(world.now, Event::Start(away));
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
