//! Slab of calls in flight, and a pool of request boxes. Used by sessions and gRPC connections,
//! where one task waits for many answers of the node.

use tenure_node::ClientRequest;

/// Maximum number of boxes in the pool.
const SPARE: usize = 256;

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

/// Pool of request boxes that came back from the node, to save an allocation per call.
#[derive(Default)]
pub(crate) struct SpareRequests(
    #[allow(clippy::vec_box, reason = "the pool keeps the allocations")] Vec<Box<ClientRequest>>,
);

impl SpareRequests {
    /// Boxes a request, in a pooled box if there is one.
    pub(crate) fn boxed(&mut self, request: ClientRequest) -> Box<ClientRequest> {
        match self.0.pop() {
            Some(mut spare) => {
                *spare = request;
                spare
            }
            None => Box::new(request),
        }
    }

    /// Returns a box to the pool. Drops it if the pool is full.
    pub(crate) fn keep(&mut self, request: Option<Box<ClientRequest>>) {
        if let Some(mut request) = request
            && self.0.len() < SPARE
        {
            // `Health` has no heap data: the old request is freed now, not when the box is reused.
            *request = ClientRequest::Health;
            self.0.push(request);
        }
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
