//! Inspection for the simulator's checkers: decoded entries, the content of a recovered log, and
//! role and membership of each replica. No decision of the node depends on this module.

use tenure_core::codec::DecodeError;
use tenure_core::command::Command;
use tenure_core::system::SystemCommand;
use tenure_core::value::Stamp;

use crate::batch::EntryDecoder;
use crate::consensus::{Consensus, Entry, HardState, LogPosition, Membership, Role};
use crate::node::Node;
use crate::recovery::Recovery;
use crate::state_machine::AnyCommand;
use crate::{GroupId, Payload};

/// One command of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoggedCommand {
    /// For the lock state machine of a group.
    Space(Command),
    /// For the machine of the system group.
    System(Box<SystemCommand>),
}

/// One replica at this moment, as far as consensus goes.
#[derive(Clone, Copy, Debug)]
pub struct ReplicaStanding<'a> {
    /// The group.
    pub group: GroupId,
    /// Its Raft role.
    pub role: Role,
    /// Its term.
    pub term: u64,
    /// The last entry applied.
    pub applied: u64,
    /// Who replicates the group, as of that entry.
    pub membership: &'a Membership,
}

/// What a log held for one group.
#[derive(Clone, Copy, Debug)]
pub struct LogView<'a> {
    /// The group.
    pub group: GroupId,
    /// Term and vote.
    pub hard_state: HardState,
    /// The base of the log.
    pub base: LogPosition,
    /// The entries behind it.
    pub entries: &'a [Entry],
}

/// The stamp and the commands of an entry; `None` if it is for no machine.
pub fn read_entry(payload: &Payload) -> Result<Option<(Stamp, Vec<LoggedCommand>)>, DecodeError> {
    let Payload::Commands(bytes) = payload else {
        return Ok(None);
    };
    let mut entry = EntryDecoder::new(bytes, None)?;
    let mut commands = Vec::new();
    while let Some(command) = entry.next()? {
        commands.push(match command {
            AnyCommand::Space(command) => LoggedCommand::Space(command),
            AnyCommand::System(command) => LoggedCommand::System(command),
        });
    }
    Ok(Some((entry.stamp, commands)))
}

/// A hash of what one command did: its outcome, its events, and the leases that it set or ended.
#[cfg(feature = "check")]
pub fn effect_hash(
    outcome: &dyn std::fmt::Debug,
    events: &[tenure_core::event::Event],
    leases: &[tenure_core::outcome::LeaseChange],
) -> u64 {
    use std::fmt::Write as _;

    use tenure_core::outcome::LeaseChange;

    struct Text(xxhash_rust::xxh3::Xxh3);
    impl std::fmt::Write for Text {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.0.update(text.as_bytes());
            Ok(())
        }
    }
    let mut text = Text(xxhash_rust::xxh3::Xxh3::new());
    // Hashing cannot fail.
    let _ = write!(text, "{outcome:?}");
    if !events.is_empty() {
        let _ = write!(text, "{events:?}");
    }
    // The numbers of leases are a replica's own: a snapshot does not contain them.
    for lease in leases {
        let _ = match lease {
            LeaseChange::Set { ttl, epoch, .. } => write!(text, "set {ttl:?} {epoch}"),
            LeaseChange::Renewed { ttl, epoch, .. } => write!(text, "renewed {ttl:?} {epoch}"),
            LeaseChange::Ended { .. } => write!(text, "ended"),
        };
    }
    text.0.digest()
}

#[cfg(feature = "check")]
impl Node {
    /// Returns the group, the entry and the [`effect_hash`] of every command that was applied since
    /// the last call.
    pub fn take_effects(&mut self) -> Vec<(GroupId, u64, u64)> {
        let mut all = Vec::new();
        for group in self.groups.iter_mut().flatten() {
            let id = group.id;
            all.extend(
                group
                    .effects_seen
                    .drain(..)
                    .map(|(index, hash)| (id, index, hash)),
            );
        }
        all
    }
}

impl Node {
    /// How every replica here stands. Cheaper than [`Node::status`]: it is asked for after every step.
    pub fn standings(&self) -> impl Iterator<Item = ReplicaStanding<'_>> {
        self.groups.iter().flatten().map(|group| ReplicaStanding {
            group: group.id,
            role: group.replica.role(),
            term: group.replica.term(),
            applied: group.applied.index,
            membership: group.membership(),
        })
    }
}

impl Recovery {
    /// What the log held, group by group.
    pub fn found(&self) -> impl Iterator<Item = LogView<'_>> {
        self.groups.iter().map(|(group, opened)| LogView {
            group: *group,
            hard_state: opened.found.hard_state,
            base: opened.found.base.place,
            entries: &opened.found.entries,
        })
    }
}
