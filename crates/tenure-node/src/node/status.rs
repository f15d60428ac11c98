//! Status of a node, for operators, metrics and placement.

use crate::consensus::{Consensus, Membership, Progress, Role};
use crate::node::Node;
use crate::{GroupId, ReplicaId};

/// The status of a node, from local knowledge only.
#[derive(Clone, Debug)]
pub struct Status {
    /// Every replica of this node.
    pub groups: Vec<GroupStatus>,
    /// Pending client calls.
    pub calls: usize,
    /// Frames of peers that could not be read.
    pub unreadable_frames: u64,
    /// Messages of peers with a gap in their entries.
    pub malformed_appends: u64,
    /// Age in milliseconds of the oldest write that is not durable; zero if there is none.
    pub unsynced_ms: u64,
}

/// The status of one replica.
#[derive(Clone, Debug)]
pub struct GroupStatus {
    /// Its group.
    pub group: GroupId,
    /// Its identity.
    pub member: ReplicaId,
    /// Its Raft role.
    pub role: Role,
    /// Whether it leads and has done step 1 of leases.md, so that it serves requests.
    pub serves: bool,
    /// Its term.
    pub term: u64,
    /// The leader that it knows.
    pub leader: Option<ReplicaId>,
    /// The rules number that it applies.
    pub rules: u32,
    /// The last entry applied.
    pub applied: u64,
    /// The last entry of its log.
    pub last: u64,
    /// The index of the snapshot at which its log begins.
    pub base: u64,
    /// Pending operations.
    pub waiting: usize,
    /// The members of the group.
    pub membership: Membership,
    /// Replication progress of the other members; leaders only.
    pub progress: Vec<(ReplicaId, Progress)>,
    /// Counts of its space; absent for the system group.
    pub counts: Option<tenure_core::query::Counts>,
}

impl Node {
    /// Returns the status of the node.
    pub fn status(&self) -> Status {
        let groups: Vec<GroupStatus> = self
            .groups
            .iter()
            .flatten()
            .map(|group| {
                let membership = group.membership().clone();
                let others = membership.everybody();
                let known = |member| Some((member, group.replica.progress(member)?));
                GroupStatus {
                    group: group.id,
                    member: group.me,
                    role: group.replica.role(),
                    serves: group.is_led(),
                    term: group.replica.term(),
                    leader: group.leader(),
                    rules: group.machine.rules(),
                    applied: group.applied.index,
                    last: group.replica.store().last_index(),
                    base: group.cut_at,
                    waiting: group.load(),
                    progress: if group.replica.role() == Role::Leader {
                        others.into_iter().filter_map(known).collect()
                    } else {
                        Vec::new()
                    },
                    membership,
                    counts: group.machine.space().map(|space| space.counts()),
                }
            })
            .collect();
        let malformed = self.groups.iter().flatten();
        Status {
            calls: self.coordinator.waiting_calls(),
            unreadable_frames: self.peers.unreadable,
            unsynced_ms: self.unsynced_ms(),
            malformed_appends: malformed.map(|group| group.replica.malformed()).sum(),
            groups,
        }
    }

    /// Returns the applied index of a replica and its state in snapshot form, to check that
    /// replicas agree.
    pub fn state_of(&self, group: GroupId) -> Option<(u64, bytes::Bytes)> {
        let group = self.groups.get(group.0 as usize)?.as_ref()?;
        Some((group.applied.index, crate::snapshot::encode(&group.machine)))
    }

    /// Returns the state of a replica, to be encoded by another thread.
    pub fn image_of(&mut self, group: GroupId) -> Option<crate::SnapshotImage> {
        let group = self.groups.get_mut(group.0 as usize)?.as_mut()?;
        let index = group.applied.index;
        let image = crate::SnapshotImage::new(group.id, index, &mut group.machine);
        Some(image)
    }

    /// Returns the term in which this node believes to lead and serve a group.
    pub fn led_term(&self, group: GroupId) -> Option<u64> {
        let group = self.groups.get(group.0 as usize)?.as_ref()?;
        group.is_led().then(|| group.replica.term())
    }

    /// The applied entries of the system group; zero without a replica of it.
    pub fn system_applied(&self) -> u64 {
        let group = self.groups.get(self.system().0 as usize);
        let group = group.and_then(|group| group.as_ref());
        group.map_or(0, |group| group.applied.index)
    }

    /// Returns the identity of this node in its incarnation. The replica number is 0: each replica
    /// here has its own ([`GroupStatus::member`]).
    pub fn member(&self) -> ReplicaId {
        self.me
    }

    /// Returns the node's running time, for tests.
    pub fn running_ms(&self) -> u64 {
        self.now_ms()
    }
}
