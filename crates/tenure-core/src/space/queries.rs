//! Read-only queries of a space. See [`crate::query`] for the meaning of `now`.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::ControlFlow;

use super::conflict::{AcquireDecision, QueuePosition, Requester, StaleFence, new_requests};
use super::queue::Waiter;
use super::sessions::Session;
use super::{Claim, Space};
use crate::command::{Acquire, Request, RequestKind, Route, Selection, WaitMode};
use crate::deadlock;
use crate::event::{ChangeKind, Event, EventKind, LockChange};
use crate::outcome::{Conflict, LeaseNumber};
use crate::path::{Namespace, Path};
use crate::policy::{BlockReason, Missing, Mode};
use crate::query::{
    Counts, DumpCursor, DumpPage, EdgeDetail, EventsAfter, Explanation, FenceCheck, HeldLock,
    HoldView, Inspection, LeaseView, OwnerLocks, SurveyPage, WaiterView, WaitsFor,
};
use crate::slab::Id;
use crate::tree::{PathNode, PathQueue};
use crate::value::{Fence, Holder, OwnerId, QueueTtl, Ttl};

/// Maximum number of blockers and waiters in an explanation, and of edges per waiter.
const LISTED: usize = 256;

/// Maximum number of claims that are visited to find the owners that block a waiter: one owner may
/// have very many of them.
const VISITED: usize = 4 * LISTED;

/// Maximum number of claim slots that one page of a dump visits.
const DUMP_LOOKS: u32 = 4096;

/// The cursor of the first waiter in a survey. Claims have 32-bit numbers.
const SURVEY_WAITERS: u64 = 1 << 32;

/// A page of a survey ends when its entries are so long: descriptions of holders can be long, and
/// clients limit the length of a message.
const SURVEY_BYTES: usize = 1 << 20;

fn size(path: &Path, owner: &OwnerId, holder: Option<&Holder>) -> usize {
    let holder = holder.map_or(0, |holder| {
        let labels = holder
            .labels
            .iter()
            .map(|(name, text)| name.len() + text.len());
        holder.name.len() + holder.host.len() + holder.purpose.len() + labels.sum::<usize>()
    });
    path.as_str().len() + owner.as_str().len() + holder
}

impl Space {
    /// Returns the largest lease time applied.
    pub fn time(&self) -> u64 {
        self.time
    }

    /// Returns the rules number in force.
    pub fn rules(&self) -> u32 {
        self.rules
    }

    /// Returns the last number given to an epoch or a waiter. Every present lease and waiter has a
    /// number up to this one; since rules 2 every later one has a higher number.
    pub fn order(&self) -> u64 {
        self.epoch.max(self.next_waiter)
    }

    /// Iterates over all leases, in no particular order.
    pub fn leases(&self) -> impl Iterator<Item = LeaseView<'_>> {
        self.sessions
            .iter()
            .filter_map(|(number, session)| self.lease_view(number, session))
    }

    /// Returns an owner's lease in a namespace.
    pub fn lease(&self, namespace: &Namespace, owner: &OwnerId) -> Option<LeaseView<'_>> {
        let (_, session) = self.session_of(namespace, owner)?;
        self.lease_view(session, &self.sessions[session])
    }

    /// Returns the lease with this number, while it lives.
    pub fn numbered_lease(&self, number: LeaseNumber) -> Option<LeaseView<'_>> {
        let session = Id::new(number.0)?;
        self.lease_view(session, self.sessions.get(session)?)
    }

    /// Returns the lease for an unlogged renewal, or why it is lost (R90: Renew with domains).
    pub fn renewal(
        &self,
        namespace: &Namespace,
        owner: &OwnerId,
    ) -> Result<LeaseView<'_>, Missing> {
        // A lease without holds never exists, so `Missing::OwnerSet` is not possible.
        let (_, session) = self.session_of(namespace, owner).ok_or(Missing::Alive)?;
        let view = self.lease_view(session, &self.sessions[session]);
        let view = view.ok_or(Missing::Alive)?;
        match self.taken_from(session) {
            Some(missing) => Err(missing),
            None => Ok(view),
        }
    }

    /// Returns the lease time at which the next waiter times out.
    pub fn next_waiter_end(&self) -> Option<u64> {
        self.ends.first().map(|(end, _, _)| *end)
    }

    /// Returns whether there is a waiter or a lease longer than a minute (leases.md step 7).
    pub fn wants_ticks(&self) -> bool {
        self.long_leases > 0 || !self.ends.is_empty()
    }

    /// Returns the table version that a read of this path needs, if it was resolved by an outdated
    /// one (R25 policy rows are durable, R32 re-resolution after policy change).
    pub fn route_outdated(&self, route: &crate::command::Route, path: &Path) -> Option<u64> {
        self.outdated(route, core::iter::once(path))
    }

    /// Returns the state of one path (R141: InspectPath shows one path).
    pub fn inspect(&self, namespace: &Namespace, path: &Path, now: u64) -> Inspection {
        let Some(namespace) = self.namespaces.find(namespace) else {
            return Inspection::default();
        };
        let node = self.path_position(namespace, path).at;
        let mut found = Inspection {
            fence: self.stored_fence(namespace, path, node),
            ..Inspection::default()
        };
        let Some(node) = node else {
            return found;
        };
        let owner = |claim: Id<Claim>| self.sessions[self.claims[claim].session].owner.clone();
        for claim in self.claims_at(node, Mode::Write) {
            if self.claims[claim].is_permit() {
                found.permit_holders.push(owner(claim));
            } else {
                found.writer = Some(owner(claim));
            }
        }
        let readers: BTreeSet<OwnerId> = [Mode::Read, Mode::ReadTree]
            .into_iter()
            .flat_map(|mode| self.claims_at(node, mode))
            .map(owner)
            .collect();
        found.readers = readers.into_iter().collect();
        let waiters: BTreeSet<u64> = self
            .tree
            .extra(node)
            .into_iter()
            .flat_map(|extra| Mode::ALL.map(|mode| extra.line(mode)))
            .flat_map(PathQueue::iter)
            .filter(|(_, queued)| self.waiters[queued.waiter].end > now)
            .map(|(number, _)| number)
            .collect();
        found.waiters = waiters.len() as u64;
        found
    }

    /// Returns an owner's holds (R142: ListOwnerLocks lists live holds).
    pub fn owner_locks(&self, owner: &OwnerId, selection: &Selection) -> OwnerLocks {
        let mut found = OwnerLocks::default();
        for session in self.selected_sessions(owner, selection) {
            found.alive |= self.sessions[session].lease.is_some();
            let claims = self.session_claims(session);
            found
                .locks
                .extend(claims.map(|claim| self.held_lock(claim)));
        }
        found
    }

    /// Returns the next page of all holds, at most `page` of them (R143: DumpLocks pages through
    /// all holds).
    pub fn dump(&self, after: Option<DumpCursor>, page: usize) -> DumpPage {
        let start = after.map_or(0, |cursor| cursor.0);
        let mut found = DumpPage::default();
        let end = u64::from(self.claims.slots());
        let mut at = start;
        while at < end && found.locks.len() < page && at - start < u64::from(DUMP_LOOKS) {
            // The cast is lossless: `at` is below `end`, a 32-bit number.
            let claim = Id::new(at as u32).filter(|claim| self.claims.get(*claim).is_some());
            found.locks.extend(claim.map(|claim| self.held_lock(claim)));
            at += 1;
        }
        found.next = (at < end).then_some(DumpCursor(at));
        found
    }

    /// Returns the next page of all holds and waiters at or below a path, at most `page` of them.
    /// The remaining lease times are left to the leader.
    pub fn survey(
        &self,
        below: Option<&Path>,
        after: Option<DumpCursor>,
        page: usize,
        now: u64,
    ) -> SurveyPage {
        let is_below =
            |path: &Path| below.is_none_or(|below| path == below || below.is_ancestor_of(path));
        let since_entry = now.saturating_sub(self.time);
        let start = after.map_or(0, |cursor| cursor.0);
        let claims = u64::from(self.claims.slots());
        let end = SURVEY_WAITERS + u64::from(self.waiters.slots());
        let (mut holds, mut waiters) = (Vec::new(), Vec::new());
        let (mut at, mut looks) = (start, 0);
        let mut bytes = 0;
        while at < end
            && holds.len() + waiters.len() < page
            && looks < DUMP_LOOKS
            && bytes < SURVEY_BYTES
        {
            if (claims..SURVEY_WAITERS).contains(&at) {
                at = SURVEY_WAITERS;
                continue;
            }
            // The casts are lossless: slots are 32-bit numbers.
            if at < SURVEY_WAITERS {
                let claim = Id::new(at as u32).filter(|claim| self.claims.get(*claim).is_some());
                let hold = claim.map(|claim| self.hold_view(claim, since_entry));
                if let Some(hold) = hold.filter(|hold| is_below(&hold.lock.path)) {
                    bytes += size(&hold.lock.path, &hold.lock.owner, hold.holder.as_ref());
                    holds.push(hold);
                }
            } else {
                let waiter =
                    Id::new((at - SURVEY_WAITERS) as u32).and_then(|id| self.waiters.get(id));
                let waiter = waiter.filter(|waiter| waiter.end > now);
                if let Some(waiter) = waiter {
                    let wanted = new_requests(&waiter.request);
                    for request in wanted.filter(|request| is_below(&request.path)) {
                        let wanted = self.waiter_at(waiter, request, now);
                        bytes += size(&wanted.path, &wanted.owner, wanted.holder.as_ref());
                        waiters.push(wanted);
                    }
                }
            }
            at += 1;
            looks += 1;
        }
        SurveyPage {
            holds,
            waiters: Some(waiters),
            next: (at < end).then_some(DumpCursor(at)),
        }
    }

    fn hold_view(&self, claim: Id<Claim>, since_entry: u64) -> HoldView {
        let lock = self.held_lock(claim);
        let claim = &self.claims[claim];
        let session = &self.sessions[claim.session];
        let permits = match claim.is_permit() {
            true => self.capacity(session.namespace, &lock.path),
            false => None,
        };
        HoldView {
            held_ms: Some(self.time.saturating_sub(claim.since) + since_entry),
            left_ms: None,
            holder: session.holder().cloned(),
            permits,
            lock,
        }
    }

    fn waiter_at(&self, waiter: &Waiter, wanted: &Request, now: u64) -> WaiterView {
        WaiterView {
            waiter: waiter.number,
            owner: self.sessions[waiter.session].owner.clone(),
            path: wanted.path.clone(),
            mode: wanted.mode,
            waited_ms: now.saturating_sub(waiter.since),
            holder: waiter.request.holder.as_deref().cloned(),
        }
    }

    /// Checks whether an owner's fence on a path is in force (R73: AssertFencing checks owner and
    /// token).
    pub fn assert_fencing(
        &self,
        namespace: &Namespace,
        owner: &OwnerId,
        path: &Path,
        fence: Fence,
    ) -> FenceCheck {
        let claim = self
            .session_of(namespace, owner)
            .and_then(|(namespace, session)| {
                let node = self.path_position(namespace, path).at?;
                self.own_claim(session, node, Mode::Write)
            });
        match claim.and_then(|claim| self.claims[claim].fence()) {
            None => FenceCheck::StaleOwner,
            Some(current) if current == fence => FenceCheck::Valid,
            Some(current) => FenceCheck::StaleFence { current },
        }
    }

    /// Returns whether a reported conflict still exists (R109: IsBlocking checks a named conflict).
    pub fn is_blocking(
        &self,
        namespace: &Namespace,
        owner: &OwnerId,
        path: &Path,
        reason: BlockReason,
        now: u64,
    ) -> bool {
        let Some((namespace, session)) = self.session_of(namespace, owner) else {
            return false;
        };
        let Some(node) = self.path_position(namespace, path).at else {
            return false;
        };
        let holds = |mode: Mode| self.own_claim(session, node, mode);
        let permit = |claim: Id<Claim>| self.claims[claim].is_permit();
        match reason {
            BlockReason::ReadLocked | BlockReason::DescendantReadLocked => {
                holds(Mode::Read).is_some() || holds(Mode::ReadTree).is_some()
            }
            BlockReason::SemaphoreFull => holds(Mode::Write).is_some_and(permit),
            // A tree reader is reported as ANCESTOR_LOCKED, too (E6: shared lock on a subtree); a
            // permit as a write.
            BlockReason::AncestorLocked => {
                holds(Mode::Write).is_some() || holds(Mode::ReadTree).is_some()
            }
            BlockReason::WriteLocked | BlockReason::DescendantWriteLocked => {
                holds(Mode::Write).is_some()
            }
            BlockReason::Queued => {
                let waits = self
                    .live_waiter(&self.sessions[session], now)
                    .is_some_and(|waiter| waiter.parts.iter().any(|part| part.node == node));
                waits || Mode::ALL.iter().any(|mode| holds(*mode).is_some())
            }
        }
    }

    /// Returns whether an owner has a lease or a waiter in the selected namespaces (R118:
    /// IsOwnerAlive includes waiters).
    pub fn owner_alive(&self, owner: &OwnerId, selection: &Selection, now: u64) -> bool {
        self.selected_sessions(owner, selection)
            .into_iter()
            .any(|session| {
                let session = &self.sessions[session];
                session.lease.is_some() || self.live_waiter(session, now).is_some()
            })
    }

    /// Returns whether an owner has a session in this space. A cheap filter: most owners are in few
    /// spaces.
    pub fn has_owner(&self, owner: &OwnerId) -> bool {
        self.sessions.has_owner(owner)
    }

    /// Returns the namespaces in which an owner has a session, in byte order (R130: cost of
    /// owner-wide calls).
    pub fn owner_namespaces(&self, owner: &OwnerId) -> Vec<Namespace> {
        self.selected_sessions(owner, &Selection::All)
            .into_iter()
            .map(|session| {
                self.namespaces[self.sessions[session].namespace]
                    .name
                    .clone()
            })
            .collect()
    }

    /// Explains whether this acquire would succeed now, and what blocks it (E7: Explain a lock
    /// request). The number of permits of a semaphore is not checked.
    pub fn explain(
        &self,
        route: &Route,
        owner: &OwnerId,
        path: &Path,
        mode: Mode,
        now: u64,
    ) -> Explanation {
        let mut found = Explanation {
            namespace: route.namespace.clone(),
            algorithm: route.algorithm,
            conflict: None,
            blockers: Vec::new(),
            ahead: Vec::new(),
            position: 1,
        };
        let namespace = self.namespaces.find(&route.namespace);
        let permits = namespace
            .and_then(|namespace| self.capacity(namespace, path))
            .or(core::num::NonZeroU32::new(1));
        let Some(acquire) = probe(route, owner, path, mode, permits) else {
            return found;
        };
        // An unknown namespace is empty: only the algorithm can refuse.
        let Some(namespace) = namespace else {
            if !route.algorithm.allows(mode) {
                found.conflict = Some(Conflict {
                    reason: crate::policy::Reason::ReadLocksDisabled,
                    path: path.clone(),
                    blocker: None,
                });
            }
            return found;
        };
        let session = self.sessions.find(namespace, owner);
        let entry = session.and_then(|session| self.sessions[session].waiter);
        let entry = entry.map(|entry| &self.waiters[entry]);
        // A waiter whose time is over has no position any more, but does not block its owner.
        let pairs = entry.map(|entry| match entry.end > now {
            true => super::conflict::new_pairs(&entry.request),
            false => BTreeSet::new(),
        });
        let requester = Requester {
            namespace,
            session,
            place: match (entry, &pairs) {
                (Some(entry), Some(pairs)) => QueuePosition::Again(entry.number, pairs),
                _ => QueuePosition::End,
            },
            fence: None,
            stale: StaleFence::Conflict,
        };
        found.conflict = self.explain_conflict(requester, &acquire);
        // Blockers are described as of the last entry; add the time since then.
        let since_entry = now.saturating_sub(self.time);
        if let Some(blocker) = found
            .conflict
            .as_mut()
            .and_then(|conflict| conflict.blocker.as_mut())
        {
            blocker.held_ms += since_entry;
        }
        let _ = self.each_blocker(requester, &acquire, &mut |claim| {
            let mut blocker = self.blocker(claim);
            blocker.held_ms += since_entry;
            found.blockers.push(blocker);
            if found.blockers.len() < LISTED {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        found.position = self.position(requester, &acquire);
        found.ahead = self
            .ahead(requester, &acquire, LISTED)
            .into_iter()
            .map(|(_, waiter)| &self.waiters[waiter])
            .filter(|waiter| waiter.end > now)
            .filter_map(|waiter| self.waiter_view(waiter, &acquire, now))
            .collect();
        found
    }

    fn explain_conflict(&self, requester: Requester<'_>, acquire: &Acquire) -> Option<Conflict> {
        match self.evaluate(requester, acquire) {
            AcquireDecision::Free
            | AcquireDecision::FreeButStale
            | AcquireDecision::Lost { .. } => None,
            AcquireDecision::Incurable { path, reason } => Some(Conflict {
                reason,
                path,
                blocker: None,
            }),
            AcquireDecision::Behind(_) => self.conflict_behind(requester, acquire),
            AcquireDecision::Blocked {
                request,
                blocking_claim,
            } => {
                let path = &acquire.requests[request].path;
                Some(self.conflict(requester.session, path, blocking_claim))
            }
        }
    }

    /// Returns the wait-for edges of an owner's waiters (E5: refuse on deadlock).
    pub fn waits_for(&self, owner: &OwnerId, now: u64) -> Vec<WaitsFor> {
        let owners = core::slice::from_ref(owner);
        let edges = self.waits_of(owners, now, EdgeDetail::All, usize::MAX);
        edges.into_iter().map(|(_, waits)| waits).collect()
    }

    /// Returns the wait-for edges of several owners, and stops when it has so many.
    pub fn waits_of(
        &self,
        owners: &[OwnerId],
        now: u64,
        detail: EdgeDetail,
        most: usize,
    ) -> Vec<(OwnerId, WaitsFor)> {
        let sessions = owners
            .iter()
            .flat_map(|owner| self.sessions.of_owner(owner));
        let mut waiting: Vec<&Waiter> = sessions
            .filter_map(|session| self.live_waiter(&self.sessions[session], now))
            .collect();
        // The latest first: see `EdgeDetail::Reachable`.
        waiting.sort_by_key(|waiter| core::cmp::Reverse(waiter.number));
        let mut listed = BTreeSet::new();
        let mut found = Vec::new();
        let mut edges = 0;
        for waiter in waiting {
            if edges >= most {
                break;
            }
            if detail == EdgeDetail::All {
                listed.clear();
            }
            let blockers = self.blocking_owners(waiter, now, &mut listed);
            edges += blockers.len();
            let session = &self.sessions[waiter.session];
            let waits = WaitsFor {
                place: deadlock::WaitPosition {
                    namespace: self.namespaces[session.namespace].name.clone(),
                    waiter: waiter.number,
                },
                owners: blockers,
            };
            found.push((session.owner.clone(), waits));
        }
        found
    }

    /// Returns the owners that a waiter waits for, each once. Of a line in `listed` only the latest
    /// waiter ahead; other lines are added to `listed`.
    pub(super) fn blocking_owners(
        &self,
        waiter: &Waiter,
        now: u64,
        listed: &mut BTreeSet<(Id<PathNode>, u8)>,
    ) -> Vec<OwnerId> {
        let Some(id) = self.sessions[waiter.session].waiter else {
            return Vec::new();
        };
        let requester = self.waiter_requester(id);
        let mut owners: Vec<OwnerId> = Vec::new();
        let mut seen: BTreeSet<OwnerId> = BTreeSet::new();
        let mut visited = 0;
        let _ = self.each_blocker(requester, &waiter.request, &mut |claim| {
            visited += 1;
            let owner = &self.sessions[self.claims[claim].session].owner;
            if seen.insert(owner.clone()) {
                owners.push(owner.clone());
            }
            if owners.len() < LISTED && visited < VISITED {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        let mut ahead = BTreeSet::new();
        for request in new_requests(&waiter.request) {
            let want = self.want(requester, &waiter.request, request);
            if self.holds_enough(requester.session, want.path_position, want.access.mode) {
                continue;
            }
            let before = requester.before(request);
            for (at, line) in self.lines(want) {
                let most = if listed.insert(at.line()) { LISTED } else { 0 };
                // The latest one is always needed: without it a long line would be cut off.
                ahead.extend(before.latest(line));
                ahead.extend(before.all(line).take(most));
            }
        }
        for (_, ahead) in ahead.into_iter().take(LISTED) {
            let ahead = &self.waiters[ahead];
            let owner = &self.sessions[ahead.session].owner;
            if ahead.end > now && seen.insert(owner.clone()) {
                owners.push(owner.clone());
            }
        }
        owners
    }

    /// Returns the events after a sequence number.
    pub fn events_after(&self, sequence: u64) -> EventsAfter {
        self.events.after(sequence)
    }

    /// Returns the sequence number of the last event.
    pub fn last_event(&self) -> u64 {
        self.events.sequence
    }

    /// Returns the GRANT events that a new subscriber of this owner must still get (R122: events
    /// are always delivered), at most one per namespace. An unlogged renewal clears such a grant
    /// only in the leader's memory: the caller filters out those whose owner has renewed since
    /// (identified by namespace and `Event::id`).
    pub fn standing_grants(&self, owner: &OwnerId, now: u64) -> Vec<Event> {
        self.selected_sessions(owner, &Selection::All)
            .into_iter()
            .filter_map(|session| {
                let session = &self.sessions[session];
                let grant = session.grant().filter(|grant| grant.until > now)?;
                Some(Event {
                    sequence: grant.sequence,
                    id: grant.id,
                    owner: session.owner.clone(),
                    namespace: Some(self.namespaces[session.namespace].name.clone()),
                    kind: EventKind::Grant { fence: grant.fence },
                })
            })
            .collect()
    }

    /// Returns the present holds (as `Granted`, by number) and waiters (as `Queued`, in queue
    /// order) under a prefix (E8: Watch lock changes).
    pub fn watch_snapshot(&self, prefix: &Namespace, now: u64) -> Vec<LockChange> {
        let mut found = Vec::new();
        for (number, claim) in self.claims.iter() {
            let held = self.held_lock(number);
            if prefix.contains(&held.path) {
                let session = &self.sessions[claim.session];
                found.push(LockChange {
                    namespace: held.namespace,
                    kind: ChangeKind::Granted,
                    owner: Some(held.owner),
                    path: Some(held.path),
                    mode: Some(held.mode),
                    fence: held.fence,
                    holder: session.holder().cloned(),
                });
            }
        }
        let mut waiters: Vec<&Waiter> = self
            .waiters
            .iter()
            .map(|(_, waiter)| waiter)
            .filter(|waiter| waiter.end > now)
            .collect();
        waiters.sort_by_key(|waiter| waiter.number);
        for waiter in waiters {
            let session = &self.sessions[waiter.session];
            let wanted =
                new_requests(&waiter.request).filter(|wanted| prefix.contains(&wanted.path));
            found.extend(wanted.map(|wanted| LockChange {
                namespace: self.namespaces[session.namespace].name.clone(),
                kind: ChangeKind::Queued,
                owner: Some(session.owner.clone()),
                path: Some(wanted.path.clone()),
                mode: Some(wanted.mode),
                fence: waiter.fence.filter(|_| wanted.mode == Mode::Write),
                holder: waiter.request.holder.as_deref().cloned(),
            }));
        }
        found
    }

    /// Returns the highest fence minted here, without driven namespaces (R75: IncrFencingToken
    /// always grows).
    pub fn highest_minted(&self) -> Option<Fence> {
        Fence::from_number(self.minted)
    }

    /// Returns the sizes of the space.
    pub fn counts(&self) -> Counts {
        Counts {
            namespaces: u64::from(self.namespaces.len()),
            leases: u64::from(self.leases),
            claims: u64::from(self.claims.len()),
            waiters: u64::from(self.waiters.len()),
            marks: u64::from(self.marks.len()),
            answers: self.answers.len() as u64,
        }
    }

    /// Estimates the memory of the state, in bytes. The weights are measured averages: a held lock
    /// with a node and an owner of its own is about 300 bytes, a level of a waiting path 200.
    pub fn footprint(&self) -> u64 {
        let counts = self.counts();
        let nodes = u64::from(self.tree.nodes.len());
        counts.claims * 48
            + nodes * 112
            + counts.leases * 144
            + counts.waiters * 512
            + self.waiting_levels * 200
            + counts.namespaces * 320
            + counts.marks * 160
            + counts.answers * 128
    }

    fn lease_view<'a>(
        &'a self,
        number: Id<Session>,
        session: &'a Session,
    ) -> Option<LeaseView<'a>> {
        let lease = session.lease?;
        Some(LeaseView {
            number: LeaseNumber(number.number()),
            namespace: &self.namespaces[session.namespace].name,
            owner: &session.owner,
            ttl: lease.ttl,
            cover: lease.cover,
            epoch: lease.epoch,
            born: lease.born,
            asked_until: session.asked_until(),
        })
    }

    fn live_waiter(&self, session: &Session, now: u64) -> Option<&Waiter> {
        let waiter = &self.waiters[session.waiter?];
        (waiter.end > now).then_some(waiter)
    }

    fn held_lock(&self, claim: Id<Claim>) -> HeldLock {
        let claim = &self.claims[claim];
        let session = &self.sessions[claim.session];
        let namespace = &self.namespaces[session.namespace].name;
        HeldLock {
            owner: session.owner.clone(),
            path: self.tree.path(namespace, claim.node),
            namespace: namespace.clone(),
            mode: claim.mode(),
            fence: claim.fence(),
        }
    }

    fn waiter_view(&self, waiter: &Waiter, acquire: &Acquire, now: u64) -> Option<WaiterView> {
        let theirs = super::blockers::first_excluding(&waiter.request, acquire)?;
        Some(self.waiter_at(waiter, theirs, now))
    }
}

/// Builds an acquire of one path for evaluation only.
fn probe(
    route: &Route,
    owner: &OwnerId,
    path: &Path,
    mode: Mode,
    permits: Option<core::num::NonZeroU32>,
) -> Option<Box<Acquire>> {
    Some(Box::new(Acquire {
        route: route.clone(),
        owner: owner.clone(),
        ttl: Ttl::from_millis(1).ok()?,
        queue_ttl: QueueTtl::from_millis(1).ok()?,
        requests: vec![Request {
            path: path.clone(),
            mode,
            state: RequestKind::New,
            permits,
        }],
        releases: Vec::new(),
        fence: None,
        key: None,
        wait: WaitMode::No,
        holder: None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Command;
    use crate::policy::Algorithm;
    use crate::space::{HashSeed, SpaceLimits};
    use crate::value::Stamp;

    /// E7: the reported hold time uses the reader's time, because an idle group has no newer entry.
    #[test]
    fn time_goes_on_between_entries() {
        let path = Path::parse("t:/a").unwrap();
        let route = Route {
            namespace: Namespace::parse("t:/a").unwrap(),
            algorithm: Algorithm::RecursiveRw,
            version: 0,
        };
        let amy = OwnerId::new("amy").unwrap();
        let acquire = probe(&route, &amy, &path, Mode::Write, None).unwrap();
        let mut space = Space::new(SpaceLimits::default(), HashSeed::default());
        space.apply(
            Stamp {
                time: 1000,
                wall: 0,
            },
            Command::Acquire(*acquire),
        );
        let bob = OwnerId::new("bob").unwrap();
        let found = space.explain(&route, &bob, &path, Mode::Write, 6000);
        assert_eq!(found.blockers[0].held_ms, 5000);
        assert_eq!(found.conflict.unwrap().blocker.unwrap().held_ms, 5000);
    }
}
