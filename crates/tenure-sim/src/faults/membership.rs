//! Membership faults: replicas that are moved, removed and added again, and leadership transfers.

use tenure_node::{GroupId, Input, MembershipChange, MembershipStep};

use super::Undo;
use crate::random::SimRng;
use crate::simulator::{SimEvent, Simulator};
use crate::time::{MILLISECOND, SECOND};

/// Chooses a new placement for a random group. The operator carries it out.
pub(super) fn change(sim: &mut Simulator) -> Option<String> {
    if !sim.operator.may_lose.is_empty() {
        return None;
    }
    let (nodes, replicas) = (sim.plan.nodes, sim.plan.replicas);
    let (group, node_slots) = sim.operator.move_one(nodes, replicas);
    Some(format!("{group} to {node_slots:?}"))
}

/// Adds a node as a learner to a group that it does not replicate, then cuts it off. Meanwhile the
/// operator removes it again, because the placement does not include it.
pub(super) fn forsake(sim: &mut Simulator, random: &mut SimRng) -> Option<String> {
    let at = random.index(sim.operator.wanted.len());
    let group = GroupId(u32::try_from(at).ok()?);
    let (leader, membership) = sim.leader(group)?;
    let everybody = membership.everybody();
    let strangers: Vec<usize> = (0..sim.node_slots.len())
        .filter(|node_slot| !sim.operator.wanted[at].contains(node_slot))
        .filter(|node_slot| {
            let here = sim.node_slots[*node_slot].member;
            !everybody.iter().any(|one| one.shares_disk(here))
        })
        .filter(|node_slot| sim.node_slots[*node_slot].is_up())
        .collect();
    if strangers.is_empty() {
        return None;
    }
    let node_slot = strangers[random.index(strangers.len())];
    let id = sim.operator.change_id();
    let steps = vec![MembershipStep::Learner(sim.node_slots[node_slot].member)];
    let change = MembershipChange { steps };
    sim.input(leader, Input::Change { id, group, change });
    let soon = random.between(50, 1_500) * MILLISECOND;
    sim.at(sim.now + soon, SimEvent::Undo(Undo::Forsake(node_slot)));
    let length = soon + random.between(4 * SECOND, 15 * SECOND);
    sim.at(sim.now + length, SimEvent::Undo(Undo::Links));
    Some(format!("{group} at node slot {node_slot}"))
}

/// A replica is removed and added again on the same node, in one of two scenarios.
///
/// With a stopped voter: the voter stops, another voter is replaced and later added again. Then the
/// leader dies and the stopped voter returns with its old log. It must not become leader by the
/// vote of the replica that was added again. Snapshots are mostly lost meanwhile, so the added
/// replica is empty or outdated.
///
/// With a slow disk: no voter stops, but the replaced replica's disk is slow. Its acknowledgements
/// leave only when the next replica on the same node already exists.
pub(super) fn come_back(sim: &mut Simulator, random: &mut SimRng) -> Option<String> {
    let at = random.index(sim.operator.wanted.len());
    let group = GroupId(u32::try_from(at).ok()?);
    let (leader, membership) = sim.leader(group)?;
    let mut voters: Vec<usize> = membership
        .voters
        .iter()
        .map(|one| one.node.number() as usize - 1)
        .filter(|node_slot| *node_slot != leader && sim.node_slots[*node_slot].is_up())
        .collect();
    let guests: Vec<usize> = (0..sim.node_slots.len())
        .filter(|node_slot| {
            *node_slot != leader
                && !voters.contains(node_slot)
                && sim.node_slots[*node_slot].is_up()
        })
        .collect();
    // Two voters besides the leader are needed, and no node may be in the course of losing its
    // data.
    if voters.len() < 2 || guests.is_empty() || !sim.operator.may_lose.is_empty() {
        return None;
    }
    let away = voters.swap_remove(random.index(voters.len()));
    let back = voters.swap_remove(random.index(voters.len()));
    let guest = guests[random.index(guests.len())];
    sim.operator.wanted[at].remove(&back);
    sim.operator.wanted[at].insert(guest);
    let back_again = Undo::Return {
        group: at,
        node_slot: back,
    };
    if random.chance(400) {
        let again = sim.now + random.between(2_500, 7_000) * MILLISECOND;
        sim.at(again, SimEvent::Undo(back_again));
        sim.node_slots[back].disk_delay = (SECOND, 4 * SECOND);
        sim.at(again + 3 * SECOND, SimEvent::Undo(Undo::Disk(back)));
        return Some(format!("{group}: node slot {back}, by a slow disk"));
    }
    sim.end_process(away);
    sim.node_slots[away].leave_disk(random);
    for from in 0..sim.node_slots.len() {
        for to in (0..sim.node_slots.len()).filter(|to| *to != from) {
            sim.network.link(from, to).bulk_loss = 800;
        }
    }
    let again = sim.now + random.between(8 * SECOND, 14 * SECOND);
    sim.at(again, SimEvent::Undo(back_again));
    let then = again + random.between(2 * SECOND, 6 * SECOND);
    let succession = Undo::Succeed {
        group: at,
        away,
        back,
    };
    sim.at(then, SimEvent::Undo(succession));
    let end = then + random.between(3 * SECOND, 8 * SECOND);
    sim.at(end, SimEvent::Undo(Undo::Links));
    Some(format!(
        "{group}: node slot {away} is away, {back} is replaced by {guest}"
    ))
}

pub(super) fn want_again(sim: &mut Simulator, group: usize, node_slot: usize) {
    if sim.fault_phase {
        sim.operator.wanted[group].insert(node_slot);
    }
}

pub(super) fn succeed(sim: &mut Simulator, group: usize, away: usize, back: usize) {
    if !sim.fault_phase {
        return;
    }
    let id = GroupId(u32::try_from(group).unwrap_or(0));
    if let Some((leader, _)) = sim.leader(id)
        && leader != away
        && leader != back
    {
        let mut rng = sim.random.split();
        sim.end_process(leader);
        sim.node_slots[leader].leave_disk(&mut rng);
        sim.tell_peers(leader, |node| Input::PeerDown { node });
        sim.at(sim.now + 6 * SECOND, SimEvent::Start(leader));
    }
    sim.at(sim.now, SimEvent::Start(away));
}

/// A leader proposes a membership change that reaches no follower, is deposed, and leads again before
/// the operator changes anything. The lost change must not block later ones.
pub(super) fn lose_change(sim: &mut Simulator, random: &mut SimRng) -> Option<String> {
    let at = random.index(sim.operator.wanted.len());
    lose_change_of(sim, GroupId(u32::try_from(at).ok()?), random)
}

/// The same for one group, also after the fault phase.
pub(crate) fn lose_change_of(
    sim: &mut Simulator,
    group: GroupId,
    random: &mut SimRng,
) -> Option<String> {
    let (leader, membership) = sim.leader(group)?;
    // The others must be able to elect a leader among themselves.
    if membership.voters.len() < 3 || membership.is_joint() {
        return None;
    }
    let everybody = membership.everybody();
    let stranger = (0..sim.node_slots.len()).find(|node_slot| {
        let here = sim.node_slots[*node_slot].member;
        !everybody.iter().any(|one| one.shares_disk(here))
    })?;
    for other in (0..sim.node_slots.len()).filter(|other| *other != leader) {
        sim.network.link(leader, other).cut = true;
    }
    let id = sim.operator.change_id();
    let steps = vec![MembershipStep::Learner(sim.node_slots[stranger].member)];
    let change = MembershipChange { steps };
    sim.input(leader, Input::Change { id, group, change });
    sim.tell_peers(leader, |node| Input::PeerDown { node });
    let healed = sim.now + random.between(2_000, 4_000) * MILLISECOND;
    sim.at(healed, SimEvent::Undo(Undo::Links));
    for again in [100, 400, 1_500] {
        let reelect = Undo::Reelect {
            group,
            node_slot: leader,
        };
        sim.at(healed + again * MILLISECOND, SimEvent::Undo(reelect));
    }
    Some(format!("{group} at node slot {leader}"))
}

/// Next stage of [`lose_change`].
pub(super) fn reelect(sim: &mut Simulator, group: GroupId, node_slot: usize) {
    let Some((leader, membership)) = sim.leader(group) else {
        return;
    };
    let here = sim.node_slots[node_slot].member;
    let mut voters = membership.voters.iter();
    if leader != node_slot
        && let Some(to) = voters.find(|voter| voter.shares_disk(here))
    {
        sim.input(leader, Input::Transfer { group, to: *to });
    }
}

/// Shrinks a group to one voter for a while.
pub(super) fn shrink(sim: &mut Simulator, random: &mut SimRng) -> Option<String> {
    if !sim.operator.may_lose.is_empty() {
        return None;
    }
    let group = random.index(sim.operator.wanted.len());
    let wanted: Vec<usize> = sim.operator.wanted[group].iter().copied().collect();
    let stays = wanted[random.index(wanted.len())];
    sim.operator.wanted[group].retain(|at| *at == stays);
    let length = random.between(5 * SECOND, 40 * SECOND);
    sim.at(sim.now + length, SimEvent::Undo(Undo::Grow(group)));
    Some(format!(
        "group {group} to node slot {stays} for {} ms",
        length / MILLISECOND
    ))
}

/// Next stage of [`shrink`]: the group gets its replicas again, on random nodes.
pub(super) fn grow(sim: &mut Simulator, group: usize) {
    if sim.fault_phase {
        sim.operator.grow(group, sim.plan.nodes, sim.plan.replicas);
    }
}

pub(super) fn drain(sim: &mut Simulator, random: &mut SimRng) -> Option<String> {
    let at = super::running(sim, random)?;
    sim.input(at, Input::Drain);
    Some(format!("node slot {at}"))
}

pub(super) fn transfer(sim: &mut Simulator, random: &mut SimRng) -> Option<String> {
    let group = GroupId(u32::try_from(random.index(sim.operator.wanted.len())).ok()?);
    let (at, membership) = sim.leader(group)?;
    let to = membership.voters[random.index(membership.voters.len())];
    sim.input(at, Input::Transfer { group, to });
    Some(format!("{group} to {to}"))
}
