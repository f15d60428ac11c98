//! Who replicates a group: learners, joint changes, hand-over, removal (R165, R166).
//!
//! The driver decides *what* should change; this file sees to it that it is safe: a learner is
//! promoted only when it has caught up, a joint configuration is left by whoever leads, and a wiped
//! node comes back only under a new life. How a removed replica goes is in `removal.rs`.

use crate::consensus::{Consensus, MembershipChange, MembershipStep, Role};
use crate::node::Node;
use crate::{ChangeRefused, GroupId, Member, Output, RequestId};

/// A learner so many entries behind the leader has caught up.
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
    ) -> Result<crate::Place, ChangeRefused> {
        let busy = self.changes_asked.contains_key(&id);
        let group = self.group(id).ok_or(ChangeRefused::NotLeader)?;
        if !group.is_led() {
            return Err(ChangeRefused::NotLeader);
        }
        let membership = group.membership().clone();
        if busy || membership.is_joint() {
            return Err(ChangeRefused::Busy);
        }
        let rules = group.machine.rules();
        let older = |step: &MembershipStep| {
            let member = step.member();
            let adds = matches!(step, MembershipStep::Learner(_) | MembershipStep::Voter(_));
            let is_new = adds && !membership.everybody().contains(&member);
            is_new && member.node != self.me.node && self.peers.rules(member.node) < rules
        };
        if change.steps.iter().any(older) {
            return Err(ChangeRefused::OlderRelease);
        }
        let group = self.group(id).ok_or(ChangeRefused::NotLeader)?;
        let mut voters = membership.voters.clone();
        for step in &change.steps {
            match *step {
                MembershipStep::Voter(member) => {
                    if !membership.voters.contains(&member) {
                        // A voter that has nothing yet would count for a quorum it cannot help.
                        let last = group.replica.store().last_index();
                        let progress = group.replica.progress(member);
                        // One that has not answered yet has matched nothing, however short the log.
                        let near = progress.is_some_and(|one| {
                            one.recent && one.matched > 0 && one.matched + CAUGHT_UP_WITHIN >= last
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
        let mut change = change.clone();
        if !voters.contains(&self.me) {
            // A leader does not remove itself: nobody would be left to tell the others that it is
            // decided. It hands over to one that stays; whoever leads next is asked again.
            voters.retain(|voter| membership.voters.contains(voter));
            if !voters.is_empty() {
                self.hand_over(id, &voters);
                return Err(ChangeRefused::Busy);
            }
            // Nobody who stays may lead yet: those who come are promoted first.
            let me = self.me;
            change.steps.retain(|step| step.member() != me);
        }
        let group = self.group(id).ok_or(ChangeRefused::NotLeader)?;
        group.change_membership(&change).ok_or(ChangeRefused::Busy)
    }

    /// A change of membership was applied.
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
        // A replica that finds itself removed stays until a leader says so: somebody who does not
        // know yet that this was decided may still need its vote.
        if leads {
            for member in gone {
                self.hint_removed(id, member);
            }
        }
    }

    /// Whoever leads leaves the joint configuration; nobody else has to remember it.
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

    /// Hands over every group that is led here, each to the voter that is furthest.
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

    /// Hands a group over to that one of these voters that is furthest.
    fn hand_over(&mut self, id: GroupId, voters: &[Member]) {
        let Some(Some(group)) = self.groups.get_mut(id.0 as usize) else {
            return;
        };
        let me = self.me;
        let down = |member: &&Member| !self.peers.is_down(member.node);
        let best = voters
            .iter()
            .filter(|member| **member != me)
            .filter(down)
            .filter_map(|member| Some((group.replica.progress(*member)?.matched, *member)))
            .max();
        if let Some((_, to)) = best {
            group.replica.transfer(to);
            self.activate(id);
        }
    }
}
