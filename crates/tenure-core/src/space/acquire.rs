//! Acquire: checks for conflicts, then grants, queues or refuses (R40–R89).

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::conflict::{
    AcquireDecision, QueuePosition, Requester, StaleFence, new_pairs, written_paths,
};
use super::idempotency::{KeyName, KeyedCall, ScopedKey, StoredAnswer, acquire_fingerprint};
use super::namespaces::NamespaceState;
use super::packed_claim::PackedClaim;
use super::queue::{Waiter, WantedPath};
use super::sessions::{Lease, Session};
use super::{ClaimEnd, Space};
use crate::command::{Acquire, Hold, RequestKind, WaitMode};
use crate::event::{ChangeKind, LockChange};
use crate::history::Noted;
use crate::idempotency::KeyLookup;
use crate::lease::{COVER_SLACK_MS, SHORT_LEASE_MS};
use crate::limits::Quota;
use crate::outcome::{AcquireOutcome, Conflict, LeaseChange, LeaseNumber, Queued, Refusal};
use crate::path::Path;
use crate::policy::{Algorithm, Missing, Mode};
use crate::segment::below_root;
use crate::slab::Id;
use crate::tree::NodeRing;
use crate::value::{Fence, Ttl};

/// How many levels the waiting paths of a namespace may have in all, for each path that may wait
/// there.
const NAMESPACE_LEVELS: u64 = 4;
/// The same for all namespaces of a space together.
const SPACE_LEVELS: u64 = 8;

impl Space {
    pub(super) fn acquire(&mut self, acquire: Acquire, quota: Option<&Quota>) -> AcquireOutcome {
        if acquire.requests.is_empty() && acquire.releases.is_empty() {
            return AcquireOutcome::Granted { fence: None };
        }
        if let Some(version) = self.outdated(&acquire.route, all_paths(&acquire)) {
            return AcquireOutcome::Refused(Refusal::Outdated { version });
        }
        let key = acquire.key.as_ref().map(|key| ScopedKey {
            call: KeyedCall::Acquire,
            namespace: acquire.route.namespace.clone(),
            key: KeyName::new(key, self.rules),
        });
        let fingerprint = key.as_ref().map(|_| acquire_fingerprint(&acquire));
        let keyed = key.zip(fingerprint);
        // Before the freeze check: a repeat gets its remembered answer also during a policy change.
        if let Some((key, fingerprint)) = &keyed {
            match self.answers.look(key, *fingerprint, self.time) {
                KeyLookup::New => {}
                KeyLookup::Answered(there) => match there.answer {
                    StoredAnswer::Gone => {}
                    answer => return self.replay(&acquire, answer),
                },
                KeyLookup::Reused => return AcquireOutcome::Refused(Refusal::KeyReused),
                KeyLookup::Full => return AcquireOutcome::Refused(Refusal::AnswersFull),
            }
        }
        if let Some(change) = self.frozen(all_paths(&acquire)) {
            return AcquireOutcome::Refused(Refusal::Frozen { change });
        }
        let namespace = self.namespaces.ensure(&acquire.route.namespace);
        let session = self.sessions.find(namespace, &acquire.owner);
        // Few owners ever lose a hold to a break; all others pay only for this check.
        let taken = session.is_some_and(|session| self.sessions[session].taken().is_some());
        // `acquire_in` consumes the request, so the holds that it names are copied before.
        let named = taken.then(|| (acquire.owner.clone(), new_and_released(&acquire)));
        let repeats = taken && session.is_some_and(|session| self.repeats_place(session, &acquire));
        let outcome = self.acquire_in(namespace, acquire, keyed, quota);
        if let Some((owner, (new, released))) = named
            && let Some(session) = self.sessions.find(namespace, &owner)
        {
            let answered: [&[Hold]; 2] = match &outcome {
                AcquireOutcome::Granted { .. } => [&new[..], &released[..]],
                // The owner polls its queued acquire. That does not show that it knows of the lost
                // hold.
                AcquireOutcome::Queued(_) | AcquireOutcome::Conflict(_) if repeats => [&[], &[]],
                AcquireOutcome::Queued(_) | AcquireOutcome::Conflict(_) => [&new[..], &[]],
                AcquireOutcome::Lost { .. } | AcquireOutcome::Refused(_) => [&[], &[]],
            };
            for hold in answered.into_iter().flatten() {
                self.sessions[session].forget_taken(&hold.path, hold.mode);
            }
        }
        // Inline releases and a replaced waiter may have freed other waiters.
        self.wake_waiters();
        self.settle_namespace(namespace);
        outcome
    }

    /// Returns whether an acquire repeats the owner's queued one.
    fn repeats_place(&self, session: Id<Session>, acquire: &Acquire) -> bool {
        let waiter = self.sessions[session]
            .waiter
            .map(|waiter| &self.waiters[waiter]);
        waiter.is_some_and(|waiter| new_pairs(&waiter.request) == new_pairs(acquire))
    }

    fn acquire_in(
        &mut self,
        namespace: Id<NamespaceState>,
        acquire: Acquire,
        keyed: Option<(ScopedKey, u128)>,
        quota: Option<&Quota>,
    ) -> AcquireOutcome {
        let session = self.sessions.find(namespace, &acquire.owner);
        if let Some(session) = session {
            // The owner has called, so its last GRANT need not be sent again (R122: events are
            // always delivered).
            self.sessions[session].set_grant(None);
        }
        let entry = session.and_then(|session| self.sessions[session].waiter);
        let entry = entry.map(|entry| &self.waiters[entry]);
        let pairs = entry.map(|entry| new_pairs(&entry.request));
        // A repeated acquire keeps its position for the paths that it already waits for (R79: no
        // overtaking).
        let place = match (entry, &pairs) {
            (Some(entry), Some(pairs)) => QueuePosition::Again(entry.number, pairs),
            _ => QueuePosition::End,
        };
        let requester = Requester {
            namespace,
            session,
            place,
            fence: acquire.fence,
            stale: StaleFence::Conflict,
        };
        let conflict = match self.evaluate(requester, &acquire) {
            AcquireDecision::Free | AcquireDecision::FreeButStale => {
                if let Some(quota) = quota
                    && let Some(refusal) =
                        self.grant_over_quota(namespace, session, &acquire, quota)
                {
                    return AcquireOutcome::Refused(refusal);
                }
                return self.acquire_now(namespace, session, &acquire, keyed);
            }
            AcquireDecision::Lost { path, missing } => {
                return AcquireOutcome::Lost { path, missing };
            }
            AcquireDecision::Incurable { path, reason } => {
                return AcquireOutcome::Conflict(Box::new(Conflict {
                    reason,
                    path,
                    blocker: None,
                }));
            }
            AcquireDecision::Behind(_) => self.conflict_behind(requester, &acquire),
            AcquireDecision::Blocked {
                request,
                blocking_claim,
            } => {
                self.order_for(session, blocking_claim);
                let path = &acquire.requests[request].path;
                Some(self.conflict(session, path, blocking_claim))
            }
        };
        let Some(conflict) = conflict else {
            debug_assert!(false, "who is behind somebody can say behind whom");
            return AcquireOutcome::Refused(Refusal::QueueFull);
        };
        if acquire.wait == WaitMode::No {
            return AcquireOutcome::Conflict(Box::new(conflict));
        }
        if let Some(quota) = quota
            && let Some(refusal) = self.wait_over_quota(namespace, session, &acquire, quota)
        {
            return AcquireOutcome::Refused(refusal);
        }
        self.acquire_later(namespace, session, acquire, conflict, keyed)
    }

    /// Grants an acquire that has no blocker.
    fn acquire_now(
        &mut self,
        namespace: Id<NamespaceState>,
        session: Option<Id<Session>>,
        acquire: &Acquire,
        keyed: Option<(ScopedKey, u128)>,
    ) -> AcquireOutcome {
        let fence = match self.fence_for(namespace, acquire) {
            Ok(fence) => fence,
            Err(refusal) => return AcquireOutcome::Refused(refusal),
        };
        if let Some((key, fingerprint)) = keyed {
            let answer = StoredAnswer::Granted(fence);
            self.answers
                .remember(key, fingerprint, answer.into(), self.time);
        }
        // A release-only acquire of an owner without a lease has nothing to do (R64: inline
        // releases).
        let idle = session.is_none_or(|session| self.sessions[session].lease.is_none());
        let session = match session {
            Some(session) => session,
            None if acquire.requests.is_empty() => return AcquireOutcome::Granted { fence },
            None => self.open_session(namespace, &acquire.owner),
        };
        if let Some(entry) = self.sessions[session].waiter {
            self.leave(entry);
        }
        if !(idle && acquire.requests.is_empty()) {
            self.grant(session, acquire, fence, &[]);
        }
        self.settle_session(session);
        AcquireOutcome::Granted { fence }
    }

    /// The fence that an acquire's writes get: supplied or minted (R67 minting a token, R70 token
    /// in the response).
    fn fence_for(
        &mut self,
        namespace: Id<NamespaceState>,
        acquire: &Acquire,
    ) -> Result<Option<Fence>, Refusal> {
        if acquire.fence.is_some() || !needs_fence(acquire) {
            return Ok(acquire.fence);
        }
        self.mint(namespace, written_paths(acquire))
            .map(Some)
            .ok_or(Refusal::FencesUsedUp)
    }

    /// Queues an acquire (R81–R85).
    fn acquire_later(
        &mut self,
        namespace: Id<NamespaceState>,
        session: Option<Id<Session>>,
        acquire: Acquire,
        conflict: Conflict,
        keyed: Option<(ScopedKey, u128)>,
    ) -> AcquireOutcome {
        let pairs = new_pairs(&acquire);
        let old = session.and_then(|session| self.sessions[session].waiter);
        let old_waiter = old.map(|old| &self.waiters[old]);
        let old_parts = old_waiter.map_or(0, |old| old.parts.len());
        // The new request replaces the old one, whose paths do not count against the limit.
        let waiting = self.namespaces[namespace].waiting_paths as usize - old_parts;
        if waiting + pairs.len() > self.limits.waiting_paths as usize
            || self.too_many_levels(namespace, old, &pairs)
        {
            return AcquireOutcome::Refused(Refusal::QueueFull);
        }
        let same = old_waiter.is_some_and(|old| new_pairs(&old.request) == pairs);
        // A repeated acquire keeps the fence minted for it (R83: one pending entry per namespace).
        let kept = old_waiter
            .filter(|old| same && old.request.fence.is_none() && acquire.fence.is_none())
            .and_then(|old| old.fence);
        let fence = match kept {
            Some(fence) => Some(fence),
            None => match self.fence_for(namespace, &acquire) {
                Ok(fence) => fence,
                Err(refusal) => return AcquireOutcome::Refused(refusal),
            },
        };
        let session = session.unwrap_or_else(|| self.open_session(namespace, &acquire.owner));
        let end = self.time.saturating_add(acquire.queue_ttl.millis());
        // The same paths and modes: keep the waiter and its number, update only what may differ.
        let id = if let Some(old) = old.filter(|_| same) {
            let old_end = self.waiters[old].end;
            let number = self.waiters[old].number;
            self.ends.remove(&(old_end, number, old));
            self.ends.insert((end, number, old));
            let waiter = &mut self.waiters[old];
            waiter.end = end;
            waiter.fence = fence;
            // A holder description stays until the client sends another one (E3: holder
            // description).
            let holder = waiter.request.holder.take();
            *waiter.request = acquire;
            waiter.request.holder = waiter.request.holder.take().or(holder);
            self.reorder_parts(old);
            old
        } else {
            if let Some(old) = old {
                self.leave(old);
            }
            let waiter = Waiter {
                number: self.next_waiter(),
                session,
                request: Box::new(acquire),
                fence,
                since: self.time,
                end,
                parts: Vec::new(),
                levels: 0,
                link: self.links.create(),
                asked: BTreeSet::new(),
                answers: Vec::new(),
            };
            self.join(session, waiter)
        };
        let number = self.waiters[id].number;
        if !same {
            self.note_waiter(id, ChangeKind::Queued);
            if self.watching {
                let waiter = self.waiters[id].clone();
                self.tell_watchers(&waiter, ChangeKind::Queued);
            }
        }
        if let Some((key, fingerprint)) = keyed {
            let answer = StoredAnswer::Waiting(number);
            self.answers
                .remember(key.clone(), fingerprint, answer.into(), self.time);
            self.waiters[id].answers.push(key);
        }
        let position = self.waiter_position(id);
        self.ask_blockers(id);
        // Park it on its blocker. It cannot be granted here: the state has not changed since the
        // check.
        self.park_on(id);
        AcquireOutcome::Queued(Box::new(Queued {
            conflict,
            fence,
            waiter: number,
            position,
        }))
    }

    /// Returns whether a waiter for these paths would exceed the limits on the levels of waiting
    /// paths: a waiter is counted at every level of its paths, so its memory grows with their depth
    /// (R85: queue size limit). `old` is the waiter that it replaces.
    fn too_many_levels(
        &self,
        namespace: Id<NamespaceState>,
        old: Option<Id<Waiter>>,
        pairs: &BTreeSet<(&Path, Mode)>,
    ) -> bool {
        let state = &self.namespaces[namespace];
        let depth = |path: &Path| below_root(&state.name, path).count() as u64 + 1;
        let levels: u64 = pairs.iter().map(|(path, _)| depth(path)).sum();
        let old = old.map_or(0, |old| self.waiters[old].levels);
        let limit = u64::from(self.limits.waiting_paths);
        self.rules >= 2
            && (state.waiting_levels - old + levels > NAMESPACE_LEVELS * limit
                || self.waiting_levels - old + levels > SPACE_LEVELS * limit)
    }

    /// Returns a waiter's queue position.
    pub(super) fn waiter_position(&self, id: Id<Waiter>) -> u32 {
        let waiter = &self.waiters[id];
        let is_last = waiter.number == self.next_waiter;
        let requester = Requester {
            // No waiter is behind the last one, so it may be counted like a new request, which is
            // faster.
            place: QueuePosition::Waiter(waiter.number),
            ..self.waiter_requester(id)
        };
        if is_last {
            let pairs = BTreeSet::new();
            let newcomer = Requester {
                place: QueuePosition::Again(waiter.number, &pairs),
                ..requester
            };
            return self.position(newcomer, &waiter.request);
        }
        self.position(requester, &waiter.request)
    }

    /// Returns a waiter as a requester at its own queue position.
    pub(super) fn waiter_requester(&self, id: Id<Waiter>) -> Requester<'static> {
        let waiter = &self.waiters[id];
        Requester {
            namespace: self.sessions[waiter.session].namespace,
            session: Some(waiter.session),
            place: QueuePosition::Waiter(waiter.number),
            fence: waiter.fence,
            stale: StaleFence::Replace,
        }
    }

    /// Applies a grant: claims, lease, then the releases (R62 effect of OK, R64, R69 OK stores the
    /// token, R77 a renewal never shortens a lease). `parts` are the paths of the granted waiter:
    /// waiters parked on them are parked on the new claims instead.
    pub(super) fn grant(
        &mut self,
        session: Id<Session>,
        acquire: &Acquire,
        fence: Option<Fence>,
        parts: &[WantedPath],
    ) {
        let namespace = self.sessions[session].namespace;
        let algorithm = acquire.route.algorithm;
        let semaphore = algorithm == Algorithm::Semaphore;
        if let Some(holder) = &acquire.holder {
            self.sessions[session].set_holder(Some(holder.clone()));
        }
        let mut stored = 0;
        for request in &acquire.requests {
            let write_fence = fence.filter(|_| request.mode == Mode::Write && !semaphore);
            if let Some(fence) = write_fence {
                stored = fence.number();
            }
            match request.state {
                RequestKind::Held => {
                    let claim = self
                        .path_position(namespace, &request.path)
                        .at
                        .and_then(|node| self.own_claim(session, node, request.mode));
                    if let (Some(claim), Some(_)) = (claim, write_fence) {
                        let claim = &mut self.claims[claim];
                        claim.terms = claim.terms.with_fence(write_fence);
                    }
                }
                RequestKind::New => {
                    let node = self.reach(namespace, &request.path);
                    if write_fence.is_some() {
                        self.take_mark(namespace, &request.path);
                    }
                    let terms = PackedClaim::new(request.mode, algorithm, write_fence);
                    self.add_claim(session, node, terms);
                    if let (true, Some(permits)) = (semaphore, request.permits) {
                        self.fix_capacity(namespace, &request.path, permits);
                    }
                }
            }
        }
        let state = &mut self.namespaces[namespace];
        state.high = state.high.max(stored);
        if self.reports() {
            self.tell_granted(session, &acquire.requests, fence.filter(|_| !semaphore));
        }
        self.set_lease(session, acquire.ttl);
        // After the claims exist: the parked waiters move to them.
        for part in parts {
            self.hand_over(part, semaphore);
        }
        // Last, so that a path named in both lists is released in the end (R64: inline releases).
        for hold in &acquire.releases {
            self.release_hold(session, hold.clone(), ClaimEnd::Released);
        }
    }

    /// Moves the waiters parked on one path of a granted waiter to its new claim.
    fn hand_over(&mut self, part: &WantedPath, semaphore: bool) {
        self.dissolve(part.blocks_asking);
        if semaphore {
            // A permit does not necessarily block the next waiter, so all are re-checked.
            self.dissolve(part.blocks);
        } else if let Some(blocks) = part.blocks {
            let ring = match part.mode {
                Mode::Write => NodeRing::Writer,
                Mode::Read => NodeRing::Readers,
                Mode::ReadTree => NodeRing::Trees,
            };
            let head = self.ring(part.node, ring);
            self.links.splice(blocks, head);
            self.links.destroy(blocks);
        }
    }

    /// Sets a session's lease, starting now, under a new epoch (leases.md).
    pub(super) fn set_lease(&mut self, session: Id<Session>, ttl: Ttl) {
        let epoch = self.put_lease(session, ttl);
        let lease = LeaseNumber(session.number());
        self.out.lease(LeaseChange::Set { lease, ttl, epoch });
    }

    fn put_lease(&mut self, session: Id<Session>, ttl: Ttl) -> u64 {
        let epoch = self.next_epoch();
        let cover = self
            .time
            .saturating_add(ttl.millis())
            .saturating_add(COVER_SLACK_MS);
        let there = &mut self.sessions[session];
        let before = there.lease;
        let born = before.map_or(epoch, |lease| lease.born);
        let was_long = before.is_some_and(|lease| is_long(lease.ttl));
        there.lease = Some(Lease {
            ttl,
            cover,
            epoch,
            born,
        });
        self.leases += u32::from(before.is_none());
        self.long_leases -= u32::from(was_long);
        self.long_leases += u32::from(is_long(ttl));
        epoch
    }

    /// Renews a session's lease. A renewal never moves the end earlier (R77), so since rules 2 the
    /// larger length and cover stay.
    pub(super) fn renew_lease(&mut self, session: Id<Session>, before: Lease, ttl: Ttl) {
        let epoch = self.put_lease(session, ttl);
        if self.rules >= 2
            && let Some(lease) = &mut self.sessions[session].lease
        {
            lease.cover = lease.cover.max(before.cover);
            if before.ttl > ttl {
                lease.ttl = before.ttl;
                // `before.ttl` is the larger one here, so this difference is not negative.
                self.long_leases += u32::from(is_long(before.ttl)) - u32::from(is_long(ttl));
            }
        }
        let lease = LeaseNumber(session.number());
        self.out.lease(LeaseChange::Renewed { lease, ttl, epoch });
    }

    /// Releases one hold of a session, if it has it.
    pub(super) fn release_hold(&mut self, session: Id<Session>, hold: Hold, ending: ClaimEnd) {
        let namespace = self.sessions[session].namespace;
        let claim = self
            .path_position(namespace, &hold.path)
            .at
            .and_then(|node| self.own_claim(session, node, hold.mode));
        if let Some(claim) = claim {
            self.remove_claim(claim, Some(hold.path), ending);
        }
    }

    fn tell_granted(
        &mut self,
        session: Id<Session>,
        requests: &[crate::command::Request],
        fence: Option<Fence>,
    ) {
        let there = &self.sessions[session];
        for request in requests
            .iter()
            .filter(|request| request.state == RequestKind::New)
        {
            let fence = fence.filter(|_| request.mode == Mode::Write);
            if self.history.is_kept() {
                let noted = Noted {
                    kind: ChangeKind::Granted,
                    path: request.path.as_str(),
                    owner: Some(&there.owner),
                    mode: Some(request.mode),
                    fence,
                    holder: there.holder(),
                };
                self.history.note(self.wall, &noted);
            }
            if !self.watching {
                continue;
            }
            self.out.changes.push(LockChange {
                namespace: self.namespaces[there.namespace].name.clone(),
                kind: ChangeKind::Granted,
                owner: Some(there.owner.clone()),
                path: Some(request.path.clone()),
                mode: Some(request.mode),
                fence,
                holder: there.holder().cloned(),
            });
        }
    }

    /// Answers a repeated request from the present state (R105: replays report present truth). Only
    /// clears the owner's standing grant.
    fn replay(&mut self, acquire: &Acquire, answer: StoredAnswer) -> AcquireOutcome {
        let namespace = self.namespaces.find(&acquire.route.namespace);
        let session = namespace.and_then(|namespace| self.sessions.find(namespace, &acquire.owner));
        if let Some(session) = session {
            self.sessions[session].set_grant(None);
        }
        match answer {
            StoredAnswer::Waiting(number) => {
                let id = session.and_then(|session| self.sessions[session].waiter);
                match id {
                    Some(id) if self.waiters[id].number == number => self.still_queued(id),
                    // A removed waiter updates its answers, so this is unreachable; LOST is the
                    // safe result.
                    _ => AcquireOutcome::Lost {
                        path: None,
                        missing: Missing::Alive,
                    },
                }
            }
            StoredAnswer::Granted(fence) => match namespace {
                Some(namespace) => self.still_held(namespace, session, acquire, fence),
                None => Self::nothing_left(acquire, fence),
            },
            StoredAnswer::Released | StoredAnswer::Gone => AcquireOutcome::Granted { fence: None },
        }
    }

    fn nothing_left(acquire: &Acquire, fence: Option<Fence>) -> AcquireOutcome {
        if kept_requests(acquire).next().is_none() {
            return AcquireOutcome::Granted { fence };
        }
        AcquireOutcome::Lost {
            path: None,
            missing: Missing::Alive,
        }
    }

    fn still_queued(&self, id: Id<Waiter>) -> AcquireOutcome {
        let waiter = &self.waiters[id];
        let requester = self.waiter_requester(id);
        let conflict = match self.evaluate(requester, &waiter.request) {
            AcquireDecision::Behind(_) => self.conflict_behind(requester, &waiter.request),
            AcquireDecision::Blocked {
                request,
                blocking_claim,
            } => {
                let path = &waiter.request.requests[request].path;
                Some(self.conflict(requester.session, path, blocking_claim))
            }
            // Only a pending policy change keeps it queued.
            AcquireDecision::Free
            | AcquireDecision::FreeButStale
            | AcquireDecision::Lost { .. }
            | AcquireDecision::Incurable { .. } => None,
        };
        match conflict {
            Some(conflict) => AcquireOutcome::Queued(Box::new(Queued {
                conflict,
                fence: waiter.fence,
                waiter: waiter.number,
                position: self.waiter_position(id),
            })),
            None => AcquireOutcome::Refused(Refusal::Frozen {
                change: self.frozen(all_paths(&waiter.request)).unwrap_or(0),
            }),
        }
    }

    fn still_held(
        &self,
        namespace: Id<NamespaceState>,
        session: Option<Id<Session>>,
        acquire: &Acquire,
        fence: Option<Fence>,
    ) -> AcquireOutcome {
        let session = session.filter(|session| self.sessions[*session].lease.is_some());
        let Some(session) = session else {
            return Self::nothing_left(acquire, fence);
        };
        let semaphore = acquire.route.algorithm == Algorithm::Semaphore;
        for request in kept_requests(acquire) {
            // HELD accepts the same modes as in the first evaluation (R56: HELD checks per mode);
            // NEW requires exactly the hold that the request created.
            let modes: &[Mode] = match (request.state, request.mode) {
                (RequestKind::Held, _) if semaphore => &[Mode::Write],
                (RequestKind::Held, Mode::Read) => &[Mode::Read, Mode::ReadTree],
                (_, Mode::Write) => &[Mode::Write],
                (_, Mode::Read) => &[Mode::Read],
                (_, Mode::ReadTree) => &[Mode::ReadTree],
            };
            let claim = self
                .path_position(namespace, &request.path)
                .at
                .and_then(|node| {
                    let mut claims = modes
                        .iter()
                        .map(|mode| self.own_claim(session, node, *mode));
                    claims.find_map(|claim| claim)
                });
            let missing = match claim {
                None if semaphore => Missing::Semaphore,
                None if request.mode == Mode::Write => Missing::Write,
                None => Missing::Read,
                Some(claim)
                    if self.claims[claim].fence().is_some()
                        && self.claims[claim].fence() != fence =>
                {
                    Missing::Fence
                }
                Some(_) => continue,
            };
            return AcquireOutcome::Lost {
                path: Some(request.path.clone()),
                missing,
            };
        }
        AcquireOutcome::Granted { fence }
    }
}

/// Whether an acquire's writes get fences (R66: where tokens are stored).
fn needs_fence(acquire: &Acquire) -> bool {
    acquire.route.algorithm != Algorithm::Semaphore && written_paths(acquire).next().is_some()
}

/// The holds that an acquire asks for anew, and those that it gives back.
pub(super) fn new_and_released(acquire: &Acquire) -> (Vec<Hold>, Vec<Hold>) {
    let new = acquire
        .requests
        .iter()
        .filter(|request| request.state == RequestKind::New);
    let new = new.map(|request| Hold {
        path: request.path.clone(),
        mode: request.mode,
    });
    (new.collect(), acquire.releases.clone())
}

/// Every path that an acquire names.
pub(super) fn all_paths(acquire: &Acquire) -> impl Iterator<Item = &Path> {
    let requests = acquire.requests.iter().map(|request| &request.path);
    requests.chain(acquire.releases.iter().map(|hold| &hold.path))
}

/// The requests whose paths are held after an OK: those not released by the same acquire (R64).
fn kept_requests(acquire: &Acquire) -> impl Iterator<Item = &crate::command::Request> {
    let released: BTreeSet<(&Path, Mode)> = acquire
        .releases
        .iter()
        .map(|hold| (&hold.path, hold.mode))
        .collect();
    acquire
        .requests
        .iter()
        .filter(move |request| !released.contains(&(&request.path, request.mode)))
}

fn is_long(ttl: Ttl) -> bool {
    ttl.millis() > SHORT_LEASE_MS
}
