//! Inspection interface for the simulator's checkers: the progress of each replica, its entries,
//! and the promises in a frame. A driver does not need it.

use bytes::Bytes;

use crate::codec::{self, Frame};
use crate::consensus::{Consensus, Message, MessageKind};
use crate::node::{Node, frames_item as item};
use crate::{Entry, GroupId, LogPosition, ReplicaId, Role};

/// How far a replica is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaView {
    /// Of which group.
    pub group: GroupId,
    /// Its identity.
    pub member: ReplicaId,
    /// Its part.
    pub role: Role,
    /// Its term.
    pub term: u64,
    /// The last entry that it has applied.
    pub applied: u64,
    /// The last entry that it has only as a part of its state.
    pub base: u64,
    /// The last entry that it has.
    pub last: LogPosition,
}

/// Something in a message between replicas that safety rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SafetyPromise {
    /// A candidate of this term, whose log ends here, asks for a vote.
    AsksForVote {
        /// In which term it would lead.
        term: u64,
        /// Where its log ends.
        end: LogPosition,
    },
    /// The sender votes for the receiver.
    Votes {
        /// In which term.
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

/// A [`SafetyPromise`], and between whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentPromise {
    /// In which group.
    pub group: GroupId,
    /// Who sends it.
    pub from: ReplicaId,
    /// To whom.
    pub to: ReplicaId,
    /// What it is.
    pub promise: SafetyPromise,
}

impl Node {
    /// How far every replica of this node is.
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

    /// The term of an entry of a replica, if it has it apart from its state.
    pub fn term_of(&self, group: GroupId, index: u64) -> Option<u64> {
        self.group_ref(group)?.replica.store().term_of(index)
    }

    /// An entry of a replica, if it has it apart from its state.
    pub fn entry(&self, group: GroupId, index: u64) -> Option<Entry> {
        self.group_ref(group)?.replica.store().entry(index)
    }
}

/// The promises in a frame. A frame that cannot be read has none.
pub fn promises_in(frame: Bytes) -> Vec<SentPromise> {
    let mut found = Vec::new();
    let Ok(mut frame) = Frame::open(frame) else {
        return found;
    };
    while let Ok(Some((kind, mut content))) = frame.next() {
        if kind != item::MESSAGE {
            continue;
        }
        let group = content.small().map(GroupId);
        if let (Ok(group), Ok(message)) = (group, codec::message(&mut content))
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

/// Answers to the question before an election bind no voter, so they are not among them.
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
