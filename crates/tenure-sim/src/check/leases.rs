//! No lease ends early: while its owner believes, nothing may say that it is gone.
//!
//! A renewal or an assertion that was sent and answered within the belief must find it, unless
//! somebody took the lock away.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::value::OwnerId;
use tenure_node::{AcquireAnswer, Answer, AssertAnswer, ClientRequest, RenewAnswer};

use super::{Ask, Belief, Fact, Finding, Seen, Upheavals, takes_from};
use crate::time::Time;

/// See the module.
#[derive(Default)]
pub(super) struct Leases {
    believed: BTreeMap<OwnerId, (Time, Belief)>,
    /// Owners that somebody asked to be killed.
    doomed: BTreeSet<OwnerId>,
    upheavals: Upheavals,
    /// Acquires whose answer is not known: they may move the fence.
    open: BTreeMap<OwnerId, Vec<Ask>>,
    /// Assertions that were sent while one was: they may find a newer fence.
    uncertain: BTreeSet<u64>,
}

impl Leases {
    pub(super) fn see(&mut self, now: Time, fact: &Fact<'_>) -> Finding {
        self.upheavals.see(now, fact);
        match fact {
            Fact::Believes(belief) => {
                let since = match self.believed.get(&belief.owner) {
                    Some((since, before)) if before.until >= now => *since,
                    _ => now,
                };
                self.believed
                    .insert(belief.owner.clone(), (since, (*belief).clone()));
            }
            Fact::Stops(owner) => {
                self.believed.remove(*owner);
            }
            Fact::Asked(ask) => match &*ask.request {
                request if takes_from(request).is_some() => {
                    self.doomed.extend(takes_from(request).cloned());
                }
                ClientRequest::Acquire(acquire) => {
                    self.open
                        .entry(acquire.owner.clone())
                        .or_default()
                        .push((*ask).clone());
                }
                ClientRequest::AssertFencing { owner, .. }
                    if self.open.get(owner).is_some_and(|open| !open.is_empty()) =>
                {
                    self.uncertain.insert(ask.id);
                }
                _ => {}
            },
            Fact::Answered(ask, answer) => {
                if let ClientRequest::Acquire(acquire) = &*ask.request
                    && answer.is_ok()
                    && let Some(open) = self.open.get_mut(&acquire.owner)
                {
                    // What was granted under a key is not granted again. A place that is gone is
                    // taken anew, and what was refused is tried anew (R102, R105).
                    let granted =
                        matches!(answer, Ok(Answer::Acquire(AcquireAnswer::Granted { .. })));
                    let over = granted && acquire.key.is_some();
                    open.retain(|one| one.id != ask.id && !(over && one.request == ask.request));
                }
                if let (
                    ClientRequest::Acquire(acquire),
                    Ok(Answer::Acquire(AcquireAnswer::Granted { fence, .. })),
                ) = (&*ask.request, answer)
                    && let Some((_, belief)) = self.believed.get_mut(&acquire.owner)
                {
                    // Late news of an earlier acquire: the newest fence counts (R69).
                    belief.fence = belief.fence.max(*fence);
                }
                return self.answered(now, ask, answer);
            }
            _ => {}
        }
        Ok(Seen::Passed)
    }

    fn answered(
        &self,
        now: Time,
        ask: &Ask,
        answer: &Result<Answer, tenure_node::Failure>,
    ) -> Finding {
        let (owner, fence) = match &*ask.request {
            ClientRequest::Renew { owner, .. } => (owner, None),
            ClientRequest::AssertFencing { owner, fence, .. } => (owner, *fence),
            _ => return Ok(Seen::Passed),
        };
        let Some((since, belief)) = self.believed.get(owner) else {
            return Ok(Seen::Passed);
        };
        let covered = *since <= ask.sent && now < belief.until;
        if !covered
            || self.doomed.contains(owner)
            || self.upheavals.shake(&belief.holds[0].0, belief.sent)
        {
            return Ok(Seen::Passed);
        }
        match answer {
            Ok(Answer::Renew(RenewAnswer::Lost(missing))) => Err(format!(
                "{owner} holds {} until {} but its renewal was answered LOST ({missing:?})",
                belief.holds[0].0, belief.until
            )),
            Ok(Answer::AssertFencing(AssertAnswer::StaleOwner(path))) => Err(format!(
                "{owner} holds {path} until {} but an assertion calls it stale",
                belief.until
            )),
            Ok(Answer::AssertFencing(AssertAnswer::StaleFence(path)))
                if fence == belief.fence
                    && !self.uncertain.contains(&ask.id)
                    && self.open.get(owner).is_none_or(Vec::is_empty) =>
            {
                Err(format!(
                    "{owner} holds {path} at {fence:?} but an assertion calls the fence stale"
                ))
            }
            Ok(_) => Ok(Seen::Checked),
            Err(_) => Ok(Seen::Passed),
        }
    }
}
