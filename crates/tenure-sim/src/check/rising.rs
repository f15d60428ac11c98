//! Fences of a path rise, from grant to grant, over all groups, moves and snapshots (R66, R71).

use std::collections::BTreeMap;

use tenure_core::event::ChangeKind;
use tenure_core::path::Path;
use tenure_core::value::Fence;

use super::reference::{Step, What};
use super::{Finding, Seen};

/// See the module.
#[derive(Default)]
pub(super) struct Rising {
    highest: BTreeMap<Path, Fence>,
}

impl Rising {
    pub(super) fn applied(&mut self, step: &Step<'_>) -> Finding {
        let What::Space { applied, .. } = &step.what else {
            return Ok(Seen::Passed);
        };
        let mut seen = Seen::Passed;
        for change in &applied.changes {
            let (ChangeKind::Granted, Some(path), Some(fence)) =
                (change.kind, &change.path, change.fence)
            else {
                continue;
            };
            seen = Seen::Checked;
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
