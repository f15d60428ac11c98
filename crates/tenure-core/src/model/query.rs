//! What can be read from the twin (R73, R109, R118, R122, R141–R143, E5, E7).

use alloc::vec::Vec;

use super::rules::{self, Want};
use super::{KEPT_MS, Model, Waiter, selects};
use crate::command::{Acquire, Route, Selection, State};
use crate::event::Event;
use crate::path::{Namespace, Path};
use crate::policy::{BlockReason, Mode};
use crate::query::{FenceCheck, HeldLock, Inspection, LeaseView, OwnerLocks, WaitsFor};
use crate::value::{Fence, OwnerId};

impl Model {
    /// The twin as it is for a reader at `now`: what has ended by then is not there.
    #[must_use]
    pub fn at(&self, now: u64) -> Model {
        let mut seen = self.clone();
        seen.time = seen.time.max(now);
        seen.forget_what_has_ended();
        seen
    }

    /// The present epoch of a lease.
    pub fn epoch(&self, namespace: &Namespace, owner: &OwnerId) -> Option<u64> {
        self.lease(namespace, owner).map(|lease| lease.epoch)
    }

    /// The stored fence of a path.
    pub fn stored(&self, namespace: &Namespace, path: &Path) -> Option<Fence> {
        self.mark(namespace, path)
    }

    /// The number of the waiter that the owner has in a namespace, or had last.
    pub fn latest_waiter(&self, namespace: &Namespace, owner: &OwnerId) -> Option<u64> {
        self.latest
            .iter()
            .rev()
            .find(|(place, who, _)| place == namespace && who == owner)
            .map(|(.., number)| *number)
    }

    /// All leases, in no order.
    pub fn leases(&self) -> impl Iterator<Item = LeaseView<'_>> {
        self.leases.iter().map(|lease| LeaseView {
            namespace: &lease.namespace,
            owner: &lease.owner,
            ttl: lease.ttl,
            cover: lease.cover,
            epoch: lease.epoch,
            born: lease.born,
            asked: lease.asked_until > self.time,
        })
    }

    /// R141.
    pub fn inspect(&self, namespace: &Namespace, path: &Path) -> Inspection {
        let here = |claim: &&super::Claim| claim.namespace == *namespace && claim.path == *path;
        let owners = |wanted: &dyn Fn(&super::Claim) -> bool| {
            let claims = self.claims.iter().filter(here).filter(|claim| wanted(claim));
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

    /// Every hold (R143), in no order.
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

    /// R142.
    pub fn owner_locks(&self, owner: &OwnerId, selection: &Selection) -> OwnerLocks {
        let mut locks = self.holds();
        locks.retain(|hold| hold.owner == *owner && selects(selection, &hold.namespace));
        let alive = self
            .leases
            .iter()
            .any(|lease| lease.owner == *owner && selects(selection, &lease.namespace));
        OwnerLocks { alive, locks }
    }

    /// R118.
    pub fn is_alive(&self, owner: &OwnerId, selection: &Selection) -> bool {
        self.owner_locks(owner, selection).alive
            || self.waiters.iter().any(|waiter| {
                waiter.acquire.owner == *owner
                    && selects(selection, &waiter.acquire.route.namespace)
            })
    }

    /// R73, for one path.
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

    /// R109.
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

    /// E5: whom each waiter of an owner waits for, holders and earlier waiters, each once.
    pub fn waits_for(&self, owner: &OwnerId) -> Vec<WaitsFor> {
        let own = self.waiters.iter().filter(|waiter| waiter.acquire.owner == *owner);
        own.map(|waiter| WaitsFor {
            namespace: waiter.acquire.route.namespace.clone(),
            waiter: waiter.number,
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
            let want = Want::of(request, acquire.route.algorithm);
            let holders = self.holders_in_the_way(&acquire.route.namespace, &acquire.owner, want);
            owners.extend(holders.iter().map(|(_, claim)| claim.owner.clone()));
        }
        owners.sort();
        owners.dedup();
        owners
    }

    /// The events that are kept and follow a sequence number (R122).
    pub fn events_after(&self, sequence: u64) -> Vec<Event> {
        self.kept
            .iter()
            .map(|(_, event)| event.clone())
            .filter(|event| event.sequence > sequence)
            .collect()
    }
}
