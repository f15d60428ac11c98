//! Peer state: the known nodes, the frames already received from each (duplicate detection), and
//! the known leader of every group.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::codec::{DecodeResult, Frame, Reader};
use crate::config::Config;
use crate::consensus::{Consensus, Message, MessageKind};
use crate::coordinator::AddressedReplica;
use crate::node::frames::item;
use crate::node::{Node, SendAfter};
use crate::{GroupId, NodeId, ReplicaId, codec};
use tenure_core::space::FIRST_RULES;

/// Frames this far behind the newest number are treated as duplicates.
const WINDOW: u64 = 1024;

/// The state of all peers.
#[derive(Debug)]
pub(crate) struct Peers {
    /// All nodes, this one included.
    pub(crate) nodes: BTreeSet<NodeId>,
    seen: BTreeMap<NodeId, SeenFrames>,
    down: BTreeSet<NodeId>,
    /// The known leader of each group, with its term.
    leaders: Vec<Option<(u64, ReplicaId)>>,
    /// Frames that could not be read.
    pub(crate) unreadable: u64,
}

/// Whether this process of a peer announced its rules number for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Announced {
    First,
    Again,
}

/// The frames of a peer that have been handled. At-most-once forwarding depends on it (R106:
/// forwarding is at most once).
#[derive(Debug)]
struct SeenFrames {
    incarnation: u32,
    /// Earlier incarnations.
    past: BTreeSet<u32>,
    start: u64,
    /// The rules number that this process of the peer has announced; zero before.
    rules: u32,
    /// For each slot of the sender: the newest number, and those handled in the window behind it.
    slots: BTreeMap<u8, (u64, BTreeSet<u64>)>,
}

impl Peers {
    pub(crate) fn new(config: &Config) -> Peers {
        let mut nodes: BTreeSet<NodeId> = config.nodes.iter().copied().collect();
        nodes.insert(config.me.node);
        Peers {
            nodes,
            seen: BTreeMap::new(),
            down: BTreeSet::new(),
            leaders: vec![None; config.cluster.group_count as usize + 1],
            unreadable: 0,
        }
    }

    /// Records a frame, and returns whether it is new.
    fn is_fresh(&mut self, sender: ReplicaId, start: u64, slot: u8, number: u64) -> bool {
        let seen = self.seen.entry(sender.node).or_insert_with(|| SeenFrames {
            incarnation: sender.incarnation,
            past: BTreeSet::new(),
            start,
            rules: 0,
            slots: BTreeMap::new(),
        });
        if seen.incarnation != sender.incarnation {
            if seen.past.contains(&sender.incarnation) {
                return false;
            }
            seen.past.insert(seen.incarnation);
            seen.incarnation = sender.incarnation;
            seen.start = 0;
            seen.rules = 0;
        }
        if start < seen.start {
            return false;
        }
        if start > seen.start {
            seen.start = start;
            // A restarted process may run another release.
            seen.rules = 0;
            seen.slots.clear();
        }
        let (newest, recent) = seen.slots.entry(slot).or_default();
        if number + WINDOW <= *newest || !recent.insert(number) {
            return false;
        }
        *newest = number.max(*newest);
        while recent
            .first()
            .is_some_and(|first| first + WINDOW <= *newest)
        {
            recent.pop_first();
        }
        true
    }

    /// Returns the newest rules number that a peer supports; that of release 0.1.0 before it
    /// announces more.
    pub(crate) fn rules(&self, node: NodeId) -> u32 {
        let announced = self.seen.get(&node).map_or(0, |seen| seen.rules);
        announced.max(FIRST_RULES)
    }

    /// Records the rules number that a peer announces.
    pub(crate) fn note_rules(&mut self, node: NodeId, number: u32) -> Announced {
        match self.seen.get_mut(&node) {
            Some(seen) if seen.rules == 0 => {
                seen.rules = number;
                Announced::First
            }
            _ => Announced::Again,
        }
    }

    pub(crate) fn is_down(&self, node: NodeId) -> bool {
        self.down.contains(&node)
    }

    /// Every other node.
    pub(crate) fn others(&self, me: NodeId) -> Vec<NodeId> {
        let others = self.nodes.iter().copied();
        others.filter(|node| *node != me).collect()
    }

    pub(crate) fn note_leader(&mut self, group: GroupId, term: u64, leader: ReplicaId) {
        if let Some(slot) = self.leaders.get_mut(group.0 as usize)
            && slot.is_none_or(|(known, _)| known <= term)
        {
            *slot = Some((term, leader));
        }
    }

    /// Forgets a leader after a report that this node does not lead the group.
    pub(crate) fn forget_leader(&mut self, group: GroupId, node: NodeId) {
        if let Some(slot) = self.leaders.get_mut(group.0 as usize)
            && slot.is_some_and(|(_, leader)| leader.node == node)
        {
            *slot = None;
        }
    }

    pub(crate) fn leader(&self, group: GroupId) -> Option<ReplicaId> {
        self.leadership(group).map(|(_, leader)| leader)
    }

    /// Returns the known leader of a group with its term.
    pub(crate) fn leadership(&self, group: GroupId) -> Option<(u64, ReplicaId)> {
        *self.leaders.get(group.0 as usize)?
    }
}

impl Node {
    pub(crate) fn receive(&mut self, from: NodeId, bytes: Bytes) {
        let mut frame = match Frame::open(bytes) {
            Ok(frame) if frame.sender.node == from && from != self.me.node => frame,
            Ok(_) | Err(_) => {
                self.peers.unreadable += 1;
                return;
            }
        };
        if !self
            .peers
            .is_fresh(frame.sender, frame.start, frame.slot, frame.number)
        {
            return;
        }
        self.peers.nodes.insert(from);
        // A frame proves that the peer is reachable again.
        if self.peers.down.contains(&from) {
            self.peer_up(from);
        }
        loop {
            match frame.next() {
                Ok(None) => return,
                Ok(Some((kind, content))) => {
                    if self.receive_item(frame.sender, kind, &content).is_err() {
                        self.peers.unreadable += 1;
                    }
                }
                Err(_) => {
                    self.peers.unreadable += 1;
                    return;
                }
            }
        }
    }

    fn receive_item(&mut self, from: ReplicaId, kind: u8, source: &Bytes) -> DecodeResult<()> {
        let mut content = Reader::new(source);
        match kind {
            item::MESSAGE => self.receive_message(from, source),
            item::LEADS => {
                while !content.is_empty() {
                    let group = content.take()?;
                    let term = content.number()?;
                    self.peers.note_leader(group, term, from);
                    self.leader_changed(group);
                }
                Ok(())
            }
            _ => self.receive_coordinator_item(from, kind, source),
        }
    }

    fn receive_message(&mut self, from: ReplicaId, source: &Bytes) -> DecodeResult<()> {
        let mut content = Reader::new(source);
        let id = content.take()?;
        let message = codec::message(&mut content, source)?;
        // A message for an earlier incarnation of this node must not reach the present one.
        let is_for_us = message.to.shares_disk(self.me) && message.from.shares_disk(from);
        if !is_for_us || id > self.system() {
            return Ok(());
        }
        let replica = message.to.replica;
        let opens = match self.addressed(id, replica) {
            AddressedReplica::Present => false,
            // A removed replica never votes or acknowledges.
            AddressedReplica::Past => return Ok(()),
            AddressedReplica::New => true,
            AddressedReplica::Again => {
                let tombstone = self.tombstones.get(&id);
                tombstone
                    .is_some_and(|tombstone| tombstone.may_be_over(message.term, message.commit))
            }
        };
        if self.addressed(id, replica) != AddressedReplica::Present {
            if message.kind == MessageKind::Heartbeat {
                self.answer_unknown_leader(id, &message);
            }
            // Only a leader that has us in its membership sends these.
            if message.kind != MessageKind::Append || message.commit == 0 || !opens {
                return Ok(());
            }
            self.open_new(id, replica);
        }
        if matches!(message.kind, MessageKind::Vote | MessageKind::PreVote) {
            self.answer_stranger(id, message.from);
        }
        if let Some(group) = self.group(id) {
            group.receive(message);
            self.activate(id);
        }
        Ok(())
    }

    /// Answers a leader whose replica does not exist here yet. If its first append was lost, it
    /// sends no other before it gets an answer. The answer has no ReadIndex context, so it confirms
    /// no round.
    fn answer_unknown_leader(&mut self, id: GroupId, message: &Message) {
        let tombstone = self
            .tombstones
            .get(&id)
            .map(|tombstone| tombstone.hard_state);
        let tombstone = tombstone.filter(|state| state.replica == message.to.replica);
        if message.term < tombstone.map_or(0, |state| state.term) {
            return;
        }
        let answer = Message {
            from: message.to,
            to: message.from,
            term: message.term,
            kind: MessageKind::HeartbeatAnswer,
            index: 0,
            log_term: 0,
            commit: 0,
            commit_term: 0,
            reject: None,
            request_snapshot: 0,
            entries: Vec::new(),
            context: Bytes::new(),
            snapshot: None,
        };
        self.frames().message(id, &answer, SendAfter::Now);
    }

    pub(crate) fn set_cluster(&mut self, nodes: Vec<NodeId>) {
        self.peers.nodes = nodes.into_iter().collect();
        self.peers.nodes.insert(self.me.node);
    }

    pub(crate) fn peer_up(&mut self, node: NodeId) {
        self.peers.down.remove(&node);
        self.peers.nodes.insert(node);
        self.announce_rules(node);
        self.announce_all(node);
        self.coordinator_peer_up(node);
    }

    /// Handles a broken connection. Followers of the peer's groups need not wait for the election
    /// timeout.
    pub(crate) fn peer_down(&mut self, node: NodeId) {
        self.peers.down.insert(node);
        for at in 0..self.groups.len() {
            let Some(group) = &mut self.groups[at] else {
                continue;
            };
            let id = group.id;
            if group.leader().is_some_and(|leader| leader.node == node) {
                let rank = group.rank_after(node);
                group.replica.leader_is_gone(rank);
                self.activate(id);
            } else if group.replica.role() == crate::Role::Leader {
                let members = group.membership().everybody();
                for member in members.into_iter().filter(|member| member.node == node) {
                    group.replica.unreachable(member);
                }
                self.activate(id);
            }
            self.peers.forget_leader(id, node);
        }
        self.transfers_lost(node);
        self.coordinator_peer_down(node);
    }

    /// Announces to a peer the groups that this node leads.
    pub(crate) fn announce_all(&mut self, to: NodeId) {
        let led: Vec<(GroupId, u64)> = self
            .groups
            .iter()
            .flatten()
            .filter(|group| group.is_led())
            .map(|group| (group.id, group.replica.term()))
            .collect();
        if !led.is_empty() {
            self.announce(to, &led);
        }
    }

    pub(crate) fn announce(&mut self, to: NodeId, led: &[(GroupId, u64)]) {
        self.frames().say(to, item::LEADS, |out| {
            for (group, term) in led {
                out.put(group);
                out.number(*term);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClusterConfig, Limits};
    use tenure_core::policy::Algorithm;

    fn member(incarnation: u32) -> ReplicaId {
        ReplicaId::new(NodeId::new(2).unwrap(), incarnation)
    }

    fn peers() -> Peers {
        Peers::new(&Config {
            me: member(1),
            cluster: ClusterConfig {
                group_count: 1,
                prefix_segments: 1,
                default_algorithm: Algorithm::RecursiveRw,
            },
            limits: Limits::default(),
            start: 1,
            seed: 1,
            nodes: Vec::new(),
        })
    }

    /// R106: a frame that arrives twice, or late from an earlier process or incarnation, is not handled again.
    #[test]
    fn every_frame_is_handled_at_most_once() {
        let mut peers = peers();
        assert!(peers.is_fresh(member(1), 5, 0, 1));
        assert!(peers.is_fresh(member(1), 5, 0, 3));
        assert!(peers.is_fresh(member(1), 5, 0, 2), "order does not matter");
        assert!(!peers.is_fresh(member(1), 5, 0, 2));
        assert!(peers.is_fresh(member(1), 5, 1, 2), "another slot");
        assert!(
            peers.is_fresh(member(1), 6, 0, 1),
            "a new process counts anew"
        );
        assert!(!peers.is_fresh(member(1), 5, 0, 9), "the old one is over");
        assert!(peers.is_fresh(member(1), 6, 0, 5_000));
        assert!(!peers.is_fresh(member(1), 6, 0, 2), "too old to tell");
        assert!(peers.is_fresh(member(7), 1, 0, 1), "a new life");
        assert!(!peers.is_fresh(member(1), 6, 0, 6_000), "no way back");
    }
}
