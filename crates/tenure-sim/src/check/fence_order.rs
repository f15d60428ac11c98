//! Fence monotonicity: the fences of a path grow from grant to grant, across groups, moves and
//! snapshots: R66 (where tokens are stored), R71 (tokens never go back). Read from the applied
//! entries.

use std::collections::BTreeMap;

use tenure_core::event::ChangeKind;
use tenure_core::path::Path;
use tenure_core::value::Fence;

use super::reference::{AppliedCommand, CommandResult};
use super::{CheckResult, Relevance};

/// The last granted fence per path.
#[derive(Default)]
pub(super) struct FenceOrder {
    highest: BTreeMap<Path, Fence>,
}

impl FenceOrder {
    pub(super) fn applied(&mut self, step: &AppliedCommand<'_>) -> CheckResult {
        let CommandResult::Space { applied, .. } = &step.what else {
            return Ok(Relevance::Passed);
        };
        let mut seen = Relevance::Passed;
        for change in &applied.changes {
            let (ChangeKind::Granted, Some(path), Some(fence)) =
                (change.kind, &change.path, change.fence)
            else {
                continue;
            };
            seen = Relevance::Checked;
            let highest = self.highest.insert(path.clone(), fence);
            if let Some(highest) = highest
                && fence <= highest
            {
                return Err(format!(
                    "{:?} gets {path} at {fence} by entry {:?} of {}, after {highest} was given",
                    change.owner, step.at.place, step.at.group
                ));
            }
        }
        Ok(seen)
    }
}
