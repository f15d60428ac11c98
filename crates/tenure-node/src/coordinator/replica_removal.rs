//! Replica garbage collection: deletes replicas that their group has removed (R166 (draining a
//! node)).
//!
//! ```text
//!   a leader's hint, or silence ──▶ "am I still a member?" ──▶ leader ──▶ "no" ──▶ replica deleted
//!   a message for a later replica of the same node ──────────────────────────────▶ replica deleted
//! ```
//!
//! A removed replica may never receive the entry that removed it, after a partition or a leader
//! failure. The leader sends it a hint after the removal and for each of its vote requests. A
//! learner never campaigns. So a replica that hears from no leader for a while asks all nodes. A
//! leader whose membership lacks the replica answers "no" after a ReadIndex round.
//!
//! The leader answers "no" only when a majority of the voters has acknowledged a commit index that
//! covers the removal. Before that, a voter that has the entry but does not know that it is
//! committed still uses the earlier configuration, and may need the vote of the removed replica.
//!
//! A deleted replica leaves a tombstone: its number. The node drops every message to this number or
//! a lower one. A replica that is added again has a higher number
//! (docs/design/replica-identity.md).
//!
//! Under the rules of release 0.1.0 a replica that is added again has the same identity, so a late
//! "no" must not delete the new replica. A "no" counts only as the answer to the latest question,
//! and only if no leader has contacted the replica since the question. Then the answering leader
//! knew everything that the replica acknowledged before the question, and the replica acknowledged
//! nothing after it.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::codec::{DecodeResult, Reader, Writer};
use crate::consensus::{Consensus, ReplicaNumbering};
use crate::group::{Group, LeadershipCheck};
use crate::node::frames_item as item;
use crate::node::{Node, Tombstone};
use crate::{GroupId, HardState, LogPosition, LogWrite, NodeId, ReplicaId};

/// A replica asks after so many ticks without a message from a leader, and repeats it. Long enough
/// for an election.
const SILENT_TICKS: u64 = 20;

/// How long a replica has heard from no leader, and its latest question.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LeaderSilence {
    ticks: u64,
    question: Option<u64>,
}

/// Questions of non-members that wait for a ReadIndex round: the sender, and the number of its
/// question.
pub(crate) type UnknownSenders = BTreeMap<u64, (ReplicaId, u64)>;

impl LeaderSilence {
    pub(crate) fn tick(&mut self) {
        self.ticks += 1;
    }

    fn is_long(self) -> bool {
        self.ticks > 0 && self.ticks.is_multiple_of(SILENT_TICKS)
    }
}

impl Node {
    /// Replicas that have heard from no leader for long ask all nodes whether they are still
    /// members.
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
        let number = self.coordinator.next_number();
        let Some(group) = self.group(id) else {
            return;
        };
        group.silence.question = Some(number);
        let replica = group.me.replica;
        // Pending acknowledgements are sent before the question: under the rules of release 0.1.0 a
        // late one would count for a replica that was added again.
        let after_writes = group.has_unsynced();
        for node in nodes {
            // Release 0.1.0 knows no replica numbers, and ignores an item that it does not know.
            let kind = if replica == 0 {
                item::AM_I_MEMBER
            } else {
                item::IS_REPLICA_MEMBER
            };
            let content = |out: &mut Writer| {
                out.put(&id);
                out.number(number);
                if replica != 0 {
                    out.number(replica);
                }
            };
            if after_writes {
                self.frames().say_after_writes(*node, kind, content);
            } else {
                self.frames().say(*node, kind, content);
            }
        }
    }

    /// Handles the question. Only a leader whose membership lacks the sender answers; members hear
    /// from it anyway.
    pub(crate) fn receive_am_i_member(
        &mut self,
        from: ReplicaId,
        content: &mut Reader<'_>,
    ) -> DecodeResult<()> {
        let id = content.take()?;
        let question = content.number()?;
        let replica = if content.is_empty() {
            0
        } else {
            content.number()?
        };
        content.finish()?;
        let from = from.numbered(replica);
        if self.leads_without(id, from) {
            let number = self.coordinator.next_number();
            self.coordinator.strangers.insert(number, (from, question));
            if let Some(Some(group)) = self.groups.get_mut(id.0 as usize) {
                group.confirm_leadership(number, &mut self.turn);
                self.activate(id);
            }
        }
        Ok(())
    }

    fn leads_without(&self, id: GroupId, member: ReplicaId) -> bool {
        self.group_ref(id).is_some_and(|group| {
            group.is_led() && !group.membership().everybody().contains(&member)
        })
    }

    /// Answers a non-member's question after its ReadIndex round.
    pub(crate) fn confirmed_for_stranger(
        &mut self,
        number: u64,
        id: GroupId,
        leadership_confirmed: LeadershipCheck,
    ) {
        let Some((stranger, question)) = self.coordinator.strangers.remove(&number) else {
            return;
        };
        if leadership_confirmed == LeadershipCheck::No || !self.leads_without(id, stranger) {
            return;
        }
        let Some(group) = self.group_ref(id) else {
            return;
        };
        if !group.removals_are_known() {
            // Removals are not widely known yet. The sender asks again, or gets a hint when they
            // are.
            return;
        }
        let index = group.applied.index;
        let hard_state = group.replica.store().hard_state();
        // After a restart the membership is that of the commit index on disk: if that did not cover
        // the removal, the removed replica's vote could be needed again.
        let state = HardState {
            commit: hard_state.commit.max(index),
            ..hard_state
        };
        self.turn.writes.push((id, LogWrite::HardState(state)));
        self.turn.must_sync = true;
        self.frames()
            .say_after_writes(stranger.node, item::NOT_A_MEMBER, |out| {
                out.put(&id);
                out.put(&stranger);
                out.number(question);
                out.number(index);
            });
    }

    pub(crate) fn receive_not_a_member(&mut self, content: &mut Reader<'_>) -> DecodeResult<()> {
        let id = content.take()?;
        let (member, question) = (content.take()?, content.number()?);
        let index = content.number()?;
        content.finish()?;
        let is_meant = self
            .group_ref(id)
            .is_some_and(|group| group.silence.question == Some(question) && group.me == member);
        if is_meant {
            self.remove_replica(id, index);
        }
        Ok(())
    }

    /// Sends the hints that waited until a majority knew of the removals.
    pub(crate) fn hint_all_removed(&mut self) {
        for at in 0..self.groups.len() {
            let Some(group) = &mut self.groups[at] else {
                continue;
            };
            if group.to_hint.is_empty() || (group.is_led() && !group.removals_are_known()) {
                continue;
            }
            // A node that no longer leads drops the hints: the removed replica asks by itself.
            let (id, leads) = (group.id, group.is_led());
            for member in std::mem::take(&mut group.to_hint) {
                if leads {
                    self.hint_removed(id, member);
                }
            }
        }
    }

    /// Sends a removed replica a hint to ask whether it is still a member.
    pub(crate) fn hint_removed(&mut self, id: GroupId, member: ReplicaId) {
        if member.node == self.me.node {
            return;
        }
        let Some(group) = self.group_ref(id) else {
            return;
        };
        let index = group.applied.index;
        self.frames().say(member.node, item::REMOVED, |out| {
            out.put(&id);
            out.put(&member);
            out.number(index);
        });
    }

    /// Handles a vote request of a non-member: it does not know yet that it was removed.
    pub(crate) fn answer_stranger(&mut self, id: GroupId, from: ReplicaId) {
        if self.leads_without(id, from) {
            self.hint_removed(id, from);
        }
    }

    pub(crate) fn receive_removed(
        &mut self,
        from: ReplicaId,
        content: &mut Reader<'_>,
    ) -> DecodeResult<()> {
        let id = content.take()?;
        let (member, _index) = (content.take()?, content.number()?);
        content.finish()?;
        let is_meant = |group: &Group| group.me == member && !group.leads();
        if self.group_ref(id).is_some_and(is_meant) {
            self.ask_membership(id, &[from.node]);
        }
        Ok(())
    }

    /// Closes the replica and deletes its data.
    fn remove_replica(&mut self, id: GroupId, index: u64) {
        let Some(group) = self.groups.get_mut(id.0 as usize).and_then(Option::take) else {
            return;
        };
        let hard_state = tombstone(&group);
        group.close(&mut self.turn);
        self.turn.writes.push((id, LogWrite::Removed));
        self.turn.writes.push((id, LogWrite::HardState(hard_state)));
        self.tombstones.insert(id, Tombstone { hard_state, index });
        self.transfers.forget(id);
        self.turn.must_sync = true;
        let me = self.me.node;
        self.peers.forget_leader(id, me);
    }

    /// Returns how a replica number relates to the replica on this node.
    pub(crate) fn addressed(&self, id: GroupId, replica: u64) -> AddressedReplica {
        if let Some(group) = self.group_ref(id) {
            return match replica.cmp(&group.me.replica) {
                Ordering::Less => AddressedReplica::Past,
                Ordering::Equal => AddressedReplica::Present,
                Ordering::Greater => AddressedReplica::New,
            };
        }
        let Some(tombstone) = self.tombstones.get(&id) else {
            return AddressedReplica::New;
        };
        match replica.cmp(&tombstone.hard_state.replica) {
            Ordering::Less => AddressedReplica::Past,
            Ordering::Equal if tombstone.hard_state.removed => AddressedReplica::Past,
            Ordering::Equal => AddressedReplica::Again,
            Ordering::Greater => AddressedReplica::New,
        }
    }

    /// Opens an empty replica that a leader has added. A committed change removed any older replica
    /// on this node before, so that one is deleted, and its tombstone is written first.
    pub(crate) fn open_new(&mut self, id: GroupId, replica: u64) {
        self.remove_replica(id, 0);
        self.open_empty(id, replica);
    }
}

/// The relation of a replica number to the replica on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressedReplica {
    /// The present replica.
    Present,
    /// A removed replica, which never returns.
    Past,
    /// A replica that does not exist here yet. Its number proves that a committed entry added it.
    New,
    /// A replica that was here and may return: empty since the node restarted, or removed and added
    /// again under the rules of release 0.1.0.
    Again,
}

/// Returns the tombstone of a replica.
fn tombstone(group: &Group) -> HardState {
    let store = group.replica.store();
    let now = store.hard_state();
    if group.me.replica != 0 || group.numbering(0) != ReplicaNumbering::None {
        // The identity is never used again, so its term and vote no longer matter.
        return HardState {
            replica: group.me.replica,
            removed: true,
            ..HardState::default()
        };
    }
    // It may return under the same identity: then it must not vote twice in a term, and must not
    // help elect a leader that lacks entries that it acknowledged.
    let index = store.last_index();
    let end = LogPosition {
        term: store.term_of(index).unwrap_or(now.term),
        index,
    };
    HardState {
        commit: 0,
        floor: end.max(now.floor),
        ..now
    }
}
