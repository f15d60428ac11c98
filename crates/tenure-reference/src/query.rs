//! Queries of the model (R73 AssertFencing checks owner and token, R109 IsBlocking checks a named
//! conflict, R118 IsOwnerAlive includes waiters, R122 events are always delivered, R141–R143, E5
//! refuse on deadlock, E7 Explain a lock request, E8 Watch lock changes).

use core::num::NonZeroU32;
use std::vec;

use super::acquire::{ModelDecision, StaleFence};
use super::conflict::WantedAccess;
use super::{Model, Waiter, selects};
use tenure_core::command::{Acquire, Request, RequestKind, Route, Selection, WaitMode};
use tenure_core::deadlock::WaitPosition;
use tenure_core::event::{ChangeKind, Event, LockChange};
use tenure_core::outcome::LeaseNumber;
use tenure_core::path::{Namespace, Path};
use tenure_core::policy::{BlockReason, Mode};
use tenure_core::query::{
    Explanation, FenceCheck, HeldLock, Inspection, LeaseView, OwnerLocks, WaiterView, WaitsFor,
};
use tenure_core::value::{Fence, OwnerId, QueueTtl, Ttl};

impl Model {
    /// Returns the model as a reader at `now` sees it: without everything that has ended by then.
    #[must_use]
    pub fn at(&self, now: u64) -> Model {
        let mut seen = self.clone();
        seen.time = seen.time.max(now);
        seen.batch = None;
        seen.forget_what_has_ended();
        seen
    }

    /// Returns the rules number that it applies.
    pub fn rules(&self) -> u32 {
        self.rules
    }

    /// Returns the last number that was given to a lease or a waiter.
    pub fn order(&self) -> u64 {
        self.epochs.max(self.numbers)
    }

    /// Returns the present epoch of a lease.
    pub fn epoch(&self, namespace: &Namespace, owner: &OwnerId) -> Option<u64> {
        self.lease(namespace, owner).map(|lease| lease.epoch)
    }

    /// Returns the stored fence of a path.
    pub fn stored(&self, namespace: &Namespace, path: &Path) -> Option<Fence> {
        self.mark(namespace, path)
    }

    /// Returns the number of the owner's present or last waiter in a namespace.
    pub fn latest_waiter(&self, namespace: &Namespace, owner: &OwnerId) -> Option<u64> {
        self.latest
            .iter()
            .rev()
            .find(|(place, who, _)| place == namespace && who == owner)
            .map(|(.., number)| *number)
    }

    /// Returns all leases, in no particular order.
    pub fn leases(&self) -> impl Iterator<Item = LeaseView<'_>> {
        self.leases.iter().zip(0..).map(|(lease, at)| LeaseView {
            number: LeaseNumber(at),
            namespace: &lease.namespace,
            owner: &lease.owner,
            ttl: lease.ttl,
            cover: lease.cover,
            epoch: lease.epoch,
            born: lease.born,
            asked_until: lease.asked_until,
        })
    }

    /// Returns the namespace and the owner of a lease.
    pub fn lease_name(&self, number: LeaseNumber) -> Option<&(Namespace, OwnerId)> {
        self.lease_names.get(number.0 as usize)
    }

    /// R141 (InspectPath shows one path).
    pub fn inspect(&self, namespace: &Namespace, path: &Path) -> Inspection {
        let here = |claim: &&super::Claim| claim.namespace == *namespace && claim.path == *path;
        let owners = |wanted: &dyn Fn(&super::Claim) -> bool| {
            let claims = self
                .claims
                .iter()
                .filter(here)
                .filter(|claim| wanted(claim));
            let mut owners: Vec<OwnerId> = claims.map(|claim| claim.owner.clone()).collect();
            owners.sort();
            owners.dedup();
            owners
        };
        Inspection {
            writer: owners(&|claim| claim.mode == Mode::Write && !claim.is_permit()).pop(),
            readers: owners(&|claim| claim.mode != Mode::Write),
            permit_holders: owners(&super::Claim::is_permit),
            fence: self.mark(namespace, path),
            waiters: self
                .waiters
                .iter()
                .filter(|waiter| waiter.acquire.route.namespace == *namespace)
                .filter(|waiter| waiter.new_requests().any(|request| request.path == *path))
                .count() as u64,
        }
    }

    /// Returns every hold, in no particular order: R143 (DumpLocks pages through all holds).
    pub fn holds(&self) -> Vec<HeldLock> {
        let holds = self.claims.iter().map(|claim| HeldLock {
            owner: claim.owner.clone(),
            namespace: claim.namespace.clone(),
            path: claim.path.clone(),
            mode: claim.mode,
            fence: self.fence_of(claim),
        });
        holds.collect()
    }

    /// R142 (ListOwnerLocks lists live holds).
    pub fn owner_locks(&self, owner: &OwnerId, selection: &Selection) -> OwnerLocks {
        let mut locks = self.holds();
        locks.retain(|hold| hold.owner == *owner && selects(selection, &hold.namespace));
        let alive = self
            .leases
            .iter()
            .any(|lease| lease.owner == *owner && selects(selection, &lease.namespace));
        OwnerLocks { alive, locks }
    }

    /// R118 (IsOwnerAlive includes waiters).
    pub fn is_alive(&self, owner: &OwnerId, selection: &Selection) -> bool {
        self.owner_locks(owner, selection).alive
            || self.waiters.iter().any(|waiter| {
                waiter.acquire.owner == *owner
                    && selects(selection, &waiter.acquire.route.namespace)
            })
    }

    /// R73 (AssertFencing checks owner and token), for one path.
    pub fn check_fence(
        &self,
        namespace: &Namespace,
        owner: &OwnerId,
        path: &Path,
        fence: Fence,
    ) -> FenceCheck {
        let writer = self.claims.iter().find(|claim| {
            claim.namespace == *namespace
                && claim.owner == *owner
                && claim.path == *path
                && claim.mode == Mode::Write
                && !claim.is_permit()
        });
        match writer.and_then(|claim| self.fence_of(claim)) {
            None => FenceCheck::StaleOwner,
            Some(current) if current == fence => FenceCheck::Valid,
            Some(current) => FenceCheck::StaleFence { current },
        }
    }

    /// R109 (IsBlocking checks a named conflict).
    pub fn is_blocking(
        &self,
        namespace: &Namespace,
        owner: &OwnerId,
        path: &Path,
        reason: BlockReason,
    ) -> bool {
        let holds = |wanted: &dyn Fn(&super::Claim) -> bool| {
            self.claims.iter().any(|claim| {
                claim.namespace == *namespace
                    && claim.owner == *owner
                    && claim.path == *path
                    && wanted(claim)
            })
        };
        match reason {
            BlockReason::ReadLocked | BlockReason::DescendantReadLocked => {
                holds(&|claim| claim.mode != Mode::Write)
            }
            BlockReason::SemaphoreFull => holds(&super::Claim::is_permit),
            BlockReason::AncestorLocked => holds(&|claim| claim.mode != Mode::Read),
            BlockReason::WriteLocked | BlockReason::DescendantWriteLocked => {
                holds(&|claim| claim.mode == Mode::Write)
            }
            BlockReason::Queued => {
                holds(&|_| true)
                    || self.waiters.iter().any(|waiter| {
                        waiter.acquire.owner == *owner
                            && waiter.acquire.route.namespace == *namespace
                            && waiter.new_requests().any(|request| request.path == *path)
                    })
            }
        }
    }

    /// Returns for each waiter of an owner the owners that it waits for, holders and earlier
    /// waiters, each once: E5 (refuse on deadlock).
    pub fn waits_for(&self, owner: &OwnerId) -> Vec<WaitsFor> {
        let own = self
            .waiters
            .iter()
            .filter(|waiter| waiter.acquire.owner == *owner);
        own.map(|waiter| WaitsFor {
            place: WaitPosition {
                namespace: waiter.acquire.route.namespace.clone(),
                waiter: waiter.number,
            },
            owners: self.owners_in_the_way(waiter),
        })
        .collect()
    }

    fn owners_in_the_way(&self, waiter: &Waiter) -> Vec<OwnerId> {
        let acquire = &waiter.acquire;
        let mut owners: Vec<OwnerId> = self
            .waiters_ahead(acquire)
            .map(|(ahead, _)| ahead.acquire.owner.clone())
            .collect();
        for request in waiter.new_requests() {
            let want = WantedAccess::of(request, acquire.route.algorithm);
            let holders = self.holders_in_the_way(&acquire.route.namespace, &acquire.owner, want);
            owners.extend(holders.iter().map(|(_, claim)| claim.owner.clone()));
        }
        owners.sort();
        owners.dedup();
        owners
    }

    /// Returns what an acquire of one path would be answered, and everything that blocks it: E7
    /// (Explain a lock request).
    pub fn explain(&self, route: &Route, owner: &OwnerId, path: &Path, mode: Mode) -> Explanation {
        let namespace = &route.namespace;
        // The query names no permits: assume the right number.
        let permits = self.capacity(namespace, path).or(NonZeroU32::new(1));
        let acquire = Acquire {
            route: route.clone(),
            owner: owner.clone(),
            ttl: Ttl::from_millis(1).expect("one millisecond is a ttl"),
            queue_ttl: QueueTtl::from_millis(1).expect("one millisecond is a queue ttl"),
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
        };
        let conflict = match self.look(&acquire, None, StaleFence::Ignored) {
            ModelDecision::Never(conflict) | ModelDecision::Wait(conflict) => Some(conflict),
            ModelDecision::Free | ModelDecision::Lost(..) => None,
        };
        let want = WantedAccess::of(&acquire.requests[0], route.algorithm);
        let mut holders = self.holders_in_the_way(namespace, owner, want);
        // An owner that holds both kinds of reads on a path is named once.
        holders.dedup_by(|(_, later), (_, first)| {
            later.owner == first.owner
                && later.path == first.path
                && later.mode != Mode::Write
                && first.mode != Mode::Write
        });
        let ahead: Vec<WaiterView> = self
            .waiters_ahead(&acquire)
            .map(|(waiter, request)| WaiterView {
                waiter: waiter.number,
                owner: waiter.acquire.owner.clone(),
                path: request.path.clone(),
                mode: request.mode,
                waited_ms: self.time - waiter.since,
                holder: waiter.acquire.holder.as_deref().cloned(),
            })
            .collect();
        Explanation {
            namespace: namespace.clone(),
            algorithm: route.algorithm,
            conflict,
            blockers: holders
                .iter()
                .map(|(_, claim)| self.describe(claim))
                .collect(),
            position: 1 + ahead.len() as u32,
            ahead,
        }
    }

    /// Returns the present holds and waiters under a prefix, in no particular order: E8 (Watch lock
    /// changes).
    pub fn watch_snapshot(&self, prefix: &Namespace) -> Vec<LockChange> {
        let held = self.claims.iter().map(|claim| LockChange {
            namespace: claim.namespace.clone(),
            kind: ChangeKind::Granted,
            owner: Some(claim.owner.clone()),
            path: Some(claim.path.clone()),
            mode: Some(claim.mode),
            fence: self.fence_of(claim),
            holder: self.holder_of(&claim.namespace, &claim.owner),
        });
        let wanted = self.waiters.iter().flat_map(|waiter| {
            waiter.new_requests().map(|request| LockChange {
                namespace: waiter.acquire.route.namespace.clone(),
                kind: ChangeKind::Queued,
                owner: Some(waiter.acquire.owner.clone()),
                path: Some(request.path.clone()),
                mode: Some(request.mode),
                fence: waiter.fence.filter(|_| request.mode == Mode::Write),
                holder: waiter.acquire.holder.as_deref().cloned(),
            })
        });
        let mut all: Vec<LockChange> = held.chain(wanted).collect();
        all.retain(|change| {
            change
                .path
                .as_ref()
                .is_some_and(|path| prefix.contains(path))
        });
        all
    }

    /// Returns the grants that a new subscriber gets as events, with their fences: R122 (events are
    /// always delivered).
    pub fn standing_grants(&self, owner: &OwnerId) -> Vec<(Namespace, Option<Fence>)> {
        let leases = self.leases.iter().filter(|lease| lease.owner == *owner);
        let mut grants: Vec<(Namespace, Option<Fence>)> = leases
            .filter_map(|lease| {
                let (_, fence, until) = lease.unclaimed?;
                (until > self.time).then(|| (lease.namespace.clone(), fence))
            })
            .collect();
        grants.sort();
        grants
    }

    /// Returns the kept events after a sequence number (R122).
    pub fn events_after(&self, sequence: u64) -> Vec<Event> {
        self.kept
            .iter()
            .map(|(_, event)| event.clone())
            .filter(|event| event.sequence > sequence)
            .collect()
    }
}
