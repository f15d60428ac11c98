//! A batch: what many groups want to have written, in the bytes in which it will be written.
//!
//! A batch is one record of the log and so it is there after a crash or it is not. Its buffer is
//! kept when it has been appended: a driver that uses one batch over and over allocates nothing.
//!
//! ```text
//! item = kind, fields                              all integers little-endian
//!   1 entry               group index term length payload
//!   2 state               group length payload
//!   3 snapshot taken      group index term
//!   4 snapshot installed  group index term
//!   5 remove              group
//!   6 node                length key length value
//!   7 group               group last index term length state      (checkpoints only)
//! ```

use crate::record::{ALIGN, MAX_BODY, RECORD_HEADER};

/// The id of a group.
pub type GroupId = u64;

/// No payload of an entry is longer.
pub const MAX_ENTRY: usize = 16 << 20;
/// No hard state of a group is longer: every file repeats all of them.
pub const MAX_STATE: usize = 64 << 10;
/// No key of a node record is longer.
pub const MAX_KEY: usize = 256;
/// No value of a node record is longer: every file repeats all of them.
pub const MAX_VALUE: usize = 64 << 10;

/// Records of many groups that become durable together or not at all.
#[derive(Debug)]
pub struct Batch {
    /// Room for the record header, then the items.
    buffer: Vec<u8>,
}

/// Something does not fit: nothing of it was put into the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} of {length} bytes: at most {limit} fit")]
pub struct TooLong {
    /// What does not fit, and into what.
    pub what: &'static str,
    /// Its length.
    pub length: usize,
    /// The longest that fits.
    pub limit: usize,
}

impl Default for Batch {
    fn default() -> Batch {
        Batch::new()
    }
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        Batch {
            buffer: vec![0; RECORD_HEADER],
        }
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.buffer.len() == RECORD_HEADER
    }

    /// Bytes in it so far. A driver does well to append a batch before it has many megabytes.
    pub fn bytes(&self) -> usize {
        self.buffer.len() - RECORD_HEADER
    }

    /// Empties it and keeps its buffer.
    pub fn clear(&mut self) {
        self.buffer.truncate(RECORD_HEADER);
    }

    /// An entry of a group. One at an index that the group has replaces it and all that follow.
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

    /// The hard state of a group; the last one counts.
    pub fn state(&mut self, group: GroupId, state: &[u8]) -> Result<(), TooLong> {
        self.room("the hard state of a group", state.len(), MAX_STATE, 13)?;
        self.numbers(2, &[group]);
        self.part(state);
        Ok(())
    }

    /// A snapshot of the group's own state stands beside the log: entries up to `index` are no
    /// longer needed, those behind it stay. The snapshot must have been committed before.
    pub fn snapshot_taken(&mut self, group: GroupId, index: u64, term: u64) -> Result<(), TooLong> {
        self.room("a snapshot mark", 0, 0, 25)?;
        self.numbers(3, &[group, index, term]);
        Ok(())
    }

    /// A snapshot from elsewhere stands beside the log and takes the place of *all* entries of the
    /// group. The snapshot must have been committed before.
    pub fn snapshot_installed(
        &mut self,
        group: GroupId,
        index: u64,
        term: u64,
    ) -> Result<(), TooLong> {
        self.room("a snapshot mark", 0, 0, 25)?;
        self.numbers(4, &[group, index, term]);
        Ok(())
    }

    /// The group is gone, with its state, its snapshot mark and its entries.
    pub fn remove(&mut self, group: GroupId) -> Result<(), TooLong> {
        self.room("a removal", 0, 0, 9)?;
        self.numbers(5, &[group]);
        Ok(())
    }

    /// Something about the node itself, under a key; the last value counts.
    pub fn node(&mut self, key: &[u8], value: &[u8]) -> Result<(), TooLong> {
        self.room("the key of a node record", key.len(), MAX_KEY, 9)?;
        self.room(
            "the value of a node record",
            value.len(),
            MAX_VALUE,
            9 + key.len(),
        )?;
        self.numbers(6, &[]);
        self.part(key);
        self.part(value);
        Ok(())
    }

    /// All there is to say about a group except its entries.
    pub(crate) fn group(&mut self, group: GroupId, last: u64, snapshot: (u64, u64), state: &[u8]) {
        self.numbers(7, &[group, last, snapshot.0, snapshot.1]);
        self.part(state);
    }

    /// The items, as bytes.
    pub(crate) fn body(&self) -> &[u8] {
        &self.buffer[RECORD_HEADER..]
    }

    /// The whole record with its padding, the header still to be filled in, and the body's length.
    pub(crate) fn as_record(&mut self) -> (&mut [u8], u32) {
        let length = u32::try_from(self.bytes()).expect("a body is at most MAX_BODY long");
        self.buffer
            .resize(self.buffer.len().next_multiple_of(ALIGN), 0);
        (&mut self.buffer, length)
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
            })
        } else if length > left || self.bytes() + fields > MAX_BODY {
            Err(TooLong {
                what: "an item for what is left of the batch",
                length,
                limit: left,
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

/// One item of a record, read back.
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
    SnapshotTaken {
        group: GroupId,
        index: u64,
        term: u64,
    },
    SnapshotInstalled {
        group: GroupId,
        index: u64,
        term: u64,
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
        snapshot: (u64, u64),
        state: &'a [u8],
    },
}

impl Item<'_> {
    pub(crate) fn group(&self) -> Option<GroupId> {
        match *self {
            Item::Entry { group, .. }
            | Item::State { group, .. }
            | Item::SnapshotTaken { group, .. }
            | Item::SnapshotInstalled { group, .. }
            | Item::Remove { group }
            | Item::Group { group, .. } => Some(group),
            Item::Node { .. } => None,
        }
    }
}

/// A body that is not a sequence of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Reads the items of a body, borrowing from it.
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
            3 => Item::SnapshotTaken {
                group: self.number()?,
                index: self.number()?,
                term: self.number()?,
            },
            4 => Item::SnapshotInstalled {
                group: self.number()?,
                index: self.number()?,
                term: self.number()?,
            },
            5 => Item::Remove {
                group: self.number()?,
            },
            6 => Item::Node {
                key: self.part(MAX_KEY)?,
                value: self.part(MAX_VALUE)?,
            },
            7 => Item::Group {
                group: self.number()?,
                last: self.number()?,
                snapshot: (self.number()?, self.number()?),
                state: self.part(MAX_STATE)?,
            },
            _ => return None,
        })
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
        Taken(u64, u64, u64),
        Installed(u64, u64, u64),
        Remove(u64),
        Node(Vec<u8>, Vec<u8>),
        Group(u64, u64, (u64, u64), Vec<u8>),
    }

    fn writes() -> impl Strategy<Value = Vec<Write>> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..40);
        prop::collection::vec(
            prop_oneof![
                (any::<u64>(), any::<u64>(), any::<u64>(), bytes())
                    .prop_map(|(g, i, t, b)| Write::Entry(g, i, t, b)),
                (any::<u64>(), bytes()).prop_map(|(g, b)| Write::State(g, b)),
                any::<(u64, u64, u64)>().prop_map(|(g, i, t)| Write::Taken(g, i, t)),
                any::<(u64, u64, u64)>().prop_map(|(g, i, t)| Write::Installed(g, i, t)),
                any::<u64>().prop_map(Write::Remove),
                (bytes(), bytes()).prop_map(|(k, v)| Write::Node(k, v)),
                (any::<u64>(), any::<u64>(), any::<(u64, u64)>(), bytes())
                    .prop_map(|(g, l, s, b)| Write::Group(g, l, s, b)),
            ],
            0..12,
        )
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
            Write::Taken(group, index, term) => Item::SnapshotTaken {
                group: *group,
                index: *index,
                term: *term,
            },
            Write::Installed(group, index, term) => Item::SnapshotInstalled {
                group: *group,
                index: *index,
                term: *term,
            },
            Write::Remove(group) => Item::Remove { group: *group },
            Write::Node(key, value) => Item::Node { key, value },
            Write::Group(group, last, snapshot, state) => Item::Group {
                group: *group,
                last: *last,
                snapshot: *snapshot,
                state,
            },
        }
    }

    fn encode(writes: &[Write]) -> Batch {
        let mut batch = Batch::new();
        for write in writes {
            match write {
                Write::Entry(g, i, t, payload) => batch.entry(*g, *i, *t, payload).unwrap(),
                Write::State(g, state) => batch.state(*g, state).unwrap(),
                Write::Taken(g, i, t) => batch.snapshot_taken(*g, *i, *t).unwrap(),
                Write::Installed(g, i, t) => batch.snapshot_installed(*g, *i, *t).unwrap(),
                Write::Remove(g) => batch.remove(*g).unwrap(),
                Write::Node(key, value) => batch.node(key, value).unwrap(),
                Write::Group(g, last, snapshot, state) => batch.group(*g, *last, *snapshot, state),
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

        /// A cut body is malformed or a shorter sequence of whole items, never anything new.
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
        assert!(batch.node(&[0; MAX_KEY + 1], b"").is_err());
        assert!(batch.node(b"", &vec![0; MAX_VALUE + 1]).is_err());
        assert!(batch.is_empty());
        let entry = vec![0; MAX_ENTRY];
        for index in 1..=3 {
            batch.entry(1, index, 1, &entry).unwrap();
        }
        let bytes = batch.bytes();
        assert!(batch.entry(1, 4, 1, &entry).is_err(), "64 MiB are full");
        assert_eq!(batch.bytes(), bytes);
    }
}
