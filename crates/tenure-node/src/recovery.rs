//! Start of a node: builds its replicas from the contents of the log.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::codec::{self, CodecError};
use crate::consensus::{Base, HardState, LogPosition, Membership, RestoredState};
use crate::{Entry, GroupId, Payload, ReplicaId};

/// Collects what a node left behind. See the driver's contract at the top of the crate.
#[derive(Debug, Default)]
pub struct Recovery {
    pub(crate) groups: BTreeMap<GroupId, OpenedReplica>,
}

/// What the log held for one group, in the bytes in which it was written.
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
    /// Something cannot be read.
    #[error("{group}: {error}")]
    Codec {
        /// Of which group.
        group: GroupId,
        /// What is wrong.
        error: CodecError,
    },
    /// Entries are missing.
    #[error("{group}: after entry {last} comes {next}")]
    Gap {
        /// Of which group.
        group: GroupId,
        /// The last entry that is there.
        last: u64,
        /// The one that comes next.
        next: u64,
    },
    /// The snapshot that the log stands on was not given.
    #[error("{group}: the snapshot of entry {index} is missing")]
    NoSnapshot {
        /// Of which group.
        group: GroupId,
        /// Up to which entry.
        index: u64,
    },
}

impl Recovery {
    /// Nothing was left behind, so far.
    pub fn new() -> Recovery {
        Recovery::default()
    }

    /// What the log held for one group.
    pub fn group(&mut self, group: GroupId, remains: RecoveredBytes) -> Result<(), RecoveryError> {
        let codec = |error| RecoveryError::Codec { group, error };
        let hard_state = if remains.hard_state.is_empty() {
            HardState::default()
        } else {
            codec::hard_state(remains.hard_state).map_err(codec)?
        };
        let base = match remains.base {
            None => Base::default(),
            Some((place, membership)) => Base {
                place,
                membership: codec::membership(membership).map_err(codec)?,
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

    /// On an empty disk: this node is one of the first replicas of a group. All first replicas are
    /// told the same voters.
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

    /// The log may have lost what this group's replica had confirmed. Where others vote as well, the
    /// replica takes no part in elections until it has caught up with a leader that was elected
    /// without it ([`Node::suspects`](crate::Node::suspects)). A driver has to say so again after the
    /// next restart for the groups that are still suspect then.
    ///
    /// Not for an ordinary torn tail: when all machines lose power, all logs may have one, none has
    /// lost anything that was confirmed, and the groups must come back by themselves.
    pub fn suspect(&mut self, group: GroupId) {
        if let Some(opened) = self.groups.get_mut(&group) {
            opened.suspect = true;
        }
    }

    /// The snapshots that are needed: group and index.
    pub fn snapshots(&self) -> Vec<(GroupId, u64)> {
        let needed = |(group, opened): (&GroupId, &OpenedReplica)| {
            let index = opened.found.base.place.index;
            (index > Base::BIRTH.index).then_some((*group, index))
        };
        self.groups.iter().filter_map(needed).collect()
    }

    /// One of them.
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

    /// The last entry of a group that the log holds.
    pub fn last(&self, group: GroupId) -> Option<LogPosition> {
        let found = &self.groups.get(&group)?.found;
        let last = found.entries.last().map(|entry| entry.place);
        Some(last.unwrap_or(found.base.place))
    }

    /// The groups that this node has something of.
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
    /// Its birth is not written yet.
    pub(crate) newborn: bool,
    /// It may have lost what it confirmed.
    pub(crate) suspect: bool,
}
