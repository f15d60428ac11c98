//! Delta-compressed FIFO of events.
//!
//! ```text
//!   blocks   [ gone · event · event · … ][ event · … ][ event · … ·      ]
//!                   ▲ `front`                                   ▲ `last`
//! ```
//!
//! A group that hands one lock around produces thousands of events per second, and each is kept for
//! 30 s. Most events differ little from the one before, so only the difference is stored; the owner
//! is stored as text. Memory of removed events is freed block by block.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::codec::{Reader, Writer};
use crate::event::{Event, EventKind};
use crate::path::Namespace;
use crate::value::{Fence, OwnerId};

/// Maximum block size; only a single large event may exceed it.
const BLOCK: usize = 4096;
/// Upper bound of the encoded size of an event's numbers.
const NUMBERS: usize = 64;

// The first byte of an event: its kind in the two lowest bits, then flags for fields equal to those
// of the event before.
const KIND: u8 = 0b0011;
const KILLED: u8 = 0;
const REVOKE: u8 = 1;
const GRANT: u8 = 2;
const GRANT_AT_FENCE: u8 = 3;
const SAME_NAMESPACE: u8 = 0b0100;
const NO_NAMESPACE: u8 = 0b1000;

/// A queue of events, encoded as differences.
#[derive(Clone, Debug, Default)]
pub(crate) struct PackedEvents {
    blocks: VecDeque<Vec<u8>>,
    /// Offset of the oldest event in the first block.
    start: usize,
    /// The numbers that the oldest event is encoded against.
    front: EventNumbers,
    /// The numbers that the next event will be encoded against.
    last: EventNumbers,
    length: usize,
}

/// The numbers of an event, from which differences are computed. Arithmetic wraps, because a
/// decoded queue may contain any values.
#[derive(Clone, Debug, Default)]
struct EventNumbers {
    made: u64,
    sequence: u64,
    id: u64,
    fence: u64,
    namespace: Option<Namespace>,
}

impl PackedEvents {
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Adds the newest event, made at this time.
    pub(crate) fn push(&mut self, made: u64, event: &Event) {
        let text = event.owner.as_str();
        let name = event
            .namespace
            .as_ref()
            .map_or(0, |name| name.as_str().len());
        let longest = NUMBERS + text.len() + name;
        let block = match self.blocks.pop_back() {
            Some(block) if block.len() + longest <= BLOCK => block,
            full => {
                self.blocks.extend(full);
                // Most groups never need a second block, and few a whole first one.
                Vec::with_capacity(if self.blocks.is_empty() { 0 } else { BLOCK })
            }
        };
        let mut out = Writer::append_to(block);
        self.last.put(&mut out, made, event);
        self.blocks.push_back(out.into_bytes());
        self.length += 1;
    }

    /// When the oldest event was made.
    pub(crate) fn oldest(&self) -> Option<u64> {
        let mut input = self.first();
        input.byte().ok()?;
        Some(self.front.made.wrapping_add(input.number().ok()?))
    }

    /// Drops the oldest event.
    pub(crate) fn pop(&mut self) {
        let mut input = Reader::new(first_of(&self.blocks, self.start));
        let left = input.remaining();
        if self.front.take(&mut input).is_none() {
            return;
        }
        self.start += left - input.remaining();
        self.length -= 1;
        if input.remaining() == 0 {
            self.blocks.pop_front();
            self.start = 0;
        }
    }

    /// All events with the time at which they were made, from the oldest on.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, Event)> {
        let mut before = self.front.clone();
        let mut input = self.first();
        let mut blocks = self.blocks.iter().skip(1);
        core::iter::from_fn(move || {
            if input.remaining() == 0 {
                input = Reader::new(blocks.next()?);
            }
            let (kind, owner) = before.take(&mut input)?;
            let event = Event {
                sequence: before.sequence,
                id: before.id,
                owner: OwnerId::new(owner).ok()?,
                namespace: before.namespace.clone(),
                kind,
            };
            Some((before.made, event))
        })
    }

    fn first(&self) -> Reader<'_> {
        Reader::new(first_of(&self.blocks, self.start))
    }
}

/// Returns the first block from the oldest event on.
fn first_of(blocks: &VecDeque<Vec<u8>>, start: usize) -> &[u8] {
    blocks
        .front()
        .and_then(|block| block.get(start..))
        .unwrap_or(&[])
}

impl EventNumbers {
    /// Encodes the difference of an event and advances to it.
    fn put(&mut self, out: &mut Writer, made: u64, event: &Event) {
        let (kind, fence) = match event.kind {
            EventKind::Killed => (KILLED, None),
            EventKind::Revoke => (REVOKE, None),
            EventKind::Grant { fence: None } => (GRANT, None),
            EventKind::Grant { fence: Some(fence) } => (GRANT_AT_FENCE, Some(fence.number())),
        };
        let namespace = match &event.namespace {
            same if *same == self.namespace => SAME_NAMESPACE,
            None => NO_NAMESPACE,
            Some(_) => 0,
        };
        out.byte(kind | namespace);
        out.number(step(&mut self.made, made));
        out.number(step(&mut self.sequence, event.sequence));
        out.number(step(&mut self.id, event.id));
        if let Some(fence) = fence {
            out.number(step(&mut self.fence, fence));
        }
        if namespace != SAME_NAMESPACE {
            if let Some(name) = &event.namespace {
                out.text(name.as_str());
            }
            self.namespace.clone_from(&event.namespace);
        }
        out.text(event.owner.as_str());
    }

    /// Decodes the next event: returns its kind and owner and advances the numbers. Returns `None`
    /// only at the end, because `put` wrote the input.
    fn take<'a>(&mut self, input: &mut Reader<'a>) -> Option<(EventKind, &'a str)> {
        let first = input.byte().ok()?;
        for number in [&mut self.made, &mut self.sequence, &mut self.id] {
            *number = number.wrapping_add(input.number().ok()?);
        }
        let kind = match first & KIND {
            KILLED => EventKind::Killed,
            REVOKE => EventKind::Revoke,
            GRANT => EventKind::Grant { fence: None },
            _ => {
                self.fence = self.fence.wrapping_add(input.number().ok()?);
                let fence = Fence::from_number(self.fence);
                EventKind::Grant { fence }
            }
        };
        if first & NO_NAMESPACE != 0 {
            self.namespace = None;
        } else if first & SAME_NAMESPACE == 0 {
            self.namespace = Some(Namespace::parse(input.text().ok()?).ok()?);
        }
        Some((kind, input.text().ok()?))
    }
}

/// Advances `from` to `to`; returns the difference.
fn step(from: &mut u64, to: u64) -> u64 {
    to.wrapping_sub(core::mem::replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    /// R122: what is kept is what was told, whatever it was and however much of it is gone.
    #[test]
    fn what_comes_out_is_what_went_in() {
        let names = [None, Some("t"), Some("t"), Some("h:/a/b"), None];
        let fences = [None, Some(1), Some(u64::MAX >> 12), Some(7)];
        let event = |at: usize| {
            let fence = fences[at % 4].and_then(Fence::from_number);
            let kinds = [
                EventKind::Killed,
                EventKind::Grant { fence },
                EventKind::Revoke,
            ];
            let ids = [0, u64::MAX, 5 << 40, 12];
            let event = Event {
                sequence: if at == 900 { 3 } else { at as u64 },
                id: ids[at % 4],
                owner: OwnerId::new(&format!("{at:0$}", 1 + at % 1024)).unwrap(),
                namespace: names[at % 5].map(|name| Namespace::parse(name).unwrap()),
                kind: kinds[at % 3],
            };
            (u64::from(at != 17) * at as u64, event)
        };
        let (mut line, mut kept) = (PackedEvents::default(), VecDeque::new());
        for at in 0..2000 {
            let (made, event) = event(at);
            line.push(made, &event);
            kept.push_back((made, event));
            // In the middle nothing is left for a while.
            for _ in 0..if at / 500 == 2 { 3 } else { at % 2 } {
                line.pop();
                kept.pop_front();
            }
            assert_eq!(line.len(), kept.len());
            assert_eq!(line.oldest(), kept.front().map(|(made, _)| *made));
            if at % 50 == 0 {
                assert!(line.iter().eq(kept.iter().cloned()), "after event {at}");
            }
        }
        assert!(line.iter().eq(kept));
    }

    /// What is gone takes no memory, and a few events take little.
    #[test]
    fn blocks_go_with_their_events() {
        let event = |at| Event {
            sequence: at,
            id: at << 10,
            owner: OwnerId::new(&format!("owner-{}", at % 64)).unwrap(),
            namespace: Some(Namespace::parse("h:/a").unwrap()),
            kind: EventKind::Killed,
        };
        let mut line = PackedEvents::default();
        line.push(0, &event(0));
        assert!(line.blocks.iter().all(|block| block.capacity() <= 64));
        for at in 1..100_000 {
            line.push(at, &event(at));
            if line.len() > 1000 {
                line.pop();
            }
        }
        let room: usize = line.blocks.iter().map(Vec::capacity).sum();
        assert!(
            room <= 20 * 1000 + 2 * BLOCK,
            "{room} bytes for 1000 events"
        );
        assert!(line.blocks.iter().all(|block| block.capacity() <= BLOCK));
    }
}
