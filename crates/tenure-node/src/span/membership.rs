//! Who replicates a group: learners, joint changes, hand-over, removal (R165, R166).
//!
//! The driver decides *what* should change; this file sees to it that it is safe: a learner is
//! promoted only when it has caught up, a joint configuration is left by whoever leads, a removed
//! replica is told so and its data deleted, and a wiped node comes back only under a new life.

use crate::codec::{Read, Reader};
use crate::consensus::{Consensus, MembershipChange, MembershipStep, Role};
use crate::node::frames_item as item;
use crate::node::{Node, Tomb};
use crate::{ChangeRefused, GroupId, HardState, Member, Output, Record, RequestId};

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
        if !voters.contains(&self.me) {
            // A leader does not remove itself: nobody would be left to tell the others that it is
            // decided. It hands over; whoever leads next is asked again.
            self.hand_over(id, &voters);
            return Err(ChangeRefused::Busy);
        }
        let group = self.group(id).ok_or(ChangeRefused::NotLeader)?;
        group.change_membership(change).ok_or(ChangeRefused::Busy)
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
                self.tell_removed(id, member);
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

    /// A removed replica may never see the entry that removed it.
    fn tell_removed(&mut self, id: GroupId, member: Member) {
        if member.node == self.me.node {
            return;
        }
        let Some(group) = self.group_ref(id) else {
            return;
        };
        let index = group.applied.index;
        let hard_state = group.replica.store().hard_state();
        // After a restart the membership is that of the commit index on disk: without the removal in
        // it, the removed one would be needed again.
        let commit = hard_state.commit.max(index);
        let state = HardState {
            commit,
            ..hard_state
        };
        self.turn.writes.push((id, Record::HardState(state)));
        self.turn.must_sync = true;
        self.frames()
            .say_after_writes(member.node, item::REMOVED, |out| {
                out.number(u64::from(id.0));
                out.number(member.pack());
                out.number(index);
            });
    }

    /// Somebody who is not a member asks for a vote: it does not know yet that it was removed.
    pub(crate) fn answer_stranger(&mut self, id: GroupId, from: Member) {
        let Some(group) = self.group_ref(id) else {
            return;
        };
        if group.is_led() && !group.membership().everybody().contains(&from) {
            self.tell_removed(id, from);
        }
    }

    pub(crate) fn receive_removed(&mut self, mut content: Reader) -> Read<()> {
        let id = GroupId(content.small()?);
        let (member, index) = (content.number()?, content.number()?);
        content.end()?;
        // Removed and added again since, if more is applied here than was at the removal.
        let stale = self
            .group_ref(id)
            .is_none_or(|group| group.applied.index > index);
        if member == self.me.pack() && id <= self.system() && !stale {
            self.remove_replica(id, index);
        }
        Ok(())
    }

    /// The replica stops serving, and its data may be deleted (R166).
    fn remove_replica(&mut self, id: GroupId, index: u64) {
        let Some(group) = self.groups.get_mut(id.0 as usize).and_then(Option::take) else {
            return;
        };
        let hard_state = HardState {
            commit: 0,
            ..group.replica.store().hard_state()
        };
        group.close(&mut self.turn);
        self.turn.writes.push((id, Record::Removed));
        // Its term and vote are kept: it must not vote twice in a term if it ever comes back.
        self.turn.writes.push((id, Record::HardState(hard_state)));
        self.tombs.insert(id, Tomb { hard_state, index });
        self.transfers.forget(id);
        self.turn.must_sync = true;
        self.outputs.push(Output::Removed { group: id });
        let me = self.me.node;
        self.peers.forget_leader(id, me);
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
