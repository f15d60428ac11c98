//! Deadlock reports: a reported cycle of waits existed at some moment of the call. Covers
//! DetectCycle (R111 DetectCycle walks wait edges), an acquire that is refused on deadlock (E5
//! refuse on deadlock), and Explain (E7 Explain a lock request).
//!
//! An owner can wait for a path only from its request until an answer other than QUEUED, and can
//! block others only until its release is answered. An answer proves this only if its call was sent
//! after all other calls about that path were answered; a late answer proves nothing about later
//! calls. All waits of a cycle must have a moment in common.
//!
//! Explain asks about a hypothetical acquire: its owner need not wait for that path, and may
//! already have been granted it when the answer arrives. So that one wait is taken to last as long
//! as the call.

use std::collections::BTreeMap;

use tenure_core::deadlock::Detection;
use tenure_core::path::Path;
use tenure_core::policy::Mode;
use tenure_core::value::OwnerId;
use tenure_node::{AcquireAnswer, Answer, ClientRequest};

use super::exclusion::excludes;
use super::{CheckResult, ClientCall, Fact, Relevance};
use crate::time::SimTime;

/// The requests of every owner.
#[derive(Default)]
pub(super) struct Deadlocks {
    wants: BTreeMap<OwnerId, Vec<WantedLock>>,
}

/// A path that an owner has requested.
struct WantedLock {
    path: Path,
    mode: Mode,
    asked: SimTime,
    /// Number of unanswered acquires of it.
    open: u64,
    /// When the last answer to one arrived.
    answered: SimTime,
    /// When it was known not to wait any more.
    settled: Option<SimTime>,
    /// When its owner knew that it neither holds the path nor waits for it.
    gone: Option<SimTime>,
}

impl WantedLock {
    /// Whether an answer to this call reflects the present state: no other call about the path was
    /// under way.
    fn is_known(&self, ask: &ClientCall) -> bool {
        self.open == 0 && self.answered <= ask.sent
    }
}

/// First and last moment at which something may have been true.
type TimeSpan = (SimTime, SimTime);

/// The hypothetical acquire of an Explain.
type SupposedAcquire<'a> = (&'a OwnerId, &'a Path, Mode);

fn supposed(ask: &ClientCall) -> Option<SupposedAcquire<'_>> {
    match &*ask.request {
        ClientRequest::Explain { path, mode, owner } => Some((owner, path, *mode)),
        _ => None,
    }
}

impl Deadlocks {
    pub(super) fn see(&mut self, now: SimTime, fact: &Fact<'_>) -> CheckResult {
        match fact {
            Fact::Asked(ask) => self.asked(now, ask),
            Fact::Answered(ask, Ok(answer)) => return self.answered(now, ask, answer),
            _ => {}
        }
        Ok(Relevance::Passed)
    }

    fn asked(&mut self, now: SimTime, ask: &ClientCall) {
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
                None => wants.push(WantedLock {
                    path: one.path.clone(),
                    mode: one.mode,
                    asked: now,
                    open: 1,
                    answered: 0,
                    settled: None,
                    gone: None,
                }),
            }
        }
    }

    fn answered(&mut self, now: SimTime, ask: &ClientCall, answer: &Answer) -> CheckResult {
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
            Ok(Relevance::Passed)
        } else {
            self.existed((ask.sent, now), &cycle, supposed(ask))
        };
        self.learn(now, ask, answer);
        finding
    }

    fn learn(&mut self, now: SimTime, ask: &ClientCall, answer: &Answer) {
        match (&*ask.request, answer) {
            (ClientRequest::Acquire(acquire), Answer::Acquire(answer)) => {
                let waits = matches!(answer, AcquireAnswer::Queued { .. });
                for want in self.wants.get_mut(&acquire.owner).into_iter().flatten() {
                    if acquire.requests.iter().any(|one| one.path == want.path) {
                        want.open = want.open.saturating_sub(1);
                        if !waits && want.is_known(ask) {
                            want.settled = Some(now);
                        }
                        want.answered = now;
                    }
                }
            }
            (ClientRequest::ReleaseAll { owner, domains, .. }, Answer::Done)
                if domains.is_empty() =>
            {
                for want in self.wants.get_mut(owner).into_iter().flatten() {
                    if want.is_known(ask) {
                        want.gone = Some(now);
                    }
                }
            }
            (ClientRequest::Release(release), Answer::Done) => {
                for want in self.wants.get_mut(&release.owner).into_iter().flatten() {
                    let named = release.holds.iter().any(|hold| hold.path == want.path);
                    if named && want.is_known(ask) {
                        want.gone = Some(now);
                    }
                }
            }
            _ => {}
        }
    }

    /// Whether all waits of a cycle may have existed at one moment of a call.
    fn existed(
        &self,
        call: TimeSpan,
        cycle: &[OwnerId],
        supposed: Option<SupposedAcquire<'_>>,
    ) -> CheckResult {
        let mut common = call;
        for (at, waiter) in cycle.iter().enumerate() {
            let blocker = &cycle[(at + 1) % cycle.len()];
            let wait = match supposed {
                Some((owner, path, mode)) if owner == waiter => {
                    let real = self.wait(waiter, blocker);
                    let asked = self.in_the_way(call, path, mode, blocker);
                    // From the first to the last moment of both spans.
                    match (real, asked) {
                        (Some(one), Some(two)) => Some((one.0.min(two.0), one.1.max(two.1))),
                        (one, two) => one.or(two),
                    }
                }
                _ => self.wait(waiter, blocker),
            };
            let Some(wait) = wait else {
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
        Ok(Relevance::Checked)
    }

    /// Returns when, within a call, an owner may have blocked a hypothetical acquire of a path.
    fn in_the_way(
        &self,
        call: TimeSpan,
        path: &Path,
        mode: Mode,
        blocker: &OwnerId,
    ) -> Option<TimeSpan> {
        let theirs = self.wants.get(blocker)?.iter();
        let excluding = theirs.filter(|other| excludes(path, mode, &other.path, other.mode));
        let spans = excluding.map(|other| {
            let end = other.gone.unwrap_or(SimTime::MAX);
            (call.0.max(other.asked), call.1.min(end))
        });
        let spans = spans.filter(|(begin, end)| begin <= end);
        spans.reduce(|one, two| (one.0.min(two.0), one.1.max(two.1)))
    }

    /// Returns when one owner may have waited for another.
    fn wait(&self, waiter: &OwnerId, blocker: &OwnerId) -> Option<TimeSpan> {
        let (mine, theirs) = (self.wants.get(waiter)?, self.wants.get(blocker)?);
        let mut span: Option<TimeSpan> = None;
        for want in mine {
            for other in theirs {
                if !excludes(&want.path, want.mode, &other.path, other.mode) {
                    continue;
                }
                let begin = want.asked.max(other.asked);
                let waits = want.settled.or(want.gone).unwrap_or(SimTime::MAX);
                let end = waits.min(other.gone.unwrap_or(SimTime::MAX));
                if begin <= end {
                    let (first, last) = span.unwrap_or((begin, end));
                    span = Some((first.min(begin), last.max(end)));
                }
            }
        }
        span
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use tenure_core::command::{Request, RequestKind, WaitMode};
    use tenure_core::outcome::Conflict;
    use tenure_core::policy::Reason;
    use tenure_core::value::{QueueTtl, Ttl};
    use tenure_node::{AcquireRequest, Deadlock, WaitEdge};

    use super::*;

    fn owner(name: &str) -> OwnerId {
        OwnerId::new(name).unwrap()
    }

    fn acquire(sent: SimTime, who: &str, what: &str) -> ClientCall {
        let request = AcquireRequest {
            owner: owner(who),
            ttl: Ttl::from_millis(9_000).unwrap(),
            queue_ttl: QueueTtl::from_millis(9_000).unwrap(),
            requests: vec![Request {
                path: Path::parse(what).unwrap(),
                mode: Mode::Write,
                state: RequestKind::New,
                permits: None,
            }],
            releases: Vec::new(),
            fence: None,
            key: None,
            wait: WaitMode::Queue,
            holder: None,
            deadlock: Deadlock::Refuse,
        };
        call(sent, ClientRequest::Acquire(request))
    }

    fn call(sent: SimTime, request: ClientRequest) -> ClientCall {
        ClientCall {
            id: sent,
            request: Box::new(request),
            sent,
            first_sent: sent,
        }
    }

    fn conflict() -> Box<Conflict> {
        Box::new(Conflict {
            reason: Reason::Queued,
            path: Path::parse("t:/1").unwrap(),
            blocker: None,
        })
    }

    fn queued() -> Answer {
        Answer::Acquire(AcquireAnswer::Queued {
            conflict: conflict(),
            lease_left_ms: None,
            fence: None,
            position: 1,
        })
    }

    fn refused() -> Answer {
        Answer::Acquire(AcquireAnswer::Conflict {
            conflict: conflict(),
            lease_left_ms: None,
            deadlock: Vec::new(),
        })
    }

    fn granted() -> Answer {
        Answer::Acquire(AcquireAnswer::Granted {
            namespace: None,
            fence: None,
        })
    }

    /// Amy holds 1 and waits for 2, Bob the other way round, from time 6 on.
    fn crossed() -> (Deadlocks, ClientCall) {
        let mut checker = Deadlocks::default();
        for (at, who, what) in [(1, "amy", "t:/1"), (2, "bob", "t:/2")] {
            let ask = acquire(at, who, what);
            checker.see(at, &Fact::Asked(&ask)).unwrap();
            checker
                .see(at, &Fact::Answered(&ask, &Ok(granted())))
                .unwrap();
        }
        let first = acquire(3, "amy", "t:/2");
        checker.see(3, &Fact::Asked(&first)).unwrap();
        for (at, who, what) in [(4, "amy", "t:/2"), (5, "bob", "t:/1")] {
            let ask = acquire(at, who, what);
            checker.see(at, &Fact::Asked(&ask)).unwrap();
            checker
                .see(6, &Fact::Answered(&ask, &Ok(queued())))
                .unwrap();
        }
        (checker, first)
    }

    fn found(checker: &mut Deadlocks, sent: SimTime) -> CheckResult {
        let start = owner("amy");
        let ask = call(
            sent,
            ClientRequest::DetectCycle {
                start,
                max_depth: 0,
            },
        );
        let cycle = Detection::Found(vec![owner("amy"), owner("bob")]);
        let answer = Ok(Answer::DetectCycle(cycle));
        checker.see(sent + 1, &Fact::Answered(&ask, &answer))
    }

    /// R113 (deadlock queries are linearizable), E5.
    #[test]
    fn a_late_answer_ends_no_later_wait() {
        let (mut checker, first) = crossed();
        checker
            .see(7, &Fact::Answered(&first, &Ok(refused())))
            .unwrap();
        assert_eq!(
            found(&mut checker, 8),
            Ok(Relevance::Checked),
            "it waits by the second"
        );
    }

    /// E7: Amy was granted 2 and released it before her question about it is answered. Bob came
    /// later and waits for her 1. The reported cycle is correct: she would wait for Bob.
    #[test]
    fn what_would_wait_is_part_of_an_explained_cycle() {
        let mut checker = Deadlocks::default();
        let ask = |checker: &mut Deadlocks, at, who, what| {
            let ask = acquire(at, who, what);
            checker.see(at, &Fact::Asked(&ask)).unwrap();
            ask
        };
        for (at, who, what) in [(1, "amy", "t:/1"), (2, "amy", "t:/2")] {
            let asked = ask(&mut checker, at, who, what);
            let answer = Ok(granted());
            checker.see(at, &Fact::Answered(&asked, &answer)).unwrap();
        }
        let explain = |path: &str| ClientRequest::Explain {
            path: Path::parse(path).unwrap(),
            mode: Mode::Write,
            owner: owner("amy"),
        };
        let (late, other) = (call(3, explain("t:/2")), call(3, explain("t:/3")));
        let lets_go = ClientRequest::Release(tenure_node::ReleaseRequest {
            owner: owner("amy"),
            holds: vec![tenure_core::command::Hold {
                path: Path::parse("t:/2").unwrap(),
                mode: Mode::Write,
            }],
            edge: WaitEdge::Keep,
            key: None,
        });
        let done = Ok(Answer::Done);
        checker
            .see(5, &Fact::Answered(&call(4, lets_go), &done))
            .unwrap();
        for (at, what) in [(6, "t:/2"), (7, "t:/1")] {
            let asked = ask(&mut checker, at, "bob", what);
            let answer = Ok(if at == 6 { granted() } else { queued() });
            checker.see(at, &Fact::Answered(&asked, &answer)).unwrap();
        }
        let cycle = vec![owner("amy"), owner("bob")];
        assert_eq!(
            checker.existed((3, 8), &cycle, supposed(&late)),
            Ok(Relevance::Checked)
        );
        assert!(
            checker.existed((3, 8), &cycle, supposed(&other)).is_err(),
            "bob has nothing to do with that path"
        );
        assert!(
            checker.existed((3, 6), &cycle, supposed(&late)).is_err(),
            "bob did not wait yet"
        );
        assert!(
            checker.existed((3, 8), &cycle, None).is_err(),
            "nobody supposed it"
        );
    }

    /// R113, E5.
    #[test]
    fn waits_that_are_over_are_no_cycle() {
        let (mut checker, first) = crossed();
        checker
            .see(7, &Fact::Answered(&first, &Ok(queued())))
            .unwrap();
        let again = acquire(8, "amy", "t:/2");
        checker.see(8, &Fact::Asked(&again)).unwrap();
        assert_eq!(
            found(&mut checker, 8),
            Ok(Relevance::Checked),
            "nobody knows"
        );
        checker
            .see(9, &Fact::Answered(&again, &Ok(refused())))
            .unwrap();
        assert!(found(&mut checker, 10).is_err());

        let (mut checker, first) = crossed();
        let lets_go = ClientRequest::ReleaseAll {
            owner: owner("bob"),
            domains: Vec::new(),
            edge: WaitEdge::Keep,
            key: None,
        };
        checker
            .see(7, &Fact::Answered(&first, &Ok(queued())))
            .unwrap();
        let lets_go = call(8, lets_go);
        checker
            .see(9, &Fact::Answered(&lets_go, &Ok(Answer::Done)))
            .unwrap();
        assert!(found(&mut checker, 10).is_err());
    }
}
