//! Slab (arena) with stable, typed indices: a value keeps its [`Id`] until it is removed.
//!
//! The slab grows by chunks, so growth never copies existing values and never doubles the memory.
//! Freed numbers are reused, last freed first. So the numbers are a function of the history and
//! equal on every replica as long as a snapshot keeps them. Snapshots do so for claims, whose
//! numbers are paging cursors.
//!
//! Copy on write: [`Slab::image`] returns a copy that shares all chunks, in time proportional to
//! the number of chunks. The first change of a shared chunk copies that chunk. So a snapshot of a
//! million values is encoded by another thread, and no command waits for more than one chunk.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Ordering;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::marker::PhantomData;
use core::num::NonZeroU32;
use core::ops::{Index, IndexMut};

use crate::codec::{DecodeError, Encode, Reader, Writer};

/// The number of a value in a [`Slab`]: an index that fits only slabs of this type. `Option<Id<T>>`
/// is as small as an `Id`.
pub(crate) struct Id<T> {
    /// The complement of the number, which is below `u32::MAX`.
    complement: NonZeroU32,
    of: PhantomData<fn() -> T>,
}

impl<T> Id<T> {
    /// The id with this number; `None` for the one number that no slab has.
    pub(crate) const fn new(number: u32) -> Option<Id<T>> {
        match NonZeroU32::new(!number) {
            Some(complement) => Some(Id {
                complement,
                of: PhantomData,
            }),
            None => None,
        }
    }

    pub(crate) const fn number(self) -> u32 {
        !self.complement.get()
    }
}

// Derived, these would need the same of `T`.
impl<T> Clone for Id<T> {
    fn clone(&self) -> Id<T> {
        *self
    }
}

impl<T> Copy for Id<T> {}

impl<T> PartialEq for Id<T> {
    fn eq(&self, other: &Id<T>) -> bool {
        self.complement == other.complement
    }
}

impl<T> Eq for Id<T> {}

impl<T> PartialOrd for Id<T> {
    fn partial_cmp(&self, other: &Id<T>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Id<T> {
    fn cmp(&self, other: &Id<T>) -> Ordering {
        self.number().cmp(&other.number())
    }
}

impl<T> Hash for Id<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.number().hash(state);
    }
}

impl<T> fmt::Debug for Id<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number().fmt(f)
    }
}

/// Snapshots keep the numbers of claims.
impl<T> Encode for Id<T> {
    fn put(&self, out: &mut Writer) {
        out.put(&self.number());
    }
    fn take(input: &mut Reader<'_>) -> Result<Id<T>, DecodeError> {
        Id::new(input.take()?).ok_or(DecodeError::Number)
    }
}

const CHUNK_BITS: u32 = 10;
const CHUNK: usize = 1 << CHUNK_BITS;

#[derive(Clone, Debug)]
enum Slot<T> {
    Free { next: Option<Id<T>> },
    Used(T),
}

/// Up to [`CHUNK`] slots.
#[derive(Clone, Debug)]
enum Chunk<T> {
    Own(Vec<Slot<T>>),
    /// Shared with an image, or was shared until that image was dropped.
    Shared(Arc<Vec<Slot<T>>>),
}

impl<T> Chunk<T> {
    fn slots(&self) -> &[Slot<T>] {
        match self {
            Chunk::Own(slots) => slots,
            Chunk::Shared(slots) => slots,
        }
    }
}

impl<T: Clone> Chunk<T> {
    fn slots_mut(&mut self) -> &mut Vec<Slot<T>> {
        if let Chunk::Shared(shared) = self {
            // The last owner takes the slots back without a copy.
            let slots = Arc::unwrap_or_clone(core::mem::take(shared));
            *self = Chunk::Own(slots);
        }
        match self {
            Chunk::Own(slots) => slots,
            Chunk::Shared(_) => unreachable!("it was just made an own one"),
        }
    }
}

/// A chunked arena with a free list.
#[derive(Clone, Debug)]
pub(crate) struct Slab<T> {
    chunks: Vec<Chunk<T>>,
    free: Option<Id<T>>,
    slots: u32,
    len: u32,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Slab<T> {
        Slab {
            chunks: Vec::new(),
            free: None,
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

    fn slot(&self, id: Id<T>) -> Option<&Slot<T>> {
        let (chunk, at) = split(id);
        self.chunks.get(chunk)?.slots().get(at)
    }

    fn next_new(&self) -> Id<T> {
        Id::new(self.slots).expect("fewer than 2^32 - 1 values")
    }

    pub(crate) fn get(&self, id: Id<T>) -> Option<&T> {
        match self.slot(id)? {
            Slot::Used(value) => Some(value),
            Slot::Free { .. } => None,
        }
    }

    /// All values with their ids, in the order of the numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Id<T>, &T)> {
        (0u32..)
            .zip(self.chunks.iter().flat_map(Chunk::slots))
            .filter_map(|(number, slot)| match slot {
                Slot::Used(value) => Some((Id::new(number)?, value)),
                Slot::Free { .. } => None,
            })
    }

    /// Returns the free ids, in the order of their reuse.
    pub(crate) fn free_ids(&self) -> impl Iterator<Item = Id<T>> {
        let mut at = self.free;
        core::iter::from_fn(move || {
            let id = at?;
            match self.slot(id)? {
                Slot::Free { next } => {
                    at = *next;
                    Some(id)
                }
                Slot::Used(_) => None,
            }
        })
    }

    /// Returns a copy that shares all chunks.
    pub(crate) fn image(&mut self) -> Slab<T> {
        let share = |chunk: &mut Chunk<T>| {
            let shared = match chunk {
                Chunk::Own(slots) => Arc::new(core::mem::take(slots)),
                Chunk::Shared(shared) => Arc::clone(shared),
            };
            *chunk = Chunk::Shared(Arc::clone(&shared));
            Chunk::Shared(shared)
        };
        Slab {
            chunks: self.chunks.iter_mut().map(share).collect(),
            free: self.free,
            slots: self.slots,
            len: self.len,
        }
    }
}

impl<T: Clone> Slab<T> {
    fn slot_mut(&mut self, id: Id<T>) -> Option<&mut Slot<T>> {
        let (chunk, at) = split(id);
        self.chunks.get_mut(chunk)?.slots_mut().get_mut(at)
    }

    /// Adds a value that contains its own id.
    pub(crate) fn insert_with(&mut self, value: impl FnOnce(Id<T>) -> T) -> Id<T> {
        let id = self.free.unwrap_or_else(|| self.next_new());
        self.insert(value(id))
    }

    pub(crate) fn insert(&mut self, value: T) -> Id<T> {
        self.len += 1;
        let Some(id) = self.free else {
            return self.push(Slot::Used(value));
        };
        let (chunk, at) = split(id);
        let slot = &mut self.chunks[chunk].slots_mut()[at];
        if let Slot::Free { next } = *slot {
            self.free = next;
        }
        *slot = Slot::Used(value);
        id
    }

    pub(crate) fn remove(&mut self, id: Id<T>) -> Option<T> {
        let next = self.free;
        let slot = self.slot_mut(id)?;
        if let Slot::Free { .. } = slot {
            return None;
        }
        let taken = core::mem::replace(slot, Slot::Free { next });
        self.free = Some(id);
        self.len -= 1;
        match taken {
            Slot::Used(value) => Some(value),
            Slot::Free { .. } => None,
        }
    }

    pub(crate) fn get_mut(&mut self, id: Id<T>) -> Option<&mut T> {
        match self.slot_mut(id)? {
            Slot::Used(value) => Some(value),
            Slot::Free { .. } => None,
        }
    }

    /// Restores a slab: values by number (`None` if free), and the free ids in order. Returns
    /// `None` if the two contradict each other.
    pub(crate) fn restore(values: Vec<Option<T>>, free: &[Id<T>]) -> Option<Slab<T>> {
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
                    slab.push(Slot::Free { next: None });
                }
            }
        }
        // Each free slot must be listed exactly once: a listed slot first points to itself as a
        // mark.
        for id in free {
            match slab.slot_mut(*id)? {
                Slot::Free { next: next @ None } => *next = Some(*id),
                Slot::Free { .. } | Slot::Used(_) => return None,
            }
        }
        for id in free.iter().rev() {
            let next = slab.free;
            *slab.slot_mut(*id)? = Slot::Free { next };
            slab.free = Some(*id);
        }
        Some(slab)
    }

    fn push(&mut self, slot: Slot<T>) -> Id<T> {
        let id = self.next_new();
        let (chunk, _) = split(id);
        if chunk == self.chunks.len() {
            // Only the first chunk grows gradually, so that a small slab stays small.
            let capacity = if chunk == 0 { 4 } else { CHUNK };
            self.chunks.push(Chunk::Own(Vec::with_capacity(capacity)));
        }
        self.chunks[chunk].slots_mut().push(slot);
        self.slots += 1;
        id
    }
}

fn split<T>(id: Id<T>) -> (usize, usize) {
    let number = id.number();
    (
        (number >> CHUNK_BITS) as usize,
        number as usize & (CHUNK - 1),
    )
}

impl<T> Index<Id<T>> for Slab<T> {
    type Output = T;
    fn index(&self, id: Id<T>) -> &T {
        self.get(id).expect("an id in use")
    }
}

impl<T: Clone> IndexMut<Id<T>> for Slab<T> {
    fn index_mut(&mut self, id: Id<T>) -> &mut T {
        self.get_mut(id).expect("an id in use")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn id<T>(number: u32) -> Id<T> {
        Id::new(number).unwrap()
    }

    #[test]
    fn numbers_are_used_again_last_freed_first() {
        let mut slab = Slab::new();
        let ids: Vec<Id<u32>> = (0..3000).map(|value| slab.insert(value)).collect();
        slab.remove(ids[7]);
        slab.remove(ids[2000]);
        assert_eq!(slab.get(id(2000)), None);
        assert_eq!(slab.free_ids().collect::<Vec<_>>(), vec![id(2000), id(7)]);
        assert_eq!(slab.insert(1), id(2000));
        assert_eq!(slab.insert(2), id(7));
        assert_eq!(slab.insert(3), id(3000));
        assert_eq!((slab.len(), slab.slots()), (3001, 3001));
    }

    #[test]
    fn an_arena_is_restored_with_its_holes() {
        let values = || vec![Some('a'), None, Some('c'), None];
        let slab = Slab::restore(values(), &[id(3), id(1)]).unwrap();
        assert_eq!(slab.free_ids().collect::<Vec<_>>(), vec![id(3), id(1)]);
        let found: Vec<_> = slab.iter().collect();
        assert_eq!(found, vec![(id(0), &'a'), (id(2), &'c')]);
        assert!(Slab::restore(vec![Some('a'), None, None], &[id(1), id(1)]).is_none());
        assert!(Slab::restore(vec![Some('a'), None], &[id(0)]).is_none());
        assert!(Slab::restore(vec![Some('a'), None], &[]).is_none());
    }

    #[test]
    fn an_image_keeps_its_values_while_the_arena_changes() {
        let mut slab = Slab::new();
        let ids: Vec<Id<u32>> = (0..3000).map(|value| slab.insert(value)).collect();
        slab.remove(ids[5]);
        let image = slab.image();
        slab[ids[0]] = 70;
        slab.remove(ids[2000]);
        slab.insert(71);
        slab.insert(72);
        slab.insert(73);
        let second = slab.image();
        slab[ids[0]] = 74;
        assert_eq!((image.get(ids[0]), image.get(ids[5])), (Some(&0), None));
        assert_eq!(image.get(ids[2000]), Some(&2000));
        assert_eq!(image.free_ids().collect::<Vec<_>>(), vec![ids[5]]);
        assert_eq!((image.len(), image.slots()), (2999, 3000));
        assert_eq!(second.get(ids[0]), Some(&70));
        assert_eq!((second.len(), second.slots()), (3001, 3001));
        drop((image, second));
        slab[ids[1]] = 75;
        assert_eq!((slab[ids[0]], slab[ids[1]], slab[ids[2]]), (74, 75, 2));
    }

    #[test]
    fn an_absent_id_takes_no_room() {
        assert_eq!(size_of::<Option<Id<u64>>>(), size_of::<u32>());
        assert_eq!(Id::<u64>::new(u32::MAX), None);
        assert!(id::<u64>(3) < id(4));
    }
}
