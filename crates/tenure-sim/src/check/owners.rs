//! What is said of owners: whether they live, what they hold, whom they are in the way of, and that
//! who was broken is out.
//!
//! Each answer is compared with what clients knew from before the question until after the answer.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::outcome::BreakOutcome;
use tenure_core::path::Path;
use tenure_core::policy::Mode;
use tenure_core::query::OwnerLocks;
use tenure_core::value::{Fence, OwnerId};
use tenure_node::{Answer, AssertAnswer, ClientRequest, ExplainAnswer};

use super::exclusion::excludes;
use super::releases::Releases;
use super::{Ask, Belief, Fact, Finding, Seen, Upheavals, takes_from};
use crate::time::Time;

/// See the module.
#[derive(Default)]
pub(super) struct Owners {
    believed: BTreeMap<OwnerId, (Time, Belief)>,
    releases: Releases,
    doomed: BTreeSet<OwnerId>,
    /// How often each owner asked for something: an earlier acquire that comes late moves its fence.
    acquires: BTreeMap<OwnerId, u32>,
    /// Breaks of holds that were believed in when they were asked for.
    sure: BTreeMap<OwnerId, (u64, Time)>,
    broken: BTreeMap<(OwnerId, Path, Option<Fence>), Time>,
    upheavals: Upheavals,
}

impl Owners {
    pub(super) fn see(&mut self, now: Time, fact: &Fact<'_>) -> Finding {
        self.upheavals.see(now, fact);
        self.releases.see(now, fact);
        match fact {
            Fact::Asked(ask) => self.asked(now, ask),
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
                self.sure.remove(*owner);
            }
            _ => {}
        }
        Ok(Seen::Passed)
    }

    fn asked(&mut self, now: Time, ask: &Ask) {
        if let ClientRequest::Acquire(acquire) = &*ask.request {
            *self.acquires.entry(acquire.owner.clone()).or_default() += 1;
        }
        if let ClientRequest::Break { path, owner, fence } = &*ask.request
            && let Some(belief) = self.believes(now, now, owner)
            && belief.fence == *fence
            && self.acquires.get(owner) == Some(&1)
            && belief
                .holds
                .iter()
                .any(|(held, mode)| held == path && *mode == Mode::Write)
        {
            let sure = (ask.id, belief.until);
            self.sure.insert(owner.clone(), sure);
        }
        self.doomed.extend(takes_from(&ask.request).cloned());
    }

    /// What an owner believed from `sent` until `now`, if nothing can have taken it away.
    fn believes(&self, sent: Time, now: Time, owner: &OwnerId) -> Option<&Belief> {
        let (since, belief) = self.believed.get(owner)?;
        let stands = *since <= sent
            && now < belief.until
            && !self.doomed.contains(owner)
            && !self.upheavals.shake(&belief.holds[0].0, belief.sent);
        stands.then_some(belief)
    }

    fn answered(&mut self, now: Time, ask: &Ask, answer: &Answer) -> Finding {
        match (&*ask.request, answer) {
            (ClientRequest::IsOwnerAlive { owner, .. }, Answer::Truth(alive)) => {
                self.lives(now, ask, owner, *alive)?;
                return Ok(Seen::Checked);
            }
            (ClientRequest::ListOwnerLocks { owner, .. }, Answer::OwnerLocks(found)) => {
                self.lists(now, ask, owner, found)?;
                return Ok(Seen::Checked);
            }
            (ClientRequest::Explain { path, mode, .. }, Answer::Explain(found)) => {
                self.explains(now, ask, (path, *mode), found)?;
                return Ok(Seen::Checked);
            }
            (ClientRequest::Break { path, owner, fence }, Answer::Break(outcome)) => {
                let hold = (owner.clone(), path.clone(), *fence);
                match &**outcome {
                    BreakOutcome::Broken => {
                        self.broken.insert(hold, now);
                    }
                    BreakOutcome::NotThatHold(present) => {
                        if let Some((id, until)) = self.sure.get(owner)
                            && *id == ask.id
                            && now < *until
                        {
                            return Err(format!(
                                "{owner} holds {path} at {fence:?}, but whoever wanted to break it met {present:?}"
                            ));
                        }
                    }
                    BreakOutcome::Refused(_) => {}
                }
                return Ok(Seen::Checked);
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
        Ok(Seen::Passed)
    }

    fn lives(&self, now: Time, ask: &Ask, owner: &OwnerId, alive: bool) -> Result<(), String> {
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

    fn lists(
        &self,
        now: Time,
        ask: &Ask,
        owner: &OwnerId,
        found: &OwnerLocks,
    ) -> Result<(), String> {
        self.lives(now, ask, owner, found.alive)?;
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

    fn explains(
        &self,
        now: Time,
        ask: &Ask,
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

    fn not_broken(
        &self,
        ask: &Ask,
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
