//! Batch: an atomic group of writes, encoded in place in the format of a log record.
//!
//! A batch is one record, so after a crash it is complete or absent. Items 3 to 5 set the base of a
//! group: its entries begin after that index, and `note` holds the caller's data at that index.
//!
//! ```text
//! item = kind, fields                              all integers little-endian
//!   1 entry               group index term length payload
//!   2 hard state          group length payload
//!   3 begin (new group)   group index term length note
//!   4 snapshot taken      group index term length note
//!   5 snapshot installed  group index term length note
//!   6 remove              group
//!   7 node                length key length value
//!   8 group               group last base index term length note length state
//!                         (checkpoints only; base: 0 none, 1 begin, 2 snapshot)
//! ```

use crate::index::{LogBase, LogBaseKind};
use crate::record::{ALIGN, MAX_BODY, RECORD_HEADER, ZEROS};

/// The id of a Raft group.
pub type GroupId = u64;

/// Maximum size of the items of one [`Batch`] in bytes, because a batch is one record.
///
/// An item that does not fit is refused with [`Limit::Batch`] and leaves the batch unchanged. The
/// caller then appends the batch, which empties it, and continues. A single item has its own,
/// smaller limit ([`Limit::Item`]), so an empty batch accepts every valid item. Items that must be
/// atomic have to be in one batch: the node keeps its batches small enough for that.
pub const MAX_BATCH_BYTES: usize = MAX_BODY;

/// Maximum length of the payload of an entry.
pub const MAX_ENTRY: usize = 16 << 20;
/// Maximum length of the hard state of a group. Small, because every file repeats all of them.
pub const MAX_STATE: usize = 64 << 10;
/// Maximum length of the note of a base. Small, because every file repeats all of them.
pub const MAX_NOTE: usize = 64 << 10;
/// Maximum length of the key of a node record.
pub const MAX_KEY: usize = 256;
/// Maximum length of the value of a node record. Small, because every file repeats all of them.
pub const MAX_VALUE: usize = 64 << 10;

/// Writes of many groups that become durable together or not at all.
#[derive(Debug)]
pub struct Batch {
    /// Space for the record header, then the items.
    buffer: Vec<u8>,
}

/// The error of an item that does not fit. The batch is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} of {length} bytes: at most {limit} fit")]
pub struct TooLong {
    /// The part that does not fit.
    pub what: &'static str,
    /// Its length in bytes.
    pub length: usize,
    /// The maximum length that fits.
    pub limit: usize,
    /// The exceeded limit.
    pub exceeds: Limit,
}

/// The limit that an item exceeds: see [`TooLong`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The limit of the item itself: it fits into no batch.
    Item,
    /// The limit of the batch ([`MAX_BATCH_BYTES`]): the item fits into the next one.
    Batch,
}

impl Default for Batch {
    fn default() -> Batch {
        Batch::new()
    }
}

impl Batch {
    /// Creates an empty batch.
    pub fn new() -> Batch {
        Batch {
            buffer: vec![0; RECORD_HEADER],
        }
    }

    /// Returns `true` if the batch has no items.
    pub fn is_empty(&self) -> bool {
        self.buffer.len() == RECORD_HEADER
    }

    /// Returns the size of the items in bytes. Drivers should append a batch before it reaches many
    /// megabytes.
    pub fn bytes(&self) -> usize {
        self.buffer.len() - RECORD_HEADER
    }

    /// Removes all items and keeps the buffer.
    pub fn clear(&mut self) {
        self.buffer.truncate(RECORD_HEADER);
    }

    /// Removes every item that was added after [`Batch::bytes`] returned `bytes`.
    pub fn take_back(&mut self, bytes: usize) {
        self.buffer.truncate(RECORD_HEADER + bytes);
    }

    /// Adds an entry of a group. If the group already has an entry at `index`, the new one replaces
    /// it and all that follow.
    ///
    /// # Errors
    ///
    /// Like every method that adds an item, returns [`TooLong`] if the item does not fit.
    pub fn entry(
        &mut self,
        group: GroupId,
        index: u64,
        term: u64,
        payload: &[u8],
    ) -> Result<(), TooLong> {
        self.room("the payload of an entry", payload.len(), MAX_ENTRY, 29)?;
        self.numbers(1, &[group, index, term]);
        self.part(payload);
        Ok(())
    }

    /// Sets the hard state of a group. The last one counts.
    pub fn state(&mut self, group: GroupId, state: &[u8]) -> Result<(), TooLong> {
        self.room("the hard state of a group", state.len(), MAX_STATE, 13)?;
        self.numbers(2, &[group]);
        self.part(state);
        Ok(())
    }

    /// Creates the group on this node: its log begins after `index`, without a snapshot.
    ///
    /// The group must have neither entries nor a base yet. `note` is returned with the base at
    /// recovery; here and in the methods below it holds what else must be known at that index, such
    /// as the membership.
    pub fn begin(
        &mut self,
        group: GroupId,
        index: u64,
        term: u64,
        note: &[u8],
    ) -> Result<(), TooLong> {
        self.base(3, [group, index, term], note)
    }

    /// Records a snapshot of the group's own state: entries up to `index` are no longer needed,
    /// later ones stay. The snapshot must have been committed before.
    pub fn snapshot_taken(
        &mut self,
        group: GroupId,
        index: u64,
        term: u64,
        note: &[u8],
    ) -> Result<(), TooLong> {
        self.base(4, [group, index, term], note)
    }

    /// Records a snapshot received from another node, which replaces *all* entries of the group.
    /// The snapshot must have been committed before.
    pub fn snapshot_installed(
        &mut self,
        group: GroupId,
        index: u64,
        term: u64,
        note: &[u8],
    ) -> Result<(), TooLong> {
        self.base(5, [group, index, term], note)
    }

    /// Removes the group with its state, its base and its entries.
    ///
    /// The group may be created again, but must not commit a snapshot before the removal is
    /// durable.
    pub fn remove(&mut self, group: GroupId) -> Result<(), TooLong> {
        self.room("a removal", 0, 0, 9)?;
        self.numbers(6, &[group]);
        Ok(())
    }

    /// Sets a record of the node itself. The last value of a key counts.
    pub fn node(&mut self, key: &[u8], value: &[u8]) -> Result<(), TooLong> {
        self.room("the key of a node record", key.len(), MAX_KEY, 9)?;
        self.room(
            "the value of a node record",
            value.len(),
            MAX_VALUE,
            9 + key.len(),
        )?;
        self.numbers(7, &[]);
        self.part(key);
        self.part(value);
        Ok(())
    }

    /// Adds a checkpoint item: everything about a group except its entries.
    pub(crate) fn group(
        &mut self,
        group: GroupId,
        last: u64,
        base: Option<&LogBase>,
        state: &[u8],
    ) {
        let (kind, index, term, note) = match base {
            None => (0, 0, 0, &[][..]),
            Some(base) => (base.kind as u8, base.index, base.term, &base.note[..]),
        };
        self.numbers(8, &[group, last]);
        self.numbers(kind, &[index, term]);
        self.part(note);
        self.part(state);
    }

    /// The encoded items.
    pub(crate) fn body(&self) -> &[u8] {
        &self.buffer[RECORD_HEADER..]
    }

    /// Returns the whole record and the length of its body. The record includes padding and
    /// trailing zeros; the caller fills in the header, and clears the batch afterwards.
    pub(crate) fn as_record(&mut self) -> (&mut [u8], u32) {
        let length = u32::try_from(self.bytes()).expect("a body is at most MAX_BODY long");
        let padded = self.buffer.len().next_multiple_of(ALIGN);
        self.buffer.resize(padded + ZEROS, 0);
        (&mut self.buffer, length)
    }

    fn base(&mut self, kind: u8, numbers: [u64; 3], note: &[u8]) -> Result<(), TooLong> {
        self.room("the note of a base", note.len(), MAX_NOTE, 29)?;
        self.numbers(kind, &numbers);
        self.part(note);
        Ok(())
    }

    fn room(
        &self,
        what: &'static str,
        length: usize,
        limit: usize,
        fields: usize,
    ) -> Result<(), TooLong> {
        let left = MAX_BODY.saturating_sub(self.bytes() + fields);
        if length > limit {
            Err(TooLong {
                what,
                length,
                limit,
                exceeds: Limit::Item,
            })
        } else if length > left || self.bytes() + fields > MAX_BODY {
            Err(TooLong {
                what: "an item for what is left of the batch",
                length,
                limit: left,
                exceeds: Limit::Batch,
            })
        } else {
            Ok(())
        }
    }

    fn numbers(&mut self, kind: u8, numbers: &[u64]) {
        self.buffer.push(kind);
        for number in numbers {
            self.buffer.extend_from_slice(&number.to_le_bytes());
        }
    }

    fn part(&mut self, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).expect("parts are at most MAX_ENTRY long");
        self.buffer.extend_from_slice(&length.to_le_bytes());
        self.buffer.extend_from_slice(bytes);
    }
}

/// A decoded item of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item<'a> {
    Entry {
        group: GroupId,
        index: u64,
        term: u64,
        payload: &'a [u8],
    },
    State {
        group: GroupId,
        state: &'a [u8],
    },
    Begin {
        group: GroupId,
        base: BaseItem<'a>,
    },
    SnapshotTaken {
        group: GroupId,
        base: BaseItem<'a>,
    },
    SnapshotInstalled {
        group: GroupId,
        base: BaseItem<'a>,
    },
    Remove {
        group: GroupId,
    },
    Node {
        key: &'a [u8],
        value: &'a [u8],
    },
    Group {
        group: GroupId,
        last: u64,
        base: Option<(LogBaseKind, BaseItem<'a>)>,
        state: &'a [u8],
    },
}

/// The base of a group, as encoded in an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BaseItem<'a> {
    pub(crate) index: u64,
    pub(crate) term: u64,
    pub(crate) note: &'a [u8],
}

impl Item<'_> {
    pub(crate) fn group(&self) -> Option<GroupId> {
        match *self {
            Item::Entry { group, .. }
            | Item::State { group, .. }
            | Item::Begin { group, .. }
            | Item::SnapshotTaken { group, .. }
            | Item::SnapshotInstalled { group, .. }
            | Item::Remove { group }
            | Item::Group { group, .. } => Some(group),
            Item::Node { .. } => None,
        }
    }
}

/// The error of a body that is not a sequence of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Iterator over the items of a body, without copying.
pub(crate) struct Items<'a> {
    rest: &'a [u8],
}

impl<'a> Items<'a> {
    pub(crate) fn new(body: &'a [u8]) -> Items<'a> {
        Items { rest: body }
    }

    fn item(&mut self) -> Option<Item<'a>> {
        let [kind] = self.take::<1>()?;
        Some(match kind {
            1 => Item::Entry {
                group: self.number()?,
                index: self.number()?,
                term: self.number()?,
                payload: self.part(MAX_ENTRY)?,
            },
            2 => Item::State {
                group: self.number()?,
                state: self.part(MAX_STATE)?,
            },
            3 => Item::Begin {
                group: self.number()?,
                base: self.base()?,
            },
            4 => Item::SnapshotTaken {
                group: self.number()?,
                base: self.base()?,
            },
            5 => Item::SnapshotInstalled {
                group: self.number()?,
                base: self.base()?,
            },
            6 => Item::Remove {
                group: self.number()?,
            },
            7 => Item::Node {
                key: self.part(MAX_KEY)?,
                value: self.part(MAX_VALUE)?,
            },
            8 => Item::Group {
                group: self.number()?,
                last: self.number()?,
                base: self.checkpoint_base()?,
                state: self.part(MAX_STATE)?,
            },
            _ => return None,
        })
    }

    fn base(&mut self) -> Option<BaseItem<'a>> {
        Some(BaseItem {
            index: self.number()?,
            term: self.number()?,
            note: self.part(MAX_NOTE)?,
        })
    }

    fn checkpoint_base(&mut self) -> Option<Option<(LogBaseKind, BaseItem<'a>)>> {
        let [kind] = self.take::<1>()?;
        let base = self.base()?;
        match kind {
            0 => Some(None),
            1 => Some(Some((LogBaseKind::Begin, base))),
            2 => Some(Some((LogBaseKind::Snapshot, base))),
            _ => None,
        }
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*bytes)
    }

    fn number(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn part(&mut self, limit: usize) -> Option<&'a [u8]> {
        let length = u32::from_le_bytes(self.take()?) as usize;
        if length > limit {
            return None;
        }
        let (part, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(part)
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = Result<Item<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let item = self.item();
        if item.is_none() {
            self.rest = &[];
        }
        Some(item.ok_or(Malformed))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Write {
        Entry(u64, u64, u64, Vec<u8>),
        State(u64, Vec<u8>),
        Begin(u64, LogBase),
        Taken(u64, LogBase),
        Installed(u64, LogBase),
        Remove(u64),
        Node(Vec<u8>, Vec<u8>),
        Group(u64, u64, Option<LogBase>, Vec<u8>),
    }

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 0..40)
    }

    fn base() -> impl Strategy<Value = LogBase> {
        let kind = prop_oneof![Just(LogBaseKind::Begin), Just(LogBaseKind::Snapshot)];
        (kind, any::<u64>(), any::<u64>(), bytes()).prop_map(|(kind, index, term, note)| LogBase {
            kind,
            index,
            term,
            note,
        })
    }

    fn writes() -> impl Strategy<Value = Vec<Write>> {
        let write = prop_oneof![
            (any::<u64>(), any::<u64>(), any::<u64>(), bytes())
                .prop_map(|(g, i, t, b)| Write::Entry(g, i, t, b)),
            (any::<u64>(), bytes()).prop_map(|(g, b)| Write::State(g, b)),
            (any::<u64>(), base()).prop_map(|(g, b)| Write::Begin(g, b)),
            (any::<u64>(), base()).prop_map(|(g, b)| Write::Taken(g, b)),
            (any::<u64>(), base()).prop_map(|(g, b)| Write::Installed(g, b)),
            any::<u64>().prop_map(Write::Remove),
            (bytes(), bytes()).prop_map(|(k, v)| Write::Node(k, v)),
            (
                any::<u64>(),
                any::<u64>(),
                prop::option::of(base()),
                bytes()
            )
                .prop_map(|(g, l, s, b)| Write::Group(g, l, s, b)),
        ];
        prop::collection::vec(write, 0..12)
    }

    fn as_item(write: &Write) -> Item<'_> {
        match write {
            Write::Entry(group, index, term, payload) => Item::Entry {
                group: *group,
                index: *index,
                term: *term,
                payload,
            },
            Write::State(group, state) => Item::State {
                group: *group,
                state,
            },
            Write::Begin(group, base) => Item::Begin {
                group: *group,
                base: base.into(),
            },
            Write::Taken(group, base) => Item::SnapshotTaken {
                group: *group,
                base: base.into(),
            },
            Write::Installed(group, base) => Item::SnapshotInstalled {
                group: *group,
                base: base.into(),
            },
            Write::Remove(group) => Item::Remove { group: *group },
            Write::Node(key, value) => Item::Node { key, value },
            Write::Group(group, last, base, state) => Item::Group {
                group: *group,
                last: *last,
                base: base.as_ref().map(|base| (base.kind, base.into())),
                state,
            },
        }
    }

    impl<'a> From<&'a LogBase> for BaseItem<'a> {
        fn from(base: &'a LogBase) -> BaseItem<'a> {
            BaseItem {
                index: base.index,
                term: base.term,
                note: &base.note,
            }
        }
    }

    fn encode(writes: &[Write]) -> Batch {
        let mut batch = Batch::new();
        for write in writes {
            match write {
                Write::Entry(g, i, t, payload) => batch.entry(*g, *i, *t, payload).unwrap(),
                Write::State(g, state) => batch.state(*g, state).unwrap(),
                Write::Begin(g, b) => batch.begin(*g, b.index, b.term, &b.note).unwrap(),
                Write::Taken(g, b) => batch.snapshot_taken(*g, b.index, b.term, &b.note).unwrap(),
                Write::Installed(g, b) => {
                    batch
                        .snapshot_installed(*g, b.index, b.term, &b.note)
                        .unwrap();
                }
                Write::Remove(g) => batch.remove(*g).unwrap(),
                Write::Node(key, value) => batch.node(key, value).unwrap(),
                Write::Group(g, last, base, state) => batch.group(*g, *last, base.as_ref(), state),
            }
        }
        batch
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out(writes in writes()) {
            let batch = encode(&writes);
            let items: Result<Vec<_>, _> = Items::new(batch.body()).collect();
            prop_assert_eq!(items, Ok(writes.iter().map(as_item).collect()));
        }

        /// A truncated body yields a prefix of the written items and then at most an error, never a
        /// new item.
        #[test]
        fn a_cut_body_has_no_new_items(writes in writes(), cut in any::<prop::sample::Index>()) {
            let batch = encode(&writes);
            let cut = cut.index(batch.body().len() + 1);
            let read: Vec<_> = Items::new(&batch.body()[..cut]).filter_map(Result::ok).collect();
            let written: Vec<_> = writes.iter().map(as_item).collect();
            prop_assert!(written.starts_with(&read));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let read = Items::new(&bytes).count();
            prop_assert!(read <= bytes.len());
        }
    }

    #[test]
    fn what_is_too_long_is_refused_and_leaves_no_trace() {
        let mut batch = Batch::new();
        assert!(batch.entry(1, 1, 1, &vec![0; MAX_ENTRY + 1]).is_err());
        assert!(batch.state(1, &vec![0; MAX_STATE + 1]).is_err());
        assert!(
            batch
                .snapshot_taken(1, 1, 1, &vec![0; MAX_NOTE + 1])
                .is_err()
        );
        assert!(batch.node(&[0; MAX_KEY + 1], b"").is_err());
        assert!(batch.node(b"", &vec![0; MAX_VALUE + 1]).is_err());
        assert!(batch.is_empty());
        let entry = vec![0; MAX_ENTRY];
        for index in 1..=3 {
            batch.entry(1, index, 1, &entry).unwrap();
        }
        let bytes = batch.bytes();
        let full = batch.entry(1, 4, 1, &entry).unwrap_err();
        assert_eq!(full.exceeds, Limit::Batch, "64 MiB are full");
        assert_eq!(batch.bytes(), bytes);
        batch.entry(1, 4, 1, b"short").unwrap();
        batch.take_back(bytes);
        assert_eq!(batch.bytes(), bytes);
        batch.clear();
        let never = batch.entry(1, 4, 1, &vec![0; MAX_ENTRY + 1]).unwrap_err();
        assert_eq!(never.exceeds, Limit::Item);
    }
}
