//! Who should replicate what, and the next step towards it: pure decisions for the groups that this
//! node leads (R164–R166).
//!
//! ```text
//!   stable nodes, ranked for a group ──▶ wanted voters ──▶ add learners ──▶ one joint change
//! ```
//!
//! Three kinds of news move a replica: a node that has been there for a while and ranks higher, a
//! node that is leaving, and a node that is gone for good. A node that is merely down keeps its
//! node runners: a group's voters never become fewer because nodes fail.

use std::collections::{BTreeMap, BTreeSet};

use tenure_node::{
    GroupId, GroupStatus, MembershipChange, MembershipStep, NodeId, ReplicaId, Role, placement,
};

/// What the cluster looks like from this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlacementView {
    /// Every node that is known and not removed, this one included, in its latest life.
    pub(crate) nodes: BTreeMap<NodeId, NodeView>,
    /// Lives that an operator has ended.
    pub(crate) removed: BTreeSet<ReplicaId>,
}

/// One node of a [`PlacementView`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeView {
    pub(crate) member: ReplicaId,
    /// Whether it is up, and since when it is so.
    pub(crate) up: bool,
    pub(crate) since_ms: u64,
    pub(crate) draining: bool,
}

/// How eagerly groups are moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacementRules {
    /// Voters per group; odd.
    pub replication_factor: usize,
    /// A node counts as stable after this long without interruption.
    pub stability_ms: u64,
    /// A voter that is down may be replaced after this long.
    pub eviction_ms: u64,
    /// Leadership drifts to the preferred voter this often.
    pub balance_ms: u64,
    /// Groups whose membership changes at the same time.
    pub at_once: usize,
}

impl PlacementRules {
    /// A cluster without news is looked at this often, because windows end without any.
    pub(crate) fn settled_round_ms(&self) -> u64 {
        let windows = [self.stability_ms, self.eviction_ms, self.balance_ms];
        let shortest = windows.into_iter().filter(|window| *window > 0).min();
        shortest.unwrap_or(u64::MAX).clamp(1_000, 5_000)
    }
}

/// Something to be done for a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PlacementStep {
    Change(GroupId, MembershipChange),
    Transfer(GroupId, ReplicaId),
}

/// Groups whose leadership moves in one round.
const TRANSFERS_AT_ONCE: usize = 4;
/// A replica so many entries behind may take over.
const NEAR: u64 = 64;

/// Whether leaderships drift in this round, or only leave nodes that are draining.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaderBalance {
    Now,
    NotNow,
}

/// The next steps for all groups that are led here, a few at a time.
pub(crate) fn plan(
    me: ReplicaId,
    groups: &[GroupStatus],
    view: &PlacementView,
    rules: &PlacementRules,
    balance: LeaderBalance,
    now_ms: u64,
) -> Vec<PlacementStep> {
    let network = SimulatedCluster {
        view,
        rules,
        now_ms,
    };
    let led = groups.iter().filter(|one| one.serves);
    let (mut changes, mut transfers) = (Vec::new(), Vec::new());
    let mut under_way = 0;
    let mut fresh = Vec::new();
    for group in led {
        let wanted = network.wanted(group);
        match network.change(me, group, &wanted) {
            MembershipNeed::None => {
                if transfers.len() < TRANSFERS_AT_ONCE
                    && let Some(to) = network.transfer(me, group, balance)
                {
                    transfers.push(PlacementStep::Transfer(group.group, to));
                }
            }
            MembershipNeed::Wait => under_way += 1,
            MembershipNeed::GoOn(steps) => {
                under_way += 1;
                changes.push(PlacementStep::Change(
                    group.group,
                    MembershipChange { steps },
                ));
            }
            MembershipNeed::Begin(steps) => fresh.push((group.group, steps)),
        }
    }
    let room = rules.at_once.saturating_sub(under_way);
    for (group, steps) in fresh.into_iter().take(room) {
        changes.push(PlacementStep::Change(group, MembershipChange { steps }));
    }
    changes.append(&mut transfers);
    changes
}

/// What a group's membership needs.
#[derive(Debug, PartialEq, Eq)]
enum MembershipNeed {
    None,
    /// Something is under way that takes its time.
    Wait,
    /// The next step of what is under way.
    GoOn(Vec<MembershipStep>),
    /// The first step of something new.
    Begin(Vec<MembershipStep>),
}

struct SimulatedCluster<'a> {
    view: &'a PlacementView,
    rules: &'a PlacementRules,
    now_ms: u64,
}

impl SimulatedCluster<'_> {
    fn age(&self, seen: &NodeView) -> u64 {
        self.now_ms.saturating_sub(seen.since_ms)
    }

    fn seen(&self, member: ReplicaId) -> Option<&NodeView> {
        let seen = self.view.nodes.get(&member.node);
        seen.filter(|seen| seen.member.shares_disk(member))
    }

    /// Whether an operator ended this incarnation.
    fn is_removed(&self, member: ReplicaId) -> bool {
        self.view.removed.contains(&member.numbered(0))
    }

    fn is_up(&self, member: ReplicaId) -> bool {
        self.seen(member).is_some_and(|seen| seen.up)
    }

    /// Whether a node may be given replicas that it does not have.
    fn is_stable(&self, seen: &NodeView) -> bool {
        seen.up && !seen.draining && self.age(seen) >= self.rules.stability_ms
    }

    /// Whether an operator ended this incarnation, or the node itself has begun another.
    fn is_past(&self, member: ReplicaId) -> bool {
        let newer = self.view.nodes.get(&member.node);
        self.is_removed(member) || newer.is_some_and(|seen| !seen.member.shares_disk(member))
    }

    /// Whether a replica stays where it is as long as the ranking wants it there.
    fn is_sound(&self, member: ReplicaId) -> bool {
        match self.seen(member) {
            Some(seen) => !seen.draining && (seen.up || self.age(seen) < self.rules.eviction_ms),
            // Nothing was heard of it yet: this node has only just started.
            None => !self.is_past(member),
        }
    }

    /// The voters that a group should have.
    fn wanted(&self, group: &GroupStatus) -> BTreeSet<ReplicaId> {
        let present = &group.membership;
        let voters: Vec<ReplicaId> = present.voters.clone();
        let everybody = present.everybody();
        // The replica that a node has already, or the node itself, which is given one.
        let replica = |node: ReplicaId| {
            let mut here = everybody.iter().filter(|member| member.shares_disk(node));
            here.next().copied().unwrap_or(node)
        };
        let sound = |member: &&ReplicaId| self.is_sound(**member);
        let mut pool: BTreeMap<NodeId, ReplicaId> = voters
            .iter()
            .filter(sound)
            .map(|member| (member.node, *member))
            .collect();
        let stable = self.view.nodes.values().filter(|seen| {
            self.is_stable(seen)
                || (seen.up && !seen.draining && present.learners.contains(&replica(seen.member)))
        });
        let mut stable_count = 0;
        for seen in stable {
            stable_count += 1;
            pool.insert(seen.member.node, replica(seen.member));
        }
        let count = self.count(&voters, stable_count);
        if let ([lone], 1) = (voters.as_slice(), count)
            && self.rules.replication_factor > 1
            && self.is_sound(*lone)
        {
            // The only copy stays where it is until there can be more: nothing is won by moving it.
            return BTreeSet::from([*lone]);
        }
        let nodes: Vec<NodeId> = pool.keys().copied().collect();
        let mut wanted: BTreeSet<ReplicaId> = placement::voters_of(group.group, &nodes, count)
            .into_iter()
            .filter_map(|node| pool.get(&node).copied())
            .collect();
        // Nobody to replace them yet: they keep their node runners, the livelier first.
        let mut rest: Vec<ReplicaId> = voters
            .iter()
            .copied()
            .filter(|member| !wanted.contains(member) && !self.is_removed(*member))
            .collect();
        rest.sort_by_key(|member| (!self.is_up(*member), *member));
        for member in rest {
            if wanted.len() < count {
                wanted.insert(member);
            }
        }
        wanted
    }

    /// R164: as many voters as the cluster can carry, never fewer because nodes are down.
    fn count(&self, voters: &[ReplicaId], stable: usize) -> usize {
        let possible = self.rules.replication_factor.min(stable);
        let odd = if possible.is_multiple_of(2) {
            possible.saturating_sub(1)
        } else {
            possible
        };
        // Whom an operator removes or drains does not count; who remains keeps its copy.
        let leaves = |member: &ReplicaId| {
            self.is_removed(*member) || self.seen(*member).is_some_and(|seen| seen.draining)
        };
        let remain = voters.iter().filter(|member| !leaves(member)).count();
        odd.max(remain.min(self.rules.replication_factor)).max(1)
    }

    fn change(
        &self,
        me: ReplicaId,
        group: &GroupStatus,
        wanted: &BTreeSet<ReplicaId>,
    ) -> MembershipNeed {
        let present = &group.membership;
        if present.is_joint() {
            return MembershipNeed::Wait;
        }
        let voters: BTreeSet<ReplicaId> = present.voters.iter().copied().collect();
        let learners: BTreeSet<ReplicaId> = present.learners.iter().copied().collect();
        let useless = learners.difference(wanted).copied();
        let missing: Vec<ReplicaId> = wanted
            .iter()
            .copied()
            .filter(|one| !voters.contains(one) && !learners.contains(one))
            .collect();
        if !missing.is_empty() {
            let steps = missing.into_iter().map(MembershipStep::Learner);
            let steps = steps.chain(useless.map(MembershipStep::Remove)).collect();
            return if learners.is_empty() {
                MembershipNeed::Begin(steps)
            } else {
                MembershipNeed::GoOn(steps)
            };
        }
        if voters == *wanted {
            let steps: Vec<MembershipStep> = useless.map(MembershipStep::Remove).collect();
            return if steps.is_empty() {
                MembershipNeed::None
            } else {
                MembershipNeed::GoOn(steps)
            };
        }
        let coming = wanted.difference(&voters).copied();
        let near = |member| self.is_near(group, member);
        if !coming.clone().all(near) {
            return MembershipNeed::Wait;
        }
        // R165: only if a majority of the new voters is there to carry it.
        let up = wanted.iter().filter(|one| self.is_up(**one)).count();
        if up * 2 <= wanted.len() {
            return MembershipNeed::Wait;
        }
        // A leader does not remove itself: it hands over, and that only to a voter. If no voter is to
        // stay, the newcomers become voters beside it, and it leaves in the round after.
        let nobody_stays = voters.is_disjoint(wanted);
        let going = voters
            .difference(wanted)
            .copied()
            .filter(|member| !(nobody_stays && member.shares_disk(me)));
        let steps: Vec<MembershipStep> = coming
            .map(MembershipStep::Voter)
            .chain(going.map(MembershipStep::Remove))
            .chain(useless.map(MembershipStep::Remove))
            .collect();
        MembershipNeed::GoOn(steps)
    }

    fn is_near(&self, group: &GroupStatus, member: ReplicaId) -> bool {
        let known = group.progress.iter().find(|(one, _)| *one == member);
        known.is_some_and(|(_, progress)| {
            progress.recent && progress.matched > 0 && progress.matched + NEAR >= group.last
        })
    }

    /// To whom leadership should go, if not to whom has it.
    fn transfer(
        &self,
        me: ReplicaId,
        group: &GroupStatus,
        balance: LeaderBalance,
    ) -> Option<ReplicaId> {
        debug_assert_eq!(group.role, Role::Leader);
        let fit = |member: &ReplicaId| {
            let sound = self
                .seen(*member)
                .is_some_and(|seen| seen.up && !seen.draining);
            sound && (member.shares_disk(me) || self.is_near(group, *member))
        };
        let fit: BTreeMap<NodeId, ReplicaId> = group
            .membership
            .voters
            .iter()
            .filter(|member| fit(member))
            .map(|member| (member.node, *member))
            .collect();
        let leaves = !fit.contains_key(&me.node);
        if balance == LeaderBalance::NotNow && !leaves {
            return None;
        }
        let nodes: Vec<NodeId> = fit.keys().copied().collect();
        let first = placement::voters_of(group.group, &nodes, 1);
        let preferred = first.first().and_then(|node| fit.get(node).copied());
        preferred.filter(|member| !member.shares_disk(me))
    }
}

#[cfg(test)]
mod tests;
