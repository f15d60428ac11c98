//! A key has at most one effect, read from the applied entries (R102), however often and by whichever nodes
//! its call is sent.
//!
//! An effect is a grant, something given back, a row of the namespace table that is written, a number given
//! out, an owner killed. Answers do not count: a repeat may be answered and do nothing.

use std::collections::BTreeMap;

use tenure_core::command::Command;
use tenure_core::event::ChangeKind;
use tenure_core::path::Namespace;
use tenure_core::system::{Begun, Call, Claim, Decided, SystemCommand, SystemOutcome};
use tenure_core::value::{Key, OwnerId};
use tenure_node::Place;

use super::reference::{Step, What};
use super::{Finding, Seen};

/// See the module.
#[derive(Default)]
pub(super) struct Once {
    granted: BTreeMap<(Namespace, Key), Place>,
    released: BTreeMap<(Namespace, Key), Place>,
    system: BTreeMap<(Call, Key), Place>,
    /// Changes of the namespace table under way, by number, and who wanted them.
    changes: BTreeMap<u64, Claim>,
}

impl Once {
    pub(super) fn applied(&mut self, step: &Step<'_>) -> Finding {
        match &step.what {
            What::Space {
                command, applied, ..
            } => {
                // The time that passes with an entry ends places of other owners.
                let does = |kind: ChangeKind, owner: &OwnerId| {
                    let mut changes = applied.changes.iter();
                    changes
                        .any(|change| change.kind == kind && change.owner.as_ref() == Some(owner))
                };
                match command {
                    Command::Acquire(acquire) => match &acquire.key {
                        Some(key) if does(ChangeKind::Granted, &acquire.owner) => {
                            let key = (acquire.route.namespace.clone(), key.clone());
                            first(&mut self.granted, key, step)
                        }
                        _ => Ok(Seen::Passed),
                    },
                    Command::Release(release) => match &release.key {
                        Some(key) if does(ChangeKind::Released, &release.owner) => {
                            let key = (release.route.namespace.clone(), key.clone());
                            first(&mut self.released, key, step)
                        }
                        _ => Ok(Seen::Passed),
                    },
                    _ => Ok(Seen::Passed),
                }
            }
            What::System { command, applied } => self.system(step, command, &applied.outcome),
        }
    }

    fn system(
        &mut self,
        step: &Step<'_>,
        command: &SystemCommand,
        outcome: &SystemOutcome,
    ) -> Finding {
        let claim = match (command, outcome) {
            (
                SystemCommand::Begin { claim, .. },
                SystemOutcome::Begun(Begun::Started { change }),
            ) => {
                // Whether it takes effect is decided later.
                if let Some(claim) = claim {
                    self.changes.insert(*change, claim.clone());
                }
                return Ok(Seen::Passed);
            }
            (SystemCommand::Begin { claim, .. }, SystemOutcome::Begun(Begun::Committed { .. })) => {
                claim.clone()
            }
            (
                SystemCommand::Decide { change, .. },
                SystemOutcome::Decided(Decided::Committed { .. }),
            ) => self.changes.remove(change),
            (SystemCommand::Increment { claim, .. }, SystemOutcome::Number(_)) => claim.clone(),
            (SystemCommand::Kill { claim, .. }, SystemOutcome::Fresh) => claim.clone(),
            _ => None,
        };
        match claim {
            Some(claim) => first(&mut self.system, (claim.call, claim.key), step),
            None => Ok(Seen::Passed),
        }
    }
}

fn first<K: Ord + std::fmt::Debug>(
    effects: &mut BTreeMap<K, Place>,
    key: K,
    step: &Step<'_>,
) -> Finding {
    let what = format!("{key:?}");
    match effects.insert(key, step.at.place) {
        None => Ok(Seen::Checked),
        Some(before) => Err(format!(
            "{what} takes effect by entry {before:?} and again by entry {:?} of {}",
            step.at.place, step.at.group
        )),
    }
}
