//! Log compaction, and snapshot transfer to replicas that are too far behind.
//!
//! ```text
//!   log too long ─▶ SaveSnapshot ─▶ SnapshotSaved ─▶ the log begins there
//!   peer too far behind ─▶ EncodeSnapshot ─▶ SnapshotEncoded ─▶ chunks on the bulk channel, a few at a time ─▶ installed ─▶ reported
//! ```

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};

use crate::codec::{DecodeError, DecodeResult, Reader};
use crate::consensus::{Consensus, EntriesSize, Membership, Message};
use crate::coordinator::AddressedReplica;
use crate::node::frames_item as item;
use crate::node::{Node, keep_room};
use crate::{
    Base, GroupId, LogPosition, LogWrite, NodeId, Output, ReplicaId, Snapshot, SnapshotImage, codec,
};

/// Size of a chunk.
const CHUNK_BYTES: usize = 256 * 1024;
/// Bytes in flight to one node, for all groups together: enough for a fast link with high latency,
/// and a fraction of a connection's queue.
const WINDOW_BYTES: usize = 4 * 1024 * 1024;
/// Maximum bytes of snapshots that wait to be sent, for all nodes together. Beyond it, the library
/// asks again with the next heartbeat.
const QUEUED_BYTES: usize = 64 * 1024 * 1024;
/// Maximum snapshots that are encoded for peers at the same time.
const ENCODED_AT_ONCE: usize = 4;
/// A transfer without progress for this long has failed. The total time has no limit (R170: large
/// transfers complete).
const STALLED_AFTER_MS: u64 = 15_000;
/// A larger snapshot is refused before memory is allocated for it.
const MAX_STATE_BYTES: u64 = 4 * 1024 * 1024 * 1024;

/// Bytes of log that a replica without peers keeps in memory. Small, because every group that was
/// ever busy may keep as much.
const LONE_BYTES: usize = 4 * 1024;

/// Snapshots that are being saved, sent or received.
#[derive(Debug, Default)]
pub(crate) struct SnapshotTransfers {
    /// Snapshots made for peers, by group.
    offered: BTreeMap<GroupId, (LogPosition, Bytes)>,
    outgoing: BTreeMap<(GroupId, ReplicaId), OutgoingSnapshot>,
    /// Unfinished transfers to each node, in the order of their start. They run one after the
    /// other, so that the first snapshot arrives early.
    queues: BTreeMap<NodeId, VecDeque<(GroupId, ReplicaId)>>,
    incoming: BTreeMap<GroupId, IncomingSnapshot>,
    /// Snapshots that are being encoded for peers.
    encoding: BTreeMap<GroupId, Base>,
    /// Snapshots that are being saved to cut a log.
    saving: BTreeMap<GroupId, SnapshotSave>,
}

#[derive(Debug)]
struct SnapshotSave {
    place: LogPosition,
    /// The membership at that position.
    membership: Membership,
    /// The size of the log when the save began.
    covered: EntriesSize,
}

#[derive(Debug)]
struct OutgoingSnapshot {
    message: Bytes,
    place: LogPosition,
    data: Bytes,
    sent: usize,
    taken: usize,
    last_progress: u64,
}

#[derive(Debug)]
struct IncomingSnapshot {
    from: ReplicaId,
    to: ReplicaId,
    place: LogPosition,
    total: usize,
    data: BytesMut,
}

impl SnapshotTransfers {
    /// Drops all transfers of a removed replica.
    pub(crate) fn forget(&mut self, id: GroupId) {
        self.offered.remove(&id);
        self.encoding.remove(&id);
        self.incoming.remove(&id);
        self.saving.remove(&id);
        self.outgoing.retain(|(group, _), _| *group != id);
        for queue in self.queues.values_mut() {
            queue.retain(|(group, _)| *group != id);
        }
    }

    /// Whether another snapshot may be made for a peer.
    fn has_room(&self) -> bool {
        let queued = self.outgoing.values();
        let queued: usize = queued.map(|one| one.data.len() - one.sent).sum();
        queued < QUEUED_BYTES && self.encoding.len() < ENCODED_AT_ONCE
    }

    /// Returns the bytes in flight to a node.
    fn in_flight(&self, node: NodeId) -> usize {
        let outgoing = self.outgoing.iter();
        let to_node = outgoing.filter(|((_, member), _)| member.node == node);
        to_node.map(|(_, one)| one.sent - one.taken).sum()
    }

    fn end(&mut self, id: GroupId, to: ReplicaId) {
        self.outgoing.remove(&(id, to));
        if let Some(queue) = self.queues.get_mut(&to.node) {
            queue.retain(|one| *one != (id, to));
        }
    }
}

impl Node {
    /// Saves snapshots of groups whose log is too long, to cut it afterwards.
    pub(crate) fn cut_logs(&mut self) {
        let mut touched = std::mem::take(&mut self.touched);
        for id in touched.drain(..) {
            let limits = &self.config.limits;
            let Some(Some(group)) = self.groups.get_mut(id.0 as usize) else {
                continue;
            };
            let wanted = group.replica.store().take_wanted();
            if wanted {
                if self.transfers.has_room() {
                    self.offer_state(id);
                }
                continue;
            }
            let store = group.replica.store();
            if store.kept_bytes() > LONE_BYTES && group.membership().everybody().len() == 1 {
                // Without peers no replica can ask for applied entries; a future peer gets a
                // snapshot.
                let (applied, membership) = (group.applied.index, group.membership().clone());
                group.replica.store_mut().forget(applied, membership);
            }
            let log = group.replica.store().weight();
            // A larger state allows a longer log, so that the cost of a snapshot stays proportional
            // to the entries that it replaces.
            let worth = 1 + group.state_bytes / limits.log_bytes.max(1);
            let entries = limits.log_entries.saturating_mul(worth);
            let long = log.entries > entries.saturating_add(limits.log_kept)
                || log.bytes > limits.log_bytes.saturating_mul(worth);
            if long {
                self.cut_log(id);
            }
        }
        keep_room(touched, &mut self.touched);
    }

    /// Saves a snapshot of a group; the log is cut there when it is durable.
    pub(crate) fn cut_log(&mut self, id: GroupId) {
        let Some(Some(group)) = self.groups.get_mut(id.0 as usize) else {
            return;
        };
        let place = group.applied;
        let index = place.index;
        let is_new = index > group.cut_at && index > Base::BIRTH.index;
        if !is_new || self.transfers.saving.contains_key(&id) {
            return;
        }
        let membership = group.membership().clone();
        let image = SnapshotImage::new(id, index, &mut group.machine);
        group.state_bytes = group.machine.approximate_bytes();
        let saving = SnapshotSave {
            place,
            membership,
            covered: group.replica.store().weight(),
        };
        self.transfers.saving.insert(id, saving);
        self.outputs.push(Output::SaveSnapshot(image));
    }

    /// A snapshot is durable: the log may begin there.
    pub(crate) fn snapshot_saved(&mut self, id: GroupId, index: u64) {
        let Some(saved) = self.transfers.saving.remove(&id) else {
            return;
        };
        if saved.place.index != index {
            return;
        }
        let membership = saved.membership;
        let (kept, kept_bytes) = (
            self.config.limits.log_kept,
            self.config.limits.log_bytes / 4,
        );
        let Some(group) = self.group(id) else {
            return;
        };
        let base = Base {
            place: saved.place,
            membership: membership.clone(),
        };
        let hard_state = group.replica.store().hard_state();
        // On disk the log begins at the snapshot; in memory a tail stays for slow followers.
        group.cut_at = index;
        let store = group.replica.store();
        let keep_from = index.min(store.tail(kept, kept_bytes));
        if keep_from > store.base().place.index {
            group.replica.store_mut().compact(keep_from, membership);
        }
        group.replica.store_mut().was_cut(saved.covered);
        self.turn.writes.push((id, LogWrite::Cut(Box::new(base))));
        self.turn.writes.push((id, LogWrite::HardState(hard_state)));
    }

    /// Makes a snapshot of the applied state for a peer.
    fn offer_state(&mut self, id: GroupId) {
        if self.transfers.encoding.contains_key(&id) {
            return;
        }
        let Some(group) = self.group(id) else {
            return;
        };
        let place = group.applied;
        let base = Base {
            place,
            membership: group.membership().clone(),
        };
        let image = SnapshotImage::new(id, place.index, &mut group.machine);
        self.transfers.encoding.insert(id, base);
        self.outputs.push(Output::EncodeSnapshot(image));
    }

    /// A snapshot for peers is encoded: consensus sends it when it next tries.
    pub(crate) fn snapshot_encoded(&mut self, snapshot: Snapshot) {
        let id = snapshot.group;
        let Some(base) = self.transfers.encoding.remove(&id) else {
            return;
        };
        let Some(group) = self.group(id) else {
            return;
        };
        // A member that was added since would not accept it; consensus asks for another one.
        if base.place.index != snapshot.index || base.membership != *group.membership() {
            return;
        }
        let place = base.place;
        group.replica.store_mut().offer(Some(base));
        self.transfers.offered.insert(id, (place, snapshot.data));
        self.activate(id);
    }

    /// Sends a snapshot of consensus in chunks; the Raft message goes with the first.
    pub(crate) fn send_snapshot(&mut self, id: GroupId, message: Message) {
        let to = message.to;
        let place = message.snapshot.as_ref().map(|base| base.place);
        let offered = self.transfers.offered.get(&id);
        let data = match (place, offered) {
            (Some(place), Some((offered, data))) if place == *offered => data.clone(),
            _ => {
                self.report_snapshot(id, to, SnapshotArrival::Failed);
                return;
            }
        };
        let Some(place) = place else { return };
        let mut out = codec::Writer::new();
        codec::encode_message(&mut out, &message);
        let last_progress = self.now_ms();
        self.transfers.end(id, to);
        self.transfers.outgoing.insert(
            (id, to),
            OutgoingSnapshot {
                message: out.into_bytes().into(),
                place,
                data,
                sent: 0,
                taken: 0,
                last_progress,
            },
        );
        let queue = self.transfers.queues.entry(to.node).or_default();
        queue.push_back((id, to));
        self.send_chunks(to.node);
    }

    /// Sends chunks to a node until its window is full.
    fn send_chunks(&mut self, node: NodeId) {
        let now_ms = self.now_ms();
        let mut in_flight = self.transfers.in_flight(node);
        while in_flight < WINDOW_BYTES
            && let Some(queue) = self.transfers.queues.get_mut(&node)
            && let Some((id, to)) = queue.front().copied()
        {
            let Some(outgoing) = self.transfers.outgoing.get_mut(&(id, to)) else {
                queue.pop_front();
                continue;
            };
            let offset = outgoing.sent;
            let end = (offset + CHUNK_BYTES).min(outgoing.data.len());
            let chunk = outgoing.data.slice(offset..end);
            if outgoing.sent == outgoing.taken {
                // It waited for earlier transfers, not for the peer, so it has not stalled.
                outgoing.last_progress = now_ms;
            }
            outgoing.sent = end;
            in_flight += chunk.len();
            let (message, total, place) = (
                outgoing.message.clone(),
                outgoing.data.len(),
                outgoing.place,
            );
            if end == total {
                queue.pop_front();
            }
            self.frames().bulk(node, item::CHUNK, |out| {
                out.put(&id);
                out.put(&to);
                out.put(&place);
                out.length(total);
                out.length(offset);
                out.slice(&chunk);
                out.raw(&message);
            });
        }
    }

    pub(crate) fn receive_chunk(&mut self, from: ReplicaId, source: &Bytes) -> DecodeResult<()> {
        let mut content = Reader::new(source);
        let id = content.take()?;
        let to: ReplicaId = content.take()?;
        let place: LogPosition = content.take()?;
        let (total, offset) = (content.number()?, content.number()?);
        let chunk = content.slice()?;
        let message = codec::message(&mut content, source)?;
        if message.to != to || !to.shares_disk(self.me) {
            // For an earlier incarnation of this node.
            return Ok(());
        }
        if id > self.system() || total > MAX_STATE_BYTES {
            return Err(DecodeError::Number);
        }
        // A snapshot whose membership lacks the replica is older than the replica.
        let knows = |base: &Base| base.place == place && base.membership.everybody().contains(&to);
        if !message.snapshot.as_deref().is_some_and(knows)
            || self.addressed(id, to.replica) == AddressedReplica::Past
        {
            return Ok(());
        }
        let total = usize::try_from(total).map_err(|_| DecodeError::Number)?;
        let offset = usize::try_from(offset).map_err(|_| DecodeError::Number)?;
        if offset == 0 {
            let data = BytesMut::new();
            self.transfers.incoming.insert(
                id,
                IncomingSnapshot {
                    from,
                    to,
                    place,
                    total,
                    data,
                },
            );
        }
        let Some(incoming) = self.transfers.incoming.get_mut(&id) else {
            return Ok(());
        };
        let continues = incoming.from == from
            && incoming.to == to
            && incoming.place == place
            && incoming.total == total
            && incoming.data.len() == offset
            && offset + chunk.len() <= total;
        if !continues {
            return Ok(());
        }
        incoming.data.extend_from_slice(chunk);
        let taken = incoming.data.len();
        if taken == total
            && let Some(incoming) = self.transfers.incoming.remove(&id)
        {
            self.state_arrived(id, place, incoming.data.freeze(), message);
        }
        // Sent on the main channel: it is small and urgent, and the bulk channel may not be open in
        // this direction.
        self.frames().say(from.node, item::CHUNK_TAKEN, |out| {
            out.put(&id);
            out.put(&place);
            out.length(taken);
            if to.replica != 0 {
                out.number(to.replica);
            }
        });
        Ok(())
    }

    fn state_arrived(&mut self, id: GroupId, place: LogPosition, data: Bytes, message: Message) {
        let Some(machine) = self.decode_state(id, &data) else {
            self.peers.unreadable += 1;
            return;
        };
        let replica = message.to.replica;
        match self.addressed(id, replica) {
            AddressedReplica::Present => {}
            AddressedReplica::Past => return,
            AddressedReplica::New => self.open_new(id, replica),
            AddressedReplica::Again => {
                let tombstone = self.tombstones.get(&id);
                if !tombstone
                    .is_some_and(|tombstone| tombstone.may_be_over(message.term, place.index))
                {
                    return;
                }
                self.open_new(id, replica);
            }
        }
        if let Some(group) = self.group(id) {
            group.receive_state(message, place, machine, data);
            self.activate(id);
        }
    }

    /// Consensus has installed the snapshot: its bytes must be durable before the batch of this
    /// step.
    pub(crate) fn installed(&mut self, id: GroupId) {
        let Some(group) = self.group(id) else {
            return;
        };
        let index = group.applied.index;
        if let Some(data) = group.installed_data.take() {
            self.installs.push(Snapshot {
                group: id,
                index,
                data,
            });
        }
        if let Some(group) = self.group(id) {
            group.cut_at = index;
        }
        self.transfers.saving.remove(&id);
        if id == self.system() {
            self.system_changed();
        }
    }

    pub(crate) fn receive_chunk_taken(
        &mut self,
        from: ReplicaId,
        content: &mut Reader<'_>,
    ) -> DecodeResult<()> {
        let id = content.take()?;
        let place: LogPosition = content.take()?;
        let taken = content.number()?;
        let from = if content.is_empty() {
            from
        } else {
            from.numbered(content.number()?)
        };
        let now_ms = self.now_ms();
        let Some(outgoing) = self.transfers.outgoing.get_mut(&(id, from)) else {
            return Ok(());
        };
        if outgoing.place != place {
            return Ok(());
        }
        outgoing.taken = usize::try_from(taken)
            .unwrap_or(usize::MAX)
            .clamp(outgoing.taken, outgoing.sent);
        outgoing.last_progress = now_ms;
        if outgoing.taken >= outgoing.data.len() {
            self.report_snapshot(id, from, SnapshotArrival::Arrived);
        }
        self.send_chunks(from.node);
        Ok(())
    }

    /// Reports the result of a transfer to consensus; without it the peer's progress stays paused.
    fn report_snapshot(&mut self, id: GroupId, to: ReplicaId, arrival: SnapshotArrival) {
        self.transfers.end(id, to);
        let busy = self
            .transfers
            .outgoing
            .keys()
            .any(|(group, _)| *group == id);
        if let Some(group) = self.group(id) {
            group
                .replica
                .snapshot_sent(to, arrival == SnapshotArrival::Arrived);
            if !busy {
                // The next peer gets a new snapshot.
                group.replica.store_mut().offer(None);
            }
            self.activate(id);
        }
        if !busy {
            self.transfers.offered.remove(&id);
        }
    }

    pub(crate) fn transfers_lost(&mut self, node: NodeId) {
        let lost: Vec<(GroupId, ReplicaId)> = self
            .transfers
            .outgoing
            .keys()
            .copied()
            .filter(|(_, member)| member.node == node)
            .collect();
        for (id, to) in lost {
            self.report_snapshot(id, to, SnapshotArrival::Failed);
        }
    }

    pub(crate) fn tick_transfers(&mut self) {
        let now_ms = self.now_ms();
        let stalled: Vec<(GroupId, ReplicaId)> = self
            .transfers
            .outgoing
            .iter()
            .filter(|(_, outgoing)| {
                outgoing.sent > outgoing.taken
                    && outgoing.last_progress + STALLED_AFTER_MS <= now_ms
            })
            .map(|(key, _)| *key)
            .collect();
        for (id, to) in stalled {
            self.report_snapshot(id, to, SnapshotArrival::Failed);
            self.send_chunks(to.node);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SnapshotArrival {
    Arrived,
    Failed,
}
