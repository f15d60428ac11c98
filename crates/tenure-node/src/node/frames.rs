//! Outgoing frames of one step: per peer one for immediate messages, one that waits until the log
//! is durable, and bulk data.

use std::collections::BTreeMap;

use crate::codec::{self, FrameWriter, Writer};
use crate::consensus::Message;
use crate::node::SendAfter;
use crate::{Channel, DurableAfter, GroupId, Mark, NodeId, Output, ReplicaId};

/// The kinds of items in a frame. On the wire: never reused.
pub(crate) mod item {
    pub(crate) const MESSAGE: u8 = 1;
    pub(crate) const FORWARD: u8 = 2;
    pub(crate) const ANSWER: u8 = 3;
    pub(crate) const FANOUT: u8 = 4;
    pub(crate) const FANOUT_RESULT: u8 = 5;
    pub(crate) const LEADS: u8 = 6;
    pub(crate) const FOLLOW: u8 = 7;
    pub(crate) const EVENTS: u8 = 8;
    pub(crate) const WATCH: u8 = 9;
    pub(crate) const CHANGES: u8 = 10;
    pub(crate) const CHUNK: u8 = 11;
    pub(crate) const CHUNK_TAKEN: u8 = 12;
    pub(crate) const REMOVED: u8 = 13;
    pub(crate) const AM_I_MEMBER: u8 = 14;
    pub(crate) const NOT_A_MEMBER: u8 = 15;
    pub(crate) const RULES: u8 = 16;
    pub(crate) const FANOUT_PAGE: u8 = 20;
    pub(crate) const FANOUT_NEXT: u8 = 21;
    pub(crate) const FANOUT_OVER: u8 = 22;
    /// [`AM_I_MEMBER`] of a replica whose number is not 0.
    pub(crate) const IS_REPLICA_MEMBER: u8 = 24;
    pub(crate) const SLOW_DISK: u8 = 26;
    pub(crate) const DISK: u8 = 27;
    pub(crate) const WATCH_PAGES: u8 = 28;
    pub(crate) const AUTH: u8 = 40;
    pub(crate) const AUTH_TAKEN: u8 = 41;
}

/// A frame is closed when it has this many bytes; the next item begins another.
const FULL_FRAME_BYTES: usize = 4 * 1024 * 1024;
/// An item that is longer is left out: a frame that the peer refuses would cost the connection, which all groups
/// share. Senders keep their items far below it.
const MAX_ITEM_BYTES: usize = 32 * 1024 * 1024;
const _: () = assert!(FULL_FRAME_BYTES + MAX_ITEM_BYTES < codec::MAX_FRAME_BYTES);
/// A frame begins with room for this many bytes.
const LEAST_ROOM: usize = 256;
/// Larger frames are too rare to make room for the next.
const MOST_ROOM: usize = 64 * 1024;

#[derive(Debug)]
pub(crate) struct Frames {
    me: ReplicaId,
    start: u64,
    /// Counts the frames of this process, for each slot: a receiver recognises those that it has
    /// seen. Each slot by itself, because what waits for the disk may leave much later.
    numbers: [u64; 3],
    /// How long the last frame of each slot was: the next one gets room for as much.
    lengths: [usize; 3],
    open: BTreeMap<(NodeId, PeerFrames), FrameWriter>,
    full: Vec<(NodeId, PeerFrames, FrameWriter)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PeerFrames {
    Now = 0,
    AfterWrites = 1,
    Bulk = 2,
}

impl Frames {
    pub(crate) fn new(me: ReplicaId, start: u64) -> Frames {
        Frames {
            me,
            start,
            numbers: [0; 3],
            lengths: [0; 3],
            open: BTreeMap::new(),
            full: Vec::new(),
        }
    }

    pub(crate) fn message(&mut self, group: GroupId, message: &Message, due: SendAfter) {
        let slot = match due {
            SendAfter::Now => PeerFrames::Now,
            SendAfter::AfterWrites => PeerFrames::AfterWrites,
        };
        self.put(message.to.node, slot, item::MESSAGE, |out| {
            out.number(u64::from(group.0));
            codec::encode_message(out, message);
        });
    }

    /// Something to be said at once.
    pub(crate) fn say(&mut self, to: NodeId, kind: u8, content: impl FnOnce(&mut Writer)) {
        self.put(to, PeerFrames::Now, kind, content);
    }

    /// Something to be said when the writes of this turn are durable.
    pub(crate) fn say_after_writes(
        &mut self,
        to: NodeId,
        kind: u8,
        content: impl FnOnce(&mut Writer),
    ) {
        self.put(to, PeerFrames::AfterWrites, kind, content);
    }

    /// A part of something large.
    pub(crate) fn bulk(&mut self, to: NodeId, kind: u8, content: impl FnOnce(&mut Writer)) {
        self.put(to, PeerFrames::Bulk, kind, content);
    }

    fn put(&mut self, to: NodeId, slot: PeerFrames, kind: u8, content: impl FnOnce(&mut Writer)) {
        let (me, start) = (self.me, self.start);
        if to == me.node {
            // Meant for an earlier incarnation of this node, which a group has not removed yet.
            return;
        }
        let number = &mut self.numbers[slot as usize];
        let room = self.lengths[slot as usize].max(LEAST_ROOM);
        let frame = self.open.entry((to, slot)).or_insert_with(|| {
            *number += 1;
            FrameWriter::new(me, start, slot as u8, *number, room)
        });
        frame.item(kind, MAX_ITEM_BYTES, content);
        if frame.len() >= FULL_FRAME_BYTES
            && let Some(frame) = self.open.remove(&(to, slot))
        {
            self.full.push((to, slot, frame));
        }
    }

    pub(crate) fn flush(&mut self, mark: Mark, outputs: &mut Vec<Output>) {
        let full = std::mem::take(&mut self.full);
        let open = std::mem::take(&mut self.open);
        let open = open
            .into_iter()
            .map(|((to, slot), frame)| (to, slot, frame));
        for (to, slot, frame) in full.into_iter().chain(open) {
            self.lengths[slot as usize] = (frame.len() + frame.len() / 4).min(MOST_ROOM);
            let (channel, after) = match slot {
                PeerFrames::Now => (Channel::Main, DurableAfter::Nothing),
                PeerFrames::AfterWrites => (Channel::Main, DurableAfter::Persisted(mark)),
                PeerFrames::Bulk => (Channel::Bulk, DurableAfter::Nothing),
            };
            outputs.push(Output::Send {
                to,
                channel,
                after,
                frame: frame.finish(),
            });
        }
    }
}
