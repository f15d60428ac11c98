//! What is in flight in one place that waits for many answers of the node: a list with free places, and the
//! requests that came back.

use tenure_node::ClientRequest;

/// Requests that are kept to be used again.
const SPARE: usize = 256;

/// Things in flight, by small numbers that are used again.
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
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// Keeps one, under the number that is returned.
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

    /// Gives back what was kept under a number.
    pub(crate) fn give_back(&mut self, slot: u64) -> Option<T> {
        let held = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        self.used -= 1;
        Some(held)
    }

    /// What is left.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.free.clear();
        self.used = 0;
        self.slots.drain(..).flatten()
    }
}

/// Requests that came back from the node: the next ones take their places in memory.
#[derive(Default)]
pub(crate) struct SpareRequests(
    #[allow(clippy::vec_box, reason = "the boxes are what is kept")] Vec<Box<ClientRequest>>,
);

impl SpareRequests {
    /// A request in a box.
    pub(crate) fn boxed(&mut self, request: ClientRequest) -> Box<ClientRequest> {
        match self.0.pop() {
            Some(mut spare) => {
                *spare = request;
                spare
            }
            None => Box::new(request),
        }
    }

    /// What is left of a request.
    pub(crate) fn keep(&mut self, request: Option<Box<ClientRequest>>) {
        if let Some(mut request) = request
            && self.0.len() < SPARE
        {
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
