//! No early expiry: an `Expire` that takes effect was proposed at least one ttl, on the fastest
//! clock, after the entry that set the lease.
//!
//! Renewals without a log entry extend a lease beyond that. The checker `belief` covers those.

use std::collections::BTreeMap;

use tenure_core::command::Command;
use tenure_core::outcome::{LeaseChange, Outcome};
use tenure_core::path::Namespace;
use tenure_core::value::OwnerId;
use tenure_node::{ClientRequest, GroupId};

use super::reference::{AppliedCommand, CommandResult};
use super::{CheckResult, Fact, Relevance};
use crate::time::{MILLISECOND, SimTime};

/// Clocks are at most ten per cent fast.
const FASTEST: u64 = 1_100;
/// Tolerance for rounding and for the time of a step.
const SLACK: SimTime = 2 * MILLISECOND;

/// The leases that entries have set.
#[derive(Default)]
pub(super) struct EarlyExpiry {
    /// When the entry that set a lease was proposed, and for how long, in milliseconds.
    set: BTreeMap<(GroupId, Namespace, OwnerId), (SimTime, u64)>,
    /// The shortest ttl with which an owner renewed, in milliseconds. The check uses the smaller of
    /// both.
    least: BTreeMap<OwnerId, u64>,
}

impl EarlyExpiry {
    pub(super) fn see(&mut self, fact: &Fact<'_>) {
        if let Fact::Asked(ask) = fact
            && let ClientRequest::Renew { owner, ttl, .. } = &*ask.request
        {
            let least = self.least.entry(owner.clone()).or_insert(u64::MAX);
            *least = (*least).min(ttl.millis());
        }
    }

    pub(super) fn applied(&mut self, step: &AppliedCommand<'_>) -> CheckResult {
        let CommandResult::Space {
            command,
            applied,
            space,
        } = &step.what
        else {
            return Ok(Relevance::Passed);
        };
        let (group, proposed) = (step.at.group, step.at.proposed);
        let mut finding = Ok(Relevance::Passed);
        if let (Command::Expire(expire), Outcome::Expired(true)) = (command, &applied.outcome) {
            let lease = (group, expire.namespace.clone(), expire.owner.clone());
            finding = match self.set.remove(&lease) {
                None => Ok(Relevance::Passed),
                Some((from, ttl)) => {
                    let least = self.least.get(&expire.owner).copied();
                    let ttl = ttl.min(least.unwrap_or(u64::MAX));
                    let due = from + ttl * MILLISECOND * 1_000 / FASTEST;
                    if proposed + SLACK < due {
                        Err(format!(
                            "the lease of {} in {}, set at {from} for {ttl} ms, is ended at {proposed}",
                            expire.owner, expire.namespace
                        ))
                    } else {
                        Ok(Relevance::Checked)
                    }
                }
            };
        }
        for change in &applied.leases {
            if let LeaseChange::Set { lease, ttl, epoch } = change
                && let Some(view) = space.numbered_lease(*lease)
                && view.epoch == *epoch
            {
                let name = (group, view.namespace.clone(), view.owner.clone());
                self.set.insert(name, (proposed, ttl.millis()));
            }
        }
        finding
    }
}
