//! Simulated operator: carries out membership changes.
//!
//! It places every group on the wanted nodes. A node that lost its disk returns as a learner in a
//! new incarnation before another node may lose its disk.

use std::collections::BTreeSet;

use tenure_node::{
    GroupId, Input, Membership, MembershipChange, MembershipStep, ReplicaId, RequestId,
};

use crate::fault_profile::FaultProfile;
use crate::plan::RunPlan;
use crate::random::SimRng;
use crate::sim_node::SimNode;
use crate::simulator::{Simulator, member};
use crate::time::{SECOND, SimTime};

/// The wanted placement, and which nodes may lose data.
pub(crate) struct Operator {
    random: SimRng,
    /// Which node slots should replicate each group.
    pub(crate) wanted: Vec<BTreeSet<usize>>,
    /// The placement before any fault changed it.
    homes: Vec<BTreeSet<usize>>,
    /// The first voters of each group.
    births: Vec<BTreeSet<usize>>,
    /// Node slots that may have lost their data to a fault.
    pub(crate) may_lose: BTreeSet<usize>,
    /// Node slots whose first state is not durable yet.
    pub(crate) newborn: BTreeSet<usize>,
    /// Whether every group had its wanted replicas at the last look.
    whole: bool,
    next_change: u64,
}

impl Operator {
    pub(crate) fn new(plan: &RunPlan, random: &mut SimRng) -> Operator {
        let mut random = random.split();
        let wanted: Vec<BTreeSet<usize>> = (0..=plan.cluster.group_count)
            .map(|_| some_slots(&mut random, plan.nodes, plan.replicas))
            .collect();
        let births = match plan.fault_profile {
            // One node bootstraps alone; the others start empty and join.
            FaultProfile::Founder => vec![BTreeSet::from([0]); wanted.len()],
            _ => wanted.clone(),
        };
        Operator {
            births,
            homes: wanted.clone(),
            wanted,
            random,
            may_lose: BTreeSet::new(),
            newborn: BTreeSet::new(),
            whole: false,
            next_change: 0,
        }
    }

    pub(crate) fn pause(&mut self) -> SimTime {
        self.random.between(SECOND / 2, 3 * SECOND)
    }

    /// Returns every group with its first voters.
    pub(crate) fn births(&self) -> Vec<(GroupId, Vec<ReplicaId>)> {
        let groups = (0..).map(GroupId).zip(&self.births);
        groups
            .map(|(group, node_slots)| {
                (group, node_slots.iter().map(|at| member(*at, 1)).collect())
            })
            .collect()
    }

    /// Chooses a new placement for a random group.
    pub(crate) fn move_one(&mut self, nodes: usize, replicas: usize) -> (GroupId, BTreeSet<usize>) {
        let at = self.random.index(self.wanted.len());
        // Sometimes one fewer, so that replicas are removed and added again in the same
        // incarnation.
        let count = if self.random.chance(400) {
            replicas - 1
        } else {
            replicas
        };
        self.wanted[at] = some_slots(&mut self.random, nodes, count.max(2));
        let group = GroupId(u32::try_from(at).unwrap_or(0));
        (group, self.wanted[at].clone())
    }

    /// Gives a group its full number of replicas.
    pub(crate) fn grow(&mut self, group: usize, nodes: usize, replicas: usize) {
        while self.wanted[group].len() < replicas.min(nodes) {
            let at = self.random.index(nodes);
            self.wanted[group].insert(at);
        }
    }

    /// Replaces one replica of a group by one on another node. Removes it if there is no other node, and
    /// two or more remain.
    pub(crate) fn replace_one(&mut self, group: usize, nodes: usize) {
        let wanted = &mut self.wanted[group];
        let spare: Vec<usize> = (0..nodes).filter(|at| !wanted.contains(at)).collect();
        if spare.is_empty() && wanted.len() < 3 {
            return;
        }
        let at = self.random.index(wanted.len());
        if let Some(gone) = wanted.iter().nth(at).copied() {
            wanted.remove(&gone);
        }
        if !spare.is_empty() {
            wanted.insert(spare[self.random.index(spare.len())]);
        }
    }

    pub(crate) fn change_id(&mut self) -> RequestId {
        self.next_change += 1;
        RequestId(u64::MAX / 2 + self.next_change)
    }

    /// Whether a node may lose its data now without any group losing its majority.
    pub(crate) fn can_spare_one(&self) -> bool {
        let wide = self.wanted.iter().all(|node_slots| node_slots.len() >= 3);
        self.whole && wide && self.may_lose.is_empty() && self.newborn.is_empty()
    }

    /// Sets the wanted placement back to the original one.
    pub(crate) fn restore(&mut self) {
        self.wanted.clone_from(&self.homes);
    }
}

fn some_slots(random: &mut SimRng, nodes: usize, count: usize) -> BTreeSet<usize> {
    let mut node_slots = BTreeSet::new();
    while node_slots.len() < count.min(nodes) {
        node_slots.insert(random.index(nodes));
    }
    node_slots
}

impl Simulator {
    /// Returns the membership of a group as the replica at a node slot knows it.
    fn membership_at(&self, node_slot: usize, group: GroupId) -> Option<Membership> {
        let status = self.node_slots[node_slot].node.as_ref()?.status();
        let mut groups = status.groups.into_iter();
        let one = groups.find(|one| one.group == group)?;
        Some(one.membership)
    }

    /// Takes one step towards the wanted placement, for every group that has a leader. Also finds
    /// out whether a node may lose its data now.
    pub(crate) fn operate(&mut self) {
        // True if any group is not yet as wanted: no leader, a replica of an earlier incarnation, a
        // missing voter, or a replica with an outdated membership.
        let mut old_incarnations = false;
        for at in 0..self.operator.wanted.len() {
            let group = GroupId(u32::try_from(at).unwrap_or(0));
            let Some((leader, membership)) = self.leader(group) else {
                old_incarnations = true;
                continue;
            };
            let everybody = membership.everybody();
            // The replica on this node slot's present disk, or else the identity to add.
            let replica = |node_slot: &usize| {
                let here = self.node_slots[*node_slot].member;
                let mut found = everybody.iter().filter(|one| one.shares_disk(here));
                found.next().copied().unwrap_or(here)
            };
            let wanted: Vec<ReplicaId> = self.operator.wanted[at].iter().map(replica).collect();
            // Whether a replica is on the present disk of its node slot.
            let current = |one: &ReplicaId| {
                let here = self.node_slots[one.node.number() as usize - 1].member;
                here.shares_disk(*one)
            };
            if !everybody.iter().all(current)
                || wanted.iter().any(|one| !membership.voters.contains(one))
            {
                old_incarnations = true;
            }
            // A replica that has not applied the latest change counts votes of members that may be
            // gone.
            let knows = |node_slot: &usize| {
                self.membership_at(*node_slot, group).as_ref() == Some(&membership)
            };
            if !self.operator.wanted[at].iter().all(knows) {
                old_incarnations = true;
            }
            if membership.is_joint() {
                continue;
            }
            let missing = wanted.iter().find(|one| !everybody.contains(one));
            let waiting = wanted.iter().find(|one| membership.learners.contains(one));
            let mut surplus: Vec<ReplicaId> = everybody
                .iter()
                .filter(|one| !wanted.contains(one))
                .copied()
                .collect();
            // Replicas of earlier incarnations first: their data is lost.
            surplus.sort_by_key(|one| current(one));
            let steps = if let Some(one) = missing {
                vec![MembershipStep::Learner(*one)]
            } else if let Some(one) = waiting {
                let mut steps = vec![MembershipStep::Voter(*one)];
                // Promotion and removal in one step: a joint change.
                if let Some(old) = surplus.first()
                    && self.random.chance(500)
                {
                    steps.push(MembershipStep::Remove(*old));
                }
                steps
            } else if let Some(one) = surplus.first() {
                vec![MembershipStep::Remove(*one)]
            } else {
                continue;
            };
            let id = self.operator.change_id();
            self.trace.say(
                self.now,
                format_args!("operator"),
                format_args!("{group}: {steps:?} at node slot {leader}"),
            );
            let change = MembershipChange { steps };
            self.input(leader, Input::Change { id, group, change });
        }
        self.operator.whole = !old_incarnations;
        // A disk with a silent fault is sound only after the node has read it again.
        let silent = |slot: &SimNode| {
            slot.rotten.is_some()
                || (self.plan.fault_profile == FaultProfile::Rot && !slot.suspects.is_empty())
        };
        if !old_incarnations
            && !self.node_slots.iter().any(silent)
            && self
                .node_slots
                .iter()
                .all(|node_slot| node_slot.is_up() && !node_slot.needs_new_incarnation)
        {
            self.operator.may_lose.clear();
        }
    }
}
