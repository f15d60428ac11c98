//! API keys: `tnr_<id>_<256 random bits>_<checksum>`, in hexadecimal.
//!
//! The id finds the row, so that one hash is compared. The checksum tells a key that was cut off or
//! mistyped from a revoked one, and lets scanners recognise a leaked key. Only the SHA-256 of the
//! whole key is stored: the key has 256 random bits, so a slow hash would add nothing.

use std::fmt::Write as _;

use aws_lc_rs::digest;
use aws_lc_rs::error::Unspecified;

const PREFIX: &str = "tnr_";
/// Random bytes of the id and of the secret.
const ID_BYTES: usize = 6;
const SECRET_BYTES: usize = 32;

/// A key, as a client sends it.
pub struct ApiKey {
    text: String,
}

impl ApiKey {
    /// Creates a random key.
    pub fn generate() -> Result<ApiKey, Unspecified> {
        let mut random = [0; ID_BYTES + SECRET_BYTES];
        aws_lc_rs::rand::fill(&mut random)?;
        let (id, secret) = random.split_at(ID_BYTES);
        let mut text = PREFIX.to_owned();
        put_hex(&mut text, id);
        text.push('_');
        put_hex(&mut text, secret);
        let sum = checksum(&text);
        text.push('_');
        text.push_str(&sum);
        Ok(ApiKey { text })
    }

    /// Parses a key. `None` if it is not one, or if its checksum is wrong.
    pub fn parse(text: &str) -> Option<ApiKey> {
        let (front, sum) = text.rsplit_once('_')?;
        let (id, secret) = front.strip_prefix(PREFIX)?.split_once('_')?;
        let is_hex = |part: &str, bytes: usize| {
            let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
            part.len() == 2 * bytes && part.bytes().all(is_digit)
        };
        let is_key = is_hex(id, ID_BYTES) && is_hex(secret, SECRET_BYTES) && checksum(front) == sum;
        let text = text.to_owned();
        is_key.then_some(ApiKey { text })
    }

    /// Returns whether a text starts like a key.
    pub(super) fn has_prefix(text: &[u8]) -> bool {
        text.starts_with(PREFIX.as_bytes())
    }

    /// Returns the public part.
    pub fn id(&self) -> &str {
        let start = PREFIX.len();
        &self.text[start..start + 2 * ID_BYTES]
    }

    /// Returns what the table stores.
    pub fn hash(&self) -> [u8; 32] {
        let mut hash = [0; 32];
        let digest = digest::digest(&digest::SHA256, self.text.as_bytes());
        hash.copy_from_slice(digest.as_ref());
        hash
    }

    /// Returns the key, to be shown or stored once.
    pub fn reveal(&self) -> &str {
        &self.text
    }
}

impl std::fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ApiKey({})", self.id())
    }
}

fn checksum(front: &str) -> String {
    format!("{:08x}", crc32fast::hash(front.as_bytes()))
}

pub(super) fn put_hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_parsed_as_it_was_made_and_every_change_of_a_letter_is_noticed() {
        let key = ApiKey::generate().unwrap();
        let parsed = ApiKey::parse(key.reveal()).unwrap();
        assert_eq!((parsed.id(), parsed.hash()), (key.id(), key.hash()));
        assert!(!format!("{key:?}").contains(key.reveal()));
        for at in 0..key.reveal().len() {
            let mut changed = key.reveal().to_owned().into_bytes();
            changed[at] = if changed[at] == b'0' { b'1' } else { b'0' };
            let changed = String::from_utf8(changed).unwrap();
            assert!(ApiKey::parse(&changed).is_none(), "{changed}");
            let cut = &key.reveal()[..at];
            assert!(ApiKey::parse(cut).is_none(), "{cut}");
        }
        assert!(ApiKey::parse(&key.reveal().to_uppercase()).is_none());
    }

    #[test]
    fn no_two_keys_are_equal() {
        let (one, other) = (ApiKey::generate().unwrap(), ApiKey::generate().unwrap());
        assert_ne!(one.id(), other.id());
        assert_ne!(one.hash(), other.hash());
    }
}
