//! Client beliefs against applied entries: what a client relies on exists.
//!
//! When a client starts to rely on a hold, the reference state contains it. As long as the client
//! relies on it, by its own clock, the lease does not expire and the hold is not released: only its
//! owner releases it, and an owner that relies on a hold has not sent a release.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::command::{Command, Selection};
use tenure_core::event::ChangeKind;
use tenure_core::outcome::Outcome;
use tenure_core::space::Space;
use tenure_core::value::OwnerId;

use super::reference::{AppliedCommand, CommandResult};
use super::{BelievedHold, CheckResult, Fact, PolicyMoves, Relevance, takes_from};
use crate::time::SimTime;

/// The holds that clients rely on.
#[derive(Default)]
pub(super) struct ClientViews {
    believed: BTreeMap<OwnerId, BelievedHold>,
    /// Owners that a call of another client may have removed.
    doomed: BTreeSet<OwnerId>,
    upheavals: PolicyMoves,
}

impl ClientViews {
    pub(super) fn see<'a>(
        &mut self,
        now: SimTime,
        fact: &Fact<'_>,
        spaces: impl Iterator<Item = &'a Space>,
    ) -> CheckResult {
        self.upheavals.see(now, fact);
        match fact {
            Fact::Asked(ask) => self.doomed.extend(takes_from(&ask.request).cloned()),
            Fact::Stops(owner) => {
                self.believed.remove(*owner);
            }
            Fact::Believes(belief) => {
                self.believed
                    .insert(belief.owner.clone(), (*belief).clone());
                return self.has(belief, spaces);
            }
            _ => {}
        }
        Ok(Relevance::Passed)
    }

    /// Whether the reference state contains every hold of a belief.
    fn has<'a>(
        &self,
        belief: &BelievedHold,
        spaces: impl Iterator<Item = &'a Space>,
    ) -> CheckResult {
        if self.doomed.contains(&belief.owner)
            || self.upheavals.shake(&belief.holds[0].0, belief.sent)
        {
            return Ok(Relevance::Passed);
        }
        let held: Vec<_> = spaces
            .flat_map(|space| space.owner_locks(&belief.owner, &Selection::All).locks)
            .collect();
        for (path, mode) in &belief.holds {
            let there =
                |lock: &tenure_core::query::HeldLock| lock.path == *path && lock.mode == *mode;
            if !held.iter().any(there) {
                return Err(format!(
                    "{} counts on {path} until {}, which it does not have",
                    belief.owner, belief.until
                ));
            }
        }
        Ok(Relevance::Checked)
    }

    /// Checks an applied command: it must not end a hold that its owner relies on.
    pub(super) fn applied(&self, now: SimTime, step: &AppliedCommand<'_>) -> CheckResult {
        let CommandResult::Space {
            command, applied, ..
        } = &step.what
        else {
            return Ok(Relevance::Passed);
        };
        let counts_on = |owner: &OwnerId| {
            let belief = self.believed.get(owner);
            belief.filter(|belief| now < belief.until)
        };
        if let (Command::Expire(expire), Outcome::Expired(true)) = (command, &applied.outcome) {
            let belief = counts_on(&expire.owner);
            if let Some(belief) = belief
                && expire.namespace.contains(&belief.holds[0].0)
            {
                return Err(format!(
                    "the lease of {} in {} ends by its time; it counts on {} until {}",
                    expire.owner, expire.namespace, belief.holds[0].0, belief.until
                ));
            }
            return Ok(Relevance::Checked);
        }
        let mut seen = Relevance::Passed;
        for change in &applied.changes {
            let (ChangeKind::Released, Some(owner), Some(path)) =
                (change.kind, &change.owner, &change.path)
            else {
                continue;
            };
            seen = Relevance::Checked;
            let belief = counts_on(owner);
            if let Some(belief) = belief
                && belief.holds.iter().any(|(held, _)| held == path)
            {
                return Err(format!(
                    "{path} is given back by entry {:?} of {}; {owner} counts on it until {}: {command:?}",
                    step.at.place, step.at.group, belief.until
                ));
            }
        }
        Ok(seen)
    }
}
