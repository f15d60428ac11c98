//! Hash functions: a keyed one for hash tables, and a fingerprint that is equal on every machine.
//!
//! Hash tables serve lookups only; their iteration order is never used. So the key has no visible
//! effect, and each process may use its own random key. With a random key a client that chooses
//! paths cannot provoke collisions. The keyed function multiplies and folds the 128-bit product:
//! two multiplications for a string of up to eight bytes.

/// The key of the hash tables of one process. It has no visible effect and may differ between
/// replicas. Use a random one if clients are not trusted, so that they cannot provoke collisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HashSeed(pub u64);

/// The hash function under one key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hasher {
    start: u64,
    secret: u64,
}

impl Hasher {
    pub(crate) fn new(seed: HashSeed) -> Hasher {
        let start = mix(seed.0 ^ 0x9e37_79b9_7f4a_7c15);
        Hasher {
            start,
            secret: mix(start ^ 0xd1b5_4a32_d192_ed03) | 1,
        }
    }

    /// Hashes a number and a string.
    pub(crate) fn hash(self, number: u32, bytes: &[u8]) -> u64 {
        // Number and length are mixed first, so that no string content can cancel them.
        let length = bytes.len() as u64;
        let mut state = fold(
            self.start ^ u64::from(number) ^ (length << 32),
            self.start | 1,
        );
        let mut rest = bytes;
        while rest.len() > 8
            && let Some((word, more)) = rest.split_first_chunk()
        {
            state = fold(state ^ u64::from_le_bytes(*word), self.secret);
            rest = more;
        }
        fold(state ^ last_word(bytes), self.secret)
    }
}

/// Returns the last up to eight bytes as a number. It reads some bytes twice to avoid a copy; the
/// length is part of the hash, so different strings stay different.
fn last_word(bytes: &[u8]) -> u64 {
    if let Some(word) = bytes.last_chunk() {
        return u64::from_le_bytes(*word);
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
        return (u64::from(first) << 32) | u64::from(last);
    }
    match *bytes {
        [] => 0,
        [one] => u64::from(one),
        [one, .., last] => {
            let middle = bytes[bytes.len() / 2];
            (u64::from(one) << 16) | (u64::from(middle) << 8) | u64::from(last)
        }
    }
}

/// Multiplies to 128 bits and folds the two halves.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

/// Spreads every input bit over all output bits.
fn mix(mut number: u64) -> u64 {
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// A hash of a request's content, equal on every machine and in every release. It detects a key
/// that is used for a different request (R103: key reuse with other content). It need not be
/// cryptographic: a caller that forges a collision harms only itself.
#[derive(Clone, Copy, Debug)]
pub struct Fingerprint {
    low: u64,
    high: u64,
}

impl Fingerprint {
    /// Creates an empty fingerprint.
    #[expect(clippy::new_without_default, reason = "a start, not a default value")]
    pub fn new() -> Fingerprint {
        Fingerprint {
            low: 0x243f_6a88_85a3_08d3,
            high: 0x1319_8a2e_0370_7344,
        }
    }

    /// Adds a number.
    pub fn number(&mut self, number: u64) {
        let mixed = mix(number ^ self.low);
        self.low = fold(mixed ^ 0xa409_3822_299f_31d1, self.high | 1) ^ number.rotate_left(32);
        self.high = mix(self.high ^ self.low).wrapping_add(number);
    }

    /// Adds a string with its length, so that the boundaries of adjacent strings matter.
    pub fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        for chunk in text.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.number(u64::from_le_bytes(word));
        }
    }

    /// Returns the fingerprint of everything added.
    pub fn finish(self) -> u128 {
        (u128::from(mix(self.high)) << 64) | u128::from(mix(self.low ^ self.high.rotate_left(17)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::format;

    #[test]
    fn short_texts_and_numbers_spread() {
        let hasher = Hasher::new(HashSeed(1));
        let mut low_bits = BTreeSet::new();
        for number in 0..64 {
            for text in 0..64 {
                low_bits.insert(hasher.hash(number, format!("s{text}").as_bytes()) & 0xffff);
            }
        }
        // 4096 balls in 65536 bins leave about 3970 bins with something.
        assert!(low_bits.len() > 3850, "only {} different", low_bits.len());
    }

    #[test]
    fn keys_and_lengths_matter() {
        let (one, two) = (Hasher::new(HashSeed(1)), Hasher::new(HashSeed(2)));
        assert_ne!(one.hash(0, b"a"), two.hash(0, b"a"));
        assert_ne!(one.hash(0, b"a"), one.hash(0, b"a\0"));
        assert_ne!(one.hash(0, b"a"), one.hash(1, b"a"));
    }

    #[test]
    fn fingerprints_tell_contents_apart() {
        let of = |texts: &[&str]| {
            let mut print = Fingerprint::new();
            for text in texts {
                print.text(text);
            }
            print.finish()
        };
        assert_eq!(of(&["ab", "c"]), of(&["ab", "c"]));
        assert_ne!(of(&["ab", "c"]), of(&["a", "bc"]));
        assert_ne!(of(&["ab", "c"]), of(&["abc"]));
    }
}
