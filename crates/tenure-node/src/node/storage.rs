//! Disk stall detection.
//!
//! Heartbeats need no disk, so a leader whose disk hangs looks healthy to its followers while it
//! can neither apply nor answer new entries. Only the node itself knows the age of its oldest write
//! that is not durable:
//!
//! ```text
//!   half an election timeout ─▶ sends this age to all peers and asks about their disks
//!   an election timeout      ─▶ does not campaign, fails Health, transfers leaderships
//!   two election timeouts    ─▶ answers proposals in groups that it lost: unknown outcome
//!   20 s, more for much data ─▶ the node stops
//! ```
//!
//! A transfer goes to a voter with a healthy disk. It needs no disk on this node: followers have
//! acknowledged the entries, and the target campaigns with their votes. A node that was slow within
//! the last minute is no target, so leaderships stay if all disks are slow.

use std::collections::{BTreeMap, VecDeque};

use super::TICK_MS;
use super::frames::item;
use crate::codec::{DecodeResult, Reader};
use crate::consensus::{Consensus, ELECTION_TICKS};
use crate::group::WrittenWork;
use crate::node::Node;
use crate::{GroupId, Mark, NodeId, ReplicaId, Role};

/// A disk is slow when a write takes this long: one election timeout.
const SLOW_MS: u64 = ELECTION_TICKS as u64 * TICK_MS;
/// From here on peers are asked, so that their answers are there when the disk counts as slow. A peer whose
/// writes take longer is no target.
const SUSPECT_MS: u64 = SLOW_MS / 2;
/// How often peers are asked.
const ASK_EVERY_MS: u64 = 2 * TICK_MS;
/// A node with a slow disk is no target for this long.
const RECOVERED_AFTER_MS: u64 = 60_000;
/// The node stops when a write takes longer.
const HUNG_MS: u64 = 20_000;
/// A write of many bytes has more time: a disk slower than this counts as hung.
const LEAST_BYTES_PER_MS: u64 = 4 * 1024;

/// Disk health of this node and of its peers.
#[derive(Debug, Default)]
pub(crate) struct Storage {
    /// Writes that are not durable yet, the oldest first.
    unsynced: VecDeque<Unsynced>,
    /// When its own disk was last suspected.
    suspected_at: Option<u64>,
    asked_at: Option<u64>,
    peers: BTreeMap<NodeId, PeerDisk>,
    /// When groups were last handed over because of a slow disk.
    handed_over: BTreeMap<GroupId, u64>,
}

#[derive(Debug)]
struct Unsynced {
    mark: Mark,
    /// The time when it was handed out.
    since: u64,
    bytes: u64,
    numbers: Vec<WrittenWork>,
}

/// The last report of a peer about its disk.
#[derive(Clone, Copy, Debug)]
struct PeerDisk {
    heard_at: u64,
    /// When it was slow, if it ever was while this process listened, by this node's clock.
    slow_at: Option<u64>,
}

impl Storage {
    /// A batch was handed out for writing.
    pub(super) fn wrote(&mut self, mark: Mark, since: u64, bytes: u64, numbers: Vec<WrittenWork>) {
        self.unsynced.push_back(Unsynced {
            mark,
            since,
            bytes,
            numbers,
        });
    }

    /// The next write that is durable when this mark is.
    pub(super) fn synced(&mut self, mark: Mark) -> Option<Vec<WrittenWork>> {
        let next = self.unsynced.pop_front_if(|one| one.mark <= mark)?;
        Some(next.numbers)
    }

    /// How long the oldest write has not been durable.
    pub(super) fn age(&self, now_ms: u64) -> u64 {
        let oldest = self.unsynced.front();
        oldest.map_or(0, |oldest| now_ms.saturating_sub(oldest.since))
    }

    fn is_hung(&self, now_ms: u64) -> bool {
        let bytes: u64 = self.unsynced.iter().map(|one| one.bytes).sum();
        self.age(now_ms) >= HUNG_MS + bytes / LEAST_BYTES_PER_MS
    }

    /// Whether a peer's disk was slow a short while ago.
    fn was_slow(&self, node: NodeId, now_ms: u64) -> bool {
        let slow_at = self.peers.get(&node).and_then(|peer| peer.slow_at);
        slow_at.is_some_and(|at| now_ms.saturating_sub(at) < RECOVERED_AFTER_MS)
    }

    /// Whether a peer has just said that its disk is, and was, fast.
    fn is_healthy(&self, node: NodeId, now_ms: u64) -> bool {
        let heard = self.peers.get(&node).is_some_and(|peer| {
            let age = now_ms.saturating_sub(peer.heard_at);
            age < SUSPECT_MS
        });
        heard && !self.was_slow(node, now_ms)
    }
}

impl Node {
    /// How long the oldest write of this node has not been durable, in milliseconds.
    pub(crate) fn unsynced_ms(&self) -> u64 {
        self.storage.age(self.now_ms())
    }

    /// Whether writes take longer than an election timeout.
    pub(crate) fn has_slow_disk(&self) -> bool {
        self.unsynced_ms() >= SLOW_MS
    }

    /// Whether a write takes so long that the node stops, or has stopped.
    pub fn has_hung_disk(&self) -> bool {
        self.storage.is_hung(self.now_ms())
    }

    /// Whether leadership may be given to a member: not if its disk was slow a short while ago.
    pub(crate) fn may_be_given(&self, to: ReplicaId) -> bool {
        !self.storage.was_slow(to.node, self.now_ms())
    }

    /// Before the groups tick: those of a node with a slow disk do not campaign.
    pub(crate) fn storage_tick(&mut self) {
        let now_ms = self.now_ms();
        if self.storage.is_hung(now_ms) {
            let age = self.storage.age(now_ms) / 1000;
            self.turn.stop = Some(format!(
                "the disk has not completed a write of the log for {age} s: \
                 check the disk under the data directory, then start this node again"
            ));
            return;
        }
        let age = self.storage.age(now_ms);
        let slow = age >= SLOW_MS;
        for group in self.groups.iter_mut().flatten() {
            group.replica.hold_back(slow);
        }
        if age < SUSPECT_MS {
            return;
        }
        self.storage.suspected_at = Some(now_ms);
        let asked = self.storage.asked_at;
        if asked.is_none_or(|at| at + ASK_EVERY_MS <= now_ms) {
            self.storage.asked_at = Some(now_ms);
            for node in self.peers.others(self.me.node) {
                self.frames()
                    .say(node, item::SLOW_DISK, |out| out.number(age));
            }
        }
        if slow {
            self.leave_slow_disk(now_ms);
        }
        if age >= 2 * SLOW_MS {
            for group in self.groups.iter_mut().flatten() {
                group.give_up_proposals(&mut self.turn);
            }
        }
    }

    /// Transfers leaderships to voters with a healthy disk.
    fn leave_slow_disk(&mut self, now_ms: u64) {
        for at in 0..self.groups.len() {
            let Some(group) = &self.groups[at] else {
                continue;
            };
            let id = group.id;
            let before = self.storage.handed_over.get(&id);
            // Consensus gives a hand-over up after an election timeout; another one meanwhile would make
            // two candidates.
            let under_way = before.is_some_and(|at| at + SLOW_MS > now_ms);
            if group.replica.role() != Role::Leader || under_way {
                continue;
            }
            let healthy = |member: &&ReplicaId| self.storage.is_healthy(member.node, now_ms);
            let voters = &group.membership().voters;
            let voters: Vec<ReplicaId> = voters.iter().filter(healthy).copied().collect();
            if self.hand_over(id, &voters) {
                self.storage.handed_over.insert(id, now_ms);
            }
        }
    }

    /// Handles the question of a peer with a slow disk about this node's disk.
    pub(crate) fn receive_slow_disk(
        &mut self,
        from: ReplicaId,
        content: &mut Reader<'_>,
    ) -> DecodeResult<()> {
        let age = content.number()?;
        let now_ms = self.now_ms();
        let slow_at = Some(now_ms).filter(|_| age >= SUSPECT_MS);
        self.heard_of_disk(from.node, slow_at);
        let own = self.storage.age(now_ms);
        let suspected = self.storage.suspected_at;
        let suspected = if own >= SUSPECT_MS {
            Some(now_ms)
        } else {
            suspected
        };
        let suspected_ago = suspected.map(|at| now_ms.saturating_sub(at));
        self.frames().say(from.node, item::DISK, |out| {
            out.number(own);
            out.put(&suspected_ago);
        });
        Ok(())
    }

    /// Handles the report of a peer about its disk.
    pub(crate) fn receive_disk(
        &mut self,
        from: ReplicaId,
        content: &mut Reader<'_>,
    ) -> DecodeResult<()> {
        let (_age, suspected_ago) = (content.number()?, content.option()?);
        let now_ms = self.now_ms();
        let slow_at = suspected_ago.map(|ago| now_ms.saturating_sub(ago));
        self.heard_of_disk(from.node, slow_at);
        Ok(())
    }

    fn heard_of_disk(&mut self, node: NodeId, slow_at: Option<u64>) {
        let heard_at = self.now_ms();
        let peer = self.storage.peers.entry(node).or_insert(PeerDisk {
            heard_at,
            slow_at: None,
        });
        peer.heard_at = heard_at;
        peer.slow_at = peer.slow_at.max(slow_at);
    }
}
