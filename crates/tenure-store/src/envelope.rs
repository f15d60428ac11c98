//! Compression and encryption envelope: the bytes of a record in a store (P11–P13).
//!
//! ```text
//! reading:  0x01 … ──open──▶ 1f 8b … ──gunzip──┐
//!                      └───▶ 28 b5 2f fd ─unzstd┴─▶ JSON ─▶ LockRecord
//! writing:  LockRecord ─▶ JSON ──(with a key and `Seal::Yes`)──▶ envelope
//! ```
//!
//! All bytes from the store are untrusted until parsed: at most 64 KiB are decompressed, whatever
//! size a frame declares, and the zstd decoder is written in Rust.
//!
//! A sealed record is bound to its key: the sealed text names the key for which it was written, in
//! `sealed_for`. The name is inside the text and not in the associated data of the cipher, because
//! originals open envelopes without associated data, and treat a record that they cannot open as
//! free (P11, P12).
//!
//! Tenure never compresses. A record must keep its length to be rewritten in place (K21 (change
//! records in place)), and all originals read plain JSON and uncompressed envelopes (P12 (plain
//! records in encrypted repositories)).

use std::fmt;
use std::io::Read;
use std::path::Path;

use aws_lc_rs::aead::{AES_256_GCM, Aad, Nonce, RandomizedNonceKey};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use serde::Deserialize;

use crate::key::ObjectKey;
use crate::protocol::OpBody;
use crate::record::LockRecord;
use crate::staleness::{ObjectContent, Unreadable};

/// Maximum size of a record in bytes, both stored and decompressed (P13 (repository record size
/// limit)).
pub(crate) const LIMIT: usize = 64 * 1024;

const ENVELOPE: u8 = 0x01;
const NONCE: usize = 12;
const TAG: usize = 16;

/// The AES-256 key that seals the records of a repository. `Debug` does not print it.
#[derive(Clone, PartialEq, Eq)]
pub struct DataKey([u8; 32]);

impl DataKey {
    /// Creates a key from its bytes.
    pub fn new(bytes: [u8; 32]) -> DataKey {
        DataKey(bytes)
    }

    /// Reads a key file: 32 raw bytes, or 64 hex digits with surrounding white space (C12 (data key
    /// of a repository)).
    ///
    /// # Errors
    ///
    /// Returns [`KeyError`] if the file cannot be read or has another form.
    pub fn from_file(path: &Path) -> Result<DataKey, KeyError> {
        let bytes = std::fs::read(path).map_err(KeyError::Read)?;
        DataKey::from_bytes(&bytes)
    }

    /// Parses the content of a key file.
    ///
    /// # Errors
    ///
    /// Returns [`KeyError::Form`] if `bytes` are neither 32 raw bytes nor 64 hex digits.
    pub fn from_bytes(bytes: &[u8]) -> Result<DataKey, KeyError> {
        if let Ok(raw) = <[u8; 32]>::try_from(bytes) {
            return Ok(DataKey(raw));
        }
        let digits = bytes.trim_ascii();
        if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(KeyError::Form);
        }
        let mut key = [0; 32];
        for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
            let text = std::str::from_utf8(pair).map_err(|_| KeyError::Form)?;
            *byte = u8::from_str_radix(text, 16).map_err(|_| KeyError::Form)?;
        }
        Ok(DataKey(key))
    }
}

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataKey(…)")
    }
}

/// The error of an invalid key file.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("cannot read the key file")]
    Read(#[source] std::io::Error),
    /// The file holds neither 32 bytes nor 64 hex digits.
    #[error("a key file holds 32 bytes or 64 hex digits")]
    Form,
}

/// Whether new records are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Seal {
    /// Plain JSON, which every original can read (P12).
    #[default]
    No,
    /// Encrypted, so that the store does not see host names.
    Yes,
}

/// Which records count as records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Accept {
    /// Plain and sealed ones, like the originals (P12).
    #[default]
    Any,
    /// Only those that are sealed with the data key for the key under which they are stored
    /// (`--require-sealed`). Others block a request while they are young (P24 (unparsable
    /// repository records)), whatever date they claim.
    Sealed,
}

/// Encodes and decodes the objects of a repository.
#[derive(Clone, Debug, Default)]
pub struct Codec {
    key: Option<DataKey>,
    seal: Seal,
    accept: Accept,
}

impl Codec {
    /// Creates a codec for a repository without a data key.
    pub fn plain() -> Codec {
        Codec::default()
    }

    /// Creates a codec with the data key of the repository. It opens sealed records, and seals new
    /// ones if `seal` is [`Seal::Yes`].
    pub fn with_key(key: DataKey, seal: Seal) -> Codec {
        Codec {
            key: Some(key),
            seal,
            accept: Accept::Any,
        }
    }

    /// Sets which records count as records.
    pub fn accepting(self, accept: Accept) -> Codec {
        Codec { accept, ..self }
    }

    /// Encodes `body` to the bytes to store at `at`. Only records are ever sealed.
    pub(crate) fn encode(&self, at: &ObjectKey, body: &OpBody) -> Vec<u8> {
        match body {
            OpBody::Record(record) => {
                let json = record.to_json();
                match (&self.key, self.seal) {
                    (Some(key), Seal::Yes) => seal(key, bound(&json, at).into_bytes()),
                    (Some(_), Seal::No) | (None, _) => json.into_bytes(),
                }
            }
            OpBody::Fence(number) => format!("{{\"fence\":{number}}}").into_bytes(),
            OpBody::Probe(number) => format!("tenure probe {number}").into_bytes(),
        }
    }

    /// Decodes the bytes of the lock object at `at`. Bytes that cannot be decoded give
    /// [`ObjectContent::Unreadable`].
    pub(crate) fn decode_record(&self, at: &ObjectKey, stored: &[u8]) -> ObjectContent {
        match self.unpack(at, stored) {
            Ok(record) => ObjectContent::Record(record),
            Err(why) => unreadable(why, stored),
        }
    }

    /// Decodes the bytes of the fencing counter.
    pub(crate) fn decode_fence(stored: &[u8]) -> ObjectContent {
        #[derive(Deserialize)]
        struct FenceCounter {
            fence: u64,
        }
        match serde_json::from_slice(stored) {
            Ok(FenceCounter { fence }) => ObjectContent::Fence(fence),
            Err(error) => unreadable(Unreadable::Damaged(error.to_string()), stored),
        }
    }

    fn unpack(&self, at: &ObjectKey, stored: &[u8]) -> Result<LockRecord, Unreadable> {
        if stored.len() > LIMIT {
            return Err(Unreadable::TooLarge);
        }
        let is_sealed = stored.len() > NONCE + TAG && stored[0] == ENVELOPE;
        let json = if is_sealed {
            let key = self.key.as_ref().ok_or(Unreadable::Opaque)?;
            decompress(open(key, &stored[1..])?)?
        } else if self.accept == Accept::Sealed {
            return Err(Unreadable::NotSealed);
        } else {
            decompress(stored.to_vec())?
        };
        let record = LockRecord::parse(&json).map_err(Unreadable::Damaged)?;
        if is_sealed {
            match (sealed_for(&json), self.accept) {
                (Some(name), _) if name == at.path() => {}
                // Sealed by an original or by Tenure 0.1.0, which do not name the key.
                (None, Accept::Any) => {}
                (None, Accept::Sealed) | (Some(_), _) => return Err(Unreadable::Moved),
            }
        }
        Ok(record)
    }
}

/// Adds the name of the key to the JSON of a record. Readers ignore unknown fields (P10
/// (repository record syntax)).
fn bound(json: &str, at: &ObjectKey) -> String {
    let name = serde_json::Value::String(at.path());
    let fields = json.strip_suffix('}').unwrap_or(json);
    format!("{fields},\"sealed_for\":{name}}}")
}

/// Returns the key for which a sealed text was written, if it names one.
fn sealed_for(json: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Bound {
        sealed_for: Option<String>,
    }
    let text = String::from_utf8_lossy(json);
    serde_json::from_str::<Bound>(&text).ok()?.sealed_for
}

fn unreadable(why: Unreadable, stored: &[u8]) -> ObjectContent {
    ObjectContent::Unreadable {
        why,
        bytes: stored.len() as u64,
    }
}

fn seal(key: &DataKey, mut text: Vec<u8>) -> Vec<u8> {
    let key = RandomizedNonceKey::new(&AES_256_GCM, &key.0).expect("32 bytes are a key");
    let nonce = key
        .seal_in_place_append_tag(Aad::empty(), &mut text)
        .expect("a lock record is far below the cipher's limit");
    let mut envelope = Vec::with_capacity(1 + NONCE + text.len());
    envelope.push(ENVELOPE);
    envelope.extend_from_slice(nonce.as_ref());
    envelope.append(&mut text);
    envelope
}

fn open(key: &DataKey, envelope: &[u8]) -> Result<Vec<u8>, Unreadable> {
    let key = RandomizedNonceKey::new(&AES_256_GCM, &key.0).map_err(|_| Unreadable::WrongKey)?;
    let (nonce, sealed) = envelope
        .split_at_checked(NONCE)
        .ok_or(Unreadable::WrongKey)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| Unreadable::WrongKey)?;
    let mut text = sealed.to_vec();
    let length = key
        .open_in_place(nonce, Aad::empty(), &mut text)
        .map_err(|_| Unreadable::WrongKey)?
        .len();
    text.truncate(length);
    Ok(text)
}

/// Decompresses gzip and zstd. A frame that does not decode is returned unchanged and then fails to
/// parse as JSON (P11 (compression and encryption layers)).
fn decompress(bytes: Vec<u8>) -> Result<Vec<u8>, Unreadable> {
    let unpacked = match bytes.as_slice() {
        [0x1f, 0x8b, ..] => at_most(flate2::read::MultiGzDecoder::new(bytes.as_slice())),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => unzstd(&bytes),
        _ => return Ok(bytes),
    };
    match unpacked {
        Ok(text) => Ok(text),
        Err(Unpack::TooLarge) => Err(Unreadable::TooLarge),
        Err(Unpack::Damaged) => Ok(bytes),
    }
}

enum Unpack {
    Damaged,
    TooLarge,
}

/// Decodes block by block, so that at most the limit and one block (128 KiB) are decompressed. The
/// streaming decoder of this crate would first fill the window size that the frame declares.
fn unzstd(frame: &[u8]) -> Result<Vec<u8>, Unpack> {
    let mut source = frame;
    let mut decoder = FrameDecoder::new();
    decoder.init(&mut source).map_err(|_| Unpack::Damaged)?;
    if decoder.content_size() > LIMIT as u64 {
        return Err(Unpack::TooLarge);
    }
    let whole = decoder
        .decode_blocks(&mut source, BlockDecodingStrategy::UptoBytes(LIMIT + 1))
        .map_err(|_| Unpack::Damaged)?;
    if !whole {
        return Err(Unpack::TooLarge);
    }
    let text = decoder.collect().ok_or(Unpack::Damaged)?;
    let intact = match decoder.get_checksum_from_data() {
        Some(expected) => decoder.get_calculated_checksum() == Some(expected),
        None => true,
    };
    match text.len() {
        0..=LIMIT if intact && source.is_empty() => Ok(text),
        0..=LIMIT => Err(Unpack::Damaged),
        _ => Err(Unpack::TooLarge),
    }
}

fn at_most(decoder: impl Read) -> Result<Vec<u8>, Unpack> {
    let mut text = Vec::new();
    decoder
        .take(LIMIT as u64 + 1)
        .read_to_end(&mut text)
        .map_err(|_| Unpack::Damaged)?;
    if text.len() > LIMIT {
        return Err(Unpack::TooLarge);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: ObjectKey = ObjectKey::Exclusive;

    fn record() -> LockRecord {
        LockRecord {
            holder: "atlas-3 (pid 1)".into(),
            operation: "prune".into(),
            ..LockRecord::default()
        }
    }

    fn key(byte: u8) -> DataKey {
        DataKey::new([byte; 32])
    }

    /// P12: records are plain JSON unless sealing is on; both forms are read back.
    #[test]
    fn what_is_written_is_read_back() {
        let body = OpBody::Record(record());
        let plain = Codec::plain();
        assert!(plain.encode(&AT, &body).starts_with(b"{"));
        assert!(
            Codec::with_key(key(1), Seal::No)
                .encode(&AT, &body)
                .starts_with(b"{")
        );
        let sealing = Codec::with_key(key(1), Seal::Yes);
        let sealed = sealing.encode(&AT, &body);
        assert_eq!(sealed[0], 0x01);
        assert!(!sealed.windows(7).any(|part| part == b"atlas-3"));
        assert_eq!(
            sealing.decode_record(&AT, &sealed),
            ObjectContent::Record(record())
        );
        assert_eq!(
            sealing.decode_record(&AT, &plain.encode(&AT, &body)),
            ObjectContent::Record(record())
        );
    }

    /// P11: without the key a sealed record is opaque; with another key it is reported as such.
    #[test]
    fn a_sealed_record_needs_its_key() {
        let sealed = Codec::with_key(key(1), Seal::Yes).encode(&AT, &OpBody::Record(record()));
        let why = |codec: Codec| match codec.decode_record(&AT, &sealed) {
            ObjectContent::Unreadable { why, bytes } => {
                assert_eq!(bytes, sealed.len() as u64);
                why
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(why(Codec::plain()), Unreadable::Opaque);
        assert_eq!(why(Codec::with_key(key(2), Seal::No)), Unreadable::WrongKey);
    }

    /// P11: a sealed record that was moved to another key is not a record of that key.
    #[test]
    fn a_sealed_record_is_bound_to_its_key() {
        let codec = Codec::with_key(key(1), Seal::Yes);
        let sealed = codec.encode(&AT, &OpBody::Record(record()));
        let elsewhere = ObjectKey::Shared("x".into());
        assert_eq!(
            codec.decode_record(&AT, &sealed),
            ObjectContent::Record(record())
        );
        let why = |content| match content {
            ObjectContent::Unreadable { why, .. } => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            why(codec.decode_record(&elsewhere, &sealed)),
            Unreadable::Moved
        );
    }

    /// P11, P12: envelopes of Tenure 0.1.0 and of originals name no key and stay readable; with
    /// `Accept::Sealed` only records that are bound to their key count.
    #[test]
    fn only_bound_records_count_when_sealing_is_required() {
        let codec = Codec::with_key(key(1), Seal::Yes);
        let strict = codec.clone().accepting(Accept::Sealed);
        let json = record().to_json().into_bytes();
        let unbound = seal(&key(1), json.clone());
        let own = codec.encode(&AT, &OpBody::Record(record()));
        for bytes in [&unbound, &own, &json] {
            assert_eq!(
                codec.decode_record(&AT, bytes),
                ObjectContent::Record(record())
            );
        }
        assert_eq!(
            strict.decode_record(&AT, &own),
            ObjectContent::Record(record())
        );
        for (bytes, expected) in [
            (&unbound, Unreadable::Moved),
            (&json, Unreadable::NotSealed),
        ] {
            let ObjectContent::Unreadable { why, .. } = strict.decode_record(&AT, bytes) else {
                panic!("{expected} was accepted");
            };
            assert_eq!(why, expected);
        }
    }

    /// K21: the length of a sealed record does not depend on its values.
    #[test]
    fn a_sealed_record_keeps_its_length() {
        let codec = Codec::with_key(key(1), Seal::Yes);
        let mut other = record();
        other.holder = "atlas-4 (pid 2)".into();
        let (one, two) = (
            codec.encode(&AT, &OpBody::Record(record())),
            codec.encode(&AT, &OpBody::Record(other)),
        );
        assert_eq!(one.len(), two.len());
        assert_ne!(one[1..13], two[1..13], "a nonce was used twice");
    }

    /// P13: a record of exactly the limit is read, one byte more is not, stored or decompressed.
    #[test]
    fn the_limits_are_exact() {
        let json = |length: usize| {
            let frame = r#"{"operation":""}"#.len();
            format!(r#"{{"operation":"{}"}}"#, "x".repeat(length - frame)).into_bytes()
        };
        let gzip = |text: &[u8]| {
            use std::io::Write;
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), Default::default());
            encoder.write_all(text).unwrap();
            encoder.finish().unwrap()
        };
        let zstd = |text: &[u8]| {
            ruzstd::encoding::compress_to_vec(text, ruzstd::encoding::CompressionLevel::Fastest)
        };
        let read = |bytes: &[u8]| Codec::plain().decode_record(&AT, bytes);
        let is_too_large = |content| {
            matches!(
                content,
                ObjectContent::Unreadable {
                    why: Unreadable::TooLarge,
                    ..
                }
            )
        };
        for pack in [&|text: &[u8]| text.to_vec(), &gzip, &zstd] as [&dyn Fn(&[u8]) -> Vec<u8>; 3] {
            assert!(matches!(
                read(&pack(&json(LIMIT))),
                ObjectContent::Record(_)
            ));
            assert!(is_too_large(read(&pack(&json(LIMIT + 1)))));
        }
        assert!(is_too_large(read(&zstd(&json(1 << 20)))));
    }

    /// P11: bytes that start like a frame but are not one fail to parse; they never become an empty
    /// record.
    #[test]
    fn a_broken_frame_is_damaged() {
        for start in [&[0x1f, 0x8b][..], &[0x28, 0xb5, 0x2f, 0xfd]] {
            let mut bytes = start.to_vec();
            bytes.extend_from_slice(b"no frame at all");
            let content = Codec::plain().decode_record(&AT, &bytes);
            let is_damaged = matches!(
                content,
                ObjectContent::Unreadable {
                    why: Unreadable::Damaged(_),
                    ..
                }
            );
            assert!(is_damaged, "{content:?}");
        }
    }

    /// P38 (repository fence counter), K40: the counter is a number or an error.
    #[test]
    fn a_counter_is_read_or_refused() {
        assert_eq!(
            Codec::decode_fence(br#"{"fence":17   }"#),
            ObjectContent::Fence(17)
        );
        assert_eq!(
            Codec::plain().encode(&AT, &OpBody::Fence(17)),
            br#"{"fence":17}"#
        );
        for text in ["", "{}", r#"{"fence":-1}"#, r#"{"fence":"1"}"#, "17"] {
            let content = Codec::decode_fence(text.as_bytes());
            assert!(
                matches!(content, ObjectContent::Unreadable { .. }),
                "{text}"
            );
        }
    }

    /// C12: a key file is raw or hex.
    #[test]
    fn key_files_are_raw_or_hex() {
        assert_eq!(DataKey::from_bytes(&[7; 32]).unwrap(), key(7));
        assert_eq!(
            DataKey::from_bytes(("07".repeat(32) + "\n").as_bytes()).unwrap(),
            key(7)
        );
        assert!(DataKey::from_bytes(&[7; 31]).is_err());
        assert!(DataKey::from_bytes("zz".repeat(32).as_bytes()).is_err());
        assert!(!format!("{:?}", key(7)).contains('7'));
    }
}
