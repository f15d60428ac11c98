//! Mutual exclusion: no two clients believe they hold locks that exclude each other.
//!
//! A client relies on a lock from the answer until 80 % of the ttl have passed on its own clock
//! since it *sent* the request (`docs/design/leases.md`). Paths of `t:` are in recursive
//! namespaces; paths of `s:` are semaphores with two permits; the others exclude on the exact path
//! only.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::path::Path;
use tenure_core::policy::Mode;
use tenure_core::value::OwnerId;

use super::{BelievedHold, CheckResult, Fact, PolicyMoves, Relevance, takes_from};
use crate::time::SimTime;

/// Permits of every semaphore path.
pub(super) const PERMITS: usize = 2;

/// The holds that clients rely on.
#[derive(Default)]
pub(super) struct Exclusion {
    believed: BTreeMap<OwnerId, BelievedHold>,
    /// Owners that a call of another client may have removed.
    doomed: BTreeSet<OwnerId>,
    upheavals: PolicyMoves,
}

impl Exclusion {
    pub(super) fn see(&mut self, now: SimTime, fact: &Fact<'_>) -> CheckResult {
        self.upheavals.see(now, fact);
        match fact {
            Fact::Believes(belief) => return self.believes(now, belief),
            Fact::Stops(owner) => {
                self.believed.remove(*owner);
            }
            Fact::Asked(ask) => {
                if let Some(victim) = takes_from(&ask.request) {
                    self.believed.remove(victim);
                    self.doomed.insert(victim.clone());
                }
            }
            _ => {}
        }
        Ok(Relevance::Passed)
    }

    fn believes(&mut self, now: SimTime, new: &BelievedHold) -> CheckResult {
        // Beliefs that ended, or that a policy change may have made void, prove nothing.
        let upheavals = &self.upheavals;
        self.believed.retain(|_, belief| {
            belief.until > now && !upheavals.shake(&belief.holds[0].0, belief.sent)
        });
        if self.doomed.contains(&new.owner) || self.upheavals.shake(&new.holds[0].0, new.sent) {
            return Ok(Relevance::Passed);
        }
        for (owner, other) in &self.believed {
            if *owner == new.owner {
                continue;
            }
            for (path, mode) in &new.holds {
                for (held, held_mode) in &other.holds {
                    if excludes(path, *mode, held, *held_mode) {
                        return Err(format!(
                            "{} believes to hold {path} ({mode:?}, fence {:?}) until {} while {owner} holds {held} ({held_mode:?}, fence {:?}) until {}",
                            new.owner, new.fence, new.until, other.fence, other.until
                        ));
                    }
                }
            }
        }
        self.believed.insert(new.owner.clone(), new.clone());
        for (path, _) in new.holds.iter().filter(|(path, _)| path.handler() == "s") {
            let holders = self.believed.values();
            let holders = holders.filter(|one| one.holds.iter().any(|(held, _)| held == path));
            let count = holders.count();
            if count > PERMITS {
                return Err(format!(
                    "{count} owners believe to have one of {PERMITS} permits of {path}"
                ));
            }
        }
        Ok(Relevance::Checked)
    }
}

/// Whether two holds exclude each other: R40–R44, for the policies that the load uses.
pub(super) fn excludes(one: &Path, one_mode: Mode, other: &Path, other_mode: Mode) -> bool {
    if one == other {
        return one.handler() != "s" && (one_mode == Mode::Write || other_mode == Mode::Write);
    }
    one.handler() == "t"
        && (one_mode == Mode::Write && one.is_ancestor_of(other)
            || other_mode == Mode::Write && other.is_ancestor_of(one))
}
