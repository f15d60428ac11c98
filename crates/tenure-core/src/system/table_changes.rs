//! Two-phase change of the namespace table: freeze the affected groups, decide, apply or thaw.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::command::{ChangeBegun, ChangeDecided, ChangeEnd, KeyClaim};
use crate::command::{ChangePolicy, Command, Freeze, Region, Thaw};
use crate::namespace_table::{AffectedGroups, NamespaceTable, TableChangePlan, TableChangeSteps};
use crate::outcome::FreezeReport;
use crate::path::{Namespace, Path};
use crate::policy::Algorithm;
use crate::value::{Fence, OwnerId};

/// A pending change and the command that its groups must apply now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeView {
    /// Its number.
    pub change: u64,
    /// The paths concerned.
    pub region: Region,
    /// The groups that must apply the command: all, or the one of `region.root`.
    pub reach: AffectedGroups,
    /// `Freeze` before the decision; `Change` or `Thaw` after it.
    pub command: Command,
    /// What to propose after all these groups have applied the command.
    pub then: AfterChange,
}

/// The system command to propose after every group concerned has applied the command of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AfterChange {
    /// `Decide`, with their reports merged.
    Decide,
    /// `Finish`; the change was applied.
    Finish {
        /// The new version of the table.
        version: u64,
    },
    /// `Finish`; the change was refused.
    FinishRefused {
        /// The live hold that prevented the change.
        live: (Path, OwnerId),
    },
}

/// One pending change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PendingChange {
    pub(super) namespace: Namespace,
    pub(super) to: Option<Algorithm>,
    pub(super) steps: TableChangeSteps,
    pub(super) phase: ChangePhase,
    /// The key of the call that began it. Since rules 2.
    pub(super) claim: Option<KeyClaim>,
}

/// The phase of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChangePhase {
    Freezing,
    Made { version: u64, floor: Option<Fence> },
    Refused { live: (Path, OwnerId) },
}

/// Pending changes by number, and the results of the latest ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PendingChanges {
    pub(super) underway: BTreeMap<u64, PendingChange>,
    /// The number of the last change.
    pub(super) last: u64,
    /// Results of the latest changes. Since rules 2.
    pub(super) ended: BTreeMap<u64, ChangeEnd>,
}

/// Number of results kept.
const ENDED: usize = 256;
/// Maximum number of rows of the table: every group learns of each, and rows have no end of their
/// own. Since rules 2.
pub(super) const MAX_POLICIES: usize = 4096;

impl PendingChanges {
    pub(super) fn begin(
        &mut self,
        table: &mut NamespaceTable,
        namespace: &Namespace,
        to: Option<Algorithm>,
        most_rows: usize,
    ) -> ChangeBegun {
        // No overlapping change may run: the plan made now must still be valid when it is decided.
        let overlapping = self.underway.iter().find(|(_, other)| {
            other.namespace == *namespace
                || other.namespace.encloses(namespace)
                || namespace.encloses(&other.namespace)
        });
        if let Some((change, _)) = overlapping {
            return ChangeBegun::Busy { change: *change };
        }
        let adds_row = |namespace: &Namespace, to: Option<Algorithm>| {
            to.is_some() && table.row(namespace).is_none()
        };
        let pending = self.underway.values();
        let pending = pending.filter(|other| adds_row(&other.namespace, other.to));
        if adds_row(namespace, to) && table.rows().count() + pending.count() >= most_rows {
            return ChangeBegun::Full;
        }
        match table.plan(namespace, to) {
            TableChangePlan::Unchanged => ChangeBegun::Unchanged,
            TableChangePlan::RowOnly => ChangeBegun::Committed {
                version: table.commit(namespace, to),
            },
            TableChangePlan::Steps(steps) => {
                self.last += 1;
                let underway = PendingChange {
                    namespace: namespace.clone(),
                    to,
                    steps,
                    phase: ChangePhase::Freezing,
                    claim: None,
                };
                self.underway.insert(self.last, underway);
                ChangeBegun::Started { change: self.last }
            }
        }
    }

    pub(super) fn decide(
        &mut self,
        table: &mut NamespaceTable,
        change: u64,
        report: FreezeReport,
    ) -> ChangeDecided {
        let Some(underway) = self.underway.get_mut(&change) else {
            return ChangeDecided::Unknown;
        };
        if underway.phase == ChangePhase::Freezing {
            underway.phase = match report.live {
                Some(live) if underway.steps.spares_holds() => ChangePhase::Refused { live },
                _ => ChangePhase::Made {
                    version: table.commit(&underway.namespace, underway.to),
                    // If no path gets another namespace, fences continue without a floor (R71:
                    // tokens never go back).
                    floor: report
                        .highest
                        .filter(|_| underway.steps.reach == AffectedGroups::AllGroups),
                },
            };
        }
        match &underway.phase {
            ChangePhase::Made { version, .. } => ChangeDecided::Committed { version: *version },
            ChangePhase::Refused { live } => ChangeDecided::Refused { live: live.clone() },
            ChangePhase::Freezing => ChangeDecided::Unknown,
        }
    }

    /// Finishes a decided change. Returns its result and the key of the call that began it.
    pub(super) fn finish(&mut self, change: u64) -> Option<(ChangeEnd, Option<KeyClaim>)> {
        let end = match &self.underway.get(&change)?.phase {
            ChangePhase::Freezing => return None,
            ChangePhase::Made { .. } => ChangeEnd::Made,
            ChangePhase::Refused { live } => ChangeEnd::Refused { live: live.clone() },
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

    /// Drops undecided changes: the spaces are lifted with this machine and are no longer frozen,
    /// so their reports are no longer valid. Decided changes continue; their groups get the command
    /// again.
    pub(super) fn lift(&mut self, by: u64) {
        self.underway
            .retain(|_, underway| underway.phase != ChangePhase::Freezing);
        self.last = self.last.saturating_add(by);
    }

    /// Returns the number up to which all changes are finished.
    fn settled(&self) -> u64 {
        match self.underway.first_key_value() {
            Some((oldest, _)) => oldest - 1,
            None => self.last,
        }
    }

    fn describe(&self, change: u64, underway: &PendingChange) -> ChangeView {
        let steps = &underway.steps;
        let settled = self.settled();
        let region = steps.region.clone();
        let (command, then) = match &underway.phase {
            ChangePhase::Freezing => (
                Command::Freeze(Freeze {
                    change,
                    settled,
                    region,
                }),
                AfterChange::Decide,
            ),
            ChangePhase::Made { version, floor } => (
                Command::Change(ChangePolicy {
                    change,
                    settled,
                    version: *version,
                    region,
                    algorithm: steps.algorithm,
                    clear: steps.clear,
                    floor: *floor,
                }),
                AfterChange::Finish { version: *version },
            ),
            ChangePhase::Refused { live } => (
                Command::Thaw(Thaw { change }),
                AfterChange::FinishRefused { live: live.clone() },
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
