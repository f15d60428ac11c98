//! Binary encoding of commands, outcomes and snapshots: versioned and bounded.
//!
//! Every top-level record starts with a version byte ([`to_bytes`], [`from_bytes`]). Numbers are
//! LEB128; strings and lists carry a length prefix. A reader checks each length against the
//! remaining input before it allocates, so hostile input never costs more memory than its own size.
//! Decoded values pass through the same constructors as client input, which validate them again.
//!
//! A newer release reads what an older one wrote: new fields are added behind a new version number
//! and existing fields never move.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::path::Namespace;
use crate::space::{FIRST_RULES, RULES};
use crate::value::Invalid;

mod auth;
mod command;
mod outcome;
mod query;
mod system;
mod value;

/// Declares the encoding of a struct: its fields, one after the other. A struct around one value is
/// written as that value.
#[macro_export]
macro_rules! record {
    ($type:ident { $($field:ident),+ $(,)? }) => {
        impl $crate::codec::Encode for $type {
            fn put(&self, out: &mut $crate::codec::Writer) {
                $(out.put(&self.$field);)+
            }
            fn take(
                input: &mut $crate::codec::Reader<'_>,
            ) -> Result<$type, $crate::codec::DecodeError> {
                Ok($type { $($field: input.take()?),+ })
            }
        }
    };
    ($type:ident ( $field:ident )) => {
        impl $crate::codec::Encode for $type {
            fn put(&self, out: &mut $crate::codec::Writer) {
                let $type($field) = self;
                out.put($field);
            }
            fn take(
                input: &mut $crate::codec::Reader<'_>,
            ) -> Result<$type, $crate::codec::DecodeError> {
                input.take().map($type)
            }
        }
    };
}

/// Declares the encoding of an enum: each variant is a number and then the named values, in the
/// order in which they are written. `3(a, b) => Variant { b, a }` reads and writes `3`, `a`, `b`.
///
/// What stands right of the arrow is a pattern and an expression at once, so one variant can have
/// several numbers: `2(a) => Variant { a, more: None }, 9(a, b) => Variant { a, more: Some(b) }`.
#[macro_export]
macro_rules! record_enum {
    ($type:ident as $what:literal { $(
        $tag:literal $(($($field:ident),+))? =>
            $variant:ident $({ $($named:tt)* })? $(($($positional:tt)*))?
    ),+ $(,)? }) => {
        impl $crate::codec::Encode for $type {
            fn put(&self, out: &mut $crate::codec::Writer) {
                match self {
                    $($type::$variant $({ $($named)* })? $(($($positional)*))? => {
                        out.byte($tag);
                        $($(out.put($field);)+)?
                    })+
                }
            }
            fn take(
                input: &mut $crate::codec::Reader<'_>,
            ) -> Result<$type, $crate::codec::DecodeError> {
                Ok(match input.byte()? {
                    $($tag => {
                        $($(let $field = input.take()?;)+)?
                        $type::$variant $({ $($named)* })? $(($($positional)*))?
                    })+
                    found => return Err($crate::codec::DecodeError::Tag { of: $what, found }),
                })
            }
        }
    };
}

/// The version that this release writes.
pub const VERSION: u8 = 1;

/// A value with a fixed binary encoding.
pub trait Encode: Sized {
    /// Appends the encoded value.
    fn put(&self, out: &mut Writer);
    /// Decodes a value from the front of the input.
    fn take(input: &mut Reader<'_>) -> Result<Self, DecodeError>;
}

/// Encodes one record with its version.
pub fn to_bytes<T: Encode>(record: &T) -> Vec<u8> {
    let mut out = Writer::versioned(128);
    record.put(&mut out);
    out.into_bytes()
}

/// Decodes one record with its version. Fails on trailing bytes.
pub fn from_bytes<T: Encode>(bytes: &[u8]) -> Result<T, DecodeError> {
    let mut input = Reader::new(bytes);
    input.version(VERSION)?;
    input.last()
}

/// Returns the version byte of a snapshot, which is the rules number of its machine: a release that
/// does not know these rules refuses the snapshot at the first byte.
pub(crate) fn snapshot_version(rules: u32) -> u8 {
    u8::try_from(rules).unwrap_or(u8::MAX)
}

/// Decodes the version of a snapshot. Fails if this release does not know its rules.
pub(crate) fn take_snapshot_version(input: &mut Reader<'_>) -> Result<u8, DecodeError> {
    let found = input.byte()?;
    if (FIRST_RULES..=RULES).contains(&u32::from(found)) {
        Ok(found)
    } else {
        Err(DecodeError::Version { found })
    }
}

/// Decodes the rules number of a snapshot, which must match its version.
pub(crate) fn take_rules(version: u8, input: &mut Reader<'_>) -> Result<u32, DecodeError> {
    let rules = input.small()?;
    if rules == u32::from(version) {
        Ok(rules)
    } else {
        Err(DecodeError::Inconsistent("the number of the rules"))
    }
}

/// Why decoding failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The input ends too early.
    Truncated,
    /// Bytes follow the record; contains their number.
    Trailing(usize),
    /// The version is not known to this release.
    Version {
        /// The version found.
        found: u8,
    },
    /// Unknown enum variant.
    Tag {
        /// The name of the enum.
        of: &'static str,
        /// The number found.
        found: u8,
    },
    /// A number is out of range, or not in its shortest form.
    Number,
    /// A string is not UTF-8.
    Text,
    /// The constructor of a value refused it.
    Invalid(Invalid),
    /// Parts of the record contradict each other; the text names them.
    Inconsistent(&'static str),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Truncated => f.write_str("the record ends too early"),
            DecodeError::Trailing(bytes) => write!(f, "{bytes} bytes follow the record"),
            DecodeError::Version { found } => {
                write!(
                    f,
                    "record version {found} is not known here (this release knows {VERSION})"
                )
            }
            DecodeError::Tag { of, found } => write!(f, "no {of} has the number {found}"),
            DecodeError::Number => f.write_str("a number is too large for its place"),
            DecodeError::Text => f.write_str("a text is not UTF-8"),
            DecodeError::Invalid(invalid) => invalid.fmt(f),
            DecodeError::Inconsistent(what) => write!(f, "inconsistent record: {what}"),
        }
    }
}

impl core::error::Error for DecodeError {}

impl From<Invalid> for DecodeError {
    fn from(invalid: Invalid) -> DecodeError {
        DecodeError::Invalid(invalid)
    }
}

/// Appends values to a growing buffer.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// An empty buffer.
    pub fn new() -> Writer {
        Writer::default()
    }

    /// Creates a writer that appends to `bytes`.
    pub fn append_to(bytes: Vec<u8>) -> Writer {
        Writer { bytes }
    }

    /// Creates a writer of a record that starts with its version, with room for so many bytes.
    pub fn versioned(room: usize) -> Writer {
        let mut out = Writer::append_to(Vec::with_capacity(room));
        out.byte(VERSION);
        out
    }

    /// Returns the written bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// One raw byte.
    pub fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    /// Appends a number as LEB128: seven bits per byte, low bits first.
    pub fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            // The mask keeps seven bits, so the cast is lossless.
            self.bytes.push((number & 0x7f) as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    /// Appends the length of a list or string.
    pub fn length(&mut self, length: usize) {
        self.number(length as u64);
    }

    /// Drops what was written behind this length.
    pub fn truncate(&mut self, length: usize) {
        self.bytes.truncate(length);
    }

    /// Bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes with a length prefix.
    pub fn slice(&mut self, bytes: &[u8]) {
        self.length(bytes.len());
        self.raw(bytes);
    }

    /// Content behind its length in four bytes: written in place, without a second buffer. The
    /// content must be shorter than 4 GiB.
    pub fn sized(&mut self, content: impl FnOnce(&mut Writer)) {
        let start = self.bytes.len();
        self.raw(&[0; 4]);
        content(self);
        let length = u32::try_from(self.bytes.len() - start - 4);
        let length = length.expect("the content is shorter than 4 GiB");
        self.bytes[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }

    /// A string with a length prefix.
    pub fn text(&mut self, text: &str) {
        self.slice(text.as_bytes());
    }

    /// A nested value.
    pub fn put<T: Encode>(&mut self, value: &T) {
        value.put(self);
    }

    /// An optional value: a presence byte, then the value.
    pub fn option<T: Encode>(&mut self, value: Option<&T>) {
        match value {
            None => self.byte(0),
            Some(value) => {
                self.byte(1);
                value.put(self);
            }
        }
    }

    /// A list with a length prefix.
    pub fn list<T: Encode>(&mut self, values: &[T]) {
        self.length(values.len());
        for value in values {
            value.put(self);
        }
    }
}

/// Decodes values from the front of a slice.
pub struct Reader<'a> {
    rest: &'a [u8],
    expected: Option<Namespace>,
}

impl<'a> Reader<'a> {
    /// Creates a reader of these bytes.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader {
            rest: bytes,
            expected: None,
        }
    }

    /// Sets the expected next namespace. If it matches, decoding shares its string and skips
    /// validation.
    pub fn expect(&mut self, namespace: Option<Namespace>) {
        self.expected = namespace;
    }

    /// Returns the namespace that was read last, if any.
    pub fn into_expected(self) -> Option<Namespace> {
        self.expected
    }

    /// Decodes a namespace. Most command lists repeat the same one.
    pub(crate) fn namespace(&mut self) -> Result<Namespace, DecodeError> {
        let bytes = self.slice()?;
        if let Some(expected) = &self.expected
            && expected.as_str().as_bytes() == bytes
        {
            return Ok(expected.clone());
        }
        let text = core::str::from_utf8(bytes).map_err(|_| DecodeError::Text)?;
        let namespace = Namespace::parse(text)?;
        self.expected = Some(namespace.clone());
        Ok(namespace)
    }

    /// Returns the number of remaining bytes.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Returns whether all bytes are read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Takes all remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.rest)
    }

    /// Decodes the last value. Fails if bytes follow it.
    pub fn last<T: Encode>(&mut self) -> Result<T, DecodeError> {
        let value = T::take(self)?;
        self.finish()?;
        Ok(value)
    }

    /// Fails if bytes remain.
    pub fn finish(&self) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            more => Err(DecodeError::Trailing(more)),
        }
    }

    /// Decodes the version byte. Fails unless it equals `known`.
    pub fn version(&mut self, known: u8) -> Result<(), DecodeError> {
        match self.byte()? {
            found if found == known => Ok(()),
            found => Err(DecodeError::Version { found }),
        }
    }

    /// One raw byte.
    pub fn byte(&mut self) -> Result<u8, DecodeError> {
        let (first, rest) = self.rest.split_first().ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(*first)
    }

    /// Decodes a LEB128 number. Only the shortest form is accepted, so that equal values have equal
    /// bytes.
    pub fn number(&mut self) -> Result<u64, DecodeError> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(DecodeError::Number);
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                if byte == 0 && shift > 0 {
                    return Err(DecodeError::Number);
                }
                return Ok(number);
            }
        }
        Err(DecodeError::Number)
    }

    /// Decodes a number that fits 32 bits.
    pub fn small(&mut self) -> Result<u32, DecodeError> {
        u32::try_from(self.number()?).map_err(|_| DecodeError::Number)
    }

    /// Decodes the length of a list or string. Fails if it exceeds the remaining bytes, since each
    /// item takes at least one.
    pub fn length(&mut self) -> Result<usize, DecodeError> {
        let length = usize::try_from(self.number()?).map_err(|_| DecodeError::Truncated)?;
        if length > self.rest.len() {
            return Err(DecodeError::Truncated);
        }
        Ok(length)
    }

    /// Bytes with a length prefix.
    pub fn slice(&mut self) -> Result<&'a [u8], DecodeError> {
        let length = self.length()?;
        self.bytes(length)
    }

    /// What [`Writer::sized`] wrote.
    pub fn sized(&mut self) -> Result<&'a [u8], DecodeError> {
        let (length, rest) = self
            .rest
            .split_first_chunk()
            .ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        self.bytes(u32::from_le_bytes(*length) as usize)
    }

    fn bytes(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let split = self.rest.split_at_checked(length);
        let (slice, rest) = split.ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(slice)
    }

    /// A string with a length prefix.
    pub fn text(&mut self) -> Result<&'a str, DecodeError> {
        core::str::from_utf8(self.slice()?).map_err(|_| DecodeError::Text)
    }

    /// A nested value.
    pub fn take<T: Encode>(&mut self) -> Result<T, DecodeError> {
        T::take(self)
    }

    /// An optional value: a presence byte, then the value.
    pub fn option<T: Encode>(&mut self) -> Result<Option<T>, DecodeError> {
        match self.byte()? {
            0 => Ok(None),
            1 => T::take(self).map(Some),
            found => Err(DecodeError::Tag {
                of: "option",
                found,
            }),
        }
    }

    /// Decodes a list with a length prefix. Memory grows with the items actually present.
    pub fn list<T: Encode>(&mut self) -> Result<Vec<T>, DecodeError> {
        let length = self.length()?;
        let mut values = Vec::with_capacity(length.min(4));
        for _ in 0..length {
            values.push(T::take(self)?);
        }
        Ok(values)
    }
}

impl Encode for u64 {
    fn put(&self, out: &mut Writer) {
        out.number(*self);
    }
    fn take(input: &mut Reader<'_>) -> Result<u64, DecodeError> {
        input.number()
    }
}

impl Encode for u32 {
    fn put(&self, out: &mut Writer) {
        out.number(u64::from(*self));
    }
    fn take(input: &mut Reader<'_>) -> Result<u32, DecodeError> {
        input.small()
    }
}

impl Encode for u128 {
    fn put(&self, out: &mut Writer) {
        out.number((self >> 64) as u64);
        out.number(*self as u64);
    }
    fn take(input: &mut Reader<'_>) -> Result<u128, DecodeError> {
        Ok((u128::from(input.number()?) << 64) | u128::from(input.number()?))
    }
}

impl Encode for bool {
    fn put(&self, out: &mut Writer) {
        out.byte(u8::from(*self));
    }
    fn take(input: &mut Reader<'_>) -> Result<bool, DecodeError> {
        match input.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            found => Err(DecodeError::Tag { of: "bool", found }),
        }
    }
}

impl Encode for String {
    fn put(&self, out: &mut Writer) {
        out.text(self);
    }
    fn take(input: &mut Reader<'_>) -> Result<String, DecodeError> {
        input.text().map(String::from)
    }
}

impl Encode for Vec<u8> {
    fn put(&self, out: &mut Writer) {
        out.slice(self);
    }
    fn take(input: &mut Reader<'_>) -> Result<Vec<u8>, DecodeError> {
        input.slice().map(Vec::from)
    }
}

impl<T: Encode> Encode for Option<T> {
    fn put(&self, out: &mut Writer) {
        out.option(self.as_ref());
    }
    fn take(input: &mut Reader<'_>) -> Result<Option<T>, DecodeError> {
        input.option()
    }
}

impl<T: Encode> Encode for Vec<T> {
    fn put(&self, out: &mut Writer) {
        out.list(self);
    }
    fn take(input: &mut Reader<'_>) -> Result<Vec<T>, DecodeError> {
        input.list()
    }
}

impl<T: Encode> Encode for Box<T> {
    fn put(&self, out: &mut Writer) {
        T::put(self, out);
    }
    fn take(input: &mut Reader<'_>) -> Result<Box<T>, DecodeError> {
        T::take(input).map(Box::new)
    }
}

impl<A: Encode, B: Encode> Encode for (A, B) {
    fn put(&self, out: &mut Writer) {
        self.0.put(out);
        self.1.put(out);
    }
    fn take(input: &mut Reader<'_>) -> Result<(A, B), DecodeError> {
        Ok((A::take(input)?, B::take(input)?))
    }
}
