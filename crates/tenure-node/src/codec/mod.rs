//! Encoding of frames and of Raft data, in the encoding of [`tenure_core::codec`]. What the payload of
//! an entry has in bytes is a slice of the frame or log record that it was read from, not a copy.
//!
//! `node/frames.rs` lists the kinds of items in a frame. Other records are declared beside their
//! types.

mod consensus;
mod frame;
#[cfg(test)]
mod tests;

pub(crate) use consensus::{
    encode_hard_state, encode_message, encode_payload, floor_of_empty, hard_state, is_promise,
    message, payload,
};
pub(crate) use frame::{Frame, FrameWriter, MAX_FRAME_BYTES};
pub(crate) use tenure_core::codec::{
    DecodeError, Encode, Reader, VERSION, Writer, from_bytes, to_bytes,
};

/// The result of reading.
pub(crate) type DecodeResult<T> = Result<T, DecodeError>;
