//! Snapshot format: version, kind of state machine, then the bytes of that machine.

use bytes::Bytes;
use tenure_core::command::Command;
use tenure_core::space::{HashSeed, Space};
use tenure_core::system::{System, SystemCommand};
use tenure_core::value::Stamp;

use crate::codec::{CodecError, VERSION};
use crate::state_machine::{MachineInit, StateMachine};

const SPACE: u8 = 1;
const SYSTEM: u8 = 2;

/// Writes the state of a machine.
pub(crate) fn encode(machine: &StateMachine) -> Bytes {
    match machine {
        StateMachine::Space(space) => Bytes::from(space.encode_snapshot(vec![VERSION, SPACE])),
        StateMachine::System(system) => Bytes::from(system.encode_snapshot(vec![VERSION, SYSTEM])),
    }
}

/// Raises every counter and floor in a state by so much, for a cluster that goes on from it without
/// knowing what was given out since.
pub fn lift(state: &[u8], by: u64) -> Result<Bytes, CodecError> {
    let (head, rest) = state.split_first_chunk::<2>().ok_or(CodecError::TooShort)?;
    if head[0] != VERSION {
        return Err(CodecError::Version(head[0]));
    }
    let stamp = Stamp { time: 0, wall: 0 };
    let machine = match head[1] {
        SPACE => {
            let mut space = Space::decode_snapshot(rest, HashSeed(0))
                .map_err(|_| CodecError::Invalid("space"))?;
            check_room(by, space.lift_room())?;
            space.apply(stamp, Command::Lift { by });
            StateMachine::Space(Box::new(space))
        }
        SYSTEM => {
            let mut system =
                System::decode_snapshot(rest).map_err(|_| CodecError::Invalid("system machine"))?;
            check_room(by, system.lift_room())?;
            system.apply(stamp, SystemCommand::Lift { by });
            StateMachine::System(Box::new(system))
        }
        other => {
            return Err(CodecError::Unknown {
                what: "machine",
                number: u64::from(other),
            });
        }
    };
    Ok(encode(&machine))
}

fn check_room(by: u64, room: u64) -> Result<(), CodecError> {
    if by > room {
        return Err(CodecError::Invalid(
            "fence: too few numbers are left to raise it",
        ));
    }
    Ok(())
}

/// Reads it back, for a group that has such a machine.
pub(crate) fn decode(
    bytes: &[u8],
    machine_init: &MachineInit,
    seed: HashSeed,
) -> Result<StateMachine, CodecError> {
    let (head, state) = bytes.split_first_chunk::<2>().ok_or(CodecError::TooShort)?;
    if head[0] != VERSION {
        return Err(CodecError::Version(head[0]));
    }
    match (head[1], machine_init) {
        (SPACE, MachineInit::Space(..)) => Space::decode_snapshot(state, seed)
            .map(|space| StateMachine::Space(Box::new(space)))
            .map_err(|_| CodecError::Invalid("space")),
        (SYSTEM, MachineInit::System(_)) => System::decode_snapshot(state)
            .map(|system| StateMachine::System(Box::new(system)))
            .map_err(|_| CodecError::Invalid("system machine")),
        (other, _) => Err(CodecError::Unknown {
            what: "machine",
            number: u64::from(other),
        }),
    }
}
