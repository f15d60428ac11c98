//! A part of a state that is shared until it changes, and knows its own hash.
//!
//! Most of what a state consists of is the same in the next one. Copying a state is then a few
//! counters, and hashing it a few numbers: an exploration is ten times as fast.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::rc::Rc;

/// A shared value and its digest.
pub(crate) struct Part<T> {
    value: Rc<T>,
    digest: u64,
}

impl<T: Clone + Hash> Part<T> {
    pub(crate) fn new(value: T) -> Part<T> {
        let digest = digest(&value);
        Part {
            value: Rc::new(value),
            digest,
        }
    }

    /// Changes the value, in a copy of its own.
    pub(crate) fn change<R>(&mut self, change: impl FnOnce(&mut T) -> R) -> R {
        let result = change(Rc::make_mut(&mut self.value));
        self.digest = digest(&*self.value);
        result
    }
}

impl<T> Clone for Part<T> {
    fn clone(&self) -> Part<T> {
        Part {
            value: Rc::clone(&self.value),
            digest: self.digest,
        }
    }
}

impl<T> Deref for Part<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Hash for Part<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.digest);
    }
}

/// The hash of anything, the same in every run.
pub(crate) fn digest(value: &impl Hash) -> u64 {
    let mut hasher = Folded(0x243f_6a88_85a3_08d3);
    value.hash(&mut hasher);
    hasher.finish()
}

/// Multiplies and folds: the two halves of a 128-bit product, joined.
struct Folded(u64);

impl Folded {
    fn add(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * u128::from(0x9e37_79b9_7f4a_7c15_u64);
        self.0 = (product as u64) ^ ((product >> 64) as u64) ^ self.0.rotate_left(23);
    }
}

impl Hasher for Folded {
    fn finish(&self) -> u64 {
        let mut last = Folded(self.0);
        last.add(0x1319_8a2e_0370_7344);
        last.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.add(u64::from_le_bytes(*word));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.add(u64::from_le_bytes(last) ^ ((rest.len() as u64) << 56));
    }

    fn write_u8(&mut self, byte: u8) {
        self.add(u64::from(byte));
    }

    fn write_u32(&mut self, word: u32) {
        self.add(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.add(word);
    }

    fn write_usize(&mut self, word: usize) {
        self.add(word as u64);
    }
}
