//! How a replica that was removed learns of it, and goes (R166).
//!
//! ```text
//!   a leader's hint, or silence ──▶ "am I still a member?" ──▶ whoever leads ──▶ "no" ──▶ deleted
//! ```
//!
//! A removed replica may never see the entry that removed it: it was cut off, or its leader died
//! before it could tell. A voter that stands for election gives itself away, a learner never
//! would. So whoever hears from no leader for a while asks everybody, and a leader that does not
//! have the asker says so, once a round has shown that it leads still.
//!
//! A "no" that comes late must not meet a replica that was added again. It counts only as the answer
//! to the last question, and if no leader spoke since: what the replica may have acknowledged before
//! the question, the answerer knew; and since then it acknowledged nothing.

use std::collections::BTreeMap;

use crate::codec::{Read, Reader};
use crate::consensus::Consensus;
use crate::group::Vouched;
use crate::node::frames_item as item;
use crate::node::{Node, Tomb};
use crate::{GroupId, HardState, Member, NodeId, Record};

/// After so many ticks of silence a replica asks, and again and again: long enough for an election.
const SILENT_TICKS: u64 = 20;

/// Since when a replica has heard from no leader, and what it asked because of that.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Silence {
    ticks: u64,
    question: Option<u64>,
}

/// Questions of strangers that wait for a round: who asked, and the number of its question.
pub(crate) type Strangers = BTreeMap<u64, (Member, u64)>;

impl Silence {
    pub(crate) fn tick(&mut self) {
        self.ticks += 1;
    }

    fn is_long(self) -> bool {
        self.ticks > 0 && self.ticks.is_multiple_of(SILENT_TICKS)
    }
}

impl Node {
    /// Replicas that have heard nothing for long ask everybody whether they are still wanted.
    pub(crate) fn ask_in_silence(&mut self) {
        let groups = self.groups.iter().flatten();
        let silent: Vec<GroupId> = groups
            .filter(|group| group.silence.is_long())
            .map(|group| group.id)
            .collect();
        if silent.is_empty() {
            return;
        }
        let others = self.peers.others(self.me.node);
        for id in silent {
            self.ask_membership(id, &others);
        }
    }

    fn ask_membership(&mut self, id: GroupId, nodes: &[NodeId]) {
        let number = self.span.next_number();
        let Some(group) = self.group(id) else {
            return;
        };
        group.silence.question = Some(number);
        for node in nodes {
            self.frames().say(*node, item::AM_I_MEMBER, |out| {
                out.number(u64::from(id.0));
                out.number(number);
            });
        }
    }

    /// Answered by a leader that does not have the asker; members hear from it anyway.
    pub(crate) fn receive_am_i_member(&mut self, from: Member, mut content: Reader) -> Read<()> {
        let id = GroupId(content.small()?);
        let question = content.number()?;
        content.end()?;
        if self.leads_without(id, from) {
            let number = self.span.next_number();
            self.span.strangers.insert(number, (from, question));
            if let Some(Some(group)) = self.groups.get_mut(id.0 as usize) {
                group.vouch(number, &mut self.turn);
                self.activate(id);
            }
        }
        Ok(())
    }

    fn leads_without(&self, id: GroupId, member: Member) -> bool {
        self.group_ref(id).is_some_and(|group| {
            group.is_led() && !group.membership().everybody().contains(&member)
        })
    }

    /// The round is over that a stranger's question waited for.
    pub(crate) fn vouched_for_stranger(&mut self, number: u64, id: GroupId, vouched: Vouched) {
        let Some((stranger, question)) = self.span.strangers.remove(&number) else {
            return;
        };
        if vouched == Vouched::No || !self.leads_without(id, stranger) {
            return;
        }
        let Some(group) = self.group_ref(id) else {
            return;
        };
        let index = group.applied.index;
        let hard_state = group.replica.store().hard_state();
        // After a restart the membership is that of the commit index on disk: without the removal in
        // it, the removed one would be needed again.
        let state = HardState {
            commit: hard_state.commit.max(index),
            ..hard_state
        };
        self.turn.writes.push((id, Record::HardState(state)));
        self.turn.must_sync = true;
        self.frames()
            .say_after_writes(stranger.node, item::NOT_A_MEMBER, |out| {
                out.number(u64::from(id.0));
                out.number(stranger.pack());
                out.number(question);
                out.number(index);
            });
    }

    pub(crate) fn receive_not_a_member(&mut self, mut content: Reader) -> Read<()> {
        let id = GroupId(content.small()?);
        let (member, question) = (content.number()?, content.number()?);
        let index = content.number()?;
        content.end()?;
        let asked = self.group_ref(id).and_then(|group| group.silence.question);
        if asked == Some(question) && member == self.me.pack() {
            self.remove_replica(id, index);
        }
        Ok(())
    }

    /// Tells somebody who was removed that it may want to ask.
    pub(crate) fn hint_removed(&mut self, id: GroupId, member: Member) {
        if member.node == self.me.node {
            return;
        }
        let Some(group) = self.group_ref(id) else {
            return;
        };
        let index = group.applied.index;
        self.frames().say(member.node, item::REMOVED, |out| {
            out.number(u64::from(id.0));
            out.number(member.pack());
            out.number(index);
        });
    }

    /// Somebody who is not a member asks for a vote: it does not know yet that it was removed.
    pub(crate) fn answer_stranger(&mut self, id: GroupId, from: Member) {
        if self.leads_without(id, from) {
            self.hint_removed(id, from);
        }
    }

    pub(crate) fn receive_removed(&mut self, from: Member, mut content: Reader) -> Read<()> {
        let id = GroupId(content.small()?);
        let (member, _index) = (content.number()?, content.number()?);
        content.end()?;
        if member == self.me.pack() && self.group_ref(id).is_some_and(|group| !group.leads()) {
            self.ask_membership(id, &[from.node]);
        }
        Ok(())
    }

    /// The replica stops serving, and its data may be deleted.
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
        let me = self.me.node;
        self.peers.forget_leader(id, me);
    }
}
