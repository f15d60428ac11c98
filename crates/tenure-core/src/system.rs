//! The second machine: what spans groups. One system group runs it.
//!
//! It keeps the namespace table and the changes of it that are under way, the wait edges that
//! clients set, the global counter, the answers of cluster-wide calls, and the KILLED and REVOKE
//! events of ForceRelease and RequestRevoke.

mod command;

pub use command::{
    Answer, Begun, Call, Claim, Decided, Edge, Repeated, SystemApplied, SystemCommand,
    SystemOutcome,
};

use crate::command::{Command, Region};
use crate::query::EventsAfter;
use crate::table::{NamespaceTable, Reach};
use crate::value::Fence;
use crate::value::{OwnerId, Stamp};

/// The machine of the system group.
#[derive(Clone, Debug)]
pub struct System {
    table: NamespaceTable,
}

/// A change under way: what its groups must be told now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeView {
    /// Its number.
    pub change: u64,
    /// What it concerns.
    pub region: Region,
    /// Which groups must be told.
    pub reach: Reach,
    /// `Freeze` before the decision; `Change` or `Thaw` after it.
    pub command: Command,
    /// Whether it is decided; then `Finish` follows when all groups have applied the command, before it `Decide`.
    pub decided: bool,
}

impl System {
    /// A machine without rows, edges or answers.
    pub fn new(table: NamespaceTable) -> System {
        System { table }
    }

    /// Applies one command. The same commands in the same order give the same machine everywhere.
    pub fn apply(&mut self, _stamp: Stamp, _command: SystemCommand) -> SystemApplied {
        SystemApplied {
            outcome: SystemOutcome::Done,
            events: alloc::vec::Vec::new(),
        }
    }

    /// The namespace table.
    pub fn table(&self) -> &NamespaceTable {
        &self.table
    }

    /// One change under way.
    pub fn change(&self, _change: u64) -> Option<ChangeView> {
        None
    }

    /// All changes under way, oldest first: whoever finds one may carry it on.
    pub fn changes(&self) -> alloc::vec::Vec<ChangeView> {
        alloc::vec::Vec::new()
    }

    /// Whom an owner's client says it waits for (R107).
    pub fn edge(&self, _owner: &OwnerId, _now: u64) -> Option<&Edge> {
        None
    }

    /// The last global number given out (R75).
    pub fn counter(&self) -> Option<Fence> {
        None
    }

    /// What a claim would be answered now, without claiming.
    pub fn lookup(&self, _claim: &Claim, _now: u64) -> Option<Repeated> {
        None
    }

    /// The events that followed a sequence number.
    pub fn events_after(&self, _sequence: u64) -> EventsAfter {
        EventsAfter::Complete(alloc::vec::Vec::new())
    }

    /// The largest stamp seen.
    pub fn time(&self) -> u64 {
        0
    }

    /// The number of the rules that it applies by.
    pub fn rules(&self) -> u32 {
        1
    }
}
