//! Frame MAC: every frame on a peer connection carries an HMAC tag.
//!
//! ```text
//!   length u32 ‖ tag 16 ‖ kind and content        tag = HMAC(key, number of the frame ‖ content)
//! ```
//!
//! The tag covers the frame's sequence number, so a frame that is dropped, repeated, inserted or
//! reordered ends the connection. The tag does not hide the content; the optional TLS layer below
//! does.

use aws_lc_rs::hmac;

/// Length of a frame's head: length field and tag.
pub(crate) const HEAD: usize = 4 + TAG;
const TAG: usize = 16;
/// Maximum length of a frame. A longer one ends the connection.
pub(crate) const MAX_FRAME: usize = 72 * 1024 * 1024;

/// Computes the tags of sent frames.
pub(crate) struct MacWriter {
    key: hmac::Key,
    number: u64,
}

/// Checks the tags of received frames.
pub(crate) struct MacReader(MacWriter);

/// The tag is wrong: the frame was not made by the other end, or not for this position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadMac;

impl MacWriter {
    pub(crate) fn new(key: hmac::Key) -> MacWriter {
        MacWriter { key, number: 0 }
    }

    fn tag(&mut self, parts: &[&[u8]]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(&self.number.to_le_bytes());
        for part in parts {
            context.update(part);
        }
        self.number += 1;
        context.sign()
    }

    /// Returns the head of the frame that consists of these parts.
    pub(crate) fn head(&mut self, parts: &[&[u8]]) -> [u8; HEAD] {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let tag = self.tag(parts);
        let mut head = [0; HEAD];
        // The send buffer is limited far below this length.
        head[..4].copy_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
        head[4..].copy_from_slice(&tag.as_ref()[..TAG]);
        head
    }
}

impl MacReader {
    pub(crate) fn new(key: hmac::Key) -> MacReader {
        MacReader(MacWriter::new(key))
    }

    /// Returns the length of the frame that follows this head.
    pub(crate) fn length(head: &[u8; HEAD]) -> Result<usize, BadMac> {
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        if length > MAX_FRAME {
            Err(BadMac)
        } else {
            Ok(length)
        }
    }

    /// Checks the tag of the next frame.
    pub(crate) fn check(&mut self, head: &[u8; HEAD], content: &[u8]) -> Result<(), BadMac> {
        let tag = self.0.tag(&[content]);
        aws_lc_rs::constant_time::verify_slices_are_equal(&tag.as_ref()[..TAG], &head[4..])
            .map_err(|_| BadMac)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &[7; 32])
    }

    #[test]
    fn what_was_sealed_opens_once_and_in_order() {
        let (mut sealer, mut opener) = (MacWriter::new(key()), MacReader::new(key()));
        let first = sealer.head(&[b"\x00", b"hello"]);
        let second = sealer.head(&[b"\x00hello"]);
        assert_eq!(MacReader::length(&first), Ok(6));
        assert_eq!(opener.check(&first, b"\x00hello"), Ok(()));
        assert_eq!(opener.check(&second, b"\x00hello"), Ok(()));
    }

    #[test]
    fn a_changed_repeated_or_skipped_frame_is_found() {
        let mut sealer = MacWriter::new(key());
        let first = sealer.head(&[b"one"]);
        let second = sealer.head(&[b"two"]);
        assert_eq!(MacReader::new(key()).check(&first, b"onE"), Err(BadMac));
        assert_eq!(MacReader::new(key()).check(&second, b"two"), Err(BadMac));
        let mut opener = MacReader::new(key());
        assert_eq!(opener.check(&first, b"one"), Ok(()));
        assert_eq!(opener.check(&first, b"one"), Err(BadMac));
    }

    #[test]
    fn a_length_that_cannot_be_is_refused_before_memory_is_given() {
        let mut head = MacWriter::new(key()).head(&[b"x"]);
        head[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(MacReader::length(&head), Err(BadMac));
    }
}
