//! Many commands, one entry.
//!
//! All commands that wait for a group when its turn comes become one entry with one stamp: version,
//! lease time, wall hint, then the commands in order. Endings (`Expire`, `Tick`) come first, so that
//! whatever the leader proposes after a deadline passed sees its effect (leases.md, step 2).

use std::collections::VecDeque;

use bytes::Bytes;
use tenure_core::codec::{DecodeError, Reader, Writer};
use tenure_core::path::Namespace;
use tenure_core::value::Stamp;

use crate::codec::VERSION;
use crate::machine::AnyCommand;
use crate::op::{Op, Ticket};

/// An entry is closed when it has this many bytes, so that a burst does not become one message.
const MAX_ENTRY_BYTES: usize = 256 * 1024;
/// And this many commands.
const MAX_ENTRY_COMMANDS: usize = 4096;

/// What waits to be proposed.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    endings: VecDeque<AnyCommand>,
    asked: VecDeque<(Ticket, AnyCommand)>,
}

/// The commands of one proposed entry; kept until it is applied, so that the proposer need not
/// read its own bytes.
#[derive(Debug)]
pub(crate) struct Commands {
    pub(crate) stamp: Stamp,
    /// How many of the first commands are endings.
    pub(crate) endings: u64,
    pub(crate) commands: Vec<(Option<Ticket>, AnyCommand)>,
}

impl Batch {
    pub(crate) fn push(&mut self, ticket: Ticket, command: AnyCommand) {
        self.asked.push_back((ticket, command));
    }

    /// Exempt from budgets.
    pub(crate) fn push_ending(&mut self, command: AnyCommand) {
        self.endings.push_back(command);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.endings.is_empty() && self.asked.is_empty()
    }

    /// How many commands wait that somebody asked for.
    pub(crate) fn len(&self) -> usize {
        self.asked.len()
    }

    /// Gives what waits the form that a machine of these older rules knows. The operations that have none are
    /// taken out and returned.
    pub(crate) fn lower_to(&mut self, rules: u32) -> Vec<Ticket> {
        let mut unknown = Vec::new();
        for (ticket, command) in std::mem::take(&mut self.asked) {
            let lowered = match command {
                AnyCommand::Space(command) => Some(AnyCommand::Space(command.for_rules(rules))),
                AnyCommand::System(command) => command
                    .for_rules(rules)
                    .map(|command| AnyCommand::System(Box::new(command))),
            };
            match lowered {
                Some(command) => self.asked.push_back((ticket, command)),
                None => unknown.push(ticket),
            }
        }
        unknown
    }

    /// The next entry, encoded. Given back with [`Batch::put_back`] if consensus drops it.
    /// `scratch` is room to write in.
    pub(crate) fn next(&mut self, stamp: Stamp, scratch: &mut Vec<u8>) -> (Bytes, Commands) {
        let waiting = self.endings.len() + self.asked.len();
        let mut commands = Vec::with_capacity(waiting.min(MAX_ENTRY_COMMANDS));
        scratch.clear();
        let mut out = Writer::append_to(std::mem::take(scratch));
        out.byte(VERSION);
        out.number(stamp.time);
        out.number(stamp.wall);
        let mut endings = 0;
        while out.len() < MAX_ENTRY_BYTES && commands.len() < MAX_ENTRY_COMMANDS {
            let (ticket, command) = if let Some(command) = self.endings.pop_front() {
                endings += 1;
                (None, command)
            } else if let Some((ticket, command)) = self.asked.pop_front() {
                (Some(ticket), command)
            } else {
                break;
            };
            put(&mut out, &command);
            commands.push((ticket, command));
        }
        let commands = Commands {
            stamp,
            endings,
            commands,
        };
        *scratch = out.into_bytes();
        (Bytes::copy_from_slice(scratch), commands)
    }

    /// Consensus has not taken the entry: everything waits again, in the same order.
    pub(crate) fn put_back(&mut self, commands: Commands) {
        for (ticket, command) in commands.commands.into_iter().rev() {
            match ticket {
                Some(ticket) => self.asked.push_front((ticket, command)),
                None => self.endings.push_front(command),
            }
        }
    }

    /// Leadership is lost: endings are forgotten with it, the others are told.
    pub(crate) fn clear(&mut self) -> Vec<(Ticket, Op)> {
        self.endings.clear();
        self.asked
            .drain(..)
            .map(|(ticket, command)| (ticket, command.into_op()))
            .collect()
    }
}

fn put(out: &mut Writer, command: &AnyCommand) {
    match command {
        AnyCommand::Space(command) => {
            out.byte(0);
            out.put(command);
        }
        AnyCommand::System(command) => {
            out.byte(1);
            out.put(&**command);
        }
    }
}

/// Reads an entry back, command by command: whoever applies them needs no list of them.
pub(crate) struct Decoder<'a> {
    pub(crate) stamp: Stamp,
    input: Reader<'a>,
}

impl<'a> Decoder<'a> {
    /// `namespace` is the one that the group's commands named last: see [`Reader::expect`].
    pub(crate) fn new(
        bytes: &'a [u8],
        namespace: Option<Namespace>,
    ) -> Result<Decoder<'a>, DecodeError> {
        let mut input = Reader::new(bytes);
        input.expect(namespace);
        input.version(VERSION)?;
        let stamp = Stamp {
            time: input.number()?,
            wall: input.number()?,
        };
        Ok(Decoder { stamp, input })
    }

    /// The next command; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<AnyCommand>, DecodeError> {
        if self.input.remaining() == 0 {
            return Ok(None);
        }
        match self.input.byte()? {
            0 => Ok(Some(AnyCommand::Space(self.input.take()?))),
            1 => Ok(Some(AnyCommand::System(self.input.take()?))),
            found => Err(DecodeError::Tag {
                of: "machine",
                found,
            }),
        }
    }

    /// The namespace that was named last.
    pub(crate) fn into_namespace(self) -> Option<Namespace> {
        self.input.into_expected()
    }
}
