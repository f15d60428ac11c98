//! Status of a node, for operators, metrics and placement.

use crate::consensus::{Consensus, Membership, Progress, Role};
use crate::node::Node;
use crate::{GroupId, ReplicaId};

/// A node at this moment, from what it knows by itself.
#[derive(Clone, Debug)]
pub struct Status {
    /// Every replica here.
    pub groups: Vec<GroupStatus>,
    /// Calls of clients that wait.
    pub calls: usize,
    /// Frames of peers that could not be read.
    pub unreadable_frames: u64,
    /// Messages of peers with a gap in their entries.
    pub malformed_appends: u64,
    /// How long the oldest write has not been durable, in milliseconds; zero if there is none.
    pub unsynced_ms: u64,
}

/// One replica at this moment.
#[derive(Clone, Debug)]
pub struct GroupStatus {
    /// Of which group.
    pub group: GroupId,
    /// Its identity.
    pub member: ReplicaId,
    /// Its part.
    pub role: Role,
    /// Whether it is a leader that has done step 1 of leases.md: it serves.
    pub serves: bool,
    /// Its term.
    pub term: u64,
    /// Who leads, as far as it knows.
    pub leader: Option<ReplicaId>,
    /// The number of the rules that it applies by.
    pub rules: u32,
    /// The last entry applied.
    pub applied: u64,
    /// The last entry there is.
    pub last: u64,
    /// What its log stands on.
    pub base: u64,
    /// Operations that wait.
    pub waiting: usize,
    /// Who replicates the group.
    pub membership: Membership,
    /// How far the others are; leaders only.
    pub progress: Vec<(ReplicaId, Progress)>,
    /// How much is in its space; absent for the system group.
    pub counts: Option<tenure_core::query::Counts>,
}

impl Node {
    /// What there is to say.
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

    /// The state of a replica as a snapshot would hold it, and the entry it is at: for those who
    /// check that replicas agree.
    pub fn state_of(&self, group: GroupId) -> Option<(u64, bytes::Bytes)> {
        let group = self.groups.get(group.0 as usize)?.as_ref()?;
        Some((group.applied.index, crate::snapshot::encode(&group.machine)))
    }

    /// The term in which this node leads and serves a group, as far as it knows.
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

    /// Which node this is, in which incarnation. The replica number is 0: each replica here has its own
    /// ([`GroupStatus::member`]).
    pub fn member(&self) -> ReplicaId {
        self.me
    }

    /// The time of the node's clock, for tests of what time does.
    pub fn running_ms(&self) -> u64 {
        self.now_ms()
    }
}
