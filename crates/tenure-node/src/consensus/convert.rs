//! Conversion between this crate's types and those of raft-rs.
//!
//! Bytes from peers and disk never reach the protobuf 2 parser of raft-rs, which bad input
//! can crash. A ConfChange entry carries this crate's encoding in its context; the library's
//! form is rebuilt from it on receipt and at start.

use bytes::Bytes;
use protobuf::Message as _;
use raft::eraftpb;

use super::id_interner::IdInterner;
use super::{
    Base, Entry, HardState, LogPosition, Membership, MembershipChange, MembershipStep, Message,
    MessageKind, Payload,
};
use crate::ReplicaId;
use crate::codec;

fn members(numbers: &[u64], ids: &IdInterner) -> Vec<ReplicaId> {
    let mut members: Vec<ReplicaId> = numbers.iter().filter_map(|id| ids.member(*id)).collect();
    // The library keeps them in hash sets; the order must not depend on that.
    members.sort_unstable();
    members
}

fn numbers(members: &[ReplicaId], ids: &mut IdInterner) -> Vec<u64> {
    members.iter().map(|member| ids.id(*member)).collect()
}

pub(super) fn entry_out(entry: &eraftpb::Entry) -> Entry {
    let payload = match entry.get_entry_type() {
        eraftpb::EntryType::EntryNormal if entry.data.is_empty() => Payload::Empty,
        eraftpb::EntryType::EntryNormal => Payload::Commands(entry.data.clone()),
        eraftpb::EntryType::EntryConfChange | eraftpb::EntryType::EntryConfChangeV2 => {
            Payload::Membership(
                codec::from_bytes(&entry.context)
                    .expect("we wrote the context of every membership entry ourselves"),
            )
        }
    };
    Entry {
        place: LogPosition {
            term: entry.term,
            index: entry.index,
        },
        payload,
    }
}

/// Like [`entry_out`], but consumes the entry.
pub(super) fn entry_own(entry: eraftpb::Entry) -> Entry {
    let is_commands = entry.get_entry_type() == eraftpb::EntryType::EntryNormal;
    if !is_commands || entry.data.is_empty() {
        return entry_out(&entry);
    }
    Entry {
        place: LogPosition {
            term: entry.term,
            index: entry.index,
        },
        payload: Payload::Commands(entry.data),
    }
}

pub(super) fn entry_in(entry: Entry) -> eraftpb::Entry {
    let mut out = match entry.payload {
        Payload::Empty => eraftpb::Entry::default(),
        Payload::Commands(data) => commands(data),
        Payload::Membership(change) => membership_entry(&change),
    };
    out.term = entry.place.term;
    out.index = entry.place.index;
    out
}

/// An entry in both forms: the library's for the library, ours for everybody else.
pub(super) fn membership_entry(change: &MembershipChange) -> eraftpb::Entry {
    let mut out = eraftpb::Entry::default();
    out.set_entry_type(eraftpb::EntryType::EntryConfChangeV2);
    // Of the change the library reads here only whether it leaves a joint configuration.
    out.data = change_in(change, &mut IdInterner::default())
        .write_to_bytes()
        .expect("writing to memory cannot fail")
        .into();
    out.context = codec::to_bytes(change).into();
    out
}

pub(super) fn change_in(change: &MembershipChange, ids: &mut IdInterner) -> eraftpb::ConfChangeV2 {
    let mut out = eraftpb::ConfChangeV2::default();
    // Explicit: the current leader leaves the joint configuration by a proposal of its own. The
    // library's automatic way can get stuck when the leader steps down at the wrong moment. A
    // single step needs no joint configuration.
    if change.steps.len() > 1 {
        out.set_transition(eraftpb::ConfChangeTransition::Explicit);
    }
    let steps = change
        .steps
        .iter()
        .map(|step| {
            let mut single = eraftpb::ConfChangeSingle::default();
            let (kind, member) = match *step {
                MembershipStep::Voter(member) => (eraftpb::ConfChangeType::AddNode, member),
                MembershipStep::Learner(member) => {
                    (eraftpb::ConfChangeType::AddLearnerNode, member)
                }
                MembershipStep::Remove(member) => (eraftpb::ConfChangeType::RemoveNode, member),
            };
            single.set_change_type(kind);
            single.node_id = ids.id(member);
            single
        })
        .collect::<Vec<_>>();
    out.set_changes(steps.into());
    out
}

pub(super) fn membership_out(state: &eraftpb::ConfState, ids: &IdInterner) -> Membership {
    Membership {
        voters: members(&state.voters, ids),
        learners: members(&state.learners, ids),
        outgoing: members(&state.voters_outgoing, ids),
        learners_next: members(&state.learners_next, ids),
    }
}

pub(super) fn membership_in(membership: &Membership, ids: &mut IdInterner) -> eraftpb::ConfState {
    let mut state = eraftpb::ConfState::default();
    state.set_voters(numbers(&membership.voters, ids));
    state.set_learners(numbers(&membership.learners, ids));
    state.set_voters_outgoing(numbers(&membership.outgoing, ids));
    state.set_learners_next(numbers(&membership.learners_next, ids));
    state
}

pub(super) fn base_in(base: &Base, ids: &mut IdInterner) -> eraftpb::Snapshot {
    let mut snapshot = eraftpb::Snapshot::default();
    let metadata = snapshot.mut_metadata();
    metadata.set_conf_state(membership_in(&base.membership, ids));
    metadata.index = base.place.index;
    metadata.term = base.place.term;
    snapshot
}

pub(super) fn base_out(snapshot: &eraftpb::Snapshot, ids: &IdInterner) -> Base {
    let metadata = snapshot.get_metadata();
    Base {
        place: LogPosition {
            term: metadata.term,
            index: metadata.index,
        },
        membership: membership_out(metadata.get_conf_state(), ids),
    }
}

/// What the library knows of a hard state; the rest is what `before` has.
pub(super) fn hard_state_out(
    state: &eraftpb::HardState,
    before: HardState,
    ids: &IdInterner,
) -> HardState {
    HardState {
        term: state.term,
        vote: ids.member(state.vote),
        commit: state.commit,
        ..before
    }
}

pub(super) fn hard_state_in(state: &HardState, ids: &mut IdInterner) -> eraftpb::HardState {
    eraftpb::HardState {
        term: state.term,
        vote: state.vote.map_or(0, |member| ids.id(member)),
        commit: state.commit,
        ..eraftpb::HardState::default()
    }
}

fn kind_in(kind: MessageKind) -> eraftpb::MessageType {
    use eraftpb::MessageType;
    match kind {
        MessageKind::Append => MessageType::MsgAppend,
        MessageKind::AppendAnswer => MessageType::MsgAppendResponse,
        MessageKind::Vote => MessageType::MsgRequestVote,
        MessageKind::VoteAnswer => MessageType::MsgRequestVoteResponse,
        MessageKind::PreVote => MessageType::MsgRequestPreVote,
        MessageKind::PreVoteAnswer => MessageType::MsgRequestPreVoteResponse,
        MessageKind::Heartbeat => MessageType::MsgHeartbeat,
        MessageKind::HeartbeatAnswer => MessageType::MsgHeartbeatResponse,
        MessageKind::Snapshot => MessageType::MsgSnapshot,
        MessageKind::TimeoutNow => MessageType::MsgTimeoutNow,
        MessageKind::TransferLeader => MessageType::MsgTransferLeader,
    }
}

fn kind_out(kind: eraftpb::MessageType) -> Option<MessageKind> {
    use eraftpb::MessageType;
    Some(match kind {
        MessageType::MsgAppend => MessageKind::Append,
        MessageType::MsgAppendResponse => MessageKind::AppendAnswer,
        MessageType::MsgRequestVote => MessageKind::Vote,
        MessageType::MsgRequestVoteResponse => MessageKind::VoteAnswer,
        MessageType::MsgRequestPreVote => MessageKind::PreVote,
        MessageType::MsgRequestPreVoteResponse => MessageKind::PreVoteAnswer,
        MessageType::MsgHeartbeat => MessageKind::Heartbeat,
        MessageType::MsgHeartbeatResponse => MessageKind::HeartbeatAnswer,
        MessageType::MsgSnapshot => MessageKind::Snapshot,
        MessageType::MsgTimeoutNow => MessageKind::TimeoutNow,
        MessageType::MsgTransferLeader => MessageKind::TransferLeader,
        // Local to the library, or never caused: we neither propose nor read on a follower.
        MessageType::MsgHup
        | MessageType::MsgBeat
        | MessageType::MsgPropose
        | MessageType::MsgUnreachable
        | MessageType::MsgSnapStatus
        | MessageType::MsgCheckQuorum
        | MessageType::MsgReadIndex
        | MessageType::MsgReadIndexResp => return None,
    })
}

/// `None` for what never leaves a process.
pub(super) fn message_out(mut message: eraftpb::Message, ids: &IdInterner) -> Option<Message> {
    Some(Message {
        from: ids.member(message.from)?,
        to: ids.member(message.to)?,
        term: message.term,
        kind: kind_out(message.get_msg_type())?,
        index: message.index,
        log_term: message.log_term,
        commit: message.commit,
        commit_term: message.commit_term,
        reject: message.reject.then_some(message.reject_hint),
        request_snapshot: message.request_snapshot,
        entries: message.get_entries().iter().map(entry_out).collect(),
        context: std::mem::take(&mut message.context),
        snapshot: message
            .has_snapshot()
            .then(|| Box::new(base_out(message.get_snapshot(), ids))),
    })
}

pub(super) fn message_in(message: Message, ids: &mut IdInterner) -> eraftpb::Message {
    let mut out = eraftpb::Message::default();
    out.set_msg_type(kind_in(message.kind));
    out.from = ids.id(message.from);
    out.to = ids.id(message.to);
    out.term = message.term;
    out.index = message.index;
    out.log_term = message.log_term;
    out.commit = message.commit;
    out.commit_term = message.commit_term;
    out.reject = message.reject.is_some();
    out.reject_hint = message.reject.unwrap_or(0);
    out.request_snapshot = message.request_snapshot;
    let entries: Vec<eraftpb::Entry> = message.entries.into_iter().map(entry_in).collect();
    out.set_entries(entries.into());
    out.context = message.context;
    if let Some(base) = message.snapshot.as_deref() {
        out.set_snapshot(base_in(base, ids));
    }
    out
}

pub(super) fn round_in(round: super::ReadRound) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(20);
    bytes.extend_from_slice(&round.node.number().to_le_bytes());
    bytes.extend_from_slice(&round.nonce.to_le_bytes());
    bytes.extend_from_slice(&round.number.to_le_bytes());
    bytes
}

pub(super) fn round_out(bytes: &[u8]) -> Option<super::ReadRound> {
    let (node, rest) = bytes.split_first_chunk::<4>()?;
    let (nonce, rest) = rest.split_first_chunk::<8>()?;
    let (number, rest) = rest.split_first_chunk::<8>()?;
    if !rest.is_empty() {
        return None;
    }
    Some(super::ReadRound {
        node: crate::NodeId::new(u32::from_le_bytes(*node))?,
        nonce: u64::from_le_bytes(*nonce),
        number: u64::from_le_bytes(*number),
    })
}

/// What the library sees of a proposal.
pub(super) fn proposal(entry: eraftpb::Entry, from: u64) -> eraftpb::Message {
    let mut message = eraftpb::Message::default();
    message.set_msg_type(eraftpb::MessageType::MsgPropose);
    message.from = from;
    message.set_entries(vec![entry].into());
    message
}

pub(super) fn commands(data: Bytes) -> eraftpb::Entry {
    eraftpb::Entry {
        data,
        ..eraftpb::Entry::default()
    }
}
