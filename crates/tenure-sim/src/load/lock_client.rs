//! Lock client: acquires, works and releases, and follows the client contract of
//! `docs/design/leases.md`.
//!
//! ```text
//!   idle ──▶ acquiring ──▶ (queued ⇄ acquiring) ──▶ holding ──▶ releasing ──▶ idle
//! ```
//!
//! The client counts its lease from the moment when it *sent* the request, by its own clock, and
//! stops at 80 %. It repeats an unanswered request under the same key or without one. After its
//! release was answered, or after it gives up, it continues with a new owner.

use std::num::NonZeroU32;

use tenure_core::command::{Hold, Request, RequestKind, WaitMode};
use tenure_core::event::{Event, EventKind};
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::Mode;
use tenure_core::value::{Fence, Key, OwnerId, QueueTtl, Ttl};
use tenure_node::{
    AcquireAnswer, AcquireRequest, Answer, ClientRequest, Deadlock, Failure, ReleaseRequest,
    RenewAnswer, WaitEdge,
};

use super::{Action, ClientContext, Env, StoreWrite, modes, path};
use crate::check::{BelievedHold, ClientCall, Fact};
use crate::contract_violation::ContractViolation;
use crate::plan::QUEUE_TTLS;
use crate::time::{MILLISECOND, SECOND, SimTime};

/// State of a lock client.
pub(super) struct LockClient {
    /// The rate of its clock, per mille.
    rate: u64,
    session: Option<LockSession>,
    owners: u64,
    keys: u64,
    next_session: SimTime,
    /// Locks that it got since the last count.
    pub(super) grants: u64,
    last_owner: Option<OwnerId>,
    /// A renewal that another thread of the client sends after the release. It must have no effect.
    straggler: Option<ClientRequest>,
}

/// One owner, from the first acquire to the release.
struct LockSession {
    owner: OwnerId,
    holds: Vec<(Path, Mode)>,
    ttl: u64,
    queue_ttl: u64,
    wait: WaitMode,
    /// The key of the pending acquire, and when it was first sent.
    key: Option<(Key, SimTime)>,
    acquires: u32,
    queued_sent: Option<SimTime>,
    phase: LockPhase,
    /// The call whose answer it waits for, and until when.
    waits_for: Option<(u64, SimTime)>,
    next: SimTime,
    tries: u32,
    namespace: Option<Namespace>,
    fence: Option<Fence>,
    /// When the request that the present belief rests on was sent.
    since: SimTime,
    until: SimTime,
    hold_until: SimTime,
    next_renewal: SimTime,
    /// When it renews after the end of its belief, at about the end of its lease.
    late_at: Option<SimTime>,
    /// Releases with ReleaseAll instead of path by path.
    release_all: bool,
    release_key: Option<Key>,
    /// The idempotency table was full: R102 (keyed requests apply once). The client continues
    /// without keys and does not repeat a release.
    keyless: bool,
    /// A renewal was not answered and may still arrive. The client then does not raise its lease
    /// time, although R77 (a renewal never shortens a lease) would allow it.
    strays: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LockPhase {
    Acquiring,
    Queued,
    Holding,
    Releasing,
}

impl LockSession {
    fn renewal(&self) -> ClientRequest {
        ClientRequest::Renew {
            owner: self.owner.clone(),
            ttl: Ttl::from_millis(self.ttl).expect("a length of ours"),
            domains: self.namespace.iter().cloned().collect(),
            key: None,
        }
    }
}

impl LockClient {
    pub(super) fn new(rate: u64) -> LockClient {
        LockClient {
            rate,
            session: None,
            owners: 0,
            keys: 0,
            next_session: 0,
            grants: 0,
            last_owner: None,
            straggler: None,
        }
    }

    /// Forgets everything. No [`Fact::Stops`] is sent: the convergence phase verifies that the
    /// locks of dead owners are freed in time.
    pub(super) fn die(&mut self) {
        self.session = None;
    }

    /// Returns how many locks it holds.
    pub(super) fn holds(&self) -> u64 {
        let phase = self.session.as_ref().map(|session| session.phase);
        u64::from(phase == Some(LockPhase::Holding))
    }

    /// If it believes it holds a lock with this fence: when the request that this rests on was
    /// sent.
    pub(super) fn believes(&self, now: SimTime, owner: &OwnerId, fence: u64) -> Option<SimTime> {
        let session = self.session.as_ref()?;
        let believes = session.owner == *owner
            && session.phase == LockPhase::Holding
            // Another acquire under way may have changed the fence.
            && session.acquires == 1
            && now < session.until
            && session.fence.is_some_and(|held| held.number() == fence);
        believes.then_some(session.since)
    }

    /// Schedules its next wake-up: the earliest of all pending deadlines.
    fn tick(&self, env: &mut Env<'_>) {
        let Some(session) = &self.session else {
            env.actions
                .push(Action::Wake(self.next_session.max(env.now + MILLISECOND)));
            return;
        };
        let mut next = session.next;
        if let Some((_, deadline)) = session.waits_for {
            next = next.min(deadline);
            if session.phase != LockPhase::Holding {
                next = deadline;
            }
        }
        if session.phase == LockPhase::Holding {
            // While a late renewal is planned, nothing else happens.
            next = next.min(session.until).min(session.hold_until);
            match (session.late_at, session.waits_for) {
                (Some(late), _) => next = late,
                (None, Some((_, deadline))) if session.until <= env.now => next = deadline,
                (None, Some(_)) => {}
                (None, None) => next = next.min(session.next_renewal),
            }
        }
        env.actions
            .push(Action::Wake(next.max(env.now + MILLISECOND)));
    }

    pub(super) fn wake(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        self.act(env, me);
        self.tick(env);
    }

    /// Does what is due: a timeout, or the next action of the phase.
    fn act(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        let Some(session) = &mut self.session else {
            if env.now >= self.next_session {
                if let Some(late) = self.straggler.take() {
                    me.ask(env, late, None, 2_000);
                }
                self.begin(env, me);
            }
            return;
        };
        if let Some((_, deadline)) = session.waits_for
            && env.now >= deadline
        {
            session.waits_for = None;
            session.tries += 1;
            self.unanswered(env, me);
            return;
        }
        // `waits`: an answer is pending. Only a holder acts meanwhile.
        let waits = session.waits_for.is_some();
        match session.phase {
            LockPhase::Acquiring if !waits && env.now >= session.next => self.acquire(env, me),
            LockPhase::Queued if !waits && env.now >= session.next => {
                if me.random.chance(80) {
                    self.release(env, me);
                } else {
                    self.acquire(env, me);
                }
            }
            LockPhase::Releasing if !waits && env.now >= session.next => self.release(env, me),
            LockPhase::Holding => self.hold(env, me),
            LockPhase::Acquiring | LockPhase::Queued | LockPhase::Releasing => {}
        }
    }

    fn begin(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        self.owners += 1;
        let name = format!("c{}-{}", me.at, self.owners);
        let mut owner = OwnerId::new(&name).expect("a short name");
        if env.plan.contract_violation == Some(ContractViolation::AcquiresBeforeReleased)
            && let Some(last) = self.last_owner.take()
        {
            owner = last;
        }
        let first = path(me.random.pick(env.plan.habits.paths));
        let mode = me.random.pick(modes(&first));
        let mut holds = vec![(first, mode)];
        if holds[0].0.handler() == "t" && me.random.chance(300) {
            // Two paths of one namespace: one of them may be broken.
            holds = vec![(path("t:/2/a"), Mode::Write), (path("t:/2/b"), Mode::Write)];
        }
        let ttl = me.random.pick(&env.plan.ttls);
        // Mostly on two nodes: both must deliver the same events.
        // One in four has no stream, and learns of nothing that it does not ask for.
        for _ in 0..me.random.pick(&[0, 1, 2, 2]) {
            env.actions.push(Action::Subscribe {
                owner: owner.clone(),
            });
        }
        self.session = Some(LockSession {
            owner,
            holds,
            ttl,
            queue_ttl: me.random.pick(&QUEUE_TTLS),
            wait: me.random.pick(&[
                WaitMode::Queue,
                WaitMode::Queue,
                WaitMode::Queue,
                WaitMode::No,
                WaitMode::QueueAndAsk,
            ]),
            key: None,
            acquires: 0,
            queued_sent: None,
            phase: LockPhase::Acquiring,
            waits_for: None,
            next: env.now,
            tries: 0,
            namespace: None,
            fence: None,
            since: 0,
            until: 0,
            hold_until: 0,
            next_renewal: 0,
            late_at: None,
            release_all: me.random.chance(200),
            release_key: None,
            keyless: false,
            strays: false,
        });
        self.acquire(env, me);
    }

    fn new_key(&mut self, me: &ClientContext<'_>) -> Key {
        self.keys += 1;
        let text = format!("k{}-{}", me.at, self.keys);
        Key::new(&text).ok().flatten().expect("a short key")
    }

    fn acquire(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        let fresh = me.random.chance(400).then(|| self.new_key(me));
        let Some(session) = &mut self.session else {
            return;
        };
        if session.key.is_none()
            && !session.keyless
            && let Some(key) = fresh
        {
            session.key = Some((key, env.now));
        }
        session.acquires += 1;
        session.phase = LockPhase::Acquiring;
        let permits = (session.holds[0].0.handler() == "s")
            .then_some(NonZeroU32::new(2))
            .flatten();
        let requests = session.holds.iter().map(|(path, mode)| Request {
            path: path.clone(),
            mode: *mode,
            state: RequestKind::New,
            permits,
        });
        let request = AcquireRequest {
            owner: session.owner.clone(),
            ttl: Ttl::from_millis(session.ttl).expect("a length of ours"),
            queue_ttl: QueueTtl::from_millis(session.queue_ttl).expect("a length of ours"),
            requests: requests.collect(),
            releases: Vec::new(),
            fence: None,
            key: session.key.as_ref().map(|(key, _)| key.clone()),
            wait: session.wait,
            holder: None,
            deadlock: Deadlock::Ignore,
        };
        let first_sent = session.key.as_ref().map(|(_, sent)| *sent);
        let timeout = me.random.pick(&[500, 2_000, 5_000]);
        let id = me.ask(env, ClientRequest::Acquire(request), first_sent, timeout);
        session.waits_for = Some((id, env.now + timeout * MILLISECOND + SECOND / 4));
    }

    /// A call was not answered in time, or failed: repeats it later or gives up.
    fn unanswered(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        let Some(session) = &mut self.session else {
            return;
        };
        let late_release = session.phase == LockPhase::Releasing && session.keyless;
        if late_release || session.phase != LockPhase::Holding && session.tries > 6 {
            self.give_up(env, me);
            return;
        }
        session.next = env.now + me.random.between(1, 500) * MILLISECOND;
        match session.phase {
            LockPhase::Acquiring | LockPhase::Releasing | LockPhase::Queued => {}
            LockPhase::Holding => {
                session.strays = true;
                session.next_renewal = session.next;
            }
        }
    }

    /// Abandons the owner to its lease. The client continues with another owner.
    fn give_up(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        if let Some(session) = self.session.take() {
            env.fact(&Fact::Stops(&session.owner));
            self.finish(env, me, session.owner);
        }
    }

    /// Schedules the next session. The old subscription stays open in 30 % of the cases.
    fn finish(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>, owner: OwnerId) {
        self.next_session = env.now + me.random.between(1, env.plan.habits.rest_ms) * MILLISECOND;
        if me.random.chance(700) {
            env.actions.push(Action::Unsubscribe { owner });
        }
    }

    /// Returns when the client stops relying on a lease: 80 % of the ttl after `sent`, by its own
    /// clock.
    fn trusts_until(&self, env: &Env<'_>, session: &LockSession, sent: SimTime) -> SimTime {
        let share = match env.plan.contract_violation {
            Some(ContractViolation::UsesWholeLease) => 95,
            _ => 80,
        };
        let from = match env.plan.contract_violation {
            Some(ContractViolation::CountsFromAnswer) => env.now,
            _ => sent,
        };
        from + session.ttl * MILLISECOND * share / 100 * 1000 / self.rate
    }

    /// Starts to rely on a grant or renewal whose request was sent at `sent`.
    fn believe(
        &mut self,
        env: &mut Env<'_>,
        me: &mut ClientContext<'_>,
        sent: SimTime,
        fence: Option<Fence>,
    ) {
        let Some(session) = &self.session else { return };
        let until = self.trusts_until(env, session, sent);
        let Some(session) = &mut self.session else {
            return;
        };
        session.key = None;
        session.fence = session.fence.max(fence);
        if until <= env.now {
            // The lease was used up under way: acquire again, with no key or a new one.
            session.phase = LockPhase::Acquiring;
            session.next = env.now;
            return;
        }
        let new = session.phase != LockPhase::Holding;
        session.phase = LockPhase::Holding;
        session.since = sent;
        session.late_at = None;
        session.until = session.until.max(until);
        session.tries = 0;
        let belief = BelievedHold {
            owner: session.owner.clone(),
            holds: session.holds.clone(),
            fence: session.fence,
            sent,
            until: session.until,
        };
        if new {
            self.grants += 1;
            env.counts.beliefs += 1;
            // A lease longer than 60 s is held for minutes, so that its renewals go beyond the end
            // that the log covers.
            let most = match session.ttl {
                60_001.. => 300_000,
                // Some holds are short, so that late messages meet later sessions.
                _ if me.random.chance(env.plan.habits.quick) => 300,
                ttl => (ttl * 3).min(12_000),
            };
            session.hold_until = env.now + me.random.between(10, most) * MILLISECOND;
        }
        // The next renewal is due after a third of the remaining time at the earliest, sometimes
        // too late.
        let left = session.until - env.now;
        session.next_renewal = env.now + left / 3 + me.random.below(left);
        let brink = env.plan.habits.brink;
        if brink > 0 && env.fault_phase && me.random.chance(brink) {
            session.next_renewal = SimTime::MAX;
            session.hold_until = session.hold_until.max(session.until + SECOND);
        }
        session.next = env.now + me.random.between(10, 1_000) * MILLISECOND;
        env.trace.say(
            env.now,
            format_args!("client {}", me.at),
            format_args!("believes {} until {}", belief.owner, belief.until),
        );
        env.fact(&Fact::Believes(&belief));
        if new {
            self.store(env, 0);
        }
    }

    /// Sends a fenced write to the store for every write hold.
    fn store(&mut self, env: &mut Env<'_>, delay: SimTime) {
        let Some(session) = &self.session else { return };
        let Some(fence) = session.fence else { return };
        for (path, mode) in &session.holds {
            if *mode == Mode::Write && path.handler() != "s" {
                let write = StoreWrite {
                    owner: session.owner.clone(),
                    path: path.clone(),
                    fence: fence.number(),
                };
                env.actions.push(Action::Store { write, delay });
            }
        }
    }

    /// Acts while it holds the lock: stop, release, renew, write or assert.
    fn hold(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        let Some(session) = &mut self.session else {
            return;
        };
        if env.now >= session.until {
            self.overdue(env, me);
            return;
        }
        if env.now >= session.hold_until {
            if me.random.chance(100) {
                // A client that forgets to release.
                self.give_up(env, me);
            } else {
                self.release(env, me);
            }
            return;
        }
        if session.waits_for.is_none() && env.now >= session.next_renewal {
            self.renew(env, me);
            return;
        }
        if env.now >= session.next {
            session.next = env.now + me.random.between(50, 2_000) * MILLISECOND;
            match me.random.below(4) {
                // It checks, then pauses, then writes: the case that fences are for.
                0 => {
                    let pause = me.random.between(1, 30_000) * MILLISECOND;
                    self.store(env, pause);
                }
                1 => self.store(env, MILLISECOND),
                2 => self.assert(env, me),
                _ => {}
            }
        }
    }

    /// The client's share of the lease is used up: it stops working, and renews late, releases or
    /// gives up.
    fn overdue(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        let Some(session) = &mut self.session else {
            return;
        };
        env.fact(&Fact::Stops(&session.owner));
        match (session.late_at, session.waits_for) {
            // A late renewal or acquire is pending: wait for its answer.
            (None, Some(_)) if session.tries > 0 => {}
            (_, Some(_)) => self.give_up(env, me),
            (Some(late), None) if late <= env.now => {
                session.late_at = None;
                session.tries += 1;
                self.revive(env, me);
            }
            (Some(_), None) => {}
            (None, None) if env.plan.habits.brink > 0 && session.tries < 3 => {
                // At about the time when the lease ends on the leader's clock, fast or slow.
                let ttl = session.ttl * MILLISECOND;
                let end = session.since + me.random.between(ttl * 85 / 100, ttl * 125 / 100);
                session.late_at = Some(end.max(env.now + MILLISECOND));
            }
            (None, None) if session.tries < 3 && me.random.chance(400) => {
                let late = me.random.below(session.ttl * 2 / 5) * MILLISECOND;
                session.late_at = Some(env.now + late);
            }
            (None, None) if me.random.chance(500) => self.give_up(env, me),
            (None, None) => self.release(env, me),
        }
    }

    /// Renews late. In the profile `Brink` it mostly acquires again, sometimes with a concurrent
    /// renewal.
    fn revive(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        if env.plan.habits.brink == 0 || me.random.chance(250) {
            self.renew(env, me);
            return;
        }
        let Some(session) = &mut self.session else {
            return;
        };
        let stray = me.random.chance(300).then(|| session.renewal());
        session.strays |= stray.is_some();
        self.acquire(env, me);
        if let Some(stray) = stray {
            me.ask(env, stray, None, 5_000);
        }
    }

    fn assert(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        let Some(session) = &self.session else { return };
        let (Mode::Write, Some(fence)) = (session.holds[0].1, session.fence) else {
            return;
        };
        if session.holds[0].0.handler() == "s" {
            return;
        }
        let request = ClientRequest::AssertFencing {
            owner: session.owner.clone(),
            fence: Some(fence),
            paths: session.holds.iter().map(|(path, _)| path.clone()).collect(),
        };
        me.ask(env, request, None, 2_000);
    }

    fn renew(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        let Some(session) = &mut self.session else {
            return;
        };
        // Raises the lease time, if no request with a shorter one is under way.
        if session.acquires == 1 && !session.strays && me.random.chance(150) {
            let longest = env.plan.ttls.iter().copied().max();
            session.ttl = session.ttl.max(longest.unwrap_or(0));
        }
        let mut request = session.renewal();
        let wide = env.plan.habits.wide;
        if wide > 0
            && me.random.chance(wide)
            && let ClientRequest::Renew { domains, .. } = &mut request
        {
            domains.clear();
        }
        let timeout = me.random.pick(&[500, 2_000, 5_000]);
        let id = me.ask(env, request, None, timeout);
        session.waits_for = Some((id, env.now + timeout * MILLISECOND + SECOND / 4));
    }

    fn release(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        let key = self.new_key(me);
        let Some(session) = &mut self.session else {
            return;
        };
        env.fact(&Fact::Stops(&session.owner));
        session.phase = LockPhase::Releasing;
        let key = session.release_key.get_or_insert(key).clone();
        let key = (!session.keyless).then_some(key);
        let holds = session.holds.iter().map(|(path, mode)| Hold {
            path: path.clone(),
            mode: *mode,
        });
        let request = if session.release_all {
            ClientRequest::ReleaseAll {
                owner: session.owner.clone(),
                domains: Vec::new(),
                edge: WaitEdge::Remove,
                key,
            }
        } else {
            ClientRequest::Release(ReleaseRequest {
                owner: session.owner.clone(),
                holds: holds.collect(),
                edge: WaitEdge::Keep,
                key,
            })
        };
        let timeout = me.random.pick(&[500, 2_000, 5_000]);
        let owner = session.owner.clone();
        let id = me.ask(env, request, None, timeout);
        session.waits_for = Some((id, env.now + timeout * MILLISECOND + SECOND / 4));
        if env.plan.contract_violation == Some(ContractViolation::AcquiresBeforeReleased)
            && me.random.chance(500)
        {
            self.last_owner = Some(owner);
            self.session = None;
            self.next_session = env.now;
        }
    }

    pub(super) fn answered(
        &mut self,
        env: &mut Env<'_>,
        me: &mut ClientContext<'_>,
        ask: &ClientCall,
        answer: &Result<Answer, Failure>,
    ) {
        self.take(env, me, ask, answer);
        self.tick(env);
    }

    /// Handles an answer.
    fn take(
        &mut self,
        env: &mut Env<'_>,
        me: &mut ClientContext<'_>,
        ask: &ClientCall,
        answer: &Result<Answer, Failure>,
    ) {
        let Some(session) = &mut self.session else {
            return;
        };
        if let (
            ClientRequest::Acquire(acquire),
            Ok(Answer::Acquire(AcquireAnswer::Granted { fence, .. })),
        ) = (&*ask.request, answer)
            && acquire.owner == session.owner
        {
            // Also an answer to an earlier acquire counts, because the newest fence is in force:
            // R69 (OK stores the token).
            session.fence = session.fence.max(*fence);
        }
        // An answer to an earlier call: only its fence matters.
        if session.waits_for.is_none_or(|(id, _)| id != ask.id) {
            return;
        }
        session.waits_for = None;
        match answer {
            Ok(Answer::Acquire(answer)) => self.acquired(env, me, ask, answer),
            Ok(Answer::Renew(RenewAnswer::Renewed { .. })) => {
                if session.phase == LockPhase::Holding {
                    self.believe(env, me, ask.sent, None);
                }
            }
            Ok(Answer::Renew(RenewAnswer::Lost(_))) => self.give_up(env, me),
            Ok(Answer::Done) => self.released(env, me),
            Ok(_) => {}
            Err(failure) => {
                // The key can be dropped only if no earlier attempt under it is under way.
                let is_first = session.tries == 0 && ask.first_sent == ask.sent;
                if *failure == Failure::AnswersFull && is_first {
                    session.key = None;
                    session.keyless = true;
                    session.tries += 1;
                    session.next = env.now + MILLISECOND;
                    return;
                }
                session.tries += 1;
                self.unanswered(env, me);
            }
        }
    }

    /// The release was answered: ends the session.
    fn released(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>) {
        if let Some(session) = self.session.take() {
            self.straggler = me.random.chance(300).then(|| session.renewal());
            self.finish(env, me, session.owner);
        }
    }

    fn acquired(
        &mut self,
        env: &mut Env<'_>,
        me: &mut ClientContext<'_>,
        ask: &ClientCall,
        answer: &AcquireAnswer,
    ) {
        let Some(session) = &mut self.session else {
            return;
        };
        match answer {
            AcquireAnswer::Granted { namespace, fence } => {
                session.namespace = namespace.clone();
                // A repeat under one key is the same request, so the lease counts from its first
                // sending.
                self.believe(env, me, ask.first_sent, *fence);
            }
            AcquireAnswer::Queued { .. } => {
                session.phase = LockPhase::Queued;
                session.queued_sent = Some(ask.first_sent);
                session.tries = 0;
                if me.random.chance(700) {
                    session.key = None;
                }
                session.next = env.now + me.random.between(50, 3_000) * MILLISECOND;
            }
            AcquireAnswer::Conflict { .. } | AcquireAnswer::Lost { .. } => self.give_up(env, me),
        }
    }

    /// Handles an event.
    pub(super) fn told(&mut self, env: &mut Env<'_>, me: &mut ClientContext<'_>, event: &Event) {
        let Some(session) = &mut self.session else {
            return;
        };
        if session.owner != event.owner {
            return;
        }
        env.trace.say(
            env.now,
            format_args!("client {}", me.at),
            format_args!("is told {:?} for {}", event.kind, event.owner),
        );
        match event.kind {
            EventKind::Grant { fence } => {
                let session_waits =
                    session.phase == LockPhase::Queued && session.waits_for.is_none();
                // With several acquires, the GRANT may belong to an earlier one. Then the client
                // asks again.
                let only = session.acquires == 1
                    || env.plan.contract_violation == Some(ContractViolation::TrustsAnyGrant);
                if let (true, true, Some(sent)) = (session_waits, only, session.queued_sent) {
                    session.namespace.clone_from(&event.namespace);
                    self.believe(env, me, sent, fence);
                } else if session_waits {
                    session.next = env.now;
                }
            }
            EventKind::Killed => self.give_up(env, me),
            EventKind::Revoke => {
                if session.phase == LockPhase::Holding
                    && session.waits_for.is_none()
                    && me.random.chance(500)
                {
                    session.hold_until = env.now;
                }
            }
        }
        self.tick(env);
    }
}
