//! Slab of calls in flight. Used by sessions and gRPC connections, where one task waits for many
//! answers of the node.

/// Slab: values in numbered slots. Slots are reused, so the numbers stay small.
pub(crate) struct InFlight<T> {
    slots: Vec<Option<T>>,
    free: Vec<u64>,
    used: usize,
}

impl<T> Default for InFlight<T> {
    fn default() -> InFlight<T> {
        InFlight {
            slots: Vec::new(),
            free: Vec::new(),
            used: 0,
        }
    }
}

impl<T> InFlight<T> {
    /// Returns the number of values.
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// Stores a value and returns its slot.
    pub(crate) fn take(&mut self, one: T) -> u64 {
        self.used += 1;
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(one);
                slot
            }
            None => {
                self.slots.push(Some(one));
                self.slots.len() as u64 - 1
            }
        }
    }

    /// Removes and returns the value of a slot. Returns `None` if the slot is free.
    pub(crate) fn give_back(&mut self, slot: u64) -> Option<T> {
        let held = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        self.used -= 1;
        Some(held)
    }

    /// Removes and returns all values.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.free.clear();
        self.used = 0;
        self.slots.drain(..).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again_and_nothing_is_given_back_twice() {
        let mut slots = InFlight::default();
        let (a, b) = (slots.take("a"), slots.take("b"));
        assert_eq!(slots.give_back(a), Some("a"));
        assert_eq!(slots.give_back(a), None);
        assert_eq!(slots.take("c"), a);
        assert_eq!(slots.len(), 2);
        assert_eq!(slots.give_back(b), Some("b"));
        assert_eq!(slots.drain().collect::<Vec<_>>(), ["c"]);
        assert_eq!(slots.len(), 0);
        assert_eq!(slots.give_back(a), None);
    }
}
