//! Fencing at the store: a write of the present holder is never refused, and a write of an earlier
//! holder is never accepted after the present one wrote.
//!
//! Every new holder writes at once, so the store learns its fence. From then on, writes of earlier
//! holders are stale.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::path::Path;
use tenure_core::value::OwnerId;

use super::{CheckResult, Fact, PolicyMoves, Relevance, takes_from};
use crate::time::SimTime;

/// The writers of every path.
#[derive(Default)]
pub(super) struct Fences {
    /// The last writer of each path with its fence, and all earlier ones.
    last: BTreeMap<Path, (OwnerId, u64)>,
    earlier: BTreeMap<Path, Vec<(OwnerId, u64)>>,
    /// Owners that a call of another client may have removed.
    doomed: BTreeSet<OwnerId>,
    upheavals: PolicyMoves,
}

impl Fences {
    pub(super) fn see(&mut self, now: SimTime, fact: &Fact<'_>) -> CheckResult {
        self.upheavals.see(now, fact);
        if let Fact::Asked(ask) = fact
            && let Some(victim) = takes_from(&ask.request)
        {
            self.doomed.insert(victim.clone());
        }
        let Fact::Wrote {
            owner,
            path,
            fence,
            accepted,
            believes_since,
        } = fact
        else {
            return Ok(Relevance::Passed);
        };
        if !accepted {
            let sure = believes_since.is_some_and(|sent| {
                !self.doomed.contains(*owner) && !self.upheavals.shake(path, sent)
            });
            if sure {
                return Err(format!(
                    "the store refused {owner}, who holds {path}: a fence went back"
                ));
            }
            return Ok(Relevance::Checked);
        }
        let earlier = self.earlier.entry((*path).clone()).or_default();
        let writer = ((*owner).clone(), *fence);
        if earlier.contains(&writer) {
            return Err(format!("the store took a stale write of {owner} to {path}"));
        }
        let last = self.last.insert((*path).clone(), writer);
        if let Some(last) = last
            && last.0 != **owner
        {
            earlier.push(last);
        }
        Ok(Relevance::Checked)
    }
}
