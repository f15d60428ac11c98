//! Snapshot format: version, kind of state machine, then the bytes of that machine.

use std::sync::Arc;

use bytes::Bytes;
use tenure_core::command::Command;
use tenure_core::space::{HashSeed, Space, SpaceImage};
use tenure_core::system::{System, SystemCommand};
use tenure_core::value::Stamp;

use crate::codec::{DecodeError, DecodeResult, VERSION};
use crate::state_machine::{MachineInit, StateMachine};
use crate::{GroupId, Snapshot};

const SPACE: u8 = 1;
const SYSTEM: u8 = 2;

/// The state of a group up to an entry, not encoded yet. It shares the memory of the group until the
/// group changes.
#[derive(Clone, Debug)]
pub struct SnapshotImage {
    /// The group.
    pub group: GroupId,
    /// The index of the last entry that the snapshot includes.
    pub index: u64,
    state: StateImage,
}

#[derive(Clone, Debug)]
enum StateImage {
    Space(Arc<SpaceImage>),
    Encoded(Bytes),
}

impl SnapshotImage {
    pub(crate) fn new(group: GroupId, index: u64, machine: &mut StateMachine) -> SnapshotImage {
        let state = match machine {
            StateMachine::Space(space) => StateImage::Space(Arc::new(space.image())),
            // Policies, keys and wait edges: small beside the locks of a space.
            StateMachine::System(_) => StateImage::Encoded(encode(machine)),
        };
        SnapshotImage {
            group,
            index,
            state,
        }
    }

    /// Encodes the snapshot.
    pub fn encode(&self) -> Snapshot {
        let data = match &self.state {
            StateImage::Space(space) => space.encode_snapshot(vec![VERSION, SPACE]).into(),
            StateImage::Encoded(bytes) => bytes.clone(),
        };
        Snapshot {
            group: self.group,
            index: self.index,
            data,
        }
    }
}

/// Writes the state of a machine.
pub(crate) fn encode(machine: &StateMachine) -> Bytes {
    match machine {
        StateMachine::Space(space) => Bytes::from(space.encode_snapshot(vec![VERSION, SPACE])),
        StateMachine::System(system) => Bytes::from(system.encode_snapshot(vec![VERSION, SYSTEM])),
    }
}

/// Raises every counter and floor in a state by so much, for a cluster that goes on from it without
/// knowing what was given out since.
pub fn lift(state: &[u8], by: u64) -> Result<Bytes, DecodeError> {
    let (kind, rest) = head(state)?;
    let stamp = Stamp { time: 0, wall: 0 };
    let machine = match kind {
        SPACE => {
            let mut space = Space::decode_snapshot(rest, HashSeed(0))?;
            check_room(by, space.lift_room())?;
            space.apply(stamp, Command::Lift { by });
            StateMachine::Space(Box::new(space))
        }
        SYSTEM => {
            let mut system = System::decode_snapshot(rest)?;
            check_room(by, system.lift_room())?;
            system.apply(stamp, SystemCommand::Lift { by });
            StateMachine::System(Box::new(system))
        }
        found => return unknown(found),
    };
    Ok(encode(&machine))
}

/// The kind of a machine, and the bytes of its state.
fn head(state: &[u8]) -> DecodeResult<(u8, &[u8])> {
    match state {
        [VERSION, kind, rest @ ..] => Ok((*kind, rest)),
        [found, _, ..] => Err(DecodeError::Version { found: *found }),
        _ => Err(DecodeError::Truncated),
    }
}

fn unknown<T>(found: u8) -> DecodeResult<T> {
    Err(DecodeError::Tag {
        of: "machine",
        found,
    })
}

fn check_room(by: u64, room: u64) -> DecodeResult<()> {
    if by > room {
        return Err(DecodeError::Inconsistent(
            "too few numbers are left to raise its fences",
        ));
    }
    Ok(())
}

/// Reads it back, for a group that has such a machine.
pub(crate) fn decode(
    bytes: &[u8],
    machine_init: &MachineInit,
    seed: HashSeed,
) -> DecodeResult<StateMachine> {
    let (kind, state) = head(bytes)?;
    match (kind, machine_init) {
        (SPACE, MachineInit::Space(limits, _)) => {
            let mut space = Space::decode_snapshot(state, seed)?;
            space.set_batch(limits.batch);
            Ok(StateMachine::Space(Box::new(space)))
        }
        (SYSTEM, MachineInit::System(_)) => {
            System::decode_snapshot(state).map(|system| StateMachine::System(Box::new(system)))
        }
        (found, _) => unknown(found),
    }
}
