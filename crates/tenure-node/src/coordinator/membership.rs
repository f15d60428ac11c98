//! Membership changes of a group: learners, joint consensus, leadership transfer, removal (R165
//! pace of membership changes, R166 draining a node).
//!
//! The driver decides *what* should change; this module makes sure that the change is safe. A
//! learner is promoted only when it has caught up, the current leader leaves a joint configuration,
//! and a node that lost its data returns only under a new incarnation. `replica_removal.rs` handles
//! the removed replica itself.

use crate::consensus::{Consensus, MembershipChange, MembershipStep, Role};
use crate::node::Node;
use crate::{ChangeRefused, GroupId, NodeId, Output, ReplicaId, RequestId};

/// A learner at most this many entries behind the leader counts as caught up.
const CAUGHT_UP_WITHIN: u64 = 64;

impl Node {
    pub(crate) fn ask_change(&mut self, id: RequestId, group: GroupId, change: MembershipChange) {
        let result = self.begin_membership(group, &change);
        match result {
            Ok(place) => {
                self.changes_asked.insert(group, (id, place));
                self.activate(group);
            }
            Err(refused) => self.outputs.push(Output::Changed {
                id,
                result: Err(refused),
            }),
        }
    }

    fn begin_membership(
        &mut self,
        id: GroupId,
        change: &MembershipChange,
    ) -> Result<crate::LogPosition, ChangeRefused> {
        let busy = self.changes_asked.contains_key(&id);
        let group = self.group(id).ok_or(ChangeRefused::NotLeader)?;
        if !group.is_led() {
            return Err(ChangeRefused::NotLeader);
        }
        let membership = group.membership().clone();
        if busy || membership.is_joint() {
            return Err(ChangeRefused::Busy);
        }
        let everybody = membership.everybody();
        let added = |step: &MembershipStep| {
            let adds = matches!(step, MembershipStep::Learner(_) | MembershipStep::Voter(_));
            (adds && !everybody.contains(&step.member())).then_some(step.member().node)
        };
        // The first message to a new replica deletes an older one on the same node. No voter may
        // still need the vote of the older one: see `replica_removal.rs`.
        if change.steps.iter().any(|step| added(step).is_some()) && !group.removals_are_known() {
            return Err(ChangeRefused::Busy);
        }
        let rules = group.machine.rules();
        let older = |node: NodeId| node != self.me.node && self.peers.rules(node) < rules;
        if change.steps.iter().filter_map(added).any(older) {
            return Err(ChangeRefused::OlderRelease);
        }
        let group = self.group(id).ok_or(ChangeRefused::NotLeader)?;
        let me = group.me;
        let last = group.replica.store().last_index();
        let mut voters = membership.voters.clone();
        for step in &change.steps {
            match *step {
                MembershipStep::Voter(member) => {
                    if !membership.voters.contains(&member) {
                        // An empty voter would count towards quorums that it cannot help to reach.
                        // A replica that has the entry that added it also has everything that was
                        // committed before.
                        let added = member.replica.max(group.changed_at);
                        let progress = group.replica.progress(member);
                        let near = progress.is_some_and(|one| {
                            one.recent
                                && one.matched >= added
                                && one.matched + CAUGHT_UP_WITHIN >= last
                        });
                        if !membership.learners.contains(&member) || !near {
                            return Err(ChangeRefused::Behind);
                        }
                        voters.push(member);
                    }
                }
                MembershipStep::Learner(member) | MembershipStep::Remove(member) => {
                    voters.retain(|voter| *voter != member);
                }
            }
        }
        if voters.is_empty() || change.steps.is_empty() {
            return Err(ChangeRefused::Senseless);
        }
        let numbering = group.numbering(last + 1);
        if change.resolve(&membership, numbering).is_none() {
            return Err(ChangeRefused::Senseless);
        }
        let mut change = change.clone();
        if !voters.contains(&me) {
            // A leader does not remove itself, because no leader would be left to send the commit
            // to the others. It transfers leadership to a voter that stays; the driver repeats the
            // change there.
            voters.retain(|voter| membership.voters.contains(voter));
            if !voters.is_empty() {
                self.hand_over(id, &voters);
                return Err(ChangeRefused::Busy);
            }
            // No remaining voter can lead yet: promote the new ones first.
            change.steps.retain(|step| step.member() != me);
        }
        let group = self.group(id).ok_or(ChangeRefused::NotLeader)?;
        group.change_membership(&change).ok_or(ChangeRefused::Busy)
    }

    /// Handles an applied membership change.
    pub(crate) fn membership_changed(&mut self, id: GroupId) {
        let Some(group) = self.group_ref(id) else {
            return;
        };
        let membership = group.membership().clone();
        if membership.is_joint() {
            self.leave_joint();
            return;
        }
        let leads = group.replica.role() == Role::Leader;
        let gone = group.gone_members();
        if let Some(group) = self.group(id) {
            group.remember_members();
        }
        if let Some((asked, _)) = self.changes_asked.remove(&id) {
            self.outputs.push(Output::Changed {
                id: asked,
                result: Ok(membership.clone()),
            });
        }
        // A replica that sees its own removal stays until a leader confirms it: a voter that does
        // not know yet that the removal is committed may still need its vote.
        if leads && let Some(group) = self.group(id) {
            group.to_hint.extend(gone);
        }
    }

    /// Drops a pending change when this node loses leadership: the next leader decides its outcome,
    /// so it must not block later changes here.
    pub(crate) fn change_is_lost(&mut self, id: GroupId) {
        if let Some((asked, _)) = self.changes_asked.remove(&id) {
            self.outputs.push(Output::Changed {
                id: asked,
                result: Err(ChangeRefused::NotLeader),
            });
        }
    }

    /// Every leader of a joint configuration proposes to leave it, so the change completes after
    /// any change of leader.
    pub(crate) fn leave_joint(&mut self) {
        for at in 0..self.groups.len() {
            let Some(group) = &mut self.groups[at] else {
                continue;
            };
            if group.is_led() && group.membership().is_joint() {
                let id = group.id;
                if group
                    .change_membership(&MembershipChange::default())
                    .is_some()
                {
                    self.activate(id);
                }
            }
        }
    }

    /// Transfers leadership of every group of this node, each to the most advanced voter.
    pub(crate) fn drain(&mut self) {
        for at in 0..self.groups.len() {
            let Some(group) = &mut self.groups[at] else {
                continue;
            };
            if group.replica.role() != Role::Leader {
                continue;
            }
            let (id, voters) = (group.id, group.membership().voters.clone());
            self.hand_over(id, &voters);
        }
    }

    /// Transfers leadership of a group to the most advanced of these voters. Returns false if there
    /// is none.
    pub(crate) fn hand_over(&mut self, id: GroupId, voters: &[ReplicaId]) -> bool {
        let Some(Some(group)) = self.groups.get_mut(id.0 as usize) else {
            return false;
        };
        let me = group.me;
        let down = |member: &&ReplicaId| !self.peers.is_down(member.node);
        let best = voters
            .iter()
            .filter(|member| **member != me)
            .filter(down)
            .filter_map(|member| {
                let matched = group.replica.progress(*member)?.matched;
                // The rank spreads groups over equally advanced voters.
                Some((matched, group.rank_of(*member), *member))
            })
            .max();
        let Some((_, _, to)) = best else {
            return false;
        };
        group.replica.transfer(to);
        self.activate(id);
        true
    }
}
