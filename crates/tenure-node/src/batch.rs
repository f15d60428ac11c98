//! Proposal batching: many commands in one Raft entry, up to 256 KiB or 4096 commands.
//!
//! They share one stamp: lease time (the group's replicated clock), and the leader's wall clock
//! for event ids. `Expire` (ends a lease) and `Tick` (moves lease time, which ends waiters) come
//! first, so that every command that the leader proposes after a deadline sees the effect of that
//! deadline (leases.md, step 2).

use std::collections::VecDeque;

use bytes::Bytes;
use tenure_core::codec::{DecodeError, Reader, Writer};
use tenure_core::path::Namespace;
use tenure_core::space::RULES;
use tenure_core::value::Stamp;

use crate::codec::VERSION;
use crate::group_op::{GroupOp, OpId};
use crate::state_machine::AnyCommand;

/// An entry is closed at this many bytes, so that a burst does not become one huge message.
const MAX_ENTRY_BYTES: usize = 256 * 1024;
/// An entry is also closed at this many commands.
const MAX_ENTRY_COMMANDS: usize = 4096;

/// Commands that wait to be proposed.
#[derive(Debug, Default)]
pub(crate) struct ProposalBatch {
    endings: VecDeque<AnyCommand>,
    asked: VecDeque<(OpId, AnyCommand)>,
}

/// The commands of one proposed entry; kept until it is applied, so that the proposer need not
/// read its own bytes.
#[derive(Debug)]
pub(crate) struct ProposedCommands {
    pub(crate) stamp: Stamp,
    /// The rules number in whose form they were encoded. The proposer applies them in the same
    /// form.
    rules: u32,
    /// How many of the first commands are endings.
    pub(crate) endings: u64,
    pub(crate) commands: Vec<(Option<OpId>, AnyCommand)>,
}

impl ProposedCommands {
    /// Returns the commands in the form in which they were encoded.
    pub(crate) fn into_written(self) -> impl Iterator<Item = (Option<OpId>, AnyCommand)> {
        let rules = self.rules;
        self.commands.into_iter().map(move |(ticket, command)| {
            let command = match rules {
                RULES.. => command,
                older => written(command, older),
            };
            (ticket, command)
        })
    }
}

/// The form in which a command is written for a machine of older rules. Those that have none were taken out
/// before ([`ProposalBatch::take_unknown`]).
fn written(command: AnyCommand, rules: u32) -> AnyCommand {
    match command {
        AnyCommand::Space(command) => AnyCommand::Space(command.for_rules(rules)),
        AnyCommand::System(command) => match (*command).clone().for_rules(rules) {
            Some(lowered) => AnyCommand::System(Box::new(lowered)),
            None => AnyCommand::System(command),
        },
    }
}

impl ProposalBatch {
    pub(crate) fn push(&mut self, ticket: OpId, command: AnyCommand) {
        self.asked.push_back((ticket, command));
    }

    /// Adds an ending. Endings are exempt from the limits of `budget.rs`.
    pub(crate) fn push_ending(&mut self, command: AnyCommand) {
        self.endings.push_back(command);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.endings.is_empty() && self.asked.is_empty()
    }

    /// Returns the number of pending commands, without endings.
    pub(crate) fn len(&self) -> usize {
        self.asked.len()
    }

    /// Removes and returns the operations that cannot be encoded for a machine of these older
    /// rules.
    pub(crate) fn take_unknown(&mut self, rules: u32) -> Vec<OpId> {
        let mut unknown = Vec::new();
        self.asked.retain(|(ticket, command)| {
            let is_known = match command {
                AnyCommand::Space(_) => true,
                AnyCommand::System(command) => (**command).clone().for_rules(rules).is_some(),
            };
            if !is_known {
                unknown.push(*ticket);
            }
            is_known
        });
        unknown
    }

    /// The next entry, encoded. Given back with [`ProposalBatch::put_back`] if consensus drops it.
    /// It is encoded in the form of these rules. The original operations are kept unchanged,
    /// because they are forwarded if they do not take effect here. `scratch` is a reusable buffer.
    pub(crate) fn next(
        &mut self,
        stamp: Stamp,
        rules: u32,
        scratch: &mut Vec<u8>,
    ) -> (Bytes, ProposedCommands) {
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
            if rules < RULES {
                put(&mut out, &written(command.clone(), rules));
            } else {
                put(&mut out, &command);
            }
            commands.push((ticket, command));
        }
        let commands = ProposedCommands {
            stamp,
            rules,
            endings,
            commands,
        };
        *scratch = out.into_bytes();
        (Bytes::copy_from_slice(scratch), commands)
    }

    /// Puts back the commands of an entry that consensus did not accept, in the same order.
    pub(crate) fn put_back(&mut self, commands: ProposedCommands) {
        for (ticket, command) in commands.commands.into_iter().rev() {
            match ticket {
                Some(ticket) => self.asked.push_front((ticket, command)),
                None => self.endings.push_front(command),
            }
        }
    }

    /// Empties the batch when leadership is lost: drops endings and returns the other operations.
    pub(crate) fn clear(&mut self) -> Vec<(OpId, GroupOp)> {
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

/// Decodes an entry command by command, so that applying needs no intermediate list.
pub(crate) struct EntryDecoder<'a> {
    pub(crate) stamp: Stamp,
    input: Reader<'a>,
}

impl<'a> EntryDecoder<'a> {
    /// `namespace` is the namespace that the group's commands named last: see [`Reader::expect`].
    pub(crate) fn new(
        bytes: &'a [u8],
        namespace: Option<Namespace>,
    ) -> Result<EntryDecoder<'a>, DecodeError> {
        let mut input = Reader::new(bytes);
        input.expect(namespace);
        input.version(VERSION)?;
        let stamp = Stamp {
            time: input.number()?,
            wall: input.number()?,
        };
        Ok(EntryDecoder { stamp, input })
    }

    /// Returns the next command; `None` at the end.
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

    /// Returns the namespace that was named last.
    pub(crate) fn into_namespace(self) -> Option<Namespace> {
        self.input.into_expected()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::command::{Command, ReleaseAll, ReleaseCause, Selection};
    use tenure_core::space::FIRST_RULES;
    use tenure_core::value::OwnerId;

    /// The leader of a group by older rules writes older forms. What consensus does not take from it, and what
    /// waits when it loses its leadership, goes elsewhere as it was asked for.
    #[test]
    fn what_did_not_happen_keeps_its_form() {
        let asked = AnyCommand::Space(Command::ReleaseAll(ReleaseAll {
            owner: OwnerId::new("amy").expect("a valid owner"),
            selection: Selection::All,
            cause: ReleaseCause::Owner,
            until: Some(7),
        }));
        let stamp = Stamp { time: 1, wall: 1 };
        let mut batch = ProposalBatch::default();
        batch.push(OpId(1), asked.clone());
        assert!(batch.take_unknown(FIRST_RULES).is_empty());
        let (bytes, commands) = batch.next(stamp, FIRST_RULES, &mut Vec::new());
        batch.put_back(commands);
        let mut entry = EntryDecoder::new(&bytes, None).expect("its own entry");
        let written = entry.next().expect("its own command").expect("one command");
        let (_, commands) = batch.next(stamp, FIRST_RULES, &mut Vec::new());
        assert_ne!(written, asked, "the older form names nothing");
        batch.put_back(commands);
        let (_, commands) = batch.next(stamp, FIRST_RULES, &mut Vec::new());
        assert_eq!(commands.commands, [(Some(OpId(1)), asked.clone())]);
        let applied: Vec<_> = commands.into_written().collect();
        assert_eq!(applied, [(Some(OpId(1)), written)]);
        batch.push(OpId(1), asked.clone());
        assert_eq!(batch.clear(), [(OpId(1), asked.into_op())]);
    }
}
