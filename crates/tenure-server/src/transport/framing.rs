//! gRPC message framing: a compression flag and a 4-byte length before each message.

use bytes::{BufMut, Bytes};
use prost::Message;

use super::MESSAGE;

/// Length of the prefix: flag and message length.
const PREFIX: usize = 5;

/// The bytes are not an uncompressed message, or the message is longer than [`MESSAGE`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unreadable;

/// Returns the first message and the offset behind it, or `None` if it has not arrived completely.
pub(crate) fn first(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, Unreadable> {
    let Some((&[flag, a, b, c, d], rest)) = bytes.split_first_chunk() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if flag != 0 || length > MESSAGE {
        return Err(Unreadable);
    }
    let message = rest.get(..length);
    Ok(message.map(|message| (message, PREFIX + length)))
}

/// Encodes a message with its prefix.
pub(crate) fn encode(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    if length == 0 {
        return Bytes::from_static(&[0; PREFIX]);
    }
    let mut bytes = Vec::with_capacity(PREFIX + length);
    put_sized(&mut bytes, message, length);
    bytes.into()
}

/// Appends a message with its prefix.
pub(crate) fn put(bytes: &mut Vec<u8>, message: &impl Message) {
    put_sized(bytes, message, message.encoded_len());
}

fn put_sized(bytes: &mut Vec<u8>, message: &impl Message, length: usize) {
    bytes.reserve(PREFIX + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode_raw(bytes);
}
