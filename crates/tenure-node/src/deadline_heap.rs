//! Indexed binary heap of deadlines, with at most one entry per slot number.
//!
//! There may be a slot for every lock, so memory matters: a slot costs twelve bytes and its heap
//! entry four, and the vectors grow by a quarter instead of doubling.

/// Indexed binary heap; see the module documentation.
#[derive(Debug, Default)]
pub(crate) struct DeadlineHeap {
    /// The deadline of each number that is in the heap.
    times: Vec<u64>,
    /// The heap position of each number, or `NONE`.
    places: Vec<u32>,
    /// Binary heap: every parent is due no later than its children.
    heap: Vec<u32>,
}

const NONE: u32 = u32::MAX;

impl DeadlineHeap {
    /// Schedules a number for this time. An earlier time that is already set stays.
    pub(crate) fn look_at(&mut self, number: u32, time: u64) {
        let at = number as usize;
        if at >= self.places.len() {
            extend(&mut self.places, at + 1, NONE);
            extend(&mut self.times, at + 1, 0);
        }
        let mut place = self.places[at] as usize;
        if self.places[at] == NONE {
            place = self.heap.len();
            extend(&mut self.heap, place + 1, number);
        } else if self.times[at] <= time {
            return;
        }
        self.times[at] = time;
        self.rise(place, number);
    }

    /// Returns the earliest deadline.
    pub(crate) fn next(&self) -> Option<u64> {
        self.heap.first().map(|number| self.times[*number as usize])
    }

    /// Removes and returns a number whose deadline is not later than `now`.
    pub(crate) fn take(&mut self, now: u64) -> Option<u32> {
        let first = *self.heap.first()?;
        if self.times[first as usize] > now {
            return None;
        }
        self.places[first as usize] = NONE;
        if let Some(last) = self.heap.pop()
            && last != first
        {
            self.sink(0, last);
        }
        Some(first)
    }

    /// Returns how many numbers are in the heap.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Sifts a number up from a position.
    fn rise(&mut self, mut place: usize, number: u32) {
        let time = self.times[number as usize];
        while place > 0 {
            let above = (place - 1) / 2;
            let other = self.heap[above];
            if self.times[other as usize] <= time {
                break;
            }
            self.put(place, other);
            place = above;
        }
        self.put(place, number);
    }

    /// Sifts a number down from a position.
    fn sink(&mut self, mut place: usize, number: u32) {
        let time = self.times[number as usize];
        loop {
            let mut below = 2 * place + 1;
            let Some(left) = self.time_in(below) else {
                break;
            };
            let mut least = left;
            if let Some(right) = self.time_in(below + 1)
                && right < left
            {
                (below, least) = (below + 1, right);
            }
            if time <= least {
                break;
            }
            self.put(place, self.heap[below]);
            place = below;
        }
        self.put(place, number);
    }

    fn time_in(&self, place: usize) -> Option<u64> {
        let number = self.heap.get(place)?;
        Some(self.times[*number as usize])
    }

    fn put(&mut self, place: usize, number: u32) {
        self.heap[place] = number;
        // Each number is in the heap at most once and is a `u32`, so a position fits in a `u32`.
        self.places[number as usize] = place as u32;
    }
}

/// Extends a vector to a length; a reallocation adds a quarter instead of doubling.
pub(crate) fn extend<T: Copy>(list: &mut Vec<T>, length: usize, with: T) {
    if length > list.capacity() {
        let more = (length - list.len()).max(list.len() / 4).max(4);
        list.reserve_exact(more);
    }
    list.resize(length, with);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Compares with a map from numbers to times.
    #[test]
    fn numbers_come_in_the_order_of_their_times() {
        let mut random = 7u64;
        let mut draw = |below: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) % below
        };
        let mut early = DeadlineHeap::default();
        let mut known: BTreeMap<u32, u64> = BTreeMap::new();
        for round in 0..20_000 {
            if draw(3) > 0 {
                let (number, time) = (draw(300) as u32, round + draw(1000));
                early.look_at(number, time);
                let before = known.entry(number).or_insert(time);
                *before = time.min(*before);
            } else {
                let now = round + draw(300);
                let least = known.values().copied().min();
                assert_eq!(early.next(), least);
                match early.take(now) {
                    Some(number) => assert_eq!(known.remove(&number), least),
                    None => assert!(least.is_none_or(|least| least > now)),
                }
            }
            assert_eq!(early.len(), known.len());
        }
    }
}
