//! Inspection for the simulator's checkers: the progress of each replica, its entries, and the
//! votes and acknowledgements in a frame. A driver does not need it.

use bytes::Bytes;

use crate::codec::{self, Frame, Reader};
use crate::consensus::{Consensus, Message, MessageKind};
use crate::node::{Node, frames_item as item};
use crate::{Entry, GroupId, LogPosition, ReplicaId, Role};

/// The progress of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaView {
    /// Its group.
    pub group: GroupId,
    /// Its identity.
    pub member: ReplicaId,
    /// Its Raft role.
    pub role: Role,
    /// Its term.
    pub term: u64,
    /// The last entry that it has applied.
    pub applied: u64,
    /// The last entry that is only in its snapshot.
    pub base: u64,
    /// The last entry of its log.
    pub last: LogPosition,
}

/// A statement in a message between replicas on which safety depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SafetyPromise {
    /// A candidate of this term, whose log ends here, asks for a vote.
    AsksForVote {
        /// The term of the election.
        term: u64,
        /// The end of its log.
        end: LogPosition,
    },
    /// The sender votes for the receiver.
    Votes {
        /// The term.
        term: u64,
    },
    /// The sender's log has the entries of the receiver up to this index.
    Holds {
        /// The sender's term.
        term: u64,
        /// The last of the entries.
        index: u64,
    },
}

/// A [`SafetyPromise`] with its sender and receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentPromise {
    /// The group.
    pub group: GroupId,
    /// The sender.
    pub from: ReplicaId,
    /// The receiver.
    pub to: ReplicaId,
    /// The promise.
    pub promise: SafetyPromise,
}

impl Node {
    /// Returns the progress of every replica of this node.
    pub fn replicas(&self) -> impl Iterator<Item = ReplicaView> {
        self.groups.iter().flatten().map(|group| {
            let store = group.replica.store();
            let index = store.last_index();
            ReplicaView {
                group: group.id,
                member: group.me,
                role: group.replica.role(),
                term: group.replica.term(),
                applied: group.applied.index,
                base: store.base().place.index,
                last: LogPosition {
                    term: store.term_of(index).unwrap_or(0),
                    index,
                },
            }
        })
    }

    /// Returns the term of an entry of a replica, if it is in the log.
    pub fn term_of(&self, group: GroupId, index: u64) -> Option<u64> {
        self.group_ref(group)?.replica.store().term_of(index)
    }

    /// Returns an entry of a replica, if it is in the log.
    pub fn entry(&self, group: GroupId, index: u64) -> Option<Entry> {
        self.group_ref(group)?.replica.store().entry(index)
    }
}

/// Returns the promises in a frame. An unreadable frame has none.
pub fn promises_in(frame: Bytes) -> Vec<SentPromise> {
    let mut found = Vec::new();
    let Ok(mut frame) = Frame::open(frame) else {
        return found;
    };
    while let Ok(Some((kind, content))) = frame.next() {
        if kind != item::MESSAGE {
            continue;
        }
        let mut input = Reader::new(&content);
        let Ok(group) = input.take() else {
            continue;
        };
        // Most messages are no promises. Their entries need not be decoded.
        let kind = content.get(content.len() - input.remaining());
        if !kind.is_some_and(|kind| codec::is_promise(*kind)) {
            continue;
        }
        if let Ok(message) = codec::message(&mut input, &content)
            && let Some(promise) = promise_of(&message)
        {
            found.push(SentPromise {
                group,
                from: message.from,
                to: message.to,
                promise,
            });
        }
    }
    found
}

/// Pre-vote answers bind no voter, so they are not promises.
fn promise_of(message: &Message) -> Option<SafetyPromise> {
    let (term, index) = (message.term, message.index);
    match message.kind {
        MessageKind::Vote => Some(SafetyPromise::AsksForVote {
            term,
            end: LogPosition {
                term: message.log_term,
                index,
            },
        }),
        _ if message.reject.is_some() => None,
        MessageKind::VoteAnswer => Some(SafetyPromise::Votes { term }),
        MessageKind::AppendAnswer => Some(SafetyPromise::Holds { term, index }),
        _ => None,
    }
}
