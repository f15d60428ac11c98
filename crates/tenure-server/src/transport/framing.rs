//! The framing of gRPC: before each message a flag and its length.

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

use super::MESSAGE;

/// The length of what precedes a message.
const PREFIX: usize = 5;

/// What has come is no plain message, or a longer one than is taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unreadable;

/// The first message, if all of it has come, and where what follows begins.
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

/// A message with its frame.
pub(crate) fn encode(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    if length == 0 {
        return Bytes::from_static(&[0; PREFIX]);
    }
    let mut bytes = BytesMut::new();
    put_sized(&mut bytes, message, length);
    bytes.freeze()
}

/// Writes a message behind others.
pub(crate) fn put(bytes: &mut BytesMut, message: &impl Message) {
    put_sized(bytes, message, message.encoded_len());
}

fn put_sized(bytes: &mut BytesMut, message: &impl Message, length: usize) {
    bytes.reserve(PREFIX + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode_raw(bytes);
}
