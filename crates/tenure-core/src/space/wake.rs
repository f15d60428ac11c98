//! Wake-up pass: re-checks the affected waiters after every change that may let one proceed
//! (R87–R89).
//!
//! Waiters are re-checked in the order of their numbers. A grant may free more waiters, also
//! earlier ones, which are then re-checked next. The effect equals a walk over the whole queue from
//! its front after every grant, without the cost: a waiter that is not re-checked still has its
//! blocker.
//!
//! Since rules 2 a command grants a limited number of waiters, so that a change that frees very many
//! does not keep everything else waiting. The others stay pending, in the queue, and later requests
//! do not overtake them. The following commands grant them; the leader adds ticks for that.

use alloc::vec::Vec;
use core::ops::ControlFlow;

use super::Space;
use super::acquire::new_and_released;
use super::conflict::{AcquireDecision, new_requests};
use super::queue::Waiter;
use super::sessions::{Session, StandingGrant};
use crate::command::WaitMode;
use crate::event::{ChangeKind, EventKind, LockChange};
use crate::event_log::KEPT_MS;
use crate::history::Noted;
use crate::policy::Mode;
use crate::slab::Id;
use crate::value::{Fence, OwnerId};

/// How long a release request stays marked on a lease (R116: revoke marker).
pub(super) const ASKED_MS: u64 = 300_000;

/// Maximum number of owners asked per check (E2: ask blockers to release).
const ASKED_AT_ONCE: usize = 64;

/// Maximum number of blocking claims that a check visits to find these owners.
const VISITED_FOR_ASKING: usize = 1024;

impl Space {
    /// Re-checks all pending waiters, smallest number first, until none is pending or the command
    /// has granted enough.
    pub(super) fn wake_waiters(&mut self) {
        while let Some((number, id)) = self.pending.pop_first() {
            let there = self.waiters.get(id);
            // The slot may have been freed, or reused by another waiter.
            if there.is_some_and(|waiter| waiter.number == number) && self.look_at(id).is_break() {
                self.pending.insert((number, id));
                return;
            }
        }
    }

    /// Returns whether waiters are to be granted, or to be removed, by the next command.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Re-checks a waiter: grants it, gives it up, or parks it on its present blocker. Breaks if the
    /// command has granted enough.
    fn look_at(&mut self, id: Id<Waiter>) -> ControlFlow<()> {
        let link = self.waiters[id].link;
        self.links.leave(link);
        if self.park(id) {
            return ControlFlow::Continue(());
        }
        let requester = self.waiter_requester(id);
        let decision = self.evaluate(requester, &self.waiters[id].request);
        let stays = matches!(
            decision,
            AcquireDecision::Behind(_) | AcquireDecision::Blocked { .. }
        );
        if !stays && self.rules >= 2 {
            if self.woken >= self.limits.batch {
                return ControlFlow::Break(());
            }
            self.woken += 1;
            // Its time is over, but other waiters were removed before it: it must not be granted.
            if self.waiters[id].end <= self.time {
                let session = self.waiters[id].session;
                self.leave(id);
                self.settle_session(session);
                return ControlFlow::Continue(());
            }
        }
        match decision {
            AcquireDecision::Free => self.grant_waiter(id, self.waiters[id].fence),
            AcquireDecision::FreeButStale => match self.newer_fence(id) {
                Some(fence) => self.grant_waiter(id, Some(fence)),
                None => self.give_up(id),
            },
            AcquireDecision::Lost { .. } | AcquireDecision::Incurable { .. } => self.give_up(id),
            AcquireDecision::Behind(ahead) => self.park_on_waiter(id, ahead),
            AcquireDecision::Blocked { blocking_claim, .. } => {
                self.ask_blockers(id);
                self.park_on_claim(id, blocking_claim);
            }
        }
        ControlFlow::Continue(())
    }

    /// Parks a waiter that was just queued.
    pub(super) fn park_on(&mut self, id: Id<Waiter>) {
        let requester = self.waiter_requester(id);
        match self.evaluate(requester, &self.waiters[id].request) {
            AcquireDecision::Behind(ahead) => self.park_on_waiter(id, ahead),
            AcquireDecision::Blocked { blocking_claim, .. } => {
                self.park_on_claim(id, blocking_claim)
            }
            // The first check was made from the end of the queue. From its own, earlier position it
            // may be free, so it is re-checked before the command ends.
            AcquireDecision::Free
            | AcquireDecision::FreeButStale
            | AcquireDecision::Lost { .. }
            | AcquireDecision::Incurable { .. } => self.mark_pending(Some(id)),
        }
    }

    fn grant_waiter(&mut self, id: Id<Waiter>, fence: Option<Fence>) {
        let Some(waiter) = self.take_waiter(id) else {
            return;
        };
        let session = waiter.session;
        for key in &waiter.answers {
            self.answers.granted(key, fence);
        }
        let begins = self.sessions[session].lease.is_none();
        self.grant(session, &waiter.request, fence, &waiter.parts);
        if self.sessions[session].taken().is_some() {
            // The owner holds these paths again and learns the fence from the GRANT event.
            let (new, released) = new_and_released(&waiter.request);
            for hold in new.iter().chain(&released) {
                self.sessions[session].forget_taken(&hold.path, hold.mode);
            }
        }
        // A lease that starts with a grant is as old as its waiter. So a ReleaseAll up to a number
        // in the order also ends the leases of waiters that were queued before it and granted
        // since.
        if begins
            && self.rules >= 2
            && waiter.number > self.order_from
            && let Some(lease) = &mut self.sessions[session].lease
        {
            lease.born = waiter.number;
        }
        self.leave_paths(&waiter);
        let event = self.tell(session, EventKind::Grant { fence });
        let there = &mut self.sessions[session];
        if there.lease.is_some() {
            let standing = StandingGrant {
                waiter: waiter.number,
                sequence: event.0,
                id: event.1,
                fence,
                until: self.time.saturating_add(KEPT_MS),
            };
            there.set_grant(Some(standing));
        }
        self.settle_session(session);
    }

    /// Removes a waiter that can never be granted and sends KILLED (R88: sweep order and
    /// reservation).
    fn give_up(&mut self, id: Id<Waiter>) {
        let session = self.waiters[id].session;
        self.tell(session, EventKind::Killed);
        self.leave(id);
        self.settle_session(session);
    }

    /// Mints a new fence for a waiter whose reserved one has become stale (R88).
    fn newer_fence(&mut self, id: Id<Waiter>) -> Option<Fence> {
        let waiter = &self.waiters[id];
        let namespace = self.sessions[waiter.session].namespace;
        let writes: Vec<_> = waiter
            .request
            .requests
            .iter()
            .filter(|request| request.mode == Mode::Write)
            .map(|request| request.path.clone())
            .collect();
        if waiter.request.fence.is_none() {
            return self.mint(namespace, writes.iter());
        }
        let highest = writes.iter().map(|path| {
            let node = self.path_position(namespace, path).at;
            let stored = self.stored_fence(namespace, path, node);
            let floor = self.fence_floor(namespace, path);
            stored.map_or(0, Fence::number).max(floor)
        });
        Fence::from_number(highest.max()? + 1)
    }

    /// Asks the owners of the claims that block a waiter to release, each once (E2).
    pub(super) fn ask_blockers(&mut self, id: Id<Waiter>) {
        if self.waiters[id].request.wait != WaitMode::QueueAndAsk {
            return;
        }
        let mut sessions: Vec<Id<Session>> = Vec::new();
        let waiter = &self.waiters[id];
        let mut visited = 0;
        // One owner may have very many of these claims.
        let most = match self.rules {
            0..2 => usize::MAX,
            _ => VISITED_FOR_ASKING,
        };
        let _ = self.each_blocker(self.waiter_requester(id), &waiter.request, &mut |claim| {
            visited += 1;
            let session = self.claims[claim].session;
            let known = waiter.asked.contains(&self.sessions[session].owner);
            if !known && !sessions.contains(&session) {
                sessions.push(session);
            }
            if sessions.len() < ASKED_AT_ONCE && visited < most {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        for session in sessions {
            let owner = self.sessions[session].owner.clone();
            self.waiters[id].asked.insert(owner);
            self.mark_asked(session);
            self.tell(session, EventKind::Revoke);
        }
    }

    /// Marks a lease with a release request (R116).
    pub(super) fn mark_asked(&mut self, session: Id<Session>) {
        let until = self.time.saturating_add(ASKED_MS);
        let there = &mut self.sessions[session];
        if there.lease.is_some() {
            there.set_asked_until(until);
        }
        let there = &self.sessions[session];
        if self.history.is_kept() {
            let noted = Noted {
                kind: ChangeKind::Asked,
                path: self.namespaces[there.namespace].name.as_str(),
                owner: Some(&there.owner),
                mode: None,
                fence: None,
                holder: None,
            };
            self.history.note(self.wall, &noted);
        }
        if self.watching {
            let change = LockChange {
                namespace: self.namespaces[there.namespace].name.clone(),
                kind: ChangeKind::Asked,
                owner: Some(there.owner.clone()),
                path: None,
                mode: None,
                fence: None,
                holder: there.holder().cloned(),
            };
            self.out.changes.push(change);
        }
    }

    /// Creates an event for a session's owner; returns its sequence number and id.
    pub(super) fn tell(&mut self, session: Id<Session>, kind: EventKind) -> (u64, u64) {
        let there = &self.sessions[session];
        let owner = there.owner.clone();
        let namespace = self.namespaces[there.namespace].name.clone();
        self.tell_owner(owner, Some(namespace), kind)
    }

    pub(super) fn tell_owner(
        &mut self,
        owner: OwnerId,
        namespace: Option<crate::path::Namespace>,
        kind: EventKind,
    ) -> (u64, u64) {
        let event = self
            .events
            .push(self.time, self.wall, owner, namespace, kind);
        let numbers = (event.sequence, event.id);
        self.out.events.push(event);
        numbers
    }

    /// Returns whether a waiter wants this path in this mode as NEW (R99: Release cancels a pending
    /// entry).
    pub(super) fn waits_for_hold(&self, id: Id<Waiter>, hold: &crate::command::Hold) -> bool {
        self.waiters.get(id).is_some_and(|waiter| {
            new_requests(&waiter.request)
                .any(|request| request.mode == hold.mode && request.path == hold.path)
        })
    }
}
