//! Owner queries: whether an owner is alive, what it holds, which owners it blocks, and that a
//! broken hold is gone.
//!
//! Each answer is compared with what clients knew from before the request until after the answer.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::outcome::BreakOutcome;
use tenure_core::path::Path;
use tenure_core::policy::Mode;
use tenure_core::query::OwnerLocks;
use tenure_core::value::{Fence, OwnerId};
use tenure_node::{Answer, AssertAnswer, ClientRequest, ExplainAnswer};

use super::exclusion::excludes;
use super::releases::Releases;
use super::{BelievedHold, CheckResult, ClientCall, Fact, PolicyMoves, Relevance, takes_from};
use crate::time::SimTime;

/// What is known of every owner.
#[derive(Default)]
pub(super) struct Owners {
    believed: BTreeMap<OwnerId, (SimTime, BelievedHold)>,
    releases: Releases,
    /// The calls that may remove holds of an owner, by number. They are never deleted: an
    /// unanswered call may still arrive.
    doomed: BTreeMap<OwnerId, BTreeSet<u64>>,
    /// Number of acquires of each owner. With more than one, an earlier one that arrives late
    /// changes the fence.
    acquires: BTreeMap<OwnerId, u32>,
    broken: BTreeMap<(OwnerId, Path, Option<Fence>), SimTime>,
    upheavals: PolicyMoves,
}

impl Owners {
    pub(super) fn see(&mut self, now: SimTime, fact: &Fact<'_>) -> CheckResult {
        self.upheavals.see(now, fact);
        self.releases.see(now, fact);
        match fact {
            Fact::Asked(ask) => self.asked(ask),
            Fact::Answered(ask, Ok(answer)) => return self.answered(now, ask, answer),
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
            _ => {}
        }
        Ok(Relevance::Passed)
    }

    fn asked(&mut self, ask: &ClientCall) {
        if let ClientRequest::Acquire(acquire) = &*ask.request {
            *self.acquires.entry(acquire.owner.clone()).or_default() += 1;
        }
        if let Some(victim) = takes_from(&ask.request) {
            self.doomed
                .entry(victim.clone())
                .or_default()
                .insert(ask.id);
        }
    }

    /// Returns the hold that an owner relied on from `sent` until `now`, if no call may have
    /// removed it.
    fn believes(&self, sent: SimTime, now: SimTime, owner: &OwnerId) -> Option<&BelievedHold> {
        let safe = !self.doomed.contains_key(owner);
        self.stands(sent, now, owner).filter(|_| safe)
    }

    /// The same, even if calls of other clients may have removed it.
    fn stands(&self, sent: SimTime, now: SimTime, owner: &OwnerId) -> Option<&BelievedHold> {
        let (since, belief) = self.believed.get(owner)?;
        let stands = *since <= sent
            && now < belief.until
            && !self.upheavals.shake(&belief.holds[0].0, belief.sent);
        stands.then_some(belief)
    }

    /// Whether a break must have found the hold that it names: its owner relied on it all the time,
    /// and no other call that could remove it was sent before the answer arrived. (Also a call that
    /// was sent after the break may be applied first.)
    fn must_meet(&self, now: SimTime, ask: &ClientCall) -> bool {
        let ClientRequest::Break { path, owner, fence } = &*ask.request else {
            return false;
        };
        let takers = self.doomed.get(owner);
        let alone = takers.is_some_and(|takers| takers.iter().eq([&ask.id]));
        let named = |belief: &BelievedHold| {
            let mut holds = belief.holds.iter();
            belief.fence == *fence && holds.any(|(held, mode)| held == path && *mode == Mode::Write)
        };
        alone
            && self.acquires.get(owner) == Some(&1)
            && self.stands(ask.sent, now, owner).is_some_and(named)
    }

    fn answered(&mut self, now: SimTime, ask: &ClientCall, answer: &Answer) -> CheckResult {
        match (&*ask.request, answer) {
            (ClientRequest::IsOwnerAlive { owner, .. }, Answer::Truth(alive)) => {
                self.incarnations(now, ask, owner, *alive)?;
                return Ok(Relevance::Checked);
            }
            (ClientRequest::ListOwnerLocks { owner, .. }, Answer::OwnerLocks(found)) => {
                self.lists(now, ask, owner, found)?;
                return Ok(Relevance::Checked);
            }
            (ClientRequest::Explain { path, mode, .. }, Answer::Explain(found)) => {
                self.explains(now, ask, (path, *mode), found)?;
                return Ok(Relevance::Checked);
            }
            (ClientRequest::Break { path, owner, fence }, Answer::Break(outcome)) => {
                let hold = (owner.clone(), path.clone(), *fence);
                match &**outcome {
                    BreakOutcome::Broken => {
                        self.broken.insert(hold, now);
                    }
                    // Legitimate if the hold may have ended before the break was applied.
                    BreakOutcome::NotThatHold(present) => {
                        if self.must_meet(now, ask) {
                            return Err(format!(
                                "{owner} holds {path} at {fence:?}, but a break of it met {present:?}"
                            ));
                        }
                    }
                    BreakOutcome::Refused(_) => {}
                }
                return Ok(Relevance::Checked);
            }
            (
                ClientRequest::AssertFencing {
                    owner,
                    fence,
                    paths,
                },
                Answer::AssertFencing(AssertAnswer::Valid),
            ) => {
                for path in paths {
                    self.not_broken(ask, owner, path, *fence)?;
                }
            }
            (ClientRequest::InspectPath { path }, Answer::Inspect(found)) => {
                if let Some(writer) = &found.writer {
                    self.not_broken(ask, writer, path, found.fence)?;
                }
            }
            _ => {}
        }
        Ok(Relevance::Passed)
    }

    /// Checks whether an owner was reported correctly as alive or dead.
    fn incarnations(
        &self,
        now: SimTime,
        ask: &ClientCall,
        owner: &OwnerId,
        alive: bool,
    ) -> Result<(), String> {
        if !alive && let Some(belief) = self.believes(ask.sent, now, owner) {
            return Err(format!(
                "{owner} holds {} until {}, but is said to be dead",
                belief.holds[0].0, belief.until
            ));
        }
        match self.releases.before(ask, owner) {
            Some(when) if alive => Err(format!(
                "{owner} released everything at {when}, but is said to live by an answer to a question of {}",
                ask.sent
            )),
            _ => Ok(()),
        }
    }

    /// Checks a list of an owner's locks: it contains every hold that the owner relied on.
    fn lists(
        &self,
        now: SimTime,
        ask: &ClientCall,
        owner: &OwnerId,
        found: &OwnerLocks,
    ) -> Result<(), String> {
        self.incarnations(now, ask, owner, found.alive)?;
        if let Some(belief) = self.believes(ask.sent, now, owner) {
            for (path, mode) in &belief.holds {
                let listed = |lock: &tenure_core::query::HeldLock| {
                    lock.path == *path && lock.mode == *mode && lock.owner == *owner
                };
                if !found.locks.iter().any(listed) {
                    return Err(format!(
                        "{owner} holds {path} until {}, which is not in its list",
                        belief.until
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks an explanation: it names every owner that blocked the path during the whole call.
    fn explains(
        &self,
        now: SimTime,
        ask: &ClientCall,
        (path, mode): (&Path, Mode),
        found: &ExplainAnswer,
    ) -> Result<(), String> {
        for owner in self.believed.keys() {
            let Some(belief) = self.believes(ask.sent, now, owner) else {
                continue;
            };
            let in_the_way = belief
                .holds
                .iter()
                .any(|(held, held_mode)| excludes(path, mode, held, *held_mode));
            let named = found
                .explanation
                .blockers
                .iter()
                .any(|one| one.owner == *owner);
            if in_the_way && !named {
                return Err(format!(
                    "{owner} is in the way of {path} ({mode:?}) until {}, but is not named",
                    belief.until
                ));
            }
        }
        Ok(())
    }

    /// A hold that was broken before the call was sent must not be reported.
    fn not_broken(
        &self,
        ask: &ClientCall,
        owner: &OwnerId,
        path: &Path,
        fence: Option<Fence>,
    ) -> Result<(), String> {
        match self.broken.get(&(owner.clone(), path.clone(), fence)) {
            Some(when) if *when < ask.sent => Err(format!(
                "{owner} was broken out of {path} at {when} and is still its writer at {fence:?}"
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use tenure_core::command::{Request, RequestKind, WaitMode};
    use tenure_core::path::Namespace;
    use tenure_core::policy::Algorithm;
    use tenure_core::value::{QueueTtl, Ttl};
    use tenure_node::{AcquireRequest, Deadlock};

    use super::*;

    const HELD: &str = "p:/0/x";

    fn amy() -> OwnerId {
        OwnerId::new("amy").unwrap()
    }

    fn ask(sent: SimTime, request: ClientRequest) -> ClientCall {
        ClientCall {
            id: sent,
            request: Box::new(request),
            sent,
            first_sent: sent,
        }
    }

    fn acquire() -> ClientRequest {
        ClientRequest::Acquire(AcquireRequest {
            owner: amy(),
            ttl: Ttl::from_millis(9_000).unwrap(),
            queue_ttl: QueueTtl::from_millis(9_000).unwrap(),
            requests: vec![Request {
                path: Path::parse(HELD).unwrap(),
                mode: Mode::Write,
                state: RequestKind::New,
                permits: None,
            }],
            releases: Vec::new(),
            fence: None,
            key: None,
            wait: WaitMode::Queue,
            holder: None,
            deadlock: Deadlock::Ignore,
        })
    }

    fn breaks() -> ClientRequest {
        ClientRequest::Break {
            path: Path::parse(HELD).unwrap(),
            owner: amy(),
            fence: Fence::from_number(7),
        }
    }

    /// Amy believes she holds a path until 100. A break of it is sent at 10 and another call at 20.
    /// Then the break is answered: it found no such hold.
    fn missed(meanwhile: Option<ClientRequest>, answered: SimTime) -> CheckResult {
        let mut checker = Owners::default();
        let first = ask(1, acquire());
        checker.see(1, &Fact::Asked(&first)).unwrap();
        let belief = BelievedHold {
            owner: amy(),
            holds: vec![(Path::parse(HELD).unwrap(), Mode::Write)],
            fence: Fence::from_number(7),
            sent: 1,
            until: 100,
        };
        checker.see(2, &Fact::Believes(&belief)).unwrap();
        let late = ask(10, breaks());
        checker.see(10, &Fact::Asked(&late)).unwrap();
        if let Some(request) = meanwhile {
            let other = ask(20, request);
            checker.see(20, &Fact::Asked(&other)).unwrap();
        }
        let nobody = Ok(Answer::Break(Box::new(BreakOutcome::NotThatHold(None))));
        checker.see(answered, &Fact::Answered(&late, &nobody))
    }

    /// E9 (Break one hold): a hold that exists, and that no other call may remove, is found.
    #[test]
    fn a_break_must_meet_a_hold_that_stands() {
        assert!(missed(None, 30).is_err());
        assert_eq!(missed(None, 100), Ok(Relevance::Checked));
    }

    /// E9: a call that was sent after the break may be applied before it.
    #[test]
    fn a_break_may_miss_what_another_call_took_meanwhile() {
        let kills = ClientRequest::ForceRelease {
            victim: amy(),
            key: None,
        };
        let changes = ClientRequest::SetNamespacePolicy {
            namespace: Namespace::parse("p:/0").unwrap(),
            algorithm: Algorithm::PointWrite,
            key: None,
        };
        for meanwhile in [breaks(), kills, changes, acquire()] {
            assert_eq!(missed(Some(meanwhile), 30), Ok(Relevance::Checked));
        }
    }
}
