//! No lease ends early, as clients see it: while an owner relies on its lease, no answer says that
//! it is gone.
//!
//! A renewal or an assertion that was sent and answered within that time must succeed, unless
//! another client removed the lock.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::value::OwnerId;
use tenure_node::{AcquireAnswer, Answer, AssertAnswer, ClientRequest, RenewAnswer};

use super::{BelievedHold, CheckResult, ClientCall, Fact, PolicyMoves, Relevance, takes_from};
use crate::time::SimTime;

/// The holds that owners rely on.
#[derive(Default)]
pub(super) struct LeaseInvariant {
    believed: BTreeMap<OwnerId, (SimTime, BelievedHold)>,
    /// Owners that a call of another client may have removed.
    doomed: BTreeSet<OwnerId>,
    upheavals: PolicyMoves,
    /// Acquires without an answer. They may change the fence.
    open: BTreeMap<OwnerId, Vec<ClientCall>>,
    /// Assertions that were sent while such an acquire was open. They may meet a newer fence.
    uncertain: BTreeSet<u64>,
}

impl LeaseInvariant {
    pub(super) fn see(&mut self, now: SimTime, fact: &Fact<'_>) -> CheckResult {
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
                    // A key that was granted is not granted again, so its other copies have no
                    // effect. A waiter that is gone is queued anew, and a refused request is
                    // evaluated anew: R102 (keyed requests apply once), R105 (replays report
                    // present truth).
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
                    // Also an answer to an earlier acquire counts, because the newest fence is in
                    // force: R69 (OK stores the token).
                    belief.fence = belief.fence.max(*fence);
                }
                return self.answered(now, ask, answer);
            }
            _ => {}
        }
        Ok(Relevance::Passed)
    }

    fn answered(
        &self,
        now: SimTime,
        ask: &ClientCall,
        answer: &Result<Answer, tenure_node::Failure>,
    ) -> CheckResult {
        let (owner, fence) = match &*ask.request {
            ClientRequest::Renew { owner, .. } => (owner, None),
            ClientRequest::AssertFencing { owner, fence, .. } => (owner, *fence),
            _ => return Ok(Relevance::Passed),
        };
        let Some((since, belief)) = self.believed.get(owner) else {
            return Ok(Relevance::Passed);
        };
        // The whole call must lie within the time in which the owner relied on its lease.
        let covered = *since <= ask.sent && now < belief.until;
        if !covered
            || self.doomed.contains(owner)
            || self.upheavals.shake(&belief.holds[0].0, belief.sent)
        {
            return Ok(Relevance::Passed);
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
            Ok(_) => Ok(Relevance::Checked),
            Err(_) => Ok(Relevance::Passed),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use tenure_core::command::{Request, RequestKind, WaitMode};
    use tenure_core::outcome::Conflict;
    use tenure_core::path::Path;
    use tenure_core::policy::{Mode, Reason};
    use tenure_core::value::{Fence, Key, QueueTtl, Ttl};
    use tenure_node::{AcquireRequest, Deadlock};

    use super::*;

    fn ask(sent: SimTime, request: ClientRequest) -> ClientCall {
        ClientCall {
            id: sent,
            request: Box::new(request),
            sent,
            first_sent: sent,
        }
    }

    fn acquire(sent: SimTime, key: Option<&str>) -> ClientCall {
        let request = AcquireRequest {
            owner: OwnerId::new("amy").unwrap(),
            ttl: Ttl::from_millis(9_000).unwrap(),
            queue_ttl: QueueTtl::from_millis(9_000).unwrap(),
            requests: vec![Request {
                path: Path::parse("t:/1").unwrap(),
                mode: Mode::Write,
                state: RequestKind::New,
                permits: None,
            }],
            releases: Vec::new(),
            fence: None,
            key: key.and_then(|key| Key::new(key).unwrap()),
            wait: WaitMode::Queue,
            holder: None,
            deadlock: Deadlock::Ignore,
        };
        ask(sent, ClientRequest::Acquire(request))
    }

    fn granted(fence: u64) -> Answer {
        Answer::Acquire(AcquireAnswer::Granted {
            namespace: None,
            fence: Fence::from_number(fence),
        })
    }

    fn queued() -> Answer {
        Answer::Acquire(AcquireAnswer::Queued {
            conflict: Box::new(Conflict {
                reason: Reason::Queued,
                path: Path::parse("t:/1").unwrap(),
                blocker: None,
            }),
            lease_left_ms: None,
            fence: None,
            position: 1,
        })
    }

    /// Two attempts under one key, the second with this answer; then a grant without a key, and an
    /// assertion that reports its fence as stale.
    fn stale_after(second: &Answer) -> CheckResult {
        let mut checker = LeaseInvariant::default();
        let tries = [acquire(1, Some("k")), acquire(2, Some("k"))];
        for one in &tries {
            checker.see(one.sent, &Fact::Asked(one)).unwrap();
        }
        let answer = Ok(second.clone());
        checker.see(3, &Fact::Answered(&tries[1], &answer)).unwrap();
        let last = acquire(4, None);
        checker.see(4, &Fact::Asked(&last)).unwrap();
        let answer = Ok(granted(7));
        checker.see(5, &Fact::Answered(&last, &answer)).unwrap();
        let belief = BelievedHold {
            owner: OwnerId::new("amy").unwrap(),
            holds: vec![(Path::parse("t:/1").unwrap(), Mode::Write)],
            fence: Fence::from_number(7),
            sent: 4,
            until: 100,
        };
        checker.see(5, &Fact::Believes(&belief)).unwrap();
        let assertion = ask(
            6,
            ClientRequest::AssertFencing {
                owner: OwnerId::new("amy").unwrap(),
                fence: Fence::from_number(7),
                paths: vec![Path::parse("t:/1").unwrap()],
            },
        );
        checker.see(6, &Fact::Asked(&assertion)).unwrap();
        let stale = AssertAnswer::StaleFence(Path::parse("t:/1").unwrap());
        let answer = Ok(Answer::AssertFencing(stale));
        checker.see(7, &Fact::Answered(&assertion, &answer))
    }

    /// R105: an earlier attempt under a key may be queued again, but is granted only once.
    #[test]
    fn an_earlier_try_may_move_the_fence_unless_its_key_was_granted() {
        assert_eq!(stale_after(&queued()), Ok(Relevance::Checked));
        assert!(stale_after(&granted(6)).is_err());
    }
}
