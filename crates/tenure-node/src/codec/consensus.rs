//! Encoding of Raft data: entries, hard states, snapshot metadata ([`Base`]) and messages.

use bytes::Bytes;
use tenure_core::{record, record_enum};

use super::{DecodeError, DecodeResult, Encode, Reader, VERSION, Writer, from_bytes, to_bytes};
use crate::consensus::{
    Base, Entry, HardState, LogPosition, Membership, MembershipChange, MembershipStep, Message,
    MessageKind, Payload,
};
use crate::{GroupId, ReplicaId};

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
            writer.raw(&to_bytes(change));
            writer.into_bytes().into()
        }
    }
}

pub(crate) fn payload(bytes: Bytes) -> DecodeResult<Payload> {
    match bytes.first() {
        None => Ok(Payload::Empty),
        Some(&MEMBERSHIP) => from_bytes(&bytes[1..]).map(Payload::Membership),
        Some(_) => Ok(Payload::Commands(bytes)),
    }
}

/// A replica with the number 0 is written as release 0.1.0 writes every member: node and incarnation in one
/// number, which is never zero. Any other begins with a zero, which 0.1.0 refuses to read.
impl Encode for ReplicaId {
    fn put(&self, out: &mut Writer) {
        if self.replica != 0 {
            out.number(0);
            out.number(self.replica);
        }
        out.number(self.pack());
    }
    fn take(input: &mut Reader<'_>) -> DecodeResult<ReplicaId> {
        let member = |packed| ReplicaId::unpack(packed).ok_or(DecodeError::Number);
        match input.number()? {
            0 => match (input.number()?, member(input.number()?)?) {
                // One identity has one form.
                (0, _) => Err(DecodeError::Number),
                (replica, member) => Ok(member.numbered(replica)),
            },
            packed => member(packed),
        }
    }
}

record! { GroupId(number) }
record! { LogPosition { term, index } }
record! { Base { place, membership } }
record! { Membership { voters, learners, outgoing, learners_next } }
record! { MembershipChange { steps } }
record_enum! { MembershipStep as "membership step" {
    1(member) => Voter(member), 2(member) => Learner(member), 3(member) => Remove(member),
} }

fn write_entry(writer: &mut Writer, entry: &Entry) {
    writer.put(&entry.place);
    match &entry.payload {
        Payload::Empty => writer.byte(0),
        Payload::Commands(data) => {
            writer.byte(1);
            writer.slice(data);
        }
        Payload::Membership(change) => {
            writer.byte(2);
            writer.slice(&to_bytes(change));
        }
    }
}

fn read_entry(reader: &mut Reader<'_>, source: &Bytes) -> DecodeResult<Entry> {
    let place = reader.take()?;
    let payload = match reader.byte()? {
        0 => Payload::Empty,
        // An empty proposal would come back from the library as `Empty`; there is none.
        1 => match reader.slice()? {
            [] => return Err(DecodeError::Inconsistent("an entry without commands")),
            data => Payload::Commands(source.slice_ref(data)),
        },
        2 => Payload::Membership(from_bytes(reader.slice()?)?),
        found => {
            let of = "payload";
            return Err(DecodeError::Tag { of, found });
        }
    };
    Ok(Entry { place, payload })
}

/// A floor is written in the place of the commit index, in these bits of it: the term above the index. Only
/// an empty replica has a floor, and its commit index means nothing: 0.1.0 writes 0 and takes any number
/// for 0, so it reads the record of a floor as it reads its own.
const FLOOR_INDEX_BITS: u32 = 40;
const FLOOR_INDEX_MOST: u64 = (1 << FLOOR_INDEX_BITS) - 1;
const FLOOR_TERM_MOST: u64 = (1 << (u64::BITS - FLOOR_INDEX_BITS)) - 1;

pub(crate) fn encode_hard_state(state: &HardState) -> Bytes {
    let mut writer = Writer::versioned(64);
    writer.number(state.term);
    writer.put(&state.vote);
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
        writer.put(&state.removed);
    }
    writer.into_bytes().into()
}

/// Reads a hard state. That of an empty replica goes on to [`floor_of_empty`].
pub(crate) fn hard_state(bytes: &[u8]) -> DecodeResult<HardState> {
    let mut reader = Reader::new(bytes);
    reader.version(VERSION)?;
    let mut state = HardState {
        term: reader.take()?,
        vote: reader.take()?,
        commit: reader.take()?,
        ..HardState::default()
    };
    if !reader.is_empty() {
        state.replica = reader.take()?;
        state.removed = reader.take()?;
        if state.replica == 0 && !state.removed {
            return Err(DecodeError::Inconsistent("a tombstone that is none"));
        }
    }
    reader.finish()?;
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
    writer.put(&message.from);
    writer.put(&message.to);
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
        writer.length(message.entries.len());
        for entry in &message.entries {
            write_entry(writer, entry);
        }
    }
    if parts & part::CONTEXT != 0 {
        writer.slice(&message.context);
    }
    if let Some(base) = &message.snapshot {
        writer.put(base);
    }
}

/// Whether a message of this kind may be a vote request, a vote or an acknowledgement.
pub(crate) fn is_promise(kind: u8) -> bool {
    let kind = usize::from(kind).checked_sub(1);
    let kind = kind.and_then(|at| MessageKind::ALL.get(at));
    matches!(
        kind,
        Some(MessageKind::Vote | MessageKind::VoteAnswer | MessageKind::AppendAnswer)
    )
}

/// Reads a message; `source` is what the reader reads.
pub(crate) fn message(reader: &mut Reader<'_>, source: &Bytes) -> DecodeResult<Message> {
    let found = reader.byte()?;
    let known = usize::from(found).checked_sub(1);
    let kind = known.and_then(|at| MessageKind::ALL.get(at));
    let of = "message";
    let kind = *kind.ok_or(DecodeError::Tag { of, found })?;
    let (from, to) = (reader.take()?, reader.take()?);
    let term = reader.number()?;
    let parts = reader.number()?;
    if parts & !part::ALL != 0 {
        return Err(DecodeError::Inconsistent("an unknown part of a message"));
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
            return Err(DecodeError::Number);
        }
    }
    let mut entries = Vec::new();
    if parts & part::ENTRIES != 0 {
        let count = reader.length()?;
        entries.reserve(count.min(1024));
        for _ in 0..count {
            entries.push(read_entry(reader, source)?);
        }
    }
    let mut context = Bytes::new();
    if parts & part::CONTEXT != 0 {
        context = source.slice_ref(reader.slice()?);
    }
    let mut snapshot = None;
    if parts & part::SNAPSHOT != 0 {
        snapshot = Some(reader.take()?);
    }
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
