//! SWAR byte search: finds a byte in a string, eight bytes per step.
//!
//! Paths are short and parsed often, so the search needs no set-up cost.

/// Returns the number of bytes before the first slash, or the length.
pub(crate) fn until_slash(bytes: &[u8]) -> usize {
    find(bytes, b'/').unwrap_or(bytes.len())
}

/// Returns the index of the first occurrence of a byte.
pub(crate) fn find(bytes: &[u8], wanted: u8) -> Option<usize> {
    let mut at = 0;
    while let Some(word) = bytes[at..].first_chunk() {
        if let Some(found) = in_word(*word, wanted) {
            return Some(at + found);
        }
        at += 8;
    }
    match bytes.last_chunk() {
        // This word overlaps the one before, which does not contain the byte.
        Some(word) => in_word(*word, wanted).map(|found| bytes.len() - 8 + found),
        None => bytes.iter().position(|byte| *byte == wanted),
    }
}

/// Returns the index of the first occurrence in eight bytes. After the XOR the wanted byte is zero,
/// and the lowest zero byte is the lowest one that borrows in the subtraction.
fn in_word(bytes: [u8; 8], wanted: u8) -> Option<usize> {
    const ONES: u64 = u64::MAX / 255;
    let word = u64::from_le_bytes(bytes) ^ (ONES * wanted as u64);
    let zeros = word.wrapping_sub(ONES) & !word & (ONES << 7);
    (zeros != 0).then_some(zeros.trailing_zeros() as usize / 8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn the_first_one_is_found_wherever_it_is() {
        for length in 0..40 {
            for (wanted, filler) in [
                (b'/', b'.'),
                (b'/', b'0'),
                (b'/', 0x00),
                (b'/', 0xaf),
                (b'/', 0xff),
                (0x00, 0x01),
                (0x00, 0x80),
                (0x1f, 0x1e),
                (0x1f, 0x20),
                (0x1f, 0x9f),
            ] {
                let mut bytes = vec![filler; length];
                assert_eq!(find(&bytes, wanted), None);
                for at in (0..length).rev() {
                    // Later ones stay: the first counts.
                    bytes[at] = wanted;
                    assert_eq!(find(&bytes, wanted), Some(at), "{bytes:?}");
                }
            }
        }
    }
}
