//! Round-trip and robustness tests: no input makes a decoder panic or allocate for a false length.

use bytes::Bytes;

use super::*;
use crate::consensus::{
    Base, Entry, HardState, LogPosition, Membership, MembershipChange, MembershipStep, Message,
    MessageKind, Payload,
};
use crate::{NodeId, ReplicaId};
use tenure_random::SplitMix64;

fn member(random: &mut SplitMix64) -> ReplicaId {
    let node = NodeId::new(1 + random.below(5) as u32).unwrap();
    let member = ReplicaId::new(node, random.next() as u32);
    if random.below(2) == 0 {
        member
    } else {
        member.numbered(number(random))
    }
}

fn members(random: &mut SplitMix64) -> Vec<ReplicaId> {
    (0..random.below(4)).map(|_| member(random)).collect()
}

fn number(random: &mut SplitMix64) -> u64 {
    // Small ones, large ones, and the edges of the encoding.
    let bits = random.below(62);
    random.next() & ((1u64 << bits) | ((1u64 << bits) - 1))
}

fn bytes(random: &mut SplitMix64) -> Bytes {
    let length = 1 + random.below(40);
    (0..length).map(|_| random.next() as u8 & 0x7f).collect()
}

fn change(random: &mut SplitMix64) -> MembershipChange {
    let steps = (0..random.below(4))
        .map(|_| match random.below(3) {
            0 => MembershipStep::Voter(member(random)),
            1 => MembershipStep::Learner(member(random)),
            _ => MembershipStep::Remove(member(random)),
        })
        .collect();
    MembershipChange { steps }
}

fn payload_of(random: &mut SplitMix64) -> Payload {
    match random.below(3) {
        0 => Payload::Empty,
        1 => Payload::Commands(bytes(random)),
        _ => Payload::Membership(change(random)),
    }
}

fn message_of(random: &mut SplitMix64) -> Message {
    let kinds = MessageKind::ALL;
    Message {
        from: member(random),
        to: member(random),
        term: number(random),
        kind: kinds[random.below(kinds.len() as u64) as usize],
        index: number(random),
        log_term: number(random),
        commit: number(random),
        commit_term: number(random),
        reject: (random.below(2) == 0).then(|| number(random)),
        request_snapshot: number(random),
        entries: (0..random.below(3))
            .map(|_| Entry {
                place: LogPosition {
                    term: number(random),
                    index: number(random),
                },
                payload: payload_of(random),
            })
            .collect(),
        context: if random.below(2) == 0 {
            Bytes::new()
        } else {
            bytes(random)
        },
        snapshot: (random.below(3) == 0).then(|| {
            Box::new(Base {
                place: LogPosition {
                    term: number(random),
                    index: number(random),
                },
                membership: membership_of(random),
            })
        }),
    }
}

fn membership_of(random: &mut SplitMix64) -> Membership {
    Membership {
        voters: members(random),
        learners: members(random),
        outgoing: members(random),
        learners_next: members(random),
    }
}

fn encoded(message: &Message) -> Bytes {
    let mut writer = Writer::new();
    encode_message(&mut writer, message);
    writer.into_bytes().into()
}

#[test]
fn messages_and_records_are_read_back() {
    let mut random = SplitMix64::new(1);
    for _ in 0..5_000 {
        let written = message_of(&mut random);
        let bytes = encoded(&written);
        let mut reader = Reader::new(&bytes);
        assert_eq!(message(&mut reader, &bytes).unwrap(), written);
        reader.finish().unwrap();
        let state = HardState {
            term: number(&mut random),
            vote: (random.below(2) == 0).then(|| member(&mut random)),
            commit: number(&mut random),
            replica: number(&mut random),
            removed: random.below(2) == 0,
            ..HardState::default()
        };
        assert_eq!(hard_state(&state.to_bytes()), Ok(state));
        let empty = HardState {
            commit: 0,
            floor: LogPosition {
                term: random.below(1 << 24),
                index: random.below(1 << 40),
            },
            ..state
        };
        assert_eq!(hard_state(&empty.to_bytes()).map(floor_of_empty), Ok(empty));
        let members = membership_of(&mut random);
        assert_eq!(from_bytes(&members.to_bytes()), Ok(members));
        let content = payload_of(&mut random);
        assert_eq!(payload(encode_payload(&content)), Ok(content));
    }
}

/// Cut off, changed in a byte, or made up: refused or read, never a panic.
#[test]
fn no_bytes_make_a_reader_panic() {
    let mut random = SplitMix64::new(2);
    for _ in 0..20_000 {
        let mut bytes = encoded(&message_of(&mut random)).to_vec();
        match random.below(3) {
            0 => bytes.truncate(random.below(bytes.len() as u64) as usize),
            1 => {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.next() as u8;
            }
            _ => bytes
                .iter_mut()
                .for_each(|byte| *byte = random.next() as u8),
        }
        let bytes = Bytes::from(bytes);
        let _ = message(&mut Reader::new(&bytes), &bytes);
        let _ = hard_state(&bytes);
        let _ = from_bytes::<Membership>(&bytes);
        let _ = from_bytes::<MembershipChange>(&bytes);
        let _ = payload(bytes.clone());
        if let Ok(mut entry) = crate::batch::EntryDecoder::new(&bytes, None) {
            while let Ok(Some(_)) = entry.next() {}
        }
        if let Ok(mut frame) = Frame::open(bytes) {
            while let Ok(Some(_)) = frame.next() {}
        }
    }
}

/// A count or length that the bytes cannot hold is refused before memory is given to it.
#[test]
fn a_hostile_length_costs_nothing() {
    let huge = [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F, 1, 2];
    assert!(Reader::new(&huge).length().is_err());
    assert!(Reader::new(&huge).slice().is_err());
    assert!(Reader::new(&huge).sized().is_err());
    let endless = Reader::new(&[0x80; 12]).number();
    assert_eq!(endless, Err(DecodeError::Number));
}

/// A newer release may say more in a frame than this one knows.
#[test]
fn an_unknown_item_is_skipped() {
    let me = ReplicaId::new(NodeId::new(1).unwrap(), 1);
    let mut writer = FrameWriter::new(me, 3, 2, 4, 0);
    writer.item(250, 100, |out| out.text("from the future"));
    writer.item(6, 100, |out| out.number(5));
    let mut frame = Frame::open(writer.finish()).unwrap();
    assert_eq!((frame.sender, frame.start), (me, 3));
    assert_eq!((frame.slot, frame.number), (2, 4));
    assert_eq!(frame.next().unwrap().map(|(kind, _)| kind), Some(250));
    let (kind, content) = frame.next().unwrap().unwrap();
    assert_eq!((kind, Reader::new(&content).number()), (6, Ok(5)));
    assert!(frame.next().unwrap().is_none());
    let other = Bytes::from_static(&[9, 1, 1]);
    let refused = Frame::open(other).map(|frame| frame.start);
    assert_eq!(refused, Err(DecodeError::Version { found: 9 }));
}

/// Release 0.1.0 reads what this release writes before newer rules are on: a replica with the number 0 and
/// a tombstone with a floor have the form that they had there.
#[test]
fn members_and_hard_states_keep_their_first_form() {
    let me = ReplicaId::new(NodeId::new(3).unwrap(), 0x0102_0304);
    let mut writer = Writer::new();
    writer.put(&me);
    let mut first = Writer::new();
    first.number(3 << 32 | 0x0102_0304);
    assert_eq!(writer.into_bytes(), first.into_bytes());
    let state = HardState {
        term: 5,
        vote: Some(me),
        floor: LogPosition { term: 4, index: 9 },
        ..HardState::default()
    };
    let mut first = Writer::versioned(8);
    first.number(5);
    first.put(&Some(me.pack()));
    first.number(4 << 40 | 9);
    assert_eq!(state.to_bytes(), first.into_bytes());
    // What it wrote itself for a removed replica has no floor.
    let mut first = Writer::versioned(8);
    first.number(5);
    first.put(&Some(me.pack()));
    first.number(0);
    let read = hard_state(&first.into_bytes()).map(floor_of_empty);
    assert_eq!(
        read,
        Ok(HardState {
            floor: LogPosition::default(),
            ..state
        })
    );
}
