//! Encoding of Raft data: entries, hard states, snapshot metadata ([`Base`]) and messages.

use bytes::Bytes;

use super::{CodecError, DecodeResult, Reader, Writer};
use crate::ReplicaId;
use crate::consensus::{
    Base, Entry, HardState, LogPosition, Membership, MembershipChange, MembershipStep, Message,
    MessageKind, Payload,
};

/// The first byte of a membership change on disk. Commands begin with their version, which is
/// smaller, and an empty entry has no bytes: so the bytes of commands are written as they are.
const MEMBERSHIP: u8 = 0xFE;

/// The bytes of a payload in the log.
pub(crate) fn encode_payload(payload: &Payload) -> Bytes {
    match payload {
        Payload::Empty => Bytes::new(),
        Payload::Commands(data) => data.clone(),
        Payload::Membership(change) => {
            let mut writer = Writer::new();
            writer.byte(MEMBERSHIP);
            writer.raw(&encode_membership_change(change));
            writer.finish()
        }
    }
}

pub(crate) fn payload(bytes: Bytes) -> DecodeResult<Payload> {
    match bytes.first() {
        None => Ok(Payload::Empty),
        Some(&MEMBERSHIP) => membership_change(&bytes.slice(1..)).map(Payload::Membership),
        Some(_) => Ok(Payload::Commands(bytes)),
    }
}

/// A replica with the number 0 is written as release 0.1.0 writes every member: node and incarnation in one
/// number, which is never zero. Any other begins with a zero, which 0.1.0 refuses to read.
pub(crate) fn write_member(writer: &mut Writer, member: ReplicaId) {
    if member.replica != 0 {
        writer.number(0);
        writer.number(member.replica);
    }
    writer.number(member.pack());
}

pub(crate) fn read_member(reader: &mut Reader) -> DecodeResult<ReplicaId> {
    let invalid = CodecError::Invalid("member");
    match reader.number()? {
        0 => {
            let replica = reader.number()?;
            let member = ReplicaId::unpack(reader.number()?).ok_or(invalid)?;
            // One identity has one form.
            (replica != 0)
                .then_some(member.numbered(replica))
                .ok_or(invalid)
        }
        packed => ReplicaId::unpack(packed).ok_or(invalid),
    }
}

fn write_place(writer: &mut Writer, place: LogPosition) {
    writer.number(place.term);
    writer.number(place.index);
}

fn read_place(reader: &mut Reader) -> DecodeResult<LogPosition> {
    Ok(LogPosition {
        term: reader.number()?,
        index: reader.number()?,
    })
}

fn write_entry(writer: &mut Writer, entry: &Entry) {
    write_place(writer, entry.place);
    match &entry.payload {
        Payload::Empty => writer.byte(0),
        Payload::Commands(data) => {
            writer.byte(1);
            writer.slice(data);
        }
        Payload::Membership(change) => {
            writer.byte(2);
            writer.slice(&encode_membership_change(change));
        }
    }
}

fn read_entry(reader: &mut Reader) -> DecodeResult<Entry> {
    let place = read_place(reader)?;
    let payload = match reader.byte()? {
        0 => Payload::Empty,
        // An empty proposal would come back from the library as `Empty`; there is none.
        1 => match reader.slice()? {
            data if data.is_empty() => return Err(CodecError::Invalid("empty commands")),
            data => Payload::Commands(data),
        },
        2 => Payload::Membership(membership_change(&reader.slice()?)?),
        other => {
            return Err(CodecError::Unknown {
                what: "payload",
                number: u64::from(other),
            });
        }
    };
    Ok(Entry { place, payload })
}

fn write_entries(writer: &mut Writer, list: &[Entry]) {
    writer.count(list.len());
    for entry in list {
        write_entry(writer, entry);
    }
}

fn read_entries(reader: &mut Reader) -> DecodeResult<Vec<Entry>> {
    let count = reader.count(3)?;
    let mut list = Vec::with_capacity(count.min(1024));
    for _ in 0..count {
        list.push(read_entry(reader)?);
    }
    Ok(list)
}

/// A floor is written in the place of the commit index, in these bits of it: the term above the index. Only
/// an empty replica has a floor, and its commit index means nothing: 0.1.0 writes 0 and takes any number
/// for 0, so it reads the record of a floor as it reads its own.
const FLOOR_INDEX_BITS: u32 = 40;
const FLOOR_INDEX_MOST: u64 = (1 << FLOOR_INDEX_BITS) - 1;
const FLOOR_TERM_MOST: u64 = (1 << (u64::BITS - FLOOR_INDEX_BITS)) - 1;

pub(crate) fn encode_hard_state(state: &HardState) -> Bytes {
    let mut writer = Writer::with_version();
    writer.number(state.term);
    match state.vote {
        None => writer.byte(0),
        Some(member) => {
            writer.byte(1);
            write_member(&mut writer, member);
        }
    }
    if state.floor == LogPosition::default() {
        writer.number(state.commit);
    } else {
        let term = state.floor.term.min(FLOOR_TERM_MOST);
        let index = state.floor.index.min(FLOOR_INDEX_MOST);
        writer.number(term << FLOOR_INDEX_BITS | index);
    }
    // Release 0.1.0 refuses what follows. Both appear only after newer rules are on in the group.
    if state.replica != 0 || state.removed {
        writer.number(state.replica);
        writer.byte(u8::from(state.removed));
    }
    writer.finish()
}

/// Reads a hard state. That of an empty replica goes on to [`floor_of_empty`].
pub(crate) fn hard_state(bytes: Bytes) -> DecodeResult<HardState> {
    let mut reader = Reader::versioned(bytes)?;
    let mut state = HardState {
        term: reader.number()?,
        vote: match reader.byte()? {
            0 => None,
            1 => Some(read_member(&mut reader)?),
            _ => return Err(CodecError::Invalid("vote")),
        },
        commit: reader.number()?,
        ..HardState::default()
    };
    if !reader.is_empty() {
        state.replica = reader.number()?;
        state.removed = match reader.byte()? {
            0 if state.replica != 0 => false,
            1 => true,
            _ => return Err(CodecError::Invalid("tombstone")),
        };
    }
    reader.end()?;
    Ok(state)
}

/// The hard state of a replica without a log: what stands for the commit index is the floor.
pub(crate) fn floor_of_empty(state: HardState) -> HardState {
    HardState {
        commit: 0,
        floor: LogPosition {
            term: state.commit >> FLOOR_INDEX_BITS,
            index: state.commit & FLOOR_INDEX_MOST,
        },
        ..state
    }
}

fn write_members(writer: &mut Writer, members: &[ReplicaId]) {
    writer.count(members.len());
    for member in members {
        write_member(writer, *member);
    }
}

fn read_members(reader: &mut Reader) -> DecodeResult<Vec<ReplicaId>> {
    let count = reader.count(1)?;
    (0..count).map(|_| read_member(reader)).collect()
}

fn write_base(writer: &mut Writer, base: &Base) {
    write_place(writer, base.place);
    write_membership(writer, &base.membership);
}

fn write_membership(writer: &mut Writer, membership: &Membership) {
    write_members(writer, &membership.voters);
    write_members(writer, &membership.learners);
    write_members(writer, &membership.outgoing);
    write_members(writer, &membership.learners_next);
}

fn read_base(reader: &mut Reader) -> DecodeResult<Base> {
    Ok(Base {
        place: read_place(reader)?,
        membership: read_membership(reader)?,
    })
}

fn read_membership(reader: &mut Reader) -> DecodeResult<Membership> {
    Ok(Membership {
        voters: read_members(reader)?,
        learners: read_members(reader)?,
        outgoing: read_members(reader)?,
        learners_next: read_members(reader)?,
    })
}

pub(crate) fn encode_membership(membership: &Membership) -> Bytes {
    let mut writer = Writer::with_version();
    write_membership(&mut writer, membership);
    writer.finish()
}

pub(crate) fn membership(bytes: Bytes) -> DecodeResult<Membership> {
    let mut reader = Reader::versioned(bytes)?;
    let membership = read_membership(&mut reader)?;
    reader.end()?;
    Ok(membership)
}

pub(crate) fn encode_membership_change(change: &MembershipChange) -> Bytes {
    let mut writer = Writer::with_version();
    writer.count(change.steps.len());
    for step in &change.steps {
        let (kind, member) = match *step {
            MembershipStep::Voter(member) => (1, member),
            MembershipStep::Learner(member) => (2, member),
            MembershipStep::Remove(member) => (3, member),
        };
        writer.byte(kind);
        write_member(&mut writer, member);
    }
    writer.finish()
}

pub(crate) fn membership_change(bytes: &Bytes) -> DecodeResult<MembershipChange> {
    let mut reader = Reader::versioned(bytes.clone())?;
    let count = reader.count(2)?;
    let mut steps = Vec::with_capacity(count.min(64));
    for _ in 0..count {
        let kind = reader.byte()?;
        let member = read_member(&mut reader)?;
        steps.push(match kind {
            1 => MembershipStep::Voter(member),
            2 => MembershipStep::Learner(member),
            3 => MembershipStep::Remove(member),
            other => {
                return Err(CodecError::Unknown {
                    what: "membership step",
                    number: u64::from(other),
                });
            }
        });
    }
    reader.end()?;
    Ok(MembershipChange { steps })
}

/// Which of a message's rarer parts follow.
mod part {
    pub(super) const INDEX: u64 = 1;
    pub(super) const LOG_TERM: u64 = 2;
    pub(super) const COMMIT: u64 = 4;
    pub(super) const COMMIT_TERM: u64 = 8;
    pub(super) const REJECT: u64 = 16;
    pub(super) const REQUEST: u64 = 32;
    pub(super) const ENTRIES: u64 = 64;
    pub(super) const CONTEXT: u64 = 128;
    pub(super) const SNAPSHOT: u64 = 256;
    pub(super) const ALL: u64 = 511;
}

/// Appends a message to a frame. Heartbeats, of which there are thousands a second, are short.
pub(crate) fn encode_message(writer: &mut Writer, message: &Message) {
    writer.byte(message.kind as u8);
    write_member(writer, message.from);
    write_member(writer, message.to);
    writer.number(message.term);
    let mut parts = 0;
    for (present, bit) in [
        (message.index != 0, part::INDEX),
        (message.log_term != 0, part::LOG_TERM),
        (message.commit != 0, part::COMMIT),
        (message.commit_term != 0, part::COMMIT_TERM),
        (message.reject.is_some(), part::REJECT),
        (message.request_snapshot != 0, part::REQUEST),
        (!message.entries.is_empty(), part::ENTRIES),
        (!message.context.is_empty(), part::CONTEXT),
        (message.snapshot.is_some(), part::SNAPSHOT),
    ] {
        if present {
            parts |= bit;
        }
    }
    writer.number(parts);
    for (number, bit) in [
        (message.index, part::INDEX),
        (message.log_term, part::LOG_TERM),
        (message.commit, part::COMMIT),
        (message.commit_term, part::COMMIT_TERM),
        (message.reject.unwrap_or(0), part::REJECT),
        (message.request_snapshot, part::REQUEST),
    ] {
        if parts & bit != 0 {
            writer.number(number);
        }
    }
    if parts & part::ENTRIES != 0 {
        write_entries(writer, &message.entries);
    }
    if parts & part::CONTEXT != 0 {
        writer.slice(&message.context);
    }
    if let Some(base) = &message.snapshot {
        write_base(writer, base);
    }
}

pub(crate) fn message(reader: &mut Reader) -> DecodeResult<Message> {
    let number = reader.byte()?;
    let known = usize::from(number).checked_sub(1);
    let kind = known.and_then(|at| MessageKind::ALL.get(at));
    let kind = *kind.ok_or(CodecError::Unknown {
        what: "message",
        number: u64::from(number),
    })?;
    let (from, to) = (read_member(reader)?, read_member(reader)?);
    let term = reader.number()?;
    let parts = reader.number()?;
    if parts & !part::ALL != 0 {
        return Err(CodecError::Unknown {
            what: "message part",
            number: parts,
        });
    }
    let mut rare = |bit| -> DecodeResult<u64> {
        if parts & bit == 0 {
            Ok(0)
        } else {
            reader.number()
        }
    };
    let index = rare(part::INDEX)?;
    let log_term = rare(part::LOG_TERM)?;
    let commit = rare(part::COMMIT)?;
    let commit_term = rare(part::COMMIT_TERM)?;
    let hint = rare(part::REJECT)?;
    let request_snapshot = rare(part::REQUEST)?;
    // Indexes near the end of the number range would overflow in the library's arithmetic.
    for number in [term, index, log_term, commit, commit_term, hint] {
        if number > u64::MAX / 4 {
            return Err(CodecError::Limit(number));
        }
    }
    let entries = if parts & part::ENTRIES == 0 {
        Vec::new()
    } else {
        read_entries(reader)?
    };
    let context = if parts & part::CONTEXT == 0 {
        Bytes::new()
    } else {
        reader.slice()?
    };
    let snapshot = if parts & part::SNAPSHOT == 0 {
        None
    } else {
        Some(Box::new(read_base(reader)?))
    };
    Ok(Message {
        from,
        to,
        term,
        kind,
        index,
        log_term,
        commit,
        commit_term,
        reject: (parts & part::REJECT != 0).then_some(hint),
        request_snapshot,
        entries,
        context,
        snapshot,
    })
}
