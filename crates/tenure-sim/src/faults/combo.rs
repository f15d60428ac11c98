//! Several troubles for one group within a moment: most bugs of consensus and of leases need two or three things
//! that go wrong at once, in the right order.

use tenure_node::{GroupId, Input};

use super::{Undo, crash, pause};
use crate::random::Random;
use crate::time::{MILLISECOND, Time};
use crate::world::{Event, World};

/// One trouble of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    Transfer,
    Drain,
    KillLeader,
    PowerOfLeader,
    PowerOfMember,
    PauseLeader,
    PauseMember,
    CutFromLeader,
    CutToLeader,
    IsolateLeader,
    CutLogs,
    Move,
    FalseAlarm,
    Reconnect,
    SlowDisk,
    Middle,
    Clocks,
}

const ALL: [Trouble; 17] = [
    Trouble::Transfer,
    Trouble::Drain,
    Trouble::KillLeader,
    Trouble::PowerOfLeader,
    Trouble::PowerOfMember,
    Trouble::PauseLeader,
    Trouble::PauseMember,
    Trouble::CutFromLeader,
    Trouble::CutToLeader,
    Trouble::IsolateLeader,
    Trouble::CutLogs,
    Trouble::Move,
    Trouble::FalseAlarm,
    Trouble::Reconnect,
    Trouble::SlowDisk,
    Trouble::Middle,
    Trouble::Clocks,
];

/// Two to five of them.
pub(super) fn strike(world: &mut World, random: &mut Random) -> Option<String> {
    let group = random.index(world.operator.wanted.len());
    world.leader(GroupId(u32::try_from(group).ok()?))?;
    let width = random.pick(&[2, 30, 400, 1_500]) * MILLISECOND;
    let mut troubles = Vec::new();
    for _ in 0..random.between(2, 5) {
        let trouble = random.pick(&ALL);
        let when = world.now + random.below(width + 1);
        let dice = random.next();
        let next = Undo::Next {
            group,
            trouble,
            dice,
        };
        world.at(when, Event::Undo(next));
        troubles.push(trouble);
    }
    Some(format!(
        "group {group}: {troubles:?} within {} ms",
        width / MILLISECOND
    ))
}

pub(super) fn next(world: &mut World, at: usize, trouble: Trouble, dice: u64) {
    let group = GroupId(u32::try_from(at).unwrap_or(0));
    if !world.storm {
        return;
    }
    let Some((leader, membership)) = world.leader(group) else {
        return;
    };
    let mut random = Random::new(dice);
    let random = &mut random;
    let seats = world.seats.len();
    let members = membership.everybody();
    let member = members[random.index(members.len())].node.number() as usize - 1;
    let brief = random.between(100, 4_000) * MILLISECOND;
    match trouble {
        Trouble::Transfer => {
            let to = membership.voters[random.index(membership.voters.len())];
            world.input(leader, Input::Transfer { group, to });
        }
        Trouble::Drain => world.input(leader, Input::Drain),
        Trouble::KillLeader => {
            crash::end(world, leader, random);
            world.seats[leader].leave_disk(random);
        }
        Trouble::PowerOfLeader => crash::lose_power(world, leader, random),
        Trouble::PowerOfMember => crash::lose_power(world, member, random),
        Trouble::PauseLeader => pause::for_so_long(world, leader, brief),
        Trouble::PauseMember => pause::for_so_long(world, member, brief),
        Trouble::CutFromLeader => cut(world, &[(leader, member)], brief),
        Trouble::CutToLeader => cut(world, &[(member, leader)], brief),
        Trouble::IsolateLeader => {
            let others = (0..seats).filter(|other| *other != leader);
            let links: Vec<_> = others
                .flat_map(|other| [(leader, other), (other, leader)])
                .collect();
            cut(world, &links, brief);
            if random.chance(500) {
                world.tell_peers(leader, |node| Input::PeerDown { node });
            }
            world.favourite = Some(leader);
        }
        Trouble::CutLogs => {
            for seat in 0..seats {
                world.input(seat, Input::CutLog { group });
            }
        }
        Trouble::Move => {
            if super::membership::change(world).is_some() {
                world.operate();
            }
        }
        Trouble::FalseAlarm => {
            let node = world.seats[leader].member.node;
            world.input(member, Input::PeerDown { node });
            world.input(member, Input::PeerUp { node });
        }
        Trouble::Reconnect => {
            super::net::reconnect(world, random);
        }
        Trouble::SlowDisk => {
            let sync = random.between(20, 1_200) * MILLISECOND;
            world.seats[leader].disk_delay = (sync / 4, sync);
            world.at(world.now + brief, Event::Undo(Undo::Disk(leader)));
        }
        Trouble::Middle => {
            crash::in_the_middle(world, random);
        }
        Trouble::Clocks => {
            for seat in 0..seats {
                let rate = random.pick(&[905, 1_095]);
                let now = world.now;
                world.seats[seat].clock.set_rate(rate, now);
            }
        }
    }
}

fn cut(world: &mut World, links: &[(usize, usize)], length: Time) {
    for (from, to) in links.iter().filter(|(from, to)| from != to) {
        world.network.link(*from, *to).cut = true;
    }
    world.at(world.now + length, Event::Undo(Undo::Links));
}

/// Every log is cut where it can be.
pub(super) fn cut_logs(world: &mut World, random: &mut Random) -> Option<String> {
    for seat in 0..world.seats.len() {
        for group in 0..world.operator.wanted.len() {
            if random.chance(700) {
                let group = GroupId(u32::try_from(group).ok()?);
                world.input(seat, Input::CutLog { group });
            }
        }
    }
    Some("everywhere".to_owned())
}
