//! Linearizability: each path is a register whose writes are numbered.
//!
//! Every write grant has a unique, growing fence. A history of such writes and reads is
//! linearizable if and only if no pair of operations contradicts real time: an operation sees
//! everything that was answered before it was sent. So each answer is compared with the largest
//! fence that was answered before its request was sent. Each read is also compared with final
//! releases and with holds that clients relied on during the whole call.

use std::collections::{BTreeMap, BTreeSet};

use tenure_core::path::Path;
use tenure_core::policy::Mode;
use tenure_core::value::{Fence, OwnerId};
use tenure_node::{AcquireAnswer, Answer, AssertAnswer, ClientRequest};

use super::releases::Releases;
use super::{BelievedHold, CheckResult, ClientCall, Fact, PolicyMoves, Relevance, takes_from};
use crate::time::SimTime;

/// The registers of all paths, and the global counter.
#[derive(Default)]
pub(super) struct Linearizable {
    paths: BTreeMap<Path, Register>,
    releases: Releases,
    believed: BTreeMap<OwnerId, (SimTime, BelievedHold)>,
    /// Owners that a call of another client may have removed.
    doomed: BTreeSet<OwnerId>,
    upheavals: PolicyMoves,
    /// The numbers that IncrFencingToken returned, by time of the answer.
    counter: Vec<(SimTime, u64)>,
}

/// The register of one path.
#[derive(Default)]
struct Register {
    /// The largest known fence, from each time on.
    known: Vec<(SimTime, u64)>,
}

impl Register {
    /// Returns the largest fence that was known before `sent`.
    fn before(&self, sent: SimTime) -> u64 {
        largest_before(&self.known, sent)
    }

    /// Records a fence that an answer contains.
    fn learn(&mut self, now: SimTime, fence: u64) {
        let largest = self.known.last().map_or(0, |(_, known)| *known);
        if fence > largest {
            self.known.push((now, fence));
        }
    }
}

fn largest_before(known: &[(SimTime, u64)], sent: SimTime) -> u64 {
    let at = known.partition_point(|(when, _)| *when < sent);
    at.checked_sub(1).map_or(0, |at| known[at].1)
}

impl Linearizable {
    /// Returns the largest known fence of a path.
    pub(super) fn highest(&self, path: &Path) -> u64 {
        self.paths
            .get(path)
            .map_or(0, |register| register.before(SimTime::MAX))
    }

    pub(super) fn see(&mut self, now: SimTime, fact: &Fact<'_>) -> CheckResult {
        self.upheavals.see(now, fact);
        self.releases.see(now, fact);
        match fact {
            Fact::Asked(ask) => {
                if let Some(victim) = takes_from(&ask.request) {
                    self.believed.remove(victim);
                    self.doomed.insert(victim.clone());
                }
                Ok(Relevance::Passed)
            }
            Fact::Answered(ask, Ok(answer)) => self.answered(now, ask, answer),
            Fact::Believes(belief) => {
                let since = match self.believed.get(&belief.owner) {
                    Some((since, before)) if before.until >= now => *since,
                    _ => now,
                };
                if !self.doomed.contains(&belief.owner) {
                    self.believed
                        .insert(belief.owner.clone(), (since, (*belief).clone()));
                }
                if let Some(fence) = belief.fence {
                    for (path, mode) in &belief.holds {
                        if *mode == Mode::Write && path.handler() != "s" {
                            self.paths
                                .entry(path.clone())
                                .or_default()
                                .learn(now, fence.number());
                        }
                    }
                }
                Ok(Relevance::Passed)
            }
            Fact::Stops(owner) => {
                self.believed.remove(*owner);
                Ok(Relevance::Passed)
            }
            _ => Ok(Relevance::Passed),
        }
    }

    fn answered(&mut self, now: SimTime, ask: &ClientCall, answer: &Answer) -> CheckResult {
        match (&*ask.request, answer) {
            (ClientRequest::Acquire(acquire), Answer::Acquire(answer)) => {
                let AcquireAnswer::Granted {
                    fence: Some(fence), ..
                } = answer
                else {
                    return Ok(Relevance::Passed);
                };
                for wanted in acquire
                    .requests
                    .iter()
                    .filter(|one| one.mode == Mode::Write)
                {
                    self.granted(now, ask, &wanted.path, *fence)?;
                }
                Ok(Relevance::Checked)
            }
            (ClientRequest::InspectPath { path }, Answer::Inspect(found)) => {
                let register = self.paths.entry(path.clone()).or_default();
                // A read must not return a fence older than one that was answered before the read
                // was sent.
                let known = register.before(ask.sent);
                if let Some(fence) = found.fence {
                    if fence.number() < known {
                        return Err(format!(
                            "{path} was inspected at fence {} when {known} was known",
                            fence.number()
                        ));
                    }
                    register.learn(now, fence.number());
                }
                if let Some(writer) = &found.writer {
                    self.not_released(writer, path, ask)?;
                }
                self.shows_holder(now, ask, path, found.writer.as_ref())?;
                Ok(Relevance::Checked)
            }
            (
                ClientRequest::AssertFencing {
                    owner,
                    fence: Some(fence),
                    paths,
                },
                Answer::AssertFencing(AssertAnswer::Valid),
            ) => {
                for path in paths {
                    self.not_released(owner, path, ask)?;
                    let known = self
                        .paths
                        .get(path)
                        .map_or(0, |register| register.before(ask.sent));
                    if fence.number() < known {
                        return Err(format!(
                            "{owner} was called the writer of {path} at {} when {known} was known",
                            fence.number()
                        ));
                    }
                    self.shows_holder(now, ask, path, Some(owner))?;
                }
                Ok(Relevance::Checked)
            }
            (
                ClientRequest::Renew { owner, .. },
                Answer::Renew(tenure_node::RenewAnswer::Renewed { .. }),
            ) => match self.releases.before(ask, owner) {
                Some(when) => Err(format!(
                    "{owner} was released at {when} and renewed by a call sent at {}",
                    ask.sent
                )),
                None => Ok(Relevance::Checked),
            },
            (ClientRequest::IncrFencingToken { .. }, Answer::Number(number)) => {
                // Also for a repeat: its number was given after the first copy was sent.
                let known = largest_before(&self.counter, ask.first_sent);
                if number.number() <= known {
                    return Err(format!(
                        "the counter gave {} after {known}",
                        number.number()
                    ));
                }
                let largest = self.counter.last().map_or(0, |(_, known)| *known);
                if number.number() > largest {
                    self.counter.push((now, number.number()));
                }
                Ok(Relevance::Checked)
            }
            _ => Ok(Relevance::Passed),
        }
    }

    fn granted(
        &mut self,
        now: SimTime,
        ask: &ClientCall,
        path: &Path,
        fence: Fence,
    ) -> Result<(), String> {
        if path.handler() == "s" {
            return Ok(());
        }
        let register = self.paths.entry(path.clone()).or_default();
        let known = register.before(ask.first_sent);
        // A repeat under one key gets the fence of the first one, so `first_sent` counts.
        if fence.number() <= known {
            return Err(format!(
                "{path} was granted at fence {} when {known} was known",
                fence.number()
            ));
        }
        register.learn(now, fence.number());
        Ok(())
    }

    /// A reported writer must not have released everything before the call was sent.
    fn not_released(&self, owner: &OwnerId, path: &Path, ask: &ClientCall) -> Result<(), String> {
        match self.releases.before(ask, owner) {
            Some(when) => Err(format!(
                "{owner} released {path} at {when} and was still its writer for a call sent at {}",
                ask.sent
            )),
            None => Ok(()),
        }
    }

    /// An owner that held a path from before the request until after the answer must be the
    /// reported writer.
    fn shows_holder(
        &self,
        now: SimTime,
        ask: &ClientCall,
        path: &Path,
        writer: Option<&OwnerId>,
    ) -> Result<(), String> {
        if path.handler() == "s" {
            return Ok(());
        }
        for (since, belief) in self.believed.values() {
            let shaken = self.upheavals.shake(path, belief.sent);
            let holds = !shaken
                && belief
                    .holds
                    .iter()
                    .any(|(held, mode)| held == path && *mode == Mode::Write);
            if holds && *since <= ask.sent && now < belief.until && writer != Some(&belief.owner) {
                return Err(format!(
                    "{path} was said to be written by {writer:?} while {} held it until {}",
                    belief.owner, belief.until
                ));
            }
        }
        Ok(())
    }
}
