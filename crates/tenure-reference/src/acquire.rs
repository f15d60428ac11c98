//! Acquire and queue of the model: conflict check, queueing, grants (R40–R89, E1 try without
//! waiting, E2 ask blockers to release, E4 blocker and queue position).

use std::collections::BTreeSet;

use super::conflict::{self, WantedAccess};
use super::{
    ASKED_AT_ONCE, Capacity, Claim, Counter, HoldEnd, KEPT_MS, Model, ModelRemembered, StoredFence,
    Waiter, without_route,
};
use tenure_core::auth::scope_of;
use tenure_core::command::{Acquire, Command, Request, RequestKind, WaitMode};
use tenure_core::event::{ChangeKind, EventKind};
use tenure_core::limits::{LimitKind, QuotaScope};
use tenure_core::outcome::{AcquireOutcome, Blocker, Conflict, Queued, Refusal};
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::{Algorithm, Missing, Mode, Reason};
use tenure_core::value::{Fence, OwnerId};

/// The result of checking an acquire.
pub(super) enum ModelDecision {
    Free,
    Lost(Option<Path>, Missing),
    /// Refused; waiting cannot help.
    Never(Conflict),
    /// Blocked; waiting can help.
    Wait(Conflict),
}

/// Whether a stale fence is a reason to refuse. Not for a waiter: it gets a newer fence: R88 (sweep
/// order and reservation).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum StaleFence {
    Matters,
    Ignored,
}

impl Model {
    /// Applies an acquire: idempotency first, then the conflict check.
    pub(super) fn acquire(&mut self, acquire: &Acquire) -> AcquireOutcome {
        let namespace = &acquire.route.namespace;
        if acquire.requests.is_empty() && acquire.releases.is_empty() {
            return AcquireOutcome::Granted { fence: None };
        }
        if let Some(refusal) = self.outdated(acquire.route.version, paths(acquire)) {
            return AcquireOutcome::Refused(refusal);
        }
        let request = without_route(&Command::Acquire(acquire.clone()));
        if let Some(answer) = self.answer(namespace, &acquire.key, &request) {
            if answer.request != request {
                return AcquireOutcome::Refused(Refusal::KeyReused);
            }
            match answer.result.clone() {
                ModelRemembered::Granted(fence) => {
                    self.take_note(namespace, &acquire.owner);
                    return self.still_granted(acquire, fence);
                }
                ModelRemembered::Waiting(number) => {
                    if let Some(at) = self.waiters.iter().position(|w| w.number == number) {
                        self.take_note(namespace, &acquire.owner);
                        return self.still_waiting(&self.waiters[at]);
                    }
                    // The waiter is gone: the request is evaluated afresh.
                }
                ModelRemembered::Released(_) => {}
            }
        }
        if let Some(refusal) = self.held_back(acquire) {
            return AcquireOutcome::Refused(refusal);
        }
        self.take_note(namespace, &acquire.owner);
        // A repeat of a waiting request does not count as naming taken holds again.
        let repeats = self.waiters.iter().any(|waiter| {
            waiter.acquire.owner == acquire.owner
                && waiter.acquire.route.namespace == *namespace
                && wanted(&waiter.acquire) == wanted(acquire)
        });
        let outcome = self.decide(acquire, request);
        let new = acquire
            .requests
            .iter()
            .filter(|request| request.state == RequestKind::New)
            .map(|request| (&request.path, request.mode));
        let released = acquire.releases.iter().map(|hold| (&hold.path, hold.mode));
        match &outcome {
            AcquireOutcome::Granted { .. } => {
                self.forget_taken(namespace, &acquire.owner, new.chain(released));
            }
            AcquireOutcome::Queued(_) | AcquireOutcome::Conflict(_) if !repeats => {
                self.forget_taken(namespace, &acquire.owner, new);
            }
            AcquireOutcome::Queued(_)
            | AcquireOutcome::Conflict(_)
            | AcquireOutcome::Lost { .. }
            | AcquireOutcome::Refused(_) => {}
        }
        outcome
    }

    fn decide(&mut self, acquire: &Acquire, request: Command) -> AcquireOutcome {
        let namespace = &acquire.route.namespace;
        match self.look(acquire, acquire.fence, StaleFence::Matters) {
            ModelDecision::Lost(path, missing) => AcquireOutcome::Lost { path, missing },
            ModelDecision::Never(conflict) => AcquireOutcome::Conflict(Box::new(conflict)),
            ModelDecision::Wait(conflict) if acquire.wait == WaitMode::No => {
                AcquireOutcome::Conflict(Box::new(conflict))
            }
            ModelDecision::Wait(conflict) => match self
                .wait_over_quota(acquire)
                .map_or(Ok(()), Err)
                .and_then(|()| self.queue(acquire, conflict))
            {
                Ok(queued) => {
                    let result = ModelRemembered::Waiting(queued.waiter);
                    self.remember(namespace, &acquire.key, request, result);
                    AcquireOutcome::Queued(Box::new(queued))
                }
                Err(refusal) => AcquireOutcome::Refused(refusal),
            },
            ModelDecision::Free => {
                if let Some(refusal) = self.grant_over_quota(acquire) {
                    return AcquireOutcome::Refused(refusal);
                }
                let fence = match acquire.fence {
                    None if needs_fence(acquire) => match self.mint(acquire) {
                        Some(fence) => Some(fence),
                        None => return AcquireOutcome::Refused(Refusal::FencesUsedUp),
                    },
                    other => other,
                };
                if let Some(at) = self.place_of(namespace, &acquire.owner) {
                    self.dequeue(at);
                }
                self.take(acquire, fence);
                let result = ModelRemembered::Granted(fence);
                self.remember(namespace, &acquire.key, request, result);
                AcquireOutcome::Granted { fence }
            }
        }
    }

    /// Quotas of an acquire that would be granted: it must not leave more than allowed, unless it
    /// leaves no more than there was.
    fn grant_over_quota(&self, acquire: &Acquire) -> Option<Refusal> {
        let place = |claim: &Claim| (claim.path.clone(), claim.mode);
        let own = self.claims.iter().filter(|claim| {
            claim.owner == acquire.owner && claim.namespace == acquire.route.namespace
        });
        let before: BTreeSet<(Path, Mode)> = own.map(place).collect();
        let mut after = before.clone();
        after.extend(
            wanted(acquire)
                .into_iter()
                .map(|(path, mode)| (path.clone(), mode)),
        );
        for hold in &acquire.releases {
            after.remove(&(hold.path.clone(), hold.mode));
        }
        let waited = self.waiting_of(acquire);
        let is_new = before.is_empty() && self.place_of_acquire(acquire).is_none();
        let comes = is_new && !wanted(acquire).is_empty();
        self.over_quota(
            acquire,
            before.len() + waited,
            after.len(),
            waited,
            0,
            comes,
        )
    }

    /// The same for an acquire that would wait: it may be granted later without another decision.
    fn wait_over_quota(&self, acquire: &Acquire) -> Option<Refusal> {
        let own = self.claims.iter().any(|claim| {
            claim.owner == acquire.owner && claim.namespace == acquire.route.namespace
        });
        let waited = self.waiting_of(acquire);
        let waits = wanted(acquire).len();
        let comes = !own && self.place_of_acquire(acquire).is_none();
        self.over_quota(acquire, waited, waits, waited, waits, comes)
    }

    fn place_of_acquire(&self, acquire: &Acquire) -> Option<usize> {
        self.place_of(&acquire.route.namespace, &acquire.owner)
    }

    fn waiting_of(&self, acquire: &Acquire) -> usize {
        let at = self.place_of_acquire(acquire);
        at.map_or(0, |at| wanted(&self.waiters[at].acquire).len())
    }

    /// `paths` and `waits` change from the first to the second number; `comes` is whether the owner
    /// is new.
    fn over_quota(
        &self,
        acquire: &Acquire,
        paths: usize,
        paths_after: usize,
        waits: usize,
        waits_after: usize,
        comes: bool,
    ) -> Option<Refusal> {
        let quota = self.quota?;
        let scope = scope_of(acquire.owner.as_str());
        for (whose, values) in [
            (QuotaScope::Own, quota.own),
            (QuotaScope::Total, quota.total),
        ] {
            let counts = |namespace: &Namespace, owner: &OwnerId| {
                *namespace == acquire.route.namespace
                    && (whose == QuotaScope::Total || scope_of(owner.as_str()) == scope)
            };
            let held: Vec<&OwnerId> = self
                .claims
                .iter()
                .filter(|claim| counts(&claim.namespace, &claim.owner))
                .map(|claim| &claim.owner)
                .collect();
            let waiters = self.waiters.iter();
            let waiters: Vec<&Acquire> = waiters
                .map(|waiter| &waiter.acquire)
                .filter(|waiting| counts(&waiting.route.namespace, &waiting.owner))
                .collect();
            let waiting: usize = waiters.iter().map(|waiting| wanted(waiting).len()).sum();
            let mut owners: BTreeSet<&OwnerId> = held.iter().copied().collect();
            owners.extend(waiters.iter().map(|waiting| &waiting.owner));
            let all = held.len() + waiting;
            for (limit, value, before, after, now) in [
                (LimitKind::Paths, values.paths, paths, paths_after, all),
                (
                    LimitKind::Waiting,
                    values.waiting,
                    waits,
                    waits_after,
                    waiting,
                ),
                (
                    LimitKind::Owners,
                    values.owners,
                    0,
                    usize::from(comes),
                    owners.len(),
                ),
            ] {
                if let Some(value) = value
                    && after > before
                    && (now + after - before) as u64 > value
                {
                    return Some(Refusal::Quota {
                        scope: whose,
                        limit,
                        value,
                    });
                }
            }
        }
        None
    }

    /// A repeated OK is answered only while it is still true: R105 (replays report present truth).
    fn still_granted(&self, acquire: &Acquire, fence: Option<Fence>) -> AcquireOutcome {
        let kept = acquire.requests.iter().filter(|request| {
            !acquire
                .releases
                .iter()
                .any(|hold| hold.path == request.path && hold.mode == request.mode)
        });
        let alive = self
            .lease(&acquire.route.namespace, &acquire.owner)
            .is_some();
        for request in kept {
            if !alive {
                return AcquireOutcome::Lost {
                    path: None,
                    missing: Missing::Alive,
                };
            }
            let there = match request.state {
                RequestKind::New => self.exact_claim(acquire, request),
                RequestKind::Held => self.claim(acquire, request),
            };
            let missing = match there {
                None => Some(missing_mode(acquire, request)),
                Some(claim) if self.fence_of(claim).is_some_and(|now| Some(now) != fence) => {
                    Some(Missing::Fence)
                }
                Some(_) => None,
            };
            if let Some(missing) = missing {
                return AcquireOutcome::Lost {
                    path: Some(request.path.clone()),
                    missing,
                };
            }
        }
        AcquireOutcome::Granted { fence }
    }

    /// A repeated QUEUED is answered by the present state (R105).
    fn still_waiting(&self, waiter: &Waiter) -> AcquireOutcome {
        let verdict = match self.waiter_in_the_way(&waiter.acquire) {
            Some(conflict) => ModelDecision::Wait(conflict),
            None => self.look(&waiter.acquire, waiter.fence, StaleFence::Ignored),
        };
        match verdict {
            ModelDecision::Wait(conflict) => AcquireOutcome::Queued(Box::new(Queued {
                conflict,
                fence: waiter.fence,
                waiter: waiter.number,
                position: self.position(waiter),
            })),
            // Only a pending policy change keeps it waiting.
            ModelDecision::Lost(..) | ModelDecision::Never(_) | ModelDecision::Free => {
                AcquireOutcome::Refused(
                    self.held_back(&waiter.acquire)
                        .unwrap_or(Refusal::QueueFull),
                )
            }
        }
    }

    /// Checks an acquire: R45–R48 (order of conflict reasons). In list order: first what waiting
    /// cannot help, then the waiters ahead, then the holders.
    pub(super) fn look(
        &self,
        acquire: &Acquire,
        fence: Option<Fence>,
        stale: StaleFence,
    ) -> ModelDecision {
        let namespace = &acquire.route.namespace;
        let algorithm = acquire.route.algorithm;
        let held = |request: &Request| request.state == RequestKind::Held;
        // R55 (HELD needs a live lease).
        if acquire.requests.iter().any(held) && self.lease(namespace, &acquire.owner).is_none() {
            return ModelDecision::Lost(None, Missing::Alive);
        }
        for request in &acquire.requests {
            let here = |reason| {
                ModelDecision::Never(Conflict {
                    reason,
                    path: request.path.clone(),
                    blocker: None,
                })
            };
            if held(request) {
                let Some(claim) = self.claim(acquire, request) else {
                    return ModelDecision::Lost(
                        Some(request.path.clone()),
                        missing_mode(acquire, request),
                    );
                };
                if claim.mode != Mode::Write || algorithm == Algorithm::Semaphore {
                    continue;
                }
                let Some(stored) = self.fence_of(claim) else {
                    return ModelDecision::Lost(Some(request.path.clone()), Missing::Fence);
                };
                if stale == StaleFence::Matters && fence.is_some_and(|fence| fence < stored) {
                    return here(Reason::StaleFence { current: stored });
                }
            } else if !algorithm.allows(request.mode) {
                return here(Reason::ReadLocksDisabled);
            } else if algorithm == Algorithm::Semaphore {
                let capacity = self.capacity(namespace, &request.path);
                if request.permits.is_none() {
                    return here(Reason::InvalidPermits { capacity: None });
                }
                if capacity.is_some() && capacity != request.permits {
                    return here(Reason::InvalidPermits { capacity });
                }
            }
        }
        // R47 (incurable findings come first): end of the first pass. Next: queue, then holders.
        if let Some(conflict) = self.waiter_in_the_way(acquire) {
            return ModelDecision::Wait(conflict);
        }
        for request in acquire.requests.iter().filter(|request| !held(request)) {
            if let Some(conflict) = self.holder_in_the_way(acquire, request) {
                return ModelDecision::Wait(conflict);
            }
            if stale == StaleFence::Matters
                && let Some(current) = self.overtaken(acquire, request, fence)
            {
                return ModelDecision::Never(Conflict {
                    reason: Reason::StaleFence { current },
                    path: request.path.clone(),
                    blocker: None,
                });
            }
        }
        ModelDecision::Free
    }

    /// Returns the waiters ahead that this acquire must wait for, earliest first: R79 (no
    /// overtaking), R88.
    pub(super) fn waiters_ahead<'a>(
        &'a self,
        acquire: &'a Acquire,
    ) -> impl Iterator<Item = (&'a Waiter, &'a Request)> {
        let namespace = &acquire.route.namespace;
        let own = self
            .place_of(namespace, &acquire.owner)
            .map(|at| &self.waiters[at]);
        let others = self.waiters.iter().filter(move |waiter| {
            waiter.acquire.owner != acquire.owner && waiter.acquire.route.namespace == *namespace
        });
        others.filter_map(move |waiter| {
            waiter
                .new_requests()
                .find(|theirs| {
                    acquire.requests.iter().any(|ours| {
                        // Only the paths that its own waiter names keep that waiter's place in the
                        // queue.
                        let first =
                            own.is_none_or(|own| waiter.number < own.number || !own.names(ours));
                        first
                            && ours.state == RequestKind::New
                            && !self.has_enough(acquire, ours)
                            && conflict::exclude(
                                WantedAccess::of(ours, acquire.route.algorithm),
                                WantedAccess::of(theirs, waiter.acquire.route.algorithm),
                            )
                    })
                })
                .map(|theirs| (waiter, theirs))
        })
    }

    fn waiter_in_the_way(&self, acquire: &Acquire) -> Option<Conflict> {
        let (waiter, request) = self.waiters_ahead(acquire).next()?;
        Some(Conflict {
            reason: Reason::Queued,
            path: request.path.clone(),
            blocker: Some(Blocker {
                owner: waiter.acquire.owner.clone(),
                path: request.path.clone(),
                mode: request.mode,
                fence: None,
                held_ms: self.time - waiter.since,
                holder: waiter.acquire.holder.as_deref().cloned(),
            }),
        })
    }

    /// Returns the queue position: E4 (blocker and queue position).
    pub(super) fn position(&self, waiter: &Waiter) -> u32 {
        1 + self.waiters_ahead(&waiter.acquire).count() as u32
    }

    /// Returns the claims of other owners that block a request; the one to report is first: R45,
    /// R46 (smallest owner or path reported).
    pub(super) fn holders_in_the_way(
        &self,
        namespace: &Namespace,
        owner: &OwnerId,
        want: WantedAccess<'_>,
    ) -> Vec<(Reason, &Claim)> {
        let mut found: Vec<(Reason, &Claim)> = Vec::new();
        for claim in &self.claims {
            if claim.owner == *owner || claim.namespace != *namespace {
                continue;
            }
            match conflict::blocks(claim.want(), want) {
                Some(Reason::SemaphoreFull) if !self.is_full(namespace, owner, want.path) => {}
                Some(reason) => found.push((reason, claim)),
                None => {}
            }
        }
        found.sort_by(|(reason_a, a), (reason_b, b)| {
            let nearest = match reason_a {
                Reason::AncestorLocked => b.path.depth().cmp(&a.path.depth()),
                _ => a.path.cmp(&b.path),
            };
            conflict::rank(*reason_a)
                .cmp(&conflict::rank(*reason_b))
                .then(nearest)
                .then(a.owner.cmp(&b.owner))
                .then(a.mode.cmp(&b.mode))
        });
        found
    }

    fn holder_in_the_way(&self, acquire: &Acquire, request: &Request) -> Option<Conflict> {
        let want = WantedAccess::of(request, acquire.route.algorithm);
        let found = self.holders_in_the_way(&acquire.route.namespace, &acquire.owner, want);
        let (reason, claim) = found.first()?;
        Some(Conflict {
            reason: *reason,
            path: claim.path.clone(),
            blocker: Some(self.describe(claim)),
        })
    }

    pub(super) fn describe(&self, claim: &Claim) -> Blocker {
        Blocker {
            owner: claim.owner.clone(),
            path: claim.path.clone(),
            mode: claim.mode,
            fence: self.fence_of(claim),
            held_ms: self.time - claim.since,
            holder: self
                .lease(&claim.namespace, &claim.owner)
                .and_then(|lease| lease.holder.clone()),
        }
    }

    /// Whether all permits are taken. An owner that has one does not need another: R53 (one permit
    /// per owner).
    fn is_full(&self, namespace: &Namespace, owner: &OwnerId, path: &Path) -> bool {
        let permits = |claim: &&Claim| {
            claim.namespace == *namespace && claim.path == *path && claim.is_permit()
        };
        let taken = self.claims.iter().filter(permits).count();
        let own = self
            .claims
            .iter()
            .filter(permits)
            .any(|claim| claim.owner == *owner);
        let capacity = self
            .capacity(namespace, path)
            .map_or(usize::MAX, |n| n.get() as usize);
        !own && taken >= capacity
    }

    /// Returns the present holder of a path: its writer, else the first other holder: E9 (Break one
    /// hold).
    pub(super) fn present_holder(&self, namespace: &Namespace, path: &Path) -> Option<Blocker> {
        self.claims
            .iter()
            .filter(|claim| claim.namespace == *namespace && claim.path == *path)
            .min_by_key(|claim| (claim.mode != Mode::Write, claim.owner.clone(), claim.mode))
            .map(|claim| self.describe(claim))
    }

    /// Returns the stored fence, if the supplied one is not larger: R68 (caller-supplied tokens),
    /// R72 (token retention and floors).
    fn overtaken(
        &self,
        acquire: &Acquire,
        request: &Request,
        fence: Option<Fence>,
    ) -> Option<Fence> {
        let fence = fence?;
        if request.mode != Mode::Write || acquire.route.algorithm == Algorithm::Semaphore {
            return None;
        }
        let namespace = &acquire.route.namespace;
        let stored = self.mark(namespace, &request.path);
        if stored == Some(fence) && self.claim(acquire, request).is_some() {
            return None;
        }
        let floor = self.floor(namespace, &request.path);
        let highest = stored.map_or(0, Fence::number).max(floor);
        Fence::from_number(highest).filter(|highest| fence <= *highest)
    }

    /// Returns the owner's claim that a HELD request names: R56 (HELD checks per mode), R57 (HELD
    /// matches exactly). A permit for any mode, either kind of read for a read, else exactly the
    /// mode.
    fn claim(&self, acquire: &Acquire, request: &Request) -> Option<&Claim> {
        self.claims.iter().find(|claim| {
            let fits = match request.mode {
                _ if acquire.route.algorithm == Algorithm::Semaphore => claim.is_permit(),
                Mode::Read => claim.mode != Mode::Write,
                Mode::Write | Mode::ReadTree => claim.mode == request.mode,
            };
            fits && claim.namespace == acquire.route.namespace
                && claim.owner == acquire.owner
                && claim.path == request.path
        })
    }

    /// Returns the claim that a NEW request became.
    fn exact_claim(&self, acquire: &Acquire, request: &Request) -> Option<&Claim> {
        self.claims.iter().find(|claim| {
            claim.namespace == acquire.route.namespace
                && claim.owner == acquire.owner
                && claim.path == request.path
                && claim.mode == request.mode
        })
    }

    /// Whether the owner's holds already cover this path, so that it does not count (R79).
    fn has_enough(&self, acquire: &Acquire, request: &Request) -> bool {
        let want = WantedAccess::of(request, acquire.route.algorithm);
        self.claims.iter().any(|claim| {
            claim.owner == acquire.owner
                && claim.namespace == acquire.route.namespace
                && conflict::suffices(claim.want(), want)
        })
    }

    pub(super) fn place_of(&self, namespace: &Namespace, owner: &OwnerId) -> Option<usize> {
        self.waiters.iter().position(|waiter| {
            waiter.acquire.owner == *owner && waiter.acquire.route.namespace == *namespace
        })
    }

    /// Returns a refusal if a pending policy change has frozen a path of the acquire.
    fn held_back(&self, acquire: &Acquire) -> Option<Refusal> {
        self.frozen
            .iter()
            .filter(|freeze| paths(acquire).any(|path| freeze.region.contains(path)))
            .map(|freeze| Refusal::Frozen {
                change: freeze.change,
            })
            .min()
    }

    /// Queues an acquire, or updates its waiter, which keeps its place: R81 (queueing has no
    /// effect), R83 (one pending entry per namespace).
    fn queue(&mut self, acquire: &Acquire, conflict: Conflict) -> Result<Queued, Refusal> {
        let namespace = &acquire.route.namespace;
        let old = self.place_of(namespace, &acquire.owner);
        let same = old.filter(|at| self.waiters[*at].wants_the_same_as(acquire));
        // A minted fence is kept; a supplied one is replaced by what the new request supplies or
        // mints.
        let kept = same
            .filter(|at| self.waiters[*at].acquire.fence.is_none())
            .and_then(|at| self.waiters[at].fence);
        let fence = match (acquire.fence, kept) {
            (Some(supplied), _) => Some(supplied),
            (None, Some(minted)) => Some(minted),
            (None, None) if needs_fence(acquire) => {
                Some(self.mint(acquire).ok_or(Refusal::FencesUsedUp)?)
            }
            (None, None) => None,
        };
        let until = self.time + acquire.queue_ttl.millis();
        let at = match same {
            Some(at) => {
                let waiter = &mut self.waiters[at];
                let holder = acquire.holder.clone().or(waiter.acquire.holder.take());
                waiter.acquire = acquire.clone();
                waiter.acquire.holder = holder;
                waiter.fence = fence;
                waiter.until = until;
                at
            }
            None => {
                if let Some(old) = old {
                    self.dequeue(old);
                }
                // Since rules 2, leases and waiters share one numbering.
                if self.rules >= 2 {
                    self.numbers = self.numbers.max(self.epochs);
                }
                self.numbers += 1;
                self.latest
                    .retain(|(place, who, _)| place != namespace || *who != acquire.owner);
                self.latest
                    .push((namespace.clone(), acquire.owner.clone(), self.numbers));
                self.waiters.push(Waiter {
                    number: self.numbers,
                    acquire: acquire.clone(),
                    fence,
                    since: self.time,
                    until,
                    asked: Vec::new(),
                });
                self.waiters.len() - 1
            }
        };
        if same.is_none() {
            let waiter = self.waiters[at].clone();
            self.show_waiter(&waiter, ChangeKind::Queued);
        }
        self.ask_those_in_the_way(at);
        let waiter = &self.waiters[at];
        Ok(Queued {
            conflict,
            fence,
            waiter: waiter.number,
            position: self.position(waiter),
        })
    }

    /// Grants or drops the first waiter that need not wait, repeatedly, until there is none:
    /// R87–R89 (GRANT means held now).
    pub(super) fn wake_waiters(&mut self) {
        let mut looked_at = usize::MAX;
        while let Some(at) = (0..self.waiters.len()).find(|at| self.need_not_wait(*at)) {
            if self.woken >= self.batch() {
                // The next command goes on from here.
                looked_at = at;
                break;
            }
            self.woken += 1;
            if self.waiters[at].until <= self.time {
                self.dequeue(at);
                continue;
            }
            let waiter = self.waiters[at].clone();
            let (acquire, namespace) = (&waiter.acquire, &waiter.acquire.route.namespace);
            let fence = match self.look(acquire, waiter.fence, StaleFence::Ignored) {
                ModelDecision::Free => self.fence_for(&waiter),
                _ => Err(Refusal::FencesUsedUp),
            };
            match fence {
                Ok(fence) => {
                    self.waiters.remove(at);
                    // A lease that starts with this grant counts as old as the waiter.
                    let begins = self.lease(namespace, &acquire.owner).is_none();
                    let in_order = self.rules >= 2 && waiter.number > self.order_from;
                    self.take(acquire, fence);
                    let new = waiter.new_requests();
                    let released = acquire.releases.iter().map(|hold| (&hold.path, hold.mode));
                    let named = new.map(|request| (&request.path, request.mode));
                    self.forget_taken(namespace, &acquire.owner, named.chain(released));
                    let end = self.time + KEPT_MS;
                    for lease in &mut self.leases {
                        if lease.namespace == *namespace && lease.owner == acquire.owner {
                            if begins && in_order {
                                lease.born = waiter.number;
                            }
                            lease.unclaimed = Some((waiter.number, fence, end));
                        }
                    }
                    for answer in &mut self.answers {
                        if matches!(answer.result, ModelRemembered::Waiting(n) if n == waiter.number)
                        {
                            answer.result = ModelRemembered::Granted(fence);
                        }
                    }
                    self.tell(&acquire.owner, Some(namespace), EventKind::Grant { fence });
                }
                Err(_) => {
                    self.dequeue(at);
                    self.tell(&acquire.owner, Some(namespace), EventKind::Killed);
                }
            }
        }
        // Waiters that are first in the queue but blocked by holders ask those holders to release.
        for at in 0..self.waiters.len().min(looked_at) {
            let acquire = &self.waiters[at].acquire;
            if self.held_back(acquire).is_none() && self.waiter_in_the_way(acquire).is_none() {
                self.ask_those_in_the_way(at);
            }
        }
    }

    /// Whether a waiter can leave the queue: it lost a hold that it must have; or no waiter is
    /// ahead, and either nothing blocks it or waiting cannot help.
    fn need_not_wait(&self, at: usize) -> bool {
        let waiter = &self.waiters[at];
        let verdict = self.look(&waiter.acquire, waiter.fence, StaleFence::Ignored);
        if self.held_back(&waiter.acquire).is_some() {
            return false;
        }
        let its_turn = self.waiter_in_the_way(&waiter.acquire).is_none();
        match verdict {
            ModelDecision::Lost(..) => true,
            ModelDecision::Free | ModelDecision::Never(_) => its_turn,
            ModelDecision::Wait(_) => false,
        }
    }

    /// Returns the fence for a grant to a waiter; a new one if its own became stale while it waited
    /// (R88).
    fn fence_for(&mut self, waiter: &Waiter) -> Result<Option<Fence>, Refusal> {
        let acquire = &waiter.acquire;
        let stale = acquire.requests.iter().any(|request| match request.state {
            RequestKind::New => self.overtaken(acquire, request, waiter.fence).is_some(),
            RequestKind::Held => {
                let stored = self.mark(&acquire.route.namespace, &request.path);
                request.mode == Mode::Write
                    && acquire.route.algorithm != Algorithm::Semaphore
                    && waiter.fence < stored
            }
        });
        if !stale {
            return Ok(waiter.fence);
        }
        let fence = match acquire.fence {
            None => self.mint(acquire),
            Some(_) => Fence::from_number(self.highest_stored(acquire) + 1),
        };
        fence.map(Some).ok_or(Refusal::FencesUsedUp)
    }

    /// Applies a grant: R62 (effect of OK), R64 (inline releases), R69 (OK stores the token).
    fn take(&mut self, acquire: &Acquire, fence: Option<Fence>) {
        let namespace = &acquire.route.namespace;
        let algorithm = acquire.route.algorithm;
        for request in &acquire.requests {
            if request.mode == Mode::Write
                && algorithm != Algorithm::Semaphore
                && let Some(fence) = fence
            {
                self.store(namespace, &request.path, fence);
            }
            if request.state == RequestKind::Held {
                continue;
            }
            if let (Algorithm::Semaphore, None, Some(permits)) = (
                algorithm,
                self.capacity(namespace, &request.path),
                request.permits,
            ) {
                self.capacities.push(Capacity {
                    namespace: namespace.clone(),
                    path: request.path.clone(),
                    permits,
                    idle_since: None,
                });
            }
            let held = self.claims.iter_mut().find(|claim| {
                claim.namespace == *namespace
                    && claim.owner == acquire.owner
                    && claim.path == request.path
                    && claim.mode == request.mode
            });
            match held {
                // Acquired again: the hold follows the algorithm of the new request.
                Some(claim) => claim.algorithm = algorithm,
                None => self.claims.push(Claim {
                    namespace: namespace.clone(),
                    owner: acquire.owner.clone(),
                    path: request.path.clone(),
                    mode: request.mode,
                    algorithm,
                    since: self.time,
                }),
            }
        }
        // A release-only acquire of an owner without a lease starts none.
        let live = self.lease(namespace, &acquire.owner).is_some();
        if live
            || acquire
                .requests
                .iter()
                .any(|request| request.state == RequestKind::New)
        {
            self.set_lease(
                namespace,
                &acquire.owner,
                acquire.ttl,
                acquire.holder.as_deref().cloned(),
            );
        }
        let holder = self.holder_of(namespace, &acquire.owner);
        for request in acquire
            .requests
            .iter()
            .filter(|request| request.state == RequestKind::New)
        {
            let fenced = request.mode == Mode::Write && algorithm != Algorithm::Semaphore;
            self.show(
                namespace,
                ChangeKind::Granted,
                &acquire.owner,
                Some((&request.path, request.mode)),
                fence.filter(|_| fenced),
                holder.clone(),
            );
        }
        // Inline releases come last, so that the lease does not end between release and grant
        // (R64).
        self.drop_holds(namespace, &acquire.owner, HoldEnd::Released, |claim| {
            acquire
                .releases
                .iter()
                .any(|hold| hold.path == claim.path && hold.mode == claim.mode)
        });
    }

    /// Asks the owners that block a waiter directly to release, each once: E2 (ask blockers to
    /// release).
    fn ask_those_in_the_way(&mut self, at: usize) {
        let waiter = &self.waiters[at];
        if waiter.acquire.wait != WaitMode::QueueAndAsk {
            return;
        }
        let namespace = waiter.acquire.route.namespace.clone();
        let mut owners: Vec<OwnerId> = Vec::new();
        for request in waiter.new_requests() {
            let want = WantedAccess::of(request, waiter.acquire.route.algorithm);
            for (_, claim) in self.holders_in_the_way(&namespace, &waiter.acquire.owner, want) {
                owners.push(claim.owner.clone());
            }
        }
        owners.sort();
        owners.dedup();
        owners.retain(|owner| !waiter.asked.contains(owner));
        owners.truncate(ASKED_AT_ONCE);
        for owner in &owners {
            self.mark_asked(&namespace, owner);
            self.tell(owner, Some(&namespace), EventKind::Revoke);
        }
        self.waiters[at].asked.extend(owners);
    }

    pub(super) fn capacity(
        &self,
        namespace: &Namespace,
        path: &Path,
    ) -> Option<core::num::NonZeroU32> {
        self.capacities
            .iter()
            .find(|capacity| capacity.namespace == *namespace && capacity.path == *path)
            .map(|capacity| capacity.permits)
    }

    /// Returns the floor of a path: its next fence must be above it, whatever is stored (R71 tokens
    /// never go back, R72).
    fn floor(&self, namespace: &Namespace, path: &Path) -> u64 {
        let here = self
            .counters
            .iter()
            .filter(|counter| counter.namespace == *namespace);
        let unknown = self
            .counters
            .iter()
            .all(|counter| counter.namespace != *namespace)
            .then_some(self.space_floor);
        let moved = self
            .region_floors
            .iter()
            .filter(|(region, _)| region.contains(path));
        here.map(|counter| counter.floor)
            .chain(unknown)
            .chain(moved.map(|(_, floor)| floor.number()))
            .max()
            .unwrap_or(0)
    }

    fn highest_stored(&self, acquire: &Acquire) -> u64 {
        let namespace = &acquire.route.namespace;
        let writes = acquire
            .requests
            .iter()
            .filter(|request| request.mode == Mode::Write);
        writes
            .map(|request| {
                let stored = self.mark(namespace, &request.path).map_or(0, Fence::number);
                stored.max(self.floor(namespace, &request.path))
            })
            .max()
            .unwrap_or(0)
    }

    /// Mints a fence above every fence minted before in the namespace and above those stored for
    /// the paths: R67 (minting a token).
    fn mint(&mut self, acquire: &Acquire) -> Option<Fence> {
        let namespace = &acquire.route.namespace;
        let stored = self.highest_stored(acquire);
        let counter = self.counter(namespace);
        let fence = Fence::from_number(counter.last.max(stored).saturating_add(1))?;
        counter.last = fence.number();
        Some(fence)
    }

    pub(super) fn counter(&mut self, namespace: &Namespace) -> &mut Counter {
        let at = self
            .counters
            .iter()
            .position(|counter| counter.namespace == *namespace);
        let at = at.unwrap_or_else(|| {
            self.counters.push(Counter {
                namespace: namespace.clone(),
                last: self.space_floor,
                floor: self.space_floor,
            });
            self.counters.len() - 1
        });
        &mut self.counters[at]
    }

    fn store(&mut self, namespace: &Namespace, path: &Path, fence: Fence) {
        let counter = self.counter(namespace);
        counter.last = counter.last.max(fence.number());
        self.marks
            .retain(|mark| mark.namespace != *namespace || mark.path != *path);
        self.marks.push(StoredFence {
            namespace: namespace.clone(),
            path: path.clone(),
            fence,
        });
    }
}

impl Waiter {
    fn names(&self, request: &Request) -> bool {
        self.new_requests()
            .any(|own| own.path == request.path && own.mode == request.mode)
    }

    /// Whether an acquire names the same set of NEW (path, mode) as this waiter (R83).
    fn wants_the_same_as(&self, acquire: &Acquire) -> bool {
        let theirs = || {
            acquire
                .requests
                .iter()
                .filter(|request| request.state == RequestKind::New)
        };
        theirs().all(|request| self.names(request))
            && self.new_requests().all(|own| {
                theirs().any(|request| own.path == request.path && own.mode == request.mode)
            })
    }
}

/// Returns every path that an acquire names.
fn paths(acquire: &Acquire) -> impl Iterator<Item = &Path> + Clone {
    let requests = acquire.requests.iter().map(|request| &request.path);
    requests.chain(acquire.releases.iter().map(|hold| &hold.path))
}

/// Whether a fence is minted if none is supplied (R67).
fn needs_fence(acquire: &Acquire) -> bool {
    acquire.route.algorithm != Algorithm::Semaphore
        && acquire
            .requests
            .iter()
            .any(|request| request.mode == Mode::Write)
}

fn missing_mode(acquire: &Acquire, request: &Request) -> Missing {
    match request.mode {
        _ if acquire.route.algorithm == Algorithm::Semaphore => Missing::Semaphore,
        Mode::Write => Missing::Write,
        Mode::Read | Mode::ReadTree => Missing::Read,
    }
}

/// Returns the NEW paths and modes of an acquire.
fn wanted(acquire: &Acquire) -> BTreeSet<(&Path, Mode)> {
    let new = acquire
        .requests
        .iter()
        .filter(|request| request.state == RequestKind::New);
    new.map(|request| (&request.path, request.mode)).collect()
}
