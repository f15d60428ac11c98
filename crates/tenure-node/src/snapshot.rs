//! A group's state as bytes: version, which machine, then what that machine writes.

use bytes::Bytes;
use tenure_core::space::{HashSeed, Space};
use tenure_core::system::System;

use crate::codec::{CodecError, VERSION};
use crate::machine::{Blank, Machine};

const SPACE: u8 = 1;
const SYSTEM: u8 = 2;

/// Writes the state of a machine.
pub(crate) fn encode(machine: &Machine) -> Bytes {
    match machine {
        Machine::Space(space) => Bytes::from(space.encode_snapshot(vec![VERSION, SPACE])),
        Machine::System(system) => Bytes::from(system.encode_snapshot(vec![VERSION, SYSTEM])),
    }
}

/// Reads it back, for a group that has such a machine.
pub(crate) fn decode(bytes: &[u8], blank: &Blank, seed: HashSeed) -> Result<Machine, CodecError> {
    let (head, state) = bytes.split_first_chunk::<2>().ok_or(CodecError::TooShort)?;
    if head[0] != VERSION {
        return Err(CodecError::Version(head[0]));
    }
    match (head[1], blank) {
        (SPACE, Blank::Space(..)) => Space::decode_snapshot(state, seed)
            .map(|space| Machine::Space(Box::new(space)))
            .map_err(|_| CodecError::Invalid("space")),
        (SYSTEM, Blank::System(_)) => System::decode_snapshot(state)
            .map(|system| Machine::System(Box::new(system)))
            .map_err(|_| CodecError::Invalid("system machine")),
        (other, _) => Err(CodecError::Unknown {
            what: "machine",
            number: u64::from(other),
        }),
    }
}
