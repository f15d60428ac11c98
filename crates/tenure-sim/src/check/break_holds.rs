//! Holds that were broken: the owner learns of it by its next renewal.
//!
//! A break ends one hold of a lease. If the lease has other holds, it goes on, and the event KILLED
//! may not reach the owner. So a renewal that is sent after the break is answered as lost, until the
//! owner acquires or releases something.

use std::collections::BTreeMap;

use tenure_core::command::Command;
use tenure_core::outcome::{BreakOutcome, Outcome};
use tenure_core::path::Path;
use tenure_core::value::OwnerId;
use tenure_node::{Answer, ClientRequest, RenewAnswer};

use super::reference::{AppliedCommand, CommandResult};
use super::{CheckResult, Fact, Relevance};
use crate::time::SimTime;

/// The broken holds of leases that go on, and when the break was applied.
#[derive(Default)]
pub(super) struct TakenHolds {
    taken: BTreeMap<OwnerId, Vec<(Path, SimTime)>>,
}

impl TakenHolds {
    /// A command was applied for the first time.
    pub(super) fn applied(&mut self, now: SimTime, step: &AppliedCommand<'_>) {
        let CommandResult::Space {
            command,
            applied,
            space,
        } = &step.what
        else {
            return;
        };
        match command {
            Command::Break(breaks) => {
                let broken = matches!(
                    &applied.outcome,
                    Outcome::Break(outcome) if **outcome == BreakOutcome::Broken
                );
                let namespace = &breaks.route.namespace;
                if broken && space.lease(namespace, &breaks.owner).is_some() {
                    let taken = self.taken.entry(breaks.owner.clone()).or_default();
                    taken.push((breaks.path.clone(), now));
                }
            }
            // The owner is heard of, or its lease is over.
            Command::Acquire(acquire) => {
                self.taken.remove(&acquire.owner);
            }
            Command::Release(release) => {
                self.taken.remove(&release.owner);
            }
            Command::ReleaseAll(release) => {
                self.taken.remove(&release.owner);
            }
            Command::Expire(expire) => {
                self.taken.remove(&expire.owner);
            }
            _ => {}
        }
    }

    pub(super) fn see(&self, fact: &Fact<'_>) -> CheckResult {
        let Fact::Answered(ask, Ok(Answer::Renew(answer))) = fact else {
            return Ok(Relevance::Passed);
        };
        let ClientRequest::Renew { owner, domains, .. } = &*ask.request else {
            return Ok(Relevance::Passed);
        };
        let named =
            |path: &Path| domains.is_empty() || domains.iter().any(|domain| domain.contains(path));
        let mut taken = self.taken.get(owner).into_iter().flatten();
        let Some((path, at)) = taken.find(|(path, at)| *at < ask.first_sent && named(path)) else {
            return Ok(Relevance::Passed);
        };
        match answer {
            RenewAnswer::Lost(_) => Ok(Relevance::Checked),
            RenewAnswer::Renewed { .. } => Err(format!(
                "{owner} was broken out of {path} at {at}, and its renewal {} is answered as renewed",
                ask.id
            )),
        }
    }
}
