//! Parameters of a supervised run: the command, and the reaction to lock loss or wrapper death.

use std::ffi::OsString;
use std::time::Duration;

use rustix::process::Pid;

/// The parameters of one run, sent with `Start`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SupervisorTask {
    /// How many of the last arguments of `tenure` are the command. The supervisor has the arguments
    /// itself; in a message they might not fit.
    pub(crate) words: u32,
    pub(crate) on_lost: OnLost,
    pub(crate) grace: Duration,
    pub(crate) on_death: OnDeath,
    pub(crate) descriptor: Descriptor,
    /// The terminal, if `tenure` is in its foreground group: C19 (job control on terminals).
    pub(crate) terminal: Option<i32>,
    /// Whether to report the child's pid. Only needed with a terminal.
    pub(crate) tells_child: bool,
    /// The group of `tenure`, if the child joins it (C19). Otherwise it leads its own.
    pub(crate) joins: Option<Pid>,
    /// The interval of heartbeats that the supervisor writes after the death of `tenure`: C4
    /// (keeper and process group).
    pub(crate) heartbeat: Duration,
}

/// What happens to the child when the lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnLost {
    Term,
    Kill,
    Notify,
}

/// What happens to the tree when `tenure` is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnDeath {
    EndTree,
    /// `--no-kill`: the supervisor waits for its end.
    Wait,
}

/// Whether the child inherits the locked descriptor: K38 (inherit the locked descriptor).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Descriptor {
    Inherited,
    /// `-o`: only the supervisor holds it.
    Kept,
}

/// Encoded length.
const LENGTH: usize = 4 + 1 + 8 + 1 + 1 + 4 + 1 + 4 + 8;

impl SupervisorTask {
    /// Returns the command, program first.
    pub(crate) fn command(&self) -> Vec<OsString> {
        let all: Vec<OsString> = std::env::args_os().collect();
        let words = usize::try_from(self.words).unwrap_or(usize::MAX);
        let first = all.len().saturating_sub(words);
        all.into_iter().skip(first).collect()
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.words.to_le_bytes());
        out.push(match self.on_lost {
            OnLost::Term => 0,
            OnLost::Kill => 1,
            OnLost::Notify => 2,
        });
        let grace = u64::try_from(self.grace.as_nanos()).unwrap_or(u64::MAX);
        out.extend_from_slice(&grace.to_le_bytes());
        out.push(u8::from(self.on_death == OnDeath::Wait));
        out.push(u8::from(self.descriptor == Descriptor::Kept));
        out.extend_from_slice(&self.terminal.unwrap_or(-1).to_le_bytes());
        out.push(u8::from(self.tells_child));
        let joins = self.joins.map_or(0, |group| group.as_raw_nonzero().get());
        out.extend_from_slice(&joins.to_le_bytes());
        let heartbeat = u64::try_from(self.heartbeat.as_nanos()).unwrap_or(u64::MAX);
        out.extend_from_slice(&heartbeat.to_le_bytes());
    }

    /// Decodes a task. Returns it with the remaining bytes.
    pub(super) fn take(bytes: &[u8]) -> Option<(SupervisorTask, &[u8])> {
        let (task, rest) = bytes.split_at_checked(LENGTH)?;
        let terminal = i32::from_le_bytes(task[15..19].try_into().ok()?);
        let task = SupervisorTask {
            words: u32::from_le_bytes(task[..4].try_into().ok()?),
            on_lost: *[OnLost::Term, OnLost::Kill, OnLost::Notify].get(usize::from(task[4]))?,
            grace: Duration::from_nanos(u64::from_le_bytes(task[5..13].try_into().ok()?)),
            on_death: match task[13] {
                0 => OnDeath::EndTree,
                _ => OnDeath::Wait,
            },
            descriptor: match task[14] {
                0 => Descriptor::Inherited,
                _ => Descriptor::Kept,
            },
            terminal: (terminal >= 0).then_some(terminal),
            tells_child: task[19] != 0,
            joins: Pid::from_raw(i32::from_le_bytes(task[20..24].try_into().ok()?)),
            heartbeat: Duration::from_nanos(u64::from_le_bytes(task[24..32].try_into().ok()?)),
        };
        Some((task, rest))
    }
}
