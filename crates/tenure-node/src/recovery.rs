//! From the records of a log to the replicas of a node.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::codec::{self, CodecError, RecordKind};
use crate::consensus::{Base, Found, HardState, Membership, Place};
use crate::{Entry, GroupId, Member};

/// Collects what a node left behind. See the driver's contract at the top of the crate.
#[derive(Debug, Default)]
pub struct Recovery {
    groups: BTreeMap<GroupId, Replayed>,
}

#[derive(Debug, Default)]
struct Replayed {
    base: Base,
    hard_state: HardState,
    entries: Vec<Entry>,
    state: Option<Bytes>,
    newborn: bool,
}

/// Why a log cannot be used. A node must not start with a part of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoveryError {
    /// A record cannot be read.
    #[error("{group}: {error}")]
    Codec {
        /// Of which group.
        group: GroupId,
        /// What is wrong.
        error: CodecError,
    },
    /// Entries are missing between two records.
    #[error("{group}: after entry {last} comes {next}")]
    Gap {
        /// Of which group.
        group: GroupId,
        /// The last entry that is there.
        last: u64,
        /// The first of the next record.
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

    /// The next record of the log, in the order of writing.
    pub fn record(
        &mut self,
        group: GroupId,
        kind: RecordKind,
        bytes: Bytes,
    ) -> Result<(), RecoveryError> {
        let codec = |error| RecoveryError::Codec { group, error };
        match kind {
            RecordKind::Removed => {
                self.groups.remove(&group);
            }
            RecordKind::HardState => {
                self.groups.entry(group).or_default().hard_state =
                    codec::hard_state(bytes).map_err(codec)?;
            }
            RecordKind::Base => {
                let base = codec::base(bytes).map_err(codec)?;
                self.groups.entry(group).or_default().rebase(base);
            }
            RecordKind::Entries => {
                let entries = codec::entries(bytes).map_err(codec)?;
                self.groups.entry(group).or_default().append(entries);
            }
        }
        Ok(())
    }

    /// On an empty disk: this node is one of the first replicas of a group. All first replicas are
    /// told the same membership.
    pub fn born(&mut self, group: GroupId, voters: Vec<Member>) {
        let found = Found::newborn(Membership {
            voters,
            ..Membership::default()
        });
        self.groups.insert(
            group,
            Replayed {
                base: found.base,
                hard_state: found.hard_state,
                newborn: true,
                ..Replayed::default()
            },
        );
    }

    /// The snapshots that are needed: group and index.
    pub fn snapshots(&self) -> Vec<(GroupId, u64)> {
        let needed = |(group, replayed): (&GroupId, &Replayed)| {
            (replayed.base.place.index > Base::BIRTH.index)
                .then_some((*group, replayed.base.place.index))
        };
        self.groups.iter().filter_map(needed).collect()
    }

    /// One of them.
    pub fn state(&mut self, group: GroupId, data: Bytes) {
        if let Some(replayed) = self.groups.get_mut(&group) {
            replayed.state = Some(data);
        }
    }

    /// The groups that this node has a replica of.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> {
        self.groups.keys().copied()
    }

    pub(crate) fn take(self) -> Result<Vec<(GroupId, Opened)>, RecoveryError> {
        let mut opened = Vec::with_capacity(self.groups.len());
        for (group, replayed) in self.groups {
            let index = replayed.base.place.index;
            if index > Base::BIRTH.index && replayed.state.is_none() {
                return Err(RecoveryError::NoSnapshot { group, index });
            }
            if let Some((last, next)) = replayed.gap() {
                return Err(RecoveryError::Gap { group, last, next });
            }
            opened.push((
                group,
                Opened {
                    found: Found {
                        base: replayed.base,
                        hard_state: replayed.hard_state,
                        entries: replayed.entries,
                    },
                    state: replayed.state,
                    newborn: replayed.newborn,
                },
            ));
        }
        Ok(opened)
    }
}

/// One replica, ready to be opened.
pub(crate) struct Opened {
    pub(crate) found: Found,
    pub(crate) state: Option<Bytes>,
    /// Its birth is not written yet.
    pub(crate) newborn: bool,
}

impl Replayed {
    /// Entries that the base covers are dropped, and also all others unless they continue it.
    fn rebase(&mut self, base: Base) {
        let Place { term, index } = base.place;
        let continues = self
            .entries
            .iter()
            .any(|entry| entry.place == Place { term, index })
            || self.base.place == base.place;
        if continues {
            self.entries.retain(|entry| entry.place.index > index);
        } else {
            self.entries.clear();
        }
        self.base = base;
    }

    /// Files that no group needs are freed, so the oldest records that are left may lie before a
    /// gap: what the last base does not cover must be whole, nothing else.
    fn append(&mut self, entries: Vec<Entry>) {
        let Some(first) = entries.first().map(|entry| entry.place.index) else {
            return;
        };
        let base = self.base.place.index;
        let skip = usize::try_from((base + 1).saturating_sub(first)).unwrap_or(usize::MAX);
        let Some(first) = entries.get(skip).map(|entry| entry.place.index) else {
            return;
        };
        self.entries.retain(|entry| entry.place.index < first);
        let last = self.entries.last().map_or(base, |entry| entry.place.index);
        if first != last + 1 {
            self.entries.clear();
        }
        self.entries.extend(entries.into_iter().skip(skip));
    }

    /// The last entry before a gap and the first behind it.
    fn gap(&self) -> Option<(u64, u64)> {
        let first = self.entries.first()?.place.index;
        let base = self.base.place.index;
        (first != base + 1).then_some((base, first))
    }
}
