//! Changes of the namespace table that are under way.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::command::{Begun, ChangeEnd, Claim, Decided};
use crate::command::{Change, Command, Freeze, Region, Thaw};
use crate::outcome::FreezeReport;
use crate::path::{Namespace, Path};
use crate::policy::Algorithm;
use crate::table::{NamespaceTable, Plan, Reach, Steps};
use crate::value::{Fence, OwnerId};

/// A change under way: what its groups must be told now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeView {
    /// Its number.
    pub change: u64,
    /// What it concerns.
    pub region: Region,
    /// Which groups must be told: all, or the one of `region.root`.
    pub reach: Reach,
    /// `Freeze` before the decision; `Change` or `Thaw` after it.
    pub command: Command,
    /// What comes when all these groups have applied the command.
    pub then: Then,
}

/// What follows when every group concerned has applied the command of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Then {
    /// `Decide`, with their reports merged.
    Decide,
    /// `Finish`; the change was made.
    Finish {
        /// The table's version since.
        version: u64,
    },
    /// `Finish`; the change was refused.
    FinishRefused {
        /// The live hold that was in the way.
        live: (Path, OwnerId),
    },
}

/// One change under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Underway {
    pub(super) namespace: Namespace,
    pub(super) to: Option<Algorithm>,
    pub(super) steps: Steps,
    pub(super) phase: Phase,
    /// The key of the call that began it. Since rules 2.
    pub(super) claim: Option<Claim>,
}

/// How far a change is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Freezing,
    Made { version: u64, floor: Option<Fence> },
    Refused { live: (Path, OwnerId) },
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    pub(super) underway: BTreeMap<u64, Underway>,
    /// The number of the last change.
    pub(super) last: u64,
    /// How the latest changes ended. Since rules 2.
    pub(super) ended: BTreeMap<u64, ChangeEnd>,
}

/// Of so many changes it is known how they ended.
const ENDED: usize = 256;

impl Changes {
    pub(super) fn begin(
        &mut self,
        table: &mut NamespaceTable,
        namespace: &Namespace,
        to: Option<Algorithm>,
    ) -> Begun {
        // What is planned now must still be right when it is decided.
        let overlapping = self.underway.iter().find(|(_, other)| {
            other.namespace == *namespace
                || other.namespace.encloses(namespace)
                || namespace.encloses(&other.namespace)
        });
        if let Some((change, _)) = overlapping {
            return Begun::Busy { change: *change };
        }
        match table.plan(namespace, to) {
            Plan::Unchanged => Begun::Unchanged,
            Plan::RowOnly => Begun::Committed {
                version: table.commit(namespace, to),
            },
            Plan::Steps(steps) => {
                self.last += 1;
                let underway = Underway {
                    namespace: namespace.clone(),
                    to,
                    steps,
                    phase: Phase::Freezing,
                    claim: None,
                };
                self.underway.insert(self.last, underway);
                Begun::Started { change: self.last }
            }
        }
    }

    pub(super) fn decide(
        &mut self,
        table: &mut NamespaceTable,
        change: u64,
        report: FreezeReport,
    ) -> Decided {
        let Some(underway) = self.underway.get_mut(&change) else {
            return Decided::Unknown;
        };
        if underway.phase == Phase::Freezing {
            underway.phase = match report.live {
                Some(live) if underway.steps.spares_holds() => Phase::Refused { live },
                _ => Phase::Made {
                    version: table.commit(&underway.namespace, underway.to),
                    // Where no path gets another namespace, its fences go on as they are (R71).
                    floor: report
                        .highest
                        .filter(|_| underway.steps.reach == Reach::AllGroups),
                },
            };
        }
        match &underway.phase {
            Phase::Made { version, .. } => Decided::Committed { version: *version },
            Phase::Refused { live } => Decided::Refused { live: live.clone() },
            Phase::Freezing => Decided::Unknown,
        }
    }

    /// Ends a change that is decided: how, and the key of the call that began it.
    pub(super) fn finish(&mut self, change: u64) -> Option<(ChangeEnd, Option<Claim>)> {
        let end = match &self.underway.get(&change)?.phase {
            Phase::Freezing => return None,
            Phase::Made { .. } => ChangeEnd::Made,
            Phase::Refused { live } => ChangeEnd::Refused { live: live.clone() },
        };
        let underway = self.underway.remove(&change)?;
        Some((end, underway.claim))
    }

    pub(super) fn remember(&mut self, change: u64, end: ChangeEnd) {
        self.ended.insert(change, end);
        while self.ended.len() > ENDED {
            self.ended.pop_first();
        }
    }

    pub(super) fn view(&self, change: u64) -> Option<ChangeView> {
        self.underway
            .get(&change)
            .map(|underway| self.describe(change, underway))
    }

    pub(super) fn views(&self) -> Vec<ChangeView> {
        self.underway
            .iter()
            .map(|(change, underway)| self.describe(*change, underway))
            .collect()
    }

    pub(super) fn lift(&mut self, by: u64) {
        self.last = self.last.saturating_add(by);
    }

    /// All changes up to this one are over.
    fn settled(&self) -> u64 {
        match self.underway.first_key_value() {
            Some((oldest, _)) => oldest - 1,
            None => self.last,
        }
    }

    fn describe(&self, change: u64, underway: &Underway) -> ChangeView {
        let steps = &underway.steps;
        let settled = self.settled();
        let region = steps.region.clone();
        let (command, then) = match &underway.phase {
            Phase::Freezing => (
                Command::Freeze(Freeze {
                    change,
                    settled,
                    region,
                }),
                Then::Decide,
            ),
            Phase::Made { version, floor } => (
                Command::Change(Change {
                    change,
                    settled,
                    version: *version,
                    region,
                    algorithm: steps.algorithm,
                    clear: steps.clear,
                    floor: *floor,
                }),
                Then::Finish { version: *version },
            ),
            Phase::Refused { live } => (
                Command::Thaw(Thaw { change }),
                Then::FinishRefused { live: live.clone() },
            ),
        };
        ChangeView {
            change,
            region: steps.region.clone(),
            reach: steps.reach,
            command,
            then,
        }
    }
}
