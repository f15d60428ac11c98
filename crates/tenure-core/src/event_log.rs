//! Event log: the events of the last 30 s with their ids, up to a maximum number (R121 (event ids),
//! R122 (events are always delivered)).

use alloc::vec::Vec;

use self::packed::PackedEvents;
use crate::event::{Event, EventIdStride, EventKind};
use crate::path::Namespace;
use crate::query::EventsAfter;
use crate::value::OwnerId;

mod packed;

/// How long events are kept, in lease time.
pub(crate) const KEPT_MS: u64 = 30_000;

/// A wall clock hint beyond this (the year 2109) is ignored as invalid, so that ids stay below
/// 2^53.
const WALL_END: u64 = 1 << 42;

/// The events of one group.
#[derive(Clone, Debug)]
pub(crate) struct EventLog {
    pub(crate) kept: PackedEvents,
    pub(crate) sequence: u64,
    pub(crate) id: u64,
    pub(crate) stride: EventIdStride,
    limit: usize,
}

impl EventLog {
    pub(crate) fn new(limit: u32) -> EventLog {
        EventLog {
            kept: PackedEvents::default(),
            sequence: 0,
            id: 0,
            stride: EventIdStride::ONLY,
            limit: limit as usize,
        }
    }

    /// Creates an event and stores it.
    pub(crate) fn push(
        &mut self,
        time: u64,
        wall: u64,
        owner: OwnerId,
        namespace: Option<Namespace>,
        kind: EventKind,
    ) -> Event {
        self.sequence += 1;
        let floor = (wall.min(WALL_END) << 10).max(self.id + 1);
        self.id = self.stride.from(floor);
        let event = Event {
            sequence: self.sequence,
            id: self.id,
            owner,
            namespace,
            kind,
        };
        self.kept.push(time, &event);
        while self.kept.len() > self.limit {
            self.kept.pop();
        }
        event
    }

    /// Drops events that are too old, a few per entry.
    pub(crate) fn forget(&mut self, time: u64) {
        for _ in 0..64 {
            match self.kept.oldest() {
                Some(made) if made.saturating_add(KEPT_MS) <= time => self.kept.pop(),
                _ => return,
            }
        }
    }

    pub(crate) fn after(&self, sequence: u64) -> EventsAfter {
        let events: Vec<Event> = self
            .kept
            .iter()
            .map(|(_, event)| event)
            .filter(|event| event.sequence > sequence)
            .collect();
        let missing = self.sequence.saturating_sub(sequence);
        if events.len() as u64 == missing {
            EventsAfter::Complete(events)
        } else {
            EventsAfter::Hole(events)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r121_ids_grow_and_follow_the_wall_where_they_can() {
        let mut ring = EventLog::new(2);
        let owner = OwnerId::new("amy").unwrap();
        let mut push = |time, wall| {
            ring.push(time, wall, owner.clone(), None, EventKind::Killed)
                .id
        };
        assert_eq!(push(0, 5), 5 << 10);
        assert_eq!(push(0, 5), (5 << 10) + 1);
        assert_eq!(push(0, 1), (5 << 10) + 2);
        assert!(push(1, u64::MAX) < 1 << 53);
        assert!(matches!(ring.after(1), EventsAfter::Hole(kept) if kept.len() == 2));
        assert!(matches!(ring.after(2), EventsAfter::Complete(kept) if kept.len() == 2));
        ring.forget(KEPT_MS);
        assert_eq!(ring.kept.len(), 1);
    }

    /// R121: events of several groups for one owner in the same millisecond have different ids.
    #[test]
    fn r121_groups_never_share_an_id() {
        const GROUPS: u32 = 5;
        let owner = OwnerId::new("amy").unwrap();
        let mut ids = Vec::new();
        for group in 0..GROUPS {
            let mut ring = EventLog::new(8);
            ring.stride = EventIdStride::new(group, GROUPS);
            let mut last = 0;
            for wall in [7, 7, 7, 3, 8, 1_700_000_000_000] {
                let event = ring.push(0, wall, owner.clone(), None, EventKind::Killed);
                assert!(event.id > last && event.id >= wall << 10);
                last = event.id;
                ids.push(event.id);
            }
            assert!(last < 1_700_000_000_001 << 10, "near its wall hint");
        }
        ids.sort_unstable();
        let count = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), count);
    }
}
