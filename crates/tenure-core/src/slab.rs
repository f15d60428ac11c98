//! Slab (arena) with stable indices: a value keeps its number until it is removed.
//!
//! The slab grows by chunks, so growth never copies existing values and never doubles the memory.
//! Freed numbers are reused, last freed first. So the numbers are a function of the history and
//! equal on every replica as long as a snapshot keeps them. Snapshots do so for claims, whose
//! numbers are paging cursors.

use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

/// The null index.
pub(crate) const NONE: u32 = u32::MAX;

const CHUNK_BITS: u32 = 10;
const CHUNK: usize = 1 << CHUNK_BITS;

#[derive(Clone, Debug)]
enum Slot<T> {
    Free { next: u32 },
    Used(T),
}

/// A chunked arena with a free list.
#[derive(Clone, Debug)]
pub(crate) struct Slab<T> {
    chunks: Vec<Vec<Slot<T>>>,
    free: u32,
    slots: u32,
    len: u32,
}

fn split(number: u32) -> (usize, usize) {
    (
        (number >> CHUNK_BITS) as usize,
        number as usize & (CHUNK - 1),
    )
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Slab<T> {
        Slab {
            chunks: Vec::new(),
            free: NONE,
            slots: 0,
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Returns the number of slots, used and free.
    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    pub(crate) fn insert(&mut self, value: T) -> u32 {
        self.len += 1;
        if self.free == NONE {
            return self.push(Slot::Used(value));
        }
        let number = self.free;
        let (chunk, at) = split(number);
        let slot = &mut self.chunks[chunk][at];
        if let Slot::Free { next } = *slot {
            self.free = next;
        }
        *slot = Slot::Used(value);
        number
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let (chunk, at) = split(number);
        let slot = self.chunks.get_mut(chunk)?.get_mut(at)?;
        if let Slot::Free { .. } = slot {
            return None;
        }
        let taken = core::mem::replace(slot, Slot::Free { next: self.free });
        self.free = number;
        self.len -= 1;
        match taken {
            Slot::Used(value) => Some(value),
            Slot::Free { .. } => None,
        }
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        let (chunk, at) = split(number);
        match self.chunks.get(chunk)?.get(at)? {
            Slot::Used(value) => Some(value),
            Slot::Free { .. } => None,
        }
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let (chunk, at) = split(number);
        match self.chunks.get_mut(chunk)?.get_mut(at)? {
            Slot::Used(value) => Some(value),
            Slot::Free { .. } => None,
        }
    }

    /// All values with their numbers, in the order of the numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0u32..)
            .zip(self.chunks.iter().flatten())
            .filter_map(|(number, slot)| match slot {
                Slot::Used(value) => Some((number, value)),
                Slot::Free { .. } => None,
            })
    }

    /// Returns the free numbers, in the order of their reuse.
    pub(crate) fn free_numbers(&self) -> impl Iterator<Item = u32> {
        let mut at = self.free;
        core::iter::from_fn(move || {
            let (chunk, slot) = split(at);
            match self.chunks.get(chunk)?.get(slot)? {
                Slot::Free { next } => {
                    let number = at;
                    at = *next;
                    Some(number)
                }
                Slot::Used(_) => None,
            }
        })
    }

    /// Restores a slab: values by number (`None` if free), and the free numbers in order. Returns
    /// `None` if the two contradict each other.
    pub(crate) fn restore(values: Vec<Option<T>>, free: &[u32]) -> Option<Slab<T>> {
        let holes = values.iter().filter(|value| value.is_none()).count();
        if holes != free.len() {
            return None;
        }
        let mut slab = Slab::new();
        for value in values {
            match value {
                Some(value) => {
                    slab.len += 1;
                    slab.push(Slot::Used(value));
                }
                None => {
                    slab.push(Slot::Free { next: NONE });
                }
            }
        }
        // Each free slot must be listed exactly once: a listed slot first points to itself as a
        // mark.
        for number in free {
            let (chunk, at) = split(*number);
            match slab.chunks.get_mut(chunk)?.get_mut(at)? {
                Slot::Free { next } if *next == NONE => *next = *number,
                Slot::Free { .. } | Slot::Used(_) => return None,
            }
        }
        let mut next = NONE;
        for number in free.iter().rev() {
            let (chunk, at) = split(*number);
            slab.chunks[chunk][at] = Slot::Free { next };
            next = *number;
        }
        slab.free = next;
        Some(slab)
    }

    fn push(&mut self, slot: Slot<T>) -> u32 {
        let number = self.slots;
        let (chunk, _) = split(number);
        if chunk == self.chunks.len() {
            // Only the first chunk grows gradually, so that a small slab stays small.
            let capacity = if chunk == 0 { 4 } else { CHUNK };
            self.chunks.push(Vec::with_capacity(capacity));
        }
        self.chunks[chunk].push(slot);
        self.slots += 1;
        number
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;
    fn index(&self, number: u32) -> &T {
        self.get(number).expect("a number in use")
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, number: u32) -> &mut T {
        self.get_mut(number).expect("a number in use")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn numbers_are_used_again_last_freed_first() {
        let mut slab = Slab::new();
        let numbers: Vec<u32> = (0..3000).map(|value| slab.insert(value)).collect();
        slab.remove(numbers[7]);
        slab.remove(numbers[2000]);
        assert_eq!(slab.get(2000), None);
        assert_eq!(slab.free_numbers().collect::<Vec<_>>(), vec![2000, 7]);
        assert_eq!(slab.insert(1), 2000);
        assert_eq!(slab.insert(2), 7);
        assert_eq!(slab.insert(3), 3000);
        assert_eq!((slab.len(), slab.slots()), (3001, 3001));
    }

    #[test]
    fn an_arena_is_restored_with_its_holes() {
        let slab = Slab::restore(vec![Some('a'), None, Some('c'), None], &[3, 1]).unwrap();
        assert_eq!(slab.free_numbers().collect::<Vec<_>>(), vec![3, 1]);
        assert_eq!(slab.iter().collect::<Vec<_>>(), vec![(0, &'a'), (2, &'c')]);
        assert!(Slab::restore(vec![Some('a'), None, None], &[1, 1]).is_none());
        assert!(Slab::restore(vec![Some('a'), None], &[0]).is_none());
        assert!(Slab::restore(vec![Some('a'), None], &[]).is_none());
    }
}
