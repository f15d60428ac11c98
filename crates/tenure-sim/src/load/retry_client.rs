//! Retry client: reuses one owner, gives every call a key, and sends every call several times to
//! several nodes.
//!
//! ```text
//!   idle ──▶ acquiring ──▶ holding ⇄ renewing ──▶ releasing ──▶ idle, with the same owner
//! ```
//!
//! A key is applied at most once: R102 (keyed requests apply once). So the first answer to any copy
//! counts, and the client continues while other copies are under way. After a call that may still
//! take effect later (an acquire that was never answered, or that was queued), it continues with a
//! new owner.

use std::num::NonZeroU32;

use tenure_core::command::{Hold, Request, RequestKind, WaitMode};
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::Mode;
use tenure_core::value::{Fence, Key, OwnerId, QueueTtl, Ttl};
use tenure_node::{
    AcquireAnswer, AcquireRequest, Answer, ClientRequest, Deadlock, Failure, ReleaseRequest,
    RenewAnswer, WaitEdge,
};

use super::{Action, ClientContext, Env, path};
use crate::check::{BelievedHold, ClientCall, Fact};
use crate::time::{MILLISECOND, SECOND, SimTime};

/// Paths that only retry clients lock. The checkers that expect one session per owner never see
/// them.
const PATHS: [&str; 4] = ["r:/0/a", "r:/0/x", "r:/0/x/y", "r:/1/b"];
/// How often a call is sent before the client gives it up.
const COPIES: u32 = 6;
const TTLS: [u64; 3] = [1_500, 4_000, 10_000];

/// State of a retry client.
pub(super) struct RetryClient {
    /// The rate of its clock, per mille.
    rate: u64,
    owners: u64,
    keys: u64,
    owner: Option<OwnerId>,
    phase: RetryPhase,
    call: Option<RetriedCall>,
    held: Vec<(Path, Mode)>,
    namespace: Option<Namespace>,
    fence: Option<Fence>,
    until: SimTime,
    hold_until: SimTime,
    next: SimTime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RetryPhase {
    Idle,
    Acquiring,
    Holding,
    Releasing,
}

/// A pending call: one request, sent several times.
struct RetriedCall {
    request: ClientRequest,
    first_sent: SimTime,
    copies: u32,
    next_copy: SimTime,
    ids: Vec<u64>,
}

impl RetryClient {
    pub(super) fn new(rate: u64) -> RetryClient {
        RetryClient {
            rate,
            owners: 0,
            keys: 0,
            owner: None,
            phase: RetryPhase::Idle,
            call: None,
            held: Vec::new(),
            namespace: None,
            fence: None,
            until: 0,
            hold_until: 0,
            next: 0,
        }
    }

    pub(super) fn wake(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        self.act(env, me);
        self.tick(env);
    }

    /// Schedules its next wake-up.
    fn tick(&self, env: &mut Env<'_>) {
        let mut next = self.next;
        if let Some(call) = &self.call {
            next = call.next_copy;
        }
        if self.phase == RetryPhase::Holding {
            next = next.min(self.until).min(self.hold_until);
        }
        env.actions
            .push(Action::Wake(next.max(env.now + MILLISECOND)));
    }

    fn act(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        if self.phase == RetryPhase::Holding && env.now >= self.until.min(self.hold_until) {
            self.release(env, me);
            return;
        }
        if let Some(call) = &mut self.call {
            if env.now < call.next_copy {
                return;
            }
            if call.copies >= COPIES {
                self.unanswered(env, me);
            } else {
                send(call, env, me);
            }
            return;
        }
        if env.now < self.next {
            return;
        }
        match self.phase {
            RetryPhase::Idle => self.acquire(env, me),
            RetryPhase::Holding => self.renew(env, me),
            RetryPhase::Acquiring | RetryPhase::Releasing => {}
        }
    }

    fn key(&mut self, me: &ClientContext<'_>) -> Option<Key> {
        self.keys += 1;
        let text = format!("r{}-{}", me.at, self.keys);
        Key::new(&text).ok().flatten()
    }

    fn begin(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>, request: ClientRequest) {
        let call = self.call.insert(RetriedCall {
            request,
            first_sent: env.now,
            copies: 0,
            next_copy: env.now,
            ids: Vec::new(),
        });
        send(call, env, me);
    }

    fn acquire(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        let owner = match &self.owner {
            Some(owner) => owner.clone(),
            None => {
                self.owners += 1;
                let name = format!("r{}-{}", me.at, self.owners);
                let owner = OwnerId::new(&name).expect("a short name");
                self.owner.insert(owner).clone()
            }
        };
        self.held = vec![(path(me.random.pick(&PATHS)), Mode::Write)];
        self.fence = None;
        self.phase = RetryPhase::Acquiring;
        let requests = self.held.iter().map(|(path, mode)| Request {
            path: path.clone(),
            mode: *mode,
            state: RequestKind::New,
            permits: None::<NonZeroU32>,
        });
        let request = AcquireRequest {
            owner,
            ttl: Ttl::from_millis(me.random.pick(&TTLS)).expect("a length of ours"),
            queue_ttl: QueueTtl::from_millis(1_500).expect("a length of ours"),
            requests: requests.collect(),
            releases: Vec::new(),
            fence: None,
            key: self.key(me),
            wait: me
                .random
                .pick(&[WaitMode::No, WaitMode::No, WaitMode::Queue]),
            holder: None,
            deadlock: Deadlock::Ignore,
        };
        self.begin(env, me, ClientRequest::Acquire(request));
    }

    fn renew(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        let Some(owner) = self.owner.clone() else {
            return;
        };
        let everywhere = me.random.chance(300);
        let domains = self.namespace.iter().filter(|_| !everywhere);
        let request = ClientRequest::Renew {
            owner,
            ttl: Ttl::from_millis(me.random.pick(&TTLS)).expect("a length of ours"),
            domains: domains.cloned().collect(),
            key: self.key(me).filter(|_| me.random.chance(800)),
        };
        self.begin(env, me, request);
    }

    fn release(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        let Some(owner) = self.owner.clone() else {
            return;
        };
        env.fact(&Fact::Stops(&owner));
        self.phase = RetryPhase::Releasing;
        let key = self.key(me);
        let holds = self.held.iter().map(|(path, mode)| Hold {
            path: path.clone(),
            mode: *mode,
        });
        let request = if me.random.chance(500) {
            ClientRequest::ReleaseAll {
                owner,
                domains: Vec::new(),
                edge: WaitEdge::Keep,
                key,
            }
        } else {
            ClientRequest::Release(ReleaseRequest {
                owner,
                holds: holds.collect(),
                edge: WaitEdge::Keep,
                key,
            })
        };
        self.begin(env, me, request);
    }

    /// No copy was answered: continues with a new owner, unless the call was a renewal.
    fn unanswered(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        self.call = None;
        if self.phase == RetryPhase::Holding {
            self.next = env.now + me.random.between(10, 300) * MILLISECOND;
        } else {
            self.leave(env, me);
        }
    }

    /// Abandons the owner to its lease.
    fn leave(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        if let Some(owner) = self.owner.take() {
            env.fact(&Fact::Stops(&owner));
        }
        self.rest(env, me);
    }

    fn rest(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        self.call = None;
        self.phase = RetryPhase::Idle;
        let most = me.random.pick(&[3, 30, 400]);
        self.next = env.now + me.random.between(1, most) * MILLISECOND;
    }

    /// Relies on its hold, counted from the first sending of the call that was answered.
    fn believe(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>, sent: SimTime, ttl: Ttl) {
        let Some(owner) = self.owner.clone() else {
            return;
        };
        let until = sent + ttl.millis() * MILLISECOND * 80 / 100 * 1000 / self.rate;
        self.until = self.until.max(until);
        self.next = env.now + me.random.between(50, 1_500) * MILLISECOND;
        if self.until <= env.now {
            // The lease was used up under way.
            return;
        }
        env.counts.beliefs += 1;
        env.fact(&Fact::Believes(&BelievedHold {
            owner,
            holds: self.held.clone(),
            fence: self.fence,
            sent,
            until: self.until,
        }));
    }

    pub(super) fn answered(
        &mut self,
        env: &mut Env<'_>,
        me: &mut ClientContext<'_>,
        ask: &ClientCall,
        answer: &Result<Answer, Failure>,
    ) {
        let is_mine = |call: &RetriedCall| call.ids.contains(&ask.id);
        if self.call.as_ref().is_some_and(is_mine)
            && let Ok(answer) = answer
            && let Some(call) = self.call.take()
        {
            self.take(env, me, call, answer);
        }
        self.tick(env);
    }

    /// Handles the first answer to a call.
    fn take(
        &mut self,
        env: &mut Env<'_>,
        me: &mut ClientContext<'_>,
        mut call: RetriedCall,
        answer: &Answer,
    ) {
        match (&call.request, answer) {
            (
                ClientRequest::Acquire(acquire),
                Answer::Acquire(AcquireAnswer::Granted { namespace, fence }),
            ) => {
                let ttl = acquire.ttl;
                self.namespace.clone_from(namespace);
                self.fence = *fence;
                self.phase = RetryPhase::Holding;
                self.until = 0;
                self.hold_until = env.now + me.random.between(10, 3_000) * MILLISECOND;
                self.believe(env, me, call.first_sent, ttl);
            }
            (_, Answer::Acquire(AcquireAnswer::Queued { .. })) if call.copies < COPIES => {
                // It asks again with its key, and the answer tells the present state: R105 (replays
                // report present truth).
                call.next_copy = env.now + me.random.between(100, 500) * MILLISECOND;
                self.call = Some(call);
            }
            // Refused, but another copy may still be granted.
            (_, Answer::Acquire(_)) => self.leave(env, me),
            (ClientRequest::Renew { ttl, .. }, Answer::Renew(RenewAnswer::Renewed { .. })) => {
                let ttl = *ttl;
                self.believe(env, me, call.first_sent, ttl);
            }
            (_, Answer::Renew(RenewAnswer::Lost(_))) => self.leave(env, me),
            _ => self.rest(env, me),
        }
    }
}

/// Sends another copy to a random node and schedules the next one.
fn send(call: &mut RetriedCall, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
    call.copies += 1;
    let pause = me.random.pick(&[1, 20, 200, 1_500]);
    call.next_copy = env.now + me.random.between(1, pause) * MILLISECOND;
    if call.copies >= COPIES {
        // After the last copy, wait for an answer.
        call.next_copy = env.now + 3 * SECOND;
    }
    // Some attempts outlive the answer to another one by far.
    let timeout = me.random.pick(&[500, 2_000, 20_000]);
    let id = me.ask(env, call.request.clone(), Some(call.first_sent), timeout);
    call.ids.push(id);
}
