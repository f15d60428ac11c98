//! In-memory Raft log of a group: the `Storage` implementation for raft-rs.
//!
//! ```text
//!   base (state up to here) ──▶ entries after it ──▶ last
//! ```
//!
//! The driver writes the disk from the node's outputs, and reads it only at start. When a snapshot
//! is durable, the node cuts the log and keeps a tail here for slow followers. A replica without
//! peers also drops applied entries when they are large. A snapshot for a peer is made on demand:
//! the first request sets `wanted` and returns `SnapshotTemporarilyUnavailable`.

use std::cell::Cell;
use std::collections::VecDeque;

use raft::eraftpb;
use raft::{Error, GetEntriesContext, RaftState, Storage, StorageError};

use super::id_interner::IdInterner;
use super::{Base, Entry, HardState, LogPosition, Membership, Payload, convert};

/// The in-memory tail of a group's log.
pub(crate) struct LogTail {
    /// The library's ids of replicas.
    pub(super) ids: IdInterner,
    base: Base,
    entries: VecDeque<eraftpb::Entry>,
    bytes: usize,
    /// Size of the entries that are on disk and no longer in memory.
    forgotten: EntriesSize,
    hard_state: HardState,
    /// The membership at the applied index, which a snapshot made now must carry.
    membership: Membership,
    /// The base of an available snapshot, also in the library's form.
    offered: Option<(LogPosition, eraftpb::Snapshot)>,
    wanted: Cell<bool>,
}

/// Entries and the bytes of their commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EntriesSize {
    pub(crate) entries: usize,
    pub(crate) bytes: usize,
}

impl LogTail {
    pub(crate) fn new(base: Base, hard_state: HardState, entries: Vec<Entry>) -> LogTail {
        let mut ids = IdInterner::default();
        // Interns all members now, because `initial_state` only reads: see there.
        convert::membership_in(&base.membership, &mut ids);
        convert::hard_state_in(&hard_state, &mut ids);
        let mut store = LogTail {
            ids,
            membership: base.membership.clone(),
            base,
            entries: VecDeque::new(),
            bytes: 0,
            forgotten: EntriesSize::default(),
            hard_state,
            offered: None,
            wanted: Cell::new(false),
        };
        store.append(entries.into_iter().map(convert::entry_in));
        store
    }

    /// Returns the base of the log.
    pub(crate) fn base(&self) -> &Base {
        &self.base
    }

    /// Returns the last index.
    pub(crate) fn last_index(&self) -> u64 {
        self.base.place.index + self.entries.len() as u64
    }

    /// Returns the size of the log since the last cut, including the tail that was kept.
    pub(crate) fn weight(&self) -> EntriesSize {
        EntriesSize {
            entries: self.forgotten.entries + self.entries.len(),
            bytes: self.forgotten.bytes + self.bytes,
        }
    }

    /// Returns the bytes of commands in memory.
    pub(crate) fn kept_bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the index after which at most so many entries and bytes follow.
    pub(crate) fn tail(&self, entries: usize, bytes: usize) -> u64 {
        let mut left = bytes;
        let fits = |entry: &&eraftpb::Entry| match left.checked_sub(entry.data.len()) {
            Some(rest) => {
                left = rest;
                true
            }
            None => false,
        };
        let kept = self.entries.iter().rev().take(entries).take_while(fits);
        self.last_index() - kept.count() as u64
    }

    /// Returns the membership as of the last applied entry.
    pub(crate) fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Returns the latest hard state that was handed out to be written.
    pub(crate) fn hard_state(&self) -> HardState {
        self.hard_state
    }

    pub(super) fn set_hard_state(&mut self, hard_state: HardState) {
        self.hard_state = hard_state;
    }

    /// Sets the membership and drops the available snapshot: a snapshot from before the change does
    /// not contain a replica that the change added.
    pub(super) fn set_membership(&mut self, membership: Membership) {
        self.membership = membership;
        self.offered = None;
    }

    /// Whether an entry after this index may change the voters.
    pub(super) fn changes_voters_behind(&self, index: u64) -> bool {
        self.entries
            .iter()
            .filter(|entry| entry.index > index)
            .any(|entry| match convert::entry_out(entry).payload {
                Payload::Membership(change) => change.changes_voters(&self.membership),
                Payload::Empty | Payload::Commands(_) => false,
            })
    }

    /// The term of an entry that is kept, or of the base.
    pub(crate) fn term_of(&self, index: u64) -> Option<u64> {
        if index == self.base.place.index {
            return Some(self.base.place.term);
        }
        self.entries.get(self.slot(index)?).map(|entry| entry.term)
    }

    /// The last change of membership among the entries; 0 if there is none.
    pub(crate) fn last_change(&self) -> u64 {
        let is_change =
            |entry: &&eraftpb::Entry| entry.get_entry_type() != eraftpb::EntryType::EntryNormal;
        let mut changes = self.entries.iter().rev().filter(is_change);
        changes.next().map_or(0, |entry| entry.index)
    }

    /// An entry that is kept.
    pub(crate) fn entry(&self, index: u64) -> Option<Entry> {
        self.entries.get(self.slot(index)?).map(convert::entry_out)
    }

    /// Returns and clears whether a peer waits for a snapshot.
    pub(crate) fn take_wanted(&self) -> bool {
        self.wanted.replace(false)
    }

    /// Sets or clears the snapshot that is available for peers.
    pub(crate) fn offer(&mut self, base: Option<Base>) {
        self.offered = base.map(|base| (base.place, convert::base_in(&base, &mut self.ids)));
    }

    /// Drops entries up to `index`, which a durable snapshot covers. `membership` is that of
    /// `index`.
    pub(crate) fn compact(&mut self, index: u64, membership: Membership) {
        let Some(term) = self.term_of(index) else {
            return;
        };
        while self
            .entries
            .front()
            .is_some_and(|entry| entry.index <= index)
        {
            if let Some(entry) = self.entries.pop_front() {
                self.bytes -= entry.data.len();
            }
        }
        self.base = Base {
            place: LogPosition { term, index },
            membership,
        };
    }

    /// Drops applied entries that no peer can need; they stay on disk until the log is cut.
    pub(crate) fn forget(&mut self, index: u64, membership: Membership) {
        let before = self.weight();
        self.compact(index, membership);
        let after = self.weight();
        self.forgotten.entries += before.entries - after.entries;
        self.forgotten.bytes += before.bytes - after.bytes;
    }

    /// Records that the log on disk was cut. `covered` is its size when the cut began.
    pub(crate) fn was_cut(&mut self, covered: EntriesSize) {
        let forgotten = &mut self.forgotten;
        forgotten.entries = forgotten.entries.saturating_sub(covered.entries);
        forgotten.bytes = forgotten.bytes.saturating_sub(covered.bytes);
    }

    pub(super) fn install(&mut self, base: Base) {
        self.entries.clear();
        self.bytes = 0;
        self.forgotten = EntriesSize::default();
        self.hard_state.commit = self.hard_state.commit.max(base.place.index);
        // The floor is reached: only a snapshot at or after it is accepted.
        self.hard_state.floor = LogPosition::default();
        self.membership = base.membership.clone();
        self.base = base;
        self.offered = None;
    }

    /// Appends entries. An existing index and all after it are replaced.
    pub(super) fn append(&mut self, entries: impl Iterator<Item = eraftpb::Entry>) {
        for entry in entries {
            assert!(
                entry.index > self.base.place.index,
                "an entry that a snapshot covers was written again"
            );
            while self.last_index() >= entry.index {
                if let Some(dropped) = self.entries.pop_back() {
                    self.bytes -= dropped.data.len();
                }
            }
            assert_eq!(
                entry.index,
                self.last_index() + 1,
                "the log must have no gap"
            );
            self.bytes += entry.data.len();
            self.entries.push_back(entry);
        }
    }

    fn slot(&self, index: u64) -> Option<usize> {
        let after_base = index.checked_sub(self.base.place.index + 1)?;
        usize::try_from(after_base).ok()
    }
}

impl Storage for LogTail {
    fn initial_state(&self) -> raft::Result<RaftState> {
        // The copy interns nothing new: all members got their id when the store was created.
        let mut ids = self.ids.clone();
        Ok(RaftState::new(
            convert::hard_state_in(&self.hard_state, &mut ids),
            convert::membership_in(&self.base.membership, &mut ids),
        ))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<eraftpb::Entry>> {
        let (Some(low), Some(high)) = (self.slot(low), self.slot(high)) else {
            return Err(Error::Store(StorageError::Compacted));
        };
        assert!(
            high <= self.entries.len(),
            "entries beyond the log were asked for"
        );
        let max_size = max_size.into().unwrap_or(u64::MAX);
        let mut taken = Vec::with_capacity((high - low).min(64));
        let mut size = 0u64;
        for entry in self.entries.range(low..high) {
            size = size.saturating_add(entry.data.len() as u64 + 32);
            if size > max_size && !taken.is_empty() {
                break;
            }
            taken.push(entry.clone());
        }
        Ok(taken)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index < self.base.place.index {
            return Err(Error::Store(StorageError::Compacted));
        }
        self.term_of(index)
            .ok_or(Error::Store(StorageError::Unavailable))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.base.place.index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(LogTail::last_index(self))
    }

    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<eraftpb::Snapshot> {
        match &self.offered {
            Some((place, snapshot)) if place.index >= request_index.max(self.base.place.index) => {
                Ok(snapshot.clone())
            }
            _ => {
                self.wanted.set(true);
                Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable))
            }
        }
    }
}
