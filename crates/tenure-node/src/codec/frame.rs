//! Frame format: what one step sends to one peer in one slot (immediate, after the writes, bulk).
//!
//! ```text
//!   version, sender, its start number, slot, frame number in it, items: kind, length, content
//! ```
//!
//! Start number, slot and frame number identify duplicates. The reader skips items of an unknown
//! kind, so that a later release can add items without breaking nodes of this release.

use bytes::Bytes;

use super::{DecodeError, DecodeResult, Reader, VERSION, Writer};
use crate::ReplicaId;

/// Frames longer than this are refused. An append is at most half a megabyte, a chunk is smaller.
pub(crate) const MAX_FRAME_BYTES: usize = 64 * 1024 * 1024;

/// Collects the items for one peer.
#[derive(Debug)]
pub(crate) struct FrameWriter {
    writer: Writer,
}

impl FrameWriter {
    /// A frame without items; `room` is how many bytes it will probably have.
    pub(crate) fn new(
        sender: ReplicaId,
        start: u64,
        slot: u8,
        number: u64,
        room: usize,
    ) -> FrameWriter {
        let mut writer = Writer::versioned(room);
        writer.number(sender.pack());
        writer.number(start);
        writer.byte(slot);
        writer.number(number);
        FrameWriter { writer }
    }

    /// Adds an item, unless it is longer than this.
    pub(crate) fn item(&mut self, kind: u8, most: usize, content: impl FnOnce(&mut Writer)) {
        let before = self.writer.len();
        self.writer.byte(kind);
        self.writer.sized(content);
        if self.writer.len() - before > most {
            self.writer.truncate(before);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.writer.len()
    }

    pub(crate) fn finish(self) -> Bytes {
        self.writer.into_bytes().into()
    }
}

/// A frame that was received.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) sender: ReplicaId,
    /// Which process of the sender.
    pub(crate) start: u64,
    /// Which frame of that process, counted for each slot.
    pub(crate) slot: u8,
    pub(crate) number: u64,
    bytes: Bytes,
    /// What was read of them.
    end: usize,
}

impl Frame {
    pub(crate) fn open(bytes: Bytes) -> DecodeResult<Frame> {
        if bytes.len() > MAX_FRAME_BYTES {
            return Err(DecodeError::Number);
        }
        let mut reader = Reader::new(&bytes);
        reader.version(VERSION)?;
        let sender = ReplicaId::unpack(reader.number()?).ok_or(DecodeError::Number)?;
        let (start, slot, number) = (reader.number()?, reader.byte()?, reader.number()?);
        if number > u64::MAX / 2 {
            return Err(DecodeError::Number);
        }
        Ok(Frame {
            sender,
            start,
            slot,
            number,
            end: bytes.len() - reader.remaining(),
            bytes,
        })
    }

    /// The next item: its kind and content.
    pub(crate) fn next(&mut self) -> DecodeResult<Option<(u8, Bytes)>> {
        let mut reader = Reader::new(&self.bytes[self.end..]);
        if reader.is_empty() {
            return Ok(None);
        }
        let kind = reader.byte()?;
        let content = self.bytes.slice_ref(reader.sized()?);
        self.end = self.bytes.len() - reader.remaining();
        Ok(Some((kind, content)))
    }
}
