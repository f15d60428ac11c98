//! Start of a node: builds its replicas from the contents of the log.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::codec::{self, DecodeError};
use crate::consensus::{Base, HardState, LogPosition, Membership, RestoredState};
use crate::{Entry, GroupId, Payload, ReplicaId};

/// Collects the recovered state of a node. See the driver's contract at the top of the crate.
#[derive(Debug, Default)]
pub struct Recovery {
    pub(crate) groups: BTreeMap<GroupId, OpenedReplica>,
}

/// The log contents of one group, in their encoded form.
#[derive(Clone, Debug, Default)]
pub struct RecoveredBytes {
    /// The last [`HardState`], as [`HardState::to_bytes`] wrote it; empty if there never was one.
    pub hard_state: Bytes,
    /// The last base: where it is, and its membership as [`Membership::to_bytes`] wrote it.
    pub base: Option<(LogPosition, Bytes)>,
    /// The entries behind the base, each as [`Entry::payload_bytes`] wrote it.
    pub entries: Vec<(LogPosition, Bytes)>,
}

/// Why a log cannot be used. A node must not start with a part of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoveryError {
    /// A record cannot be decoded.
    #[error("{group}: {error}")]
    Codec {
        /// The group.
        group: GroupId,
        /// The decoding error.
        error: DecodeError,
    },
    /// Entries are missing.
    #[error("{group}: entries are missing: entry {next} follows entry {last}")]
    Gap {
        /// The group.
        group: GroupId,
        /// The last entry that is there.
        last: u64,
        /// The index that follows it in the log.
        next: u64,
    },
    /// The snapshot at which the log begins was not provided.
    #[error("{group}: the snapshot of entry {index} is missing")]
    NoSnapshot {
        /// The group.
        group: GroupId,
        /// The index of the snapshot.
        index: u64,
    },
}

impl Recovery {
    /// Creates an empty recovery.
    pub fn new() -> Recovery {
        Recovery::default()
    }

    /// Adds the log contents of one group.
    pub fn group(&mut self, group: GroupId, remains: RecoveredBytes) -> Result<(), RecoveryError> {
        let codec = |error| RecoveryError::Codec { group, error };
        let hard_state = if remains.hard_state.is_empty() {
            HardState::default()
        } else {
            codec::hard_state(&remains.hard_state).map_err(codec)?
        };
        let base = match remains.base {
            None => Base::default(),
            Some((place, membership)) => Base {
                place,
                membership: codec::from_bytes(&membership).map_err(codec)?,
            },
        };
        let mut entries = Vec::with_capacity(remains.entries.len());
        let mut last = base.place.index;
        for (place, payload) in remains.entries {
            if place.index != last + 1 {
                let next = place.index;
                return Err(RecoveryError::Gap { group, last, next });
            }
            last = place.index;
            let payload = codec::payload(payload).map_err(codec)?;
            entries.push(Entry { place, payload });
        }
        let mut found = RestoredState {
            base,
            hard_state,
            entries,
        };
        if found.is_blank() {
            found.hard_state = codec::floor_of_empty(found.hard_state);
        }
        let opened = OpenedReplica {
            found,
            state: None,
            newborn: false,
            suspect: false,
        };
        self.groups.insert(group, opened);
        Ok(())
    }

    /// On an empty disk: makes this node a founding member of a group. All founding members must
    /// get the same voters.
    pub fn born(&mut self, group: GroupId, voters: Vec<ReplicaId>) {
        let found = RestoredState::newborn(Membership {
            voters,
            ..Membership::default()
        });
        let opened = OpenedReplica {
            found,
            state: None,
            newborn: true,
            suspect: false,
        };
        self.groups.insert(group, opened);
    }

    /// Marks a group whose log may have lost entries that the replica had acknowledged. With other
    /// voters, the replica takes no part in elections until it has caught up with a leader that was
    /// elected without it ([`Node::suspects`](crate::Node::suspects)). A driver must repeat this
    /// after the next restart for groups that are still suspect then.
    ///
    /// Not for an ordinary torn tail: when all machines lose power, all logs may have one, none has
    /// lost anything that was confirmed, and the groups must come back by themselves.
    pub fn suspect(&mut self, group: GroupId) {
        if let Some(opened) = self.groups.get_mut(&group) {
            opened.suspect = true;
        }
    }

    /// Returns the required snapshots: group and index.
    pub fn snapshots(&self) -> Vec<(GroupId, u64)> {
        let needed = |(group, opened): (&GroupId, &OpenedReplica)| {
            let index = opened.found.base.place.index;
            (index > Base::BIRTH.index).then_some((*group, index))
        };
        self.groups.iter().filter_map(needed).collect()
    }

    /// Adds a required snapshot.
    pub fn state(&mut self, group: GroupId, data: Bytes) {
        if let Some(opened) = self.groups.get_mut(&group) {
            opened.state = Some(data);
        }
    }

    /// For an operator who knows that the other voters are lost for good (R164: replication
    /// factor): whatever this log holds counts as decided, and this member alone goes on with it.
    /// What the lost ones decided without it is gone, so the numbers it gives out must be raised
    /// afterwards ([`crate::lift`]).
    pub fn take_over(&mut self, me: ReplicaId) {
        self.groups.retain(|_, opened| !opened.found.is_blank());
        for opened in self.groups.values_mut() {
            let found = &mut opened.found;
            found.base.membership = Membership {
                voters: vec![me],
                ..Membership::default()
            };
            found.hard_state.replica = me.replica;
            for entry in &mut found.entries {
                if matches!(entry.payload, Payload::Membership(_)) {
                    entry.payload = Payload::Empty;
                }
            }
        }
    }

    /// Returns the last log entry of a group.
    pub fn last(&self, group: GroupId) -> Option<LogPosition> {
        let found = &self.groups.get(&group)?.found;
        let last = found.entries.last().map(|entry| entry.place);
        Some(last.unwrap_or(found.base.place))
    }

    /// Returns the groups with recovered state.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> {
        self.groups.keys().copied()
    }

    pub(crate) fn take(self) -> Result<Vec<(GroupId, OpenedReplica)>, RecoveryError> {
        for (group, opened) in &self.groups {
            let index = opened.found.base.place.index;
            if index > Base::BIRTH.index && opened.state.is_none() {
                let group = *group;
                return Err(RecoveryError::NoSnapshot { group, index });
            }
        }
        Ok(self.groups.into_iter().collect())
    }
}

/// One replica, ready to be opened.
#[derive(Debug)]
pub(crate) struct OpenedReplica {
    pub(crate) found: RestoredState,
    pub(crate) state: Option<Bytes>,
    /// Whether the creation of the group is not written yet.
    pub(crate) newborn: bool,
    /// Whether it may have lost acknowledged entries.
    pub(crate) suspect: bool,
}
