//! In-memory index: the metadata of each group, and which log files hold its entries.
//!
//! Appending and recovery pass every item through [`Index::apply`], so recovery rebuilds exactly
//! what the running log knew. The index holds no payloads of entries, so its metadata is small, and
//! each new file starts with a copy of it (the *checkpoint*). A file is therefore needed only for
//! its entries, and no entry is ever copied to a newer file.
//!
//! ```text
//!                         base.index 100                       last
//!   ───── not needed ───────────┼──────────── needed ───────────┤
//!          segments: [file 4 from 90      ] [file 6 from 120    ]
//! ```

use std::collections::{BTreeMap, VecDeque};

use crate::batch::{BaseItem, Batch, GroupId, Item, Items, Malformed};
use crate::record::MAX_BODY;

/// The point after which the entries of a group begin: earlier ones are part of its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogBase {
    /// Where that state is stored.
    pub kind: LogBaseKind,
    /// The index of the last entry in the state.
    pub index: u64,
    /// The term of that entry.
    pub term: u64,
    /// The note of the caller.
    pub note: Vec<u8>,
}

/// Where the state at a [`LogBase`] is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogBaseKind {
    /// Nowhere: the group was created at this index.
    Begin = 1,
    /// In the snapshot of that index.
    Snapshot = 2,
}

#[derive(Debug, Default)]
pub(crate) struct Index {
    groups: BTreeMap<GroupId, GroupIndex>,
    node: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Size of a checkpoint of this index in bytes.
    checkpoint_bytes: usize,
}

#[derive(Debug, Default)]
struct GroupIndex {
    state: Vec<u8>,
    base: Option<LogBase>,
    last: u64,
    /// For each file with needed entries, the index of the first entry there.
    segments: VecDeque<FileSegment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileSegment {
    file: u64,
    first: u64,
}

/// An item that contradicts the content of the log: a bug in the program that wrote it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    /// The entry does not follow the last entry, or is not after the base.
    #[error("group {group}: entry {index} cannot follow base {base} and last entry {last}")]
    Entry {
        /// The group.
        group: GroupId,
        /// The index of the entry.
        index: u64,
        /// The index of the base; 0 without one.
        base: u64,
        /// The index of the last entry.
        last: u64,
    },
    /// The base is not valid. A group is created once. A snapshot is not before the previous base,
    /// and a snapshot of the group's own state is not after the last entry.
    #[error("group {group}: a new base {index} cannot follow base {base} and last entry {last}")]
    Base {
        /// The group.
        group: GroupId,
        /// The index of the new base.
        index: u64,
        /// The index of the previous base; 0 without one.
        base: u64,
        /// The index of the last entry.
        last: u64,
    },
    /// The hard states, notes and node records are too large together. Every file repeats them in
    /// one record.
    #[error("hard states and node records of {bytes} bytes together: at most {limit} fit")]
    TooMuchState {
        /// Their total size in bytes.
        bytes: usize,
        /// The maximum size.
        limit: usize,
    },
    /// The items of a record are invalid, or not allowed in this kind of record.
    #[error("the record holds something that is no item of a batch")]
    Malformed,
}

impl From<Malformed> for Misuse {
    fn from(_: Malformed) -> Misuse {
        Misuse::Malformed
    }
}

/// Size of the fixed fields of a group in a checkpoint, without note and state.
const GROUP_BYTES: usize = 1 + 2 * 8 + 1 + 2 * 8 + 4 + 4;
const NODE_BYTES: usize = 1 + 4 + 4;

impl Index {
    /// Applies an item of a batch that is stored in `file`.
    pub(crate) fn apply(&mut self, item: &Item<'_>, file: u64) -> Result<(), Misuse> {
        match *item {
            Item::Entry { group, index, .. } => self.group(group).entry(group, index, file)?,
            Item::State { group, state } => {
                let bytes = &mut self.group(group).state;
                let before = bytes.len();
                bytes.clear();
                bytes.extend_from_slice(state);
                self.checkpoint_bytes = self.checkpoint_bytes - before + state.len();
            }
            Item::Begin { group, base } => self.rebase(group, &base, GroupIndex::begin)?,
            Item::SnapshotTaken { group, base } => {
                self.rebase(group, &base, GroupIndex::snapshot_taken)?;
            }
            Item::SnapshotInstalled { group, base } => {
                self.rebase(group, &base, GroupIndex::snapshot_installed)?;
            }
            Item::Remove { group } => {
                if let Some(gone) = self.groups.remove(&group) {
                    self.checkpoint_bytes -= GROUP_BYTES + gone.state.len() + gone.note_len();
                }
            }
            Item::Node { key, value } => self.set_node(key, value),
            Item::Group { .. } => return Err(Misuse::Malformed),
        }
        if self.checkpoint_bytes > MAX_BODY {
            return Err(Misuse::TooMuchState {
                bytes: self.checkpoint_bytes,
                limit: MAX_BODY,
            });
        }
        Ok(())
    }

    /// Adds everything except the entries to `batch`.
    pub(crate) fn checkpoint(&self, batch: &mut Batch) {
        for (&id, group) in &self.groups {
            batch.group(id, group.last, group.base.as_ref(), &group.state);
        }
        for (key, value) in &self.node {
            batch
                .node(key, value)
                .expect("it fitted when it came, and checkpoint_bytes counts");
        }
        debug_assert_eq!(batch.bytes(), self.checkpoint_bytes, "the count drifted");
    }

    /// Decodes a checkpoint. The entries before it are unknown, except for the index of the last
    /// one.
    pub(crate) fn from_checkpoint(body: &[u8]) -> Result<Index, Misuse> {
        let mut index = Index::default();
        for item in Items::new(body) {
            match item? {
                Item::Group {
                    group: id,
                    last,
                    base,
                    state,
                } => {
                    if index.groups.contains_key(&id) || base.is_some_and(|(_, b)| last < b.index) {
                        return Err(Misuse::Malformed);
                    }
                    let group = index.group(id);
                    group.state.extend_from_slice(state);
                    group.last = last;
                    group.base = base.map(|(kind, base)| base.to_base(kind));
                    let bytes = state.len() + group.note_len();
                    index.checkpoint_bytes += bytes;
                }
                Item::Node { key, value } => index.set_node(key, value),
                Item::Entry { .. }
                | Item::State { .. }
                | Item::Begin { .. }
                | Item::SnapshotTaken { .. }
                | Item::SnapshotInstalled { .. }
                | Item::Remove { .. } => return Err(Misuse::Malformed),
            }
        }
        Ok(index)
    }

    /// Returns the lowest number of a file with a needed entry.
    pub(crate) fn oldest_file(&self) -> Option<u64> {
        self.groups
            .values()
            .filter_map(GroupIndex::oldest_file)
            .min()
    }

    /// Returns the groups with a needed entry in `file` or an older file.
    pub(crate) fn holders(&self, file: u64) -> Vec<GroupId> {
        let holds = |group: &GroupIndex| group.oldest_file().is_some_and(|oldest| oldest <= file);
        self.groups
            .iter()
            .filter(|(_, group)| holds(group))
            .map(|(&id, _)| id)
            .collect()
    }

    /// Returns the hard state, base and last index of each group.
    pub(crate) fn groups(&self) -> impl Iterator<Item = (GroupId, &[u8], Option<&LogBase>, u64)> {
        self.groups
            .iter()
            .map(|(&id, group)| (id, &*group.state, group.base.as_ref(), group.last))
    }

    pub(crate) fn node(&self) -> &BTreeMap<Vec<u8>, Vec<u8>> {
        &self.node
    }

    fn group(&mut self, id: GroupId) -> &mut GroupIndex {
        self.groups.entry(id).or_insert_with(|| {
            self.checkpoint_bytes += GROUP_BYTES;
            GroupIndex::default()
        })
    }

    fn rebase(
        &mut self,
        id: GroupId,
        base: &BaseItem<'_>,
        how: fn(&mut GroupIndex, GroupId, &BaseItem<'_>) -> Result<(), Misuse>,
    ) -> Result<(), Misuse> {
        let group = self.group(id);
        let before = group.note_len();
        how(group, id, base)?;
        self.checkpoint_bytes = self.checkpoint_bytes - before + base.note.len();
        Ok(())
    }

    fn set_node(&mut self, key: &[u8], value: &[u8]) {
        if let Some(known) = self.node.get_mut(key) {
            self.checkpoint_bytes = self.checkpoint_bytes - known.len() + value.len();
            known.clear();
            known.extend_from_slice(value);
        } else {
            self.checkpoint_bytes += NODE_BYTES + key.len() + value.len();
            self.node.insert(key.to_vec(), value.to_vec());
        }
    }
}

impl BaseItem<'_> {
    fn to_base(self, kind: LogBaseKind) -> LogBase {
        LogBase {
            kind,
            index: self.index,
            term: self.term,
            note: self.note.to_vec(),
        }
    }
}

impl GroupIndex {
    fn entry(&mut self, group: GroupId, index: u64, file: u64) -> Result<(), Misuse> {
        let base = self.base_index();
        if index <= base || index - 1 > self.last {
            return Err(Misuse::Entry {
                group,
                index,
                base,
                last: self.last,
            });
        }
        // The entry replaces all later ones, so segments that start at or after it are obsolete.
        while self
            .segments
            .back()
            .is_some_and(|segment| segment.first >= index)
        {
            self.segments.pop_back();
        }
        if self
            .segments
            .back()
            .is_none_or(|segment| segment.file != file)
        {
            self.segments.push_back(FileSegment { file, first: index });
        }
        self.last = index;
        Ok(())
    }

    fn begin(&mut self, group: GroupId, base: &BaseItem<'_>) -> Result<(), Misuse> {
        if self.base.is_some() || self.last != 0 {
            return Err(self.no_base(group, base.index));
        }
        self.base = Some(base.to_base(LogBaseKind::Begin));
        self.last = base.index;
        Ok(())
    }

    fn snapshot_taken(&mut self, group: GroupId, base: &BaseItem<'_>) -> Result<(), Misuse> {
        if base.index == 0 || base.index < self.base_index() || base.index > self.last {
            return Err(self.no_base(group, base.index));
        }
        self.base = Some(base.to_base(LogBaseKind::Snapshot));
        if self.last == base.index {
            self.segments.clear();
        }
        // A segment ends where the next one begins.
        while self
            .segments
            .get(1)
            .is_some_and(|next| next.first <= base.index + 1)
        {
            self.segments.pop_front();
        }
        Ok(())
    }

    fn snapshot_installed(&mut self, group: GroupId, base: &BaseItem<'_>) -> Result<(), Misuse> {
        if base.index == 0 || base.index < self.base_index() {
            return Err(self.no_base(group, base.index));
        }
        self.base = Some(base.to_base(LogBaseKind::Snapshot));
        self.last = base.index;
        self.segments.clear();
        Ok(())
    }

    fn no_base(&self, group: GroupId, index: u64) -> Misuse {
        Misuse::Base {
            group,
            index,
            base: self.base_index(),
            last: self.last,
        }
    }

    fn base_index(&self) -> u64 {
        self.base.as_ref().map_or(0, |base| base.index)
    }

    fn note_len(&self) -> usize {
        self.base.as_ref().map_or(0, |base| base.note.len())
    }

    fn oldest_file(&self) -> Option<u64> {
        self.segments.front().map(|segment| segment.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64) -> Item<'static> {
        Item::Entry {
            group: 1,
            index,
            term: 1,
            payload: b"",
        }
    }

    fn base(index: u64) -> BaseItem<'static> {
        BaseItem {
            index,
            term: 1,
            note: b"members",
        }
    }

    fn taken(index: u64) -> Item<'static> {
        Item::SnapshotTaken {
            group: 1,
            base: base(index),
        }
    }

    fn index(items: &[(Item<'_>, u64)]) -> Index {
        let mut index = Index::default();
        for (item, file) in items {
            index.apply(item, *file).unwrap();
        }
        index
    }

    /// §2: a file is needed exactly while a group needs an entry in it.
    #[test]
    fn a_snapshot_lets_go_of_the_files_before_it() {
        let mut index = index(&[
            (entry(1), 1),
            (entry(2), 1),
            (entry(3), 2),
            (entry(4), 3),
            (entry(5), 3),
        ]);
        for (snapshot, oldest) in [
            (1, Some(1)),
            (2, Some(2)),
            (3, Some(3)),
            (4, Some(3)),
            (5, None),
        ] {
            index.apply(&taken(snapshot), 3).unwrap();
            assert_eq!(
                index.oldest_file(),
                oldest,
                "after a snapshot at {snapshot}"
            );
        }
    }

    #[test]
    fn an_overwritten_entry_needs_only_its_new_file() {
        let index = index(&[(entry(1), 1), (entry(2), 2), (entry(3), 3), (entry(2), 4)]);
        assert_eq!(index.oldest_file(), Some(1));
        assert_eq!(index.groups[&1].segments.len(), 2);
        assert_eq!(index.holders(1), [1]);
        assert_eq!(index.holders(0), []);
    }

    #[test]
    fn what_cannot_follow_is_refused() {
        let mut index = index(&[(entry(1), 1), (entry(2), 1), (taken(1), 1)]);
        assert!(matches!(
            index.apply(&entry(4), 1),
            Err(Misuse::Entry { .. })
        ));
        assert!(matches!(
            index.apply(&entry(1), 1),
            Err(Misuse::Entry { .. })
        ));
        assert!(matches!(
            index.apply(&entry(0), 1),
            Err(Misuse::Entry { .. })
        ));
        assert!(matches!(
            index.apply(&taken(3), 1),
            Err(Misuse::Base { .. })
        ));
        assert!(matches!(
            index.apply(&taken(0), 1),
            Err(Misuse::Base { .. })
        ));
        let installed = Item::SnapshotInstalled {
            group: 1,
            base: base(9),
        };
        index.apply(&installed, 1).unwrap();
        index.apply(&entry(10), 1).unwrap();
        assert!(matches!(
            index.apply(&taken(8), 1),
            Err(Misuse::Base { .. })
        ));
        let begin = Item::Begin {
            group: 1,
            base: base(20),
        };
        assert!(matches!(index.apply(&begin, 1), Err(Misuse::Base { .. })));
        let begin = Item::Begin {
            group: 2,
            base: base(20),
        };
        index.apply(&begin, 1).unwrap();
        index
            .apply(
                &Item::Entry {
                    group: 2,
                    index: 21,
                    term: 1,
                    payload: b"",
                },
                1,
            )
            .unwrap();
    }

    #[test]
    fn a_checkpoint_says_everything_but_the_entries() {
        let mut first = index(&[
            (entry(1), 1),
            (entry(2), 1),
            (taken(1), 1),
            (
                Item::State {
                    group: 1,
                    state: b"vote",
                },
                1,
            ),
            (
                Item::State {
                    group: 2,
                    state: b"other",
                },
                1,
            ),
            (
                Item::State {
                    group: 2,
                    state: b"longer than before",
                },
                1,
            ),
            (
                Item::State {
                    group: 3,
                    state: b"gone",
                },
                1,
            ),
            (Item::Remove { group: 3 }, 1),
            (
                Item::Node {
                    key: b"id",
                    value: b"1",
                },
                1,
            ),
            (
                Item::Node {
                    key: b"id",
                    value: b"22",
                },
                1,
            ),
        ]);
        let mut batch = Batch::new();
        first.checkpoint(&mut batch);
        let mut second = Index::from_checkpoint(batch.body()).unwrap();
        let mut again = Batch::new();
        second.checkpoint(&mut again);
        assert_eq!(batch.body(), again.body());
        assert_eq!(second.groups().count(), 2);
        first.apply(&entry(3), 2).unwrap();
        second.apply(&entry(3), 2).unwrap();
    }
}
