//! Binary encoding of everything that is sent to peers or written to disk.
//!
//! Numbers are LEB128, byte strings are length-prefixed, lists are counted. A record that can
//! outlive a release begins with a version. The decoder checks every length against the remaining
//! input *before* it allocates, and never panics; [`CodecError`] says what was wrong.

mod consensus;
mod frame;
#[cfg(test)]
mod tests;

use bytes::{Buf, Bytes};

pub(crate) use consensus::{
    encode_hard_state, encode_membership, encode_membership_change, encode_message, encode_payload,
    floor_of_empty, hard_state, membership, membership_change, message, payload, read_member,
    write_member,
};
pub(crate) use frame::{Frame, FrameWriter, MAX_FRAME_BYTES};

/// The version of every record written by this release.
pub(crate) const VERSION: u8 = 1;

/// Why bytes were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The record ends in the middle of a value.
    #[error("the record ends too early")]
    TooShort,
    /// The record goes on after its last value.
    #[error("the record is too long by {0} bytes")]
    TooLong(usize),
    /// A count or length beyond what this record may have.
    #[error("a length of {0} is beyond the limit")]
    Limit(u64),
    /// A number that names no variant.
    #[error("unknown {what} number {number}")]
    Unknown {
        /// What was to be read.
        what: &'static str,
        /// The number found.
        number: u64,
    },
    /// A value that breaks a rule of its type.
    #[error("an invalid {0}")]
    Invalid(&'static str),
    /// Written by a release that this one does not know.
    #[error("version {0} is not known to this release")]
    Version(u8),
}

/// The result of reading.
pub(crate) type DecodeResult<T> = Result<T, CodecError>;

/// Writes values one behind the other.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn new() -> Writer {
        Writer::default()
    }

    /// A record that begins with its version, with room for so many bytes.
    pub(crate) fn with_room(bytes: usize) -> Writer {
        let mut writer = Writer {
            bytes: Vec::with_capacity(bytes),
        };
        writer.byte(VERSION);
        writer
    }

    pub(crate) fn with_version() -> Writer {
        Writer::with_room(64)
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Takes back what was written behind this length.
    pub(crate) fn truncate(&mut self, length: usize) {
        self.bytes.truncate(length);
    }

    pub(crate) fn finish(self) -> Bytes {
        self.bytes.into()
    }

    pub(crate) fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    pub(crate) fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.byte(number.to_le_bytes()[0] | 0x80);
            number >>= 7;
        }
        self.byte(number.to_le_bytes()[0]);
    }

    pub(crate) fn count(&mut self, count: usize) {
        self.number(count as u64);
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn slice(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.raw(bytes);
    }

    /// Content behind its length in four bytes: written in place, without a second buffer.
    pub(crate) fn sized(&mut self, content: impl FnOnce(&mut Writer)) {
        let start = self.bytes.len();
        self.raw(&[0; 4]);
        content(self);
        let length = u32::try_from(self.bytes.len() - start - 4)
            .expect("what a node says in one item is far below 4 GiB");
        self.bytes[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.slice(text.as_bytes());
    }

    /// Zero for `None`, else one more than the number.
    pub(crate) fn maybe(&mut self, number: Option<u64>) {
        match number {
            None => self.byte(0),
            Some(number) => {
                self.byte(1);
                self.number(number);
            }
        }
    }
}

/// Reads values one behind the other, sharing the memory of what it reads.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    bytes: Bytes,
}

impl Reader {
    pub(crate) fn new(bytes: Bytes) -> Reader {
        Reader { bytes }
    }

    /// Reads the version byte of a record.
    pub(crate) fn versioned(bytes: Bytes) -> DecodeResult<Reader> {
        let mut reader = Reader::new(bytes);
        match reader.byte()? {
            VERSION => Ok(reader),
            other => Err(CodecError::Version(other)),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// All that is left.
    pub(crate) fn rest(&mut self) -> Bytes {
        std::mem::take(&mut self.bytes)
    }

    pub(crate) fn end(&self) -> DecodeResult<()> {
        match self.bytes.len() {
            0 => Ok(()),
            left => Err(CodecError::TooLong(left)),
        }
    }

    pub(crate) fn byte(&mut self) -> DecodeResult<u8> {
        let byte = *self.bytes.first().ok_or(CodecError::TooShort)?;
        self.bytes.advance(1);
        Ok(byte)
    }

    pub(crate) fn number(&mut self) -> DecodeResult<u64> {
        let mut number = 0u64;
        for (at, &byte) in self.bytes.iter().take(10).enumerate() {
            let bits = u64::from(byte & 0x7f);
            if at == 9 && bits > 1 {
                return Err(CodecError::Invalid("number"));
            }
            number |= bits << (7 * at);
            if byte & 0x80 == 0 {
                self.bytes.advance(at + 1);
                return Ok(number);
            }
        }
        if self.bytes.len() >= 10 {
            Err(CodecError::Invalid("number"))
        } else {
            Err(CodecError::TooShort)
        }
    }

    pub(crate) fn small(&mut self) -> DecodeResult<u32> {
        u32::try_from(self.number()?).map_err(|_| CodecError::Invalid("number"))
    }

    /// A count of things that take at least `least` bytes each: more than fit are refused before
    /// anything is allocated for them.
    pub(crate) fn count(&mut self, least: usize) -> DecodeResult<usize> {
        let count = self.number()?;
        let most = self.bytes.len() / least.max(1);
        match usize::try_from(count) {
            Ok(count) if count <= most => Ok(count),
            _ => Err(CodecError::Limit(count)),
        }
    }

    pub(crate) fn slice(&mut self) -> DecodeResult<Bytes> {
        let length = self.number()?;
        match usize::try_from(length) {
            Ok(length) if length <= self.bytes.len() => Ok(self.bytes.split_to(length)),
            Ok(_) => Err(CodecError::TooShort),
            Err(_) => Err(CodecError::Limit(length)),
        }
    }

    /// What [`Writer::sized`] wrote.
    pub(crate) fn sized(&mut self) -> DecodeResult<Bytes> {
        let length = self.bytes.first_chunk::<4>().ok_or(CodecError::TooShort)?;
        let length = u32::from_le_bytes(*length) as usize;
        self.bytes.advance(4);
        if length > self.bytes.len() {
            return Err(CodecError::TooShort);
        }
        Ok(self.bytes.split_to(length))
    }

    pub(crate) fn text(&mut self) -> DecodeResult<String> {
        let bytes = self.slice()?;
        std::str::from_utf8(&bytes)
            .map(str::to_owned)
            .map_err(|_| CodecError::Invalid("text"))
    }

    pub(crate) fn maybe(&mut self) -> DecodeResult<Option<u64>> {
        match self.byte()? {
            0 => Ok(None),
            1 => self.number().map(Some),
            other => Err(CodecError::Unknown {
                what: "option",
                number: u64::from(other),
            }),
        }
    }
}
