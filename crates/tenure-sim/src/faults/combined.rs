//! Combined faults: several faults for one group within a short time.
//!
//! Most bugs of consensus and of leases need two or three failures at once, in the right order.

use tenure_node::{GroupId, Input};

use super::{Undo, crash, pause};
use crate::random::SimRng;
use crate::simulator::{SimEvent, Simulator};
use crate::time::{MILLISECOND, SimTime};

/// One part of a combined fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CombinedFault {
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

const ALL: [CombinedFault; 17] = [
    CombinedFault::Transfer,
    CombinedFault::Drain,
    CombinedFault::KillLeader,
    CombinedFault::PowerOfLeader,
    CombinedFault::PowerOfMember,
    CombinedFault::PauseLeader,
    CombinedFault::PauseMember,
    CombinedFault::CutFromLeader,
    CombinedFault::CutToLeader,
    CombinedFault::IsolateLeader,
    CombinedFault::CutLogs,
    CombinedFault::Move,
    CombinedFault::FalseAlarm,
    CombinedFault::Reconnect,
    CombinedFault::SlowDisk,
    CombinedFault::Middle,
    CombinedFault::Clocks,
];

/// Schedules two to five faults for a random group, within 2 ms to 1.5 s.
pub(super) fn strike(sim: &mut Simulator, random: &mut SimRng) -> Option<String> {
    let group = random.index(sim.operator.wanted.len());
    sim.leader(GroupId(u32::try_from(group).ok()?))?;
    let width = random.pick(&[2, 30, 400, 1_500]) * MILLISECOND;
    let mut troubles = Vec::new();
    for _ in 0..random.between(2, 5) {
        let trouble = random.pick(&ALL);
        let when = sim.now + random.below(width + 1);
        let rng = random.next();
        let next = Undo::Next {
            group,
            trouble,
            rng,
        };
        sim.at(when, SimEvent::Undo(next));
        troubles.push(trouble);
    }
    Some(format!(
        "group {group}: {troubles:?} within {} ms",
        width / MILLISECOND
    ))
}

/// Executes one part. The leader is looked up only now, because an earlier part may have changed
/// it.
pub(super) fn next(sim: &mut Simulator, at: usize, trouble: CombinedFault, rng: u64) {
    let group = GroupId(u32::try_from(at).unwrap_or(0));
    if !sim.fault_phase {
        return;
    }
    let Some((leader, membership)) = sim.leader(group) else {
        return;
    };
    let mut random = SimRng::new(rng);
    let random = &mut random;
    let node_slots = sim.node_slots.len();
    let members = membership.everybody();
    let member = members[random.index(members.len())].node.number() as usize - 1;
    let brief = random.between(100, 4_000) * MILLISECOND;
    match trouble {
        CombinedFault::Transfer => {
            let to = membership.voters[random.index(membership.voters.len())];
            sim.input(leader, Input::Transfer { group, to });
        }
        CombinedFault::Drain => sim.input(leader, Input::Drain),
        CombinedFault::KillLeader => {
            crash::end(sim, leader, random);
            sim.node_slots[leader].leave_disk(random);
        }
        CombinedFault::PowerOfLeader => crash::lose_power(sim, leader, random),
        CombinedFault::PowerOfMember => crash::lose_power(sim, member, random),
        CombinedFault::PauseLeader => pause::for_so_long(sim, leader, brief),
        CombinedFault::PauseMember => pause::for_so_long(sim, member, brief),
        CombinedFault::CutFromLeader => cut(sim, &[(leader, member)], brief),
        CombinedFault::CutToLeader => cut(sim, &[(member, leader)], brief),
        CombinedFault::IsolateLeader => {
            let others = (0..node_slots).filter(|other| *other != leader);
            let links: Vec<_> = others
                .flat_map(|other| [(leader, other), (other, leader)])
                .collect();
            cut(sim, &links, brief);
            // In half of the cases the other nodes learn that the leader is down.
            if random.chance(500) {
                sim.tell_peers(leader, |node| Input::PeerDown { node });
            }
            // Clients keep sending requests to the leader that is cut off.
            sim.favourite = Some(leader);
        }
        CombinedFault::CutLogs => {
            for node_slot in 0..node_slots {
                sim.input(node_slot, Input::CutLog { group });
            }
        }
        CombinedFault::Move => {
            if super::membership::change(sim).is_some() {
                sim.operate();
            }
        }
        // A member takes the leader for dead, and at once for alive again.
        CombinedFault::FalseAlarm => {
            let node = sim.node_slots[leader].member.node;
            sim.input(member, Input::PeerDown { node });
            sim.input(member, Input::PeerUp { node });
        }
        CombinedFault::Reconnect => {
            super::net::reconnect(sim, random);
        }
        CombinedFault::SlowDisk => {
            let sync = random.between(20, 1_200) * MILLISECOND;
            sim.node_slots[leader].disk_delay = (sync / 4, sync);
            sim.at(sim.now + brief, SimEvent::Undo(Undo::Disk(leader)));
        }
        CombinedFault::Middle => {
            crash::in_the_middle(sim, random);
        }
        // The extremes of the allowed rates, so that two clocks differ as much as possible.
        CombinedFault::Clocks => {
            for node_slot in 0..node_slots {
                let rate = random.pick(&[905, 1_095]);
                let now = sim.now;
                sim.node_slots[node_slot].clock.set_rate(rate, now);
            }
        }
    }
}

fn cut(sim: &mut Simulator, links: &[(usize, usize)], length: SimTime) {
    for (from, to) in links.iter().filter(|(from, to)| from != to) {
        sim.network.link(*from, *to).cut = true;
    }
    sim.at(sim.now + length, SimEvent::Undo(Undo::Links));
}

/// Asks random replicas of all groups to truncate their logs.
pub(super) fn cut_logs(sim: &mut Simulator, random: &mut SimRng) -> Option<String> {
    for node_slot in 0..sim.node_slots.len() {
        for group in 0..sim.operator.wanted.len() {
            if random.chance(700) {
                let group = GroupId(u32::try_from(group).ok()?);
                sim.input(node_slot, Input::CutLog { group });
            }
        }
    }
    Some("everywhere".to_owned())
}
