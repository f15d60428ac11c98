//! A cycle of waits that is reported was there, at some moment of the call: the answers to
//! DetectCycle (R111), to an acquire that is refused for a deadlock (E5), and to Explain (E7).
//!
//! An owner can wait for a path only after it asked for it and before it is answered otherwise, and
//! be in somebody's way only until its release is answered. All waits of a cycle must have had a
//! moment in common.

use std::collections::BTreeMap;

use tenure_core::deadlock::Detection;
use tenure_core::path::Path;
use tenure_core::policy::Mode;
use tenure_core::value::OwnerId;
use tenure_node::{AcquireAnswer, Answer, ClientRequest};

use super::exclusion::excludes;
use super::{Ask, Fact, Finding, Seen};
use crate::time::Time;

/// See the module.
#[derive(Default)]
pub(super) struct Deadlocks {
    wants: BTreeMap<OwnerId, Vec<Want>>,
}

/// What an owner has asked for.
struct Want {
    path: Path,
    mode: Mode,
    asked: Time,
    /// Acquires of it that are not answered.
    open: u64,
    /// When it was known not to wait any more.
    settled: Option<Time>,
    /// When its owner knew that nothing of it is left.
    gone: Option<Time>,
}

/// From when to when something may have been.
type Span = (Time, Time);

impl Deadlocks {
    pub(super) fn see(&mut self, now: Time, fact: &Fact<'_>) -> Finding {
        match fact {
            Fact::Asked(ask) => self.asked(now, ask),
            Fact::Answered(ask, Ok(answer)) => return self.answered(now, ask, answer),
            _ => {}
        }
        Ok(Seen::Passed)
    }

    fn asked(&mut self, now: Time, ask: &Ask) {
        let ClientRequest::Acquire(acquire) = &*ask.request else {
            return;
        };
        let wants = self.wants.entry(acquire.owner.clone()).or_default();
        for one in &acquire.requests {
            match wants.iter_mut().find(|want| want.path == one.path) {
                Some(want) => {
                    want.open += 1;
                    want.settled = None;
                    want.gone = None;
                }
                None => wants.push(Want {
                    path: one.path.clone(),
                    mode: one.mode,
                    asked: now,
                    open: 1,
                    settled: None,
                    gone: None,
                }),
            }
        }
    }

    fn answered(&mut self, now: Time, ask: &Ask, answer: &Answer) -> Finding {
        let cycle = match (&*ask.request, answer) {
            (ClientRequest::DetectCycle { .. }, Answer::DetectCycle(Detection::Found(cycle))) => {
                cycle.clone()
            }
            (ClientRequest::Explain { .. }, Answer::Explain(found)) => found.cycle.clone(),
            (
                ClientRequest::Acquire(_),
                Answer::Acquire(AcquireAnswer::Conflict { deadlock, .. }),
            ) => deadlock.clone(),
            _ => Vec::new(),
        };
        let finding = if cycle.is_empty() {
            Ok(Seen::Passed)
        } else {
            self.existed((ask.sent, now), &cycle)
        };
        self.learn(now, ask, answer);
        finding
    }

    fn learn(&mut self, now: Time, ask: &Ask, answer: &Answer) {
        match (&*ask.request, answer) {
            (ClientRequest::Acquire(acquire), Answer::Acquire(answer)) => {
                let waits = matches!(answer, AcquireAnswer::Queued { .. });
                for want in self.wants.get_mut(&acquire.owner).into_iter().flatten() {
                    if acquire.requests.iter().any(|one| one.path == want.path) {
                        want.open = want.open.saturating_sub(1);
                        if !waits && want.open == 0 {
                            want.settled = Some(now);
                        }
                    }
                }
            }
            (ClientRequest::ReleaseAll { owner, domains, .. }, Answer::Done)
                if domains.is_empty() =>
            {
                for want in self.wants.get_mut(owner).into_iter().flatten() {
                    if want.open == 0 {
                        want.gone = Some(now);
                    }
                }
            }
            _ => {}
        }
    }

    /// Whether all waits of a cycle may have been at one moment of a call.
    fn existed(&self, call: Span, cycle: &[OwnerId]) -> Finding {
        let mut common = call;
        for (at, waiter) in cycle.iter().enumerate() {
            let blocker = &cycle[(at + 1) % cycle.len()];
            let Some(wait) = self.wait(waiter, blocker) else {
                return Err(format!(
                    "{waiter} never waited for {blocker}, but a cycle of {cycle:?} was reported"
                ));
            };
            common = (common.0.max(wait.0), common.1.min(wait.1));
        }
        if common.0 > common.1 {
            return Err(format!(
                "a cycle of {cycle:?} was reported, but its waits had no moment of the call in common"
            ));
        }
        Ok(Seen::Checked)
    }

    /// From when to when one owner may have waited for another.
    fn wait(&self, waiter: &OwnerId, blocker: &OwnerId) -> Option<Span> {
        let (mine, theirs) = (self.wants.get(waiter)?, self.wants.get(blocker)?);
        let mut span: Option<Span> = None;
        for want in mine {
            for other in theirs {
                if !excludes(&want.path, want.mode, &other.path, other.mode) {
                    continue;
                }
                let begin = want.asked.max(other.asked);
                let waits = want.settled.or(want.gone).unwrap_or(Time::MAX);
                let end = waits.min(other.gone.unwrap_or(Time::MAX));
                if begin <= end {
                    let (first, last) = span.unwrap_or((begin, end));
                    span = Some((first.min(begin), last.max(end)));
                }
            }
        }
        span
    }
}
