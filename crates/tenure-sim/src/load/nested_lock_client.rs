//! Nested lock client: holds one lock while it waits for the next, which creates cycles of waits.
//!
//! Some of its acquires are refused on deadlock: E5 (refuse on deadlock). It also queries cycles:
//! R111 (DetectCycle walks wait edges), E7 (Explain a lock request). Some sessions only read the
//! first path and release it before they acquire the next; those are in no cycle.
//!
//! It does not rely on its holds and never renews. What it holds too long ends with its lease.

use tenure_core::command::{Hold, Request, RequestKind, WaitMode};
use tenure_core::path::Path;
use tenure_core::policy::Mode;
use tenure_core::value::{OwnerId, QueueTtl, Ttl};
use tenure_node::{
    AcquireAnswer, AcquireRequest, Answer, ClientRequest, Deadlock, Failure, ReleaseRequest,
    WaitEdge,
};

use super::{Action, ClientContext, Env, path};
use crate::check::ClientCall;
use crate::time::{MILLISECOND, SECOND, SimTime};

const TIMEOUT_MS: u64 = 3_000;

/// State of a nested lock client.
#[derive(Default)]
pub(super) struct NestedLockClient {
    owners: u64,
    session: Option<NestedSession>,
    next: SimTime,
}

struct NestedSession {
    owner: OwnerId,
    /// The paths that it still wants; the next one is last.
    wants: Vec<Path>,
    /// Whether it releases the first path, which it only reads, before it acquires the next.
    lets_go: bool,
    /// The path that it releases now.
    leaves: Option<Path>,
    /// The call whose answer it waits for, and until when.
    waits_for: Option<(u64, SimTime)>,
    tries: u32,
}

impl NestedSession {
    /// Returns the mode for the next path.
    fn mode(&self) -> Mode {
        match self.lets_go && self.wants.len() == 2 {
            true => Mode::Read,
            false => Mode::Write,
        }
    }
}

impl NestedLockClient {
    pub(super) fn wake(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        self.act(env, me);
        let deadline = self.session.as_ref().and_then(|session| session.waits_for);
        let next = deadline.map_or(self.next, |(_, deadline)| deadline);
        env.actions
            .push(Action::Wake(next.max(env.now + MILLISECOND)));
    }

    fn act(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        let Some(session) = &mut self.session else {
            if env.now >= self.next {
                self.begin(env, me);
            }
            return;
        };
        match session.waits_for {
            Some((_, deadline)) if env.now >= deadline => {
                session.waits_for = None;
                self.again(env, me);
            }
            Some(_) => {}
            None if env.now >= self.next => self.go_on(env, me),
            None => {}
        }
    }

    fn begin(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        self.owners += 1;
        let name = format!("d{}-{}", me.at, self.owners);
        let paths = env.plan.habits.paths;
        let first = me.random.index(paths.len());
        let other = (first + 1 + me.random.index(paths.len() - 1)) % paths.len();
        self.session = Some(NestedSession {
            owner: OwnerId::new(&name).expect("a short name"),
            wants: vec![path(paths[first]), path(paths[other])],
            lets_go: me.random.chance(250),
            leaves: None,
            waits_for: None,
            tries: 0,
        });
        self.go_on(env, me);
    }

    /// Releases one path, acquires the next one, or releases all at the end.
    fn go_on(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        let Some(session) = &mut self.session else {
            return;
        };
        let owner = session.owner.clone();
        let request = match (&session.leaves, session.wants.last()) {
            (Some(left), _) => ClientRequest::Release(ReleaseRequest {
                owner,
                holds: vec![Hold {
                    path: left.clone(),
                    mode: Mode::Read,
                }],
                edge: WaitEdge::Keep,
                key: None,
            }),
            (None, Some(wanted)) => ClientRequest::Acquire(AcquireRequest {
                owner,
                ttl: Ttl::from_millis(10_000).expect("a length of ours"),
                queue_ttl: QueueTtl::from_millis(6_000).expect("a length of ours"),
                requests: vec![Request {
                    path: wanted.clone(),
                    mode: session.mode(),
                    state: RequestKind::New,
                    permits: None,
                }],
                releases: Vec::new(),
                fence: None,
                key: None,
                wait: WaitMode::Queue,
                holder: None,
                deadlock: me
                    .random
                    .pick(&[Deadlock::Ignore, Deadlock::Refuse, Deadlock::Refuse]),
            }),
            (None, None) => ClientRequest::ReleaseAll {
                owner,
                domains: Vec::new(),
                edge: WaitEdge::Keep,
                key: None,
            },
        };
        let id = me.ask(env, request, None, TIMEOUT_MS);
        session.waits_for = Some((id, env.now + TIMEOUT_MS * MILLISECOND + SECOND / 4));
    }

    /// The call failed: retries, or continues with a new owner after six failures.
    fn again(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        self.next = env.now + me.random.between(20, 500) * MILLISECOND;
        if let Some(session) = &mut self.session {
            session.tries += 1;
            if session.tries > 6 {
                self.session = None;
            }
        }
    }

    pub(super) fn answered(
        &mut self,
        env: &mut Env<'_>,
        me: &mut ClientContext<'_>,
        ask: &ClientCall,
        answer: &Result<Answer, Failure>,
    ) {
        let Some(session) = &mut self.session else {
            return;
        };
        if session.waits_for.is_none_or(|(id, _)| id != ask.id) {
            return;
        }
        session.waits_for = None;
        match answer {
            Ok(Answer::Acquire(AcquireAnswer::Granted { .. })) => {
                let got = session.wants.pop();
                session.leaves = got.filter(|_| session.lets_go && !session.wants.is_empty());
                session.tries = 0;
                self.next = env.now + me.random.between(5, 1_500) * MILLISECOND;
            }
            Ok(Answer::Acquire(AcquireAnswer::Queued { .. })) => {
                self.next = env.now + me.random.between(50, 800) * MILLISECOND;
                self.wonder(env, me);
            }
            Ok(Answer::Acquire(AcquireAnswer::Conflict { .. } | AcquireAnswer::Lost { .. })) => {
                session.wants.clear();
                self.next = env.now;
            }
            Ok(Answer::Done) if session.leaves.take().is_some() => self.next = env.now,
            Ok(_) => {
                self.session = None;
                self.next = env.now + me.random.between(10, 800) * MILLISECOND;
            }
            Err(_) => self.again(env, me),
        }
        env.actions
            .push(Action::Wake(self.next.max(env.now + MILLISECOND)));
    }

    /// Sometimes asks which owners it waits for.
    fn wonder(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        let Some(session) = &self.session else { return };
        let (owner, Some(wanted)) = (session.owner.clone(), session.wants.last().cloned()) else {
            return;
        };
        let mode = session.mode();
        let request = match me.random.below(3) {
            0 => ClientRequest::DetectCycle {
                start: owner,
                max_depth: me.random.pick(&[0, 1, 4]),
            },
            1 => ClientRequest::Explain {
                path: wanted,
                mode,
                owner,
            },
            _ => return,
        };
        me.ask(env, request, None, TIMEOUT_MS);
    }
}
