//! Endings of holds and waiters: Release, ReleaseAll, Expire, Break, Withdraw. Also renewals and
//! release requests, which end nothing.

use alloc::vec::Vec;

use super::idempotency::{KeyName, KeyedCall, ScopedKey, release_fingerprint};
use super::namespaces::NamespaceState;
use super::sessions::Session;
use super::usage::Tally;
use super::{Claim, ClaimEnd, Space};
use crate::command::{
    AskRelease, BreakLock, Domain, Expire, Hold, Release, ReleaseAll, ReleaseCause, RenewLease,
    Selection, Whole, Withdraw,
};
use crate::event::EventKind;
use crate::idempotency::KeyLookup;
use crate::lease::SHORT_LEASE_MS;
use crate::outcome::{BreakOutcome, LeaseChange, LeaseNumber, Refusal, Renewed, Withdrawn};
use crate::path::{Namespace, Path};
use crate::policy::{Missing, Mode};
use crate::slab::Id;
use crate::value::{Key, OwnerId};

impl Space {
    /// Releases holds (R97: Release drops listed holds) and cancels a queued acquire (R99: Release
    /// cancels a pending entry).
    pub(super) fn release(&mut self, mut release: Release) -> Result<(), Refusal> {
        let paths = release.holds.iter().map(|hold| &hold.path);
        let outdated = self.outdated(&release.route, paths);
        if let (Some(version), true) = (outdated, release.key.is_none() || self.rules < 2) {
            return Err(Refusal::Outdated { version });
        }
        if let Some(key) = &release.key {
            let fingerprint = release_fingerprint(&release);
            let key = ScopedKey {
                call: KeyedCall::Release,
                key: KeyName::new(key, self.rules),
                namespace: release.route.namespace.clone(),
            };
            let whole = release.whole.filter(|_| self.rules >= 2);
            let said = self.answers.look(&key, fingerprint, self.time);
            if let KeyLookup::Answered(_) = said {
                // The key stands for the whole request. Another part of it may have been applied
                // here before; the holds that it did not release are released now.
                if whole.is_some() {
                    self.answers.drop_released(&key, &mut release.holds);
                } else {
                    release.holds.clear();
                }
                // Everything was released under the key before. That stays true even if the paths
                // have moved to another namespace since, so the route is not checked.
                if release.holds.is_empty() {
                    return Ok(());
                }
            }
            if let Some(version) = outdated {
                return Err(Refusal::Outdated { version });
            }
            match said {
                KeyLookup::New | KeyLookup::Answered(_) => {}
                KeyLookup::Reused => return Err(Refusal::KeyReused),
                KeyLookup::Full => return Err(Refusal::AnswersFull),
            }
            if let Some(change) = self.may_be_held_elsewhere(&release) {
                self.cancel_waiter(&release);
                return Err(Refusal::Frozen { change });
            }
            if let Some(whole) = whole
                && let Some(version) = self.may_be_known_elsewhere(&release.holds, whole)
            {
                return Err(Refusal::Moved { version });
            }
            let holds = whole.map_or(&[][..], |_| &release.holds);
            self.answers
                .remember_release(key, fingerprint, holds, self.time);
        } else if let Some(change) = self.may_be_held_elsewhere(&release) {
            self.cancel_waiter(&release);
            return Err(Refusal::Frozen { change });
        }
        let Some((namespace, session)) = self.session_of(&release.route.namespace, &release.owner)
        else {
            return Ok(());
        };
        // The owner has called, so its last GRANT need not be sent again (R122: events are always
        // delivered).
        self.sessions[session].set_grant(None);
        for hold in release.holds {
            self.sessions[session].forget_taken(&hold.path, hold.mode);
            if let Some(waiter) = self.sessions[session].waiter
                && self.waits_for_hold(waiter, &hold)
            {
                self.leave(waiter);
            }
            self.release_hold(session, hold, ClaimEnd::Released);
        }
        self.settle_session(session);
        self.wake_waiters();
        self.settle_namespace(namespace);
        Ok(())
    }

    /// Returns the change that freezes a path which the owner does not hold here.
    ///
    /// The change may already be applied in the new namespace of that path, and the owner may hold
    /// it there. An OK from here would then leave that hold until its lease ends. The caller
    /// repeats the release when the change is finished, by the table that is valid then.
    fn may_be_held_elsewhere(&self, release: &Release) -> Option<u64> {
        if self.rules < 2 || self.routes.frozen.is_empty() {
            return None;
        }
        let session = self.session_of(&release.route.namespace, &release.owner);
        let unknown =
            |hold: &&Hold| session.is_none_or(|(_, session)| !self.holds_or_lost(session, hold));
        self.frozen(release.holds.iter().filter(unknown).map(|hold| &hold.path))
    }

    /// Cancels the owner's waiter if it waits for one of these holds (R99). A frozen waiter is not
    /// granted before the change ends, but the owner may not repeat its release until then.
    fn cancel_waiter(&mut self, release: &Release) {
        let Some((namespace, session)) = self.session_of(&release.route.namespace, &release.owner)
        else {
            return;
        };
        let waits = |waiter: &_| {
            let mut holds = release.holds.iter();
            holds.any(|hold| self.waits_for_hold(*waiter, hold))
        };
        if let Some(waiter) = self.sessions[session].waiter.filter(waits) {
            self.leave(waiter);
            self.settle_session(session);
            self.wake_waiters();
            self.settle_namespace(namespace);
        }
    }

    /// Returns whether the owner holds this, or lost it to a break or a policy change and has not
    /// named it since.
    fn holds_or_lost(&self, session: Id<Session>, hold: &Hold) -> bool {
        let there = &self.sessions[session];
        let claim = self
            .path_position(there.namespace, &hold.path)
            .at
            .and_then(|node| self.own_claim(session, node, hold.mode));
        let lost = there.taken();
        claim.is_some()
            || lost.is_some_and(|lost| lost.contains_key(&(hold.path.clone(), hold.mode)))
    }

    /// Returns the version of a route change if one of these holds may have been released under the
    /// key in its former namespace, and the namespaces were not queried since that change.
    fn may_be_known_elsewhere(&self, holds: &[Hold], whole: Whole) -> Option<u64> {
        let moved = |hold: &Hold| self.routes.moved_by(&hold.path, self.time);
        let latest = holds.iter().filter_map(moved).max();
        latest.filter(|version| whole.asked.is_none_or(|asked| asked < *version))
    }

    /// Returns whether this hold was released under this key in any namespace of this space, for
    /// the same whole request. The result is not valid for a frozen path: see
    /// [`Space::holds_back`].
    pub fn was_released(&self, key: &Key, fingerprint: u128, hold: &Hold, now: u64) -> bool {
        let time = now.max(self.time);
        let key = KeyName::new(key, self.rules);
        self.answers.was_released(&key, fingerprint, hold, time)
    }

    /// Ends an owner's leases and waiters (R100 ReleaseAll drops everything, R101 ForceRelease
    /// always notifies the victim). Returns how many there were.
    pub(super) fn release_all(&mut self, release: ReleaseAll) -> u64 {
        let ending = match release.cause {
            ReleaseCause::Owner => ClaimEnd::Released,
            ReleaseCause::Killed => ClaimEnd::Killed,
        };
        let until = release.until.unwrap_or(ReleaseAll::EVERYTHING);
        let mut met = 0;
        let mut namespaces = Vec::new();
        for session in self.selected_sessions(&release.owner, &release.selection) {
            let there = &self.sessions[session];
            let leaves = there
                .waiter
                .filter(|waiter| self.waiters[*waiter].number <= until);
            let ends = there.lease.is_some_and(|lease| lease.born <= until);
            if leaves.is_none() && !ends {
                continue;
            }
            met += 1;
            namespaces.push(there.namespace);
            if let Some(waiter) = leaves {
                self.leave(waiter);
            }
            if ends {
                self.drop_claims(session, ending);
            }
            self.settle_session(session);
        }
        self.wake_waiters();
        for namespace in namespaces {
            self.settle_namespace(namespace);
        }
        met
    }

    /// Expires a lease, unless it was renewed since (leases.md step 3). Returns whether it ended.
    pub(super) fn expire(&mut self, expire: &Expire) -> bool {
        let Some((namespace, session)) = self.session_of(&expire.namespace, &expire.owner) else {
            return false;
        };
        let lease = self.sessions[session].lease;
        if lease.is_none_or(|lease| lease.epoch != expire.epoch) {
            return false;
        }
        self.drop_claims(session, ClaimEnd::Expired);
        // By its own clock the owner has considered this lease expired for some time, so it need
        // not learn of holds that it lost before.
        self.sessions[session].forget_all_taken();
        self.settle_session(session);
        self.wake_waiters();
        self.settle_namespace(namespace);
        true
    }

    /// Applies a logged renewal (R90 Renew with domains, R92 Renew never revives).
    pub(super) fn renew(&mut self, renew: &RenewLease) -> Result<Renewed, Missing> {
        let (_, session) = self
            .session_of(&renew.namespace, &renew.owner)
            .ok_or(Missing::Alive)?;
        let lease = self.sessions[session].lease.ok_or(Missing::Alive)?;
        if let Some(missing) = self.taken_from(session) {
            return Err(missing);
        }
        self.renew_lease(session, lease, renew.ttl);
        let there = &mut self.sessions[session];
        there.set_grant(None);
        let lease = there.lease.ok_or(Missing::Alive)?;
        Ok(Renewed {
            asked: there.asked_until() > self.time,
            born: lease.born,
        })
    }

    /// Marks an owner's leases with a release request (R116: revoke marker). Returns how many it
    /// marked.
    pub(super) fn ask(&mut self, ask: &AskRelease) -> u64 {
        let mut marked = 0;
        for session in self.selected_sessions(&ask.owner, &Selection::All) {
            if self.sessions[session].lease.is_some() {
                self.mark_asked(session);
                marked += 1;
            }
        }
        marked
    }

    /// Ends one hold by force (E9: Break one hold).
    pub(super) fn break_hold(&mut self, hold: BreakLock) -> BreakOutcome {
        if let Some(version) = self.outdated(&hold.route, core::iter::once(&hold.path)) {
            return BreakOutcome::Refused(Refusal::Outdated { version });
        }
        let Some(namespace) = self.namespaces.find(&hold.route.namespace) else {
            return BreakOutcome::NotThatHold(None);
        };
        let node = self.path_position(namespace, &hold.path).at;
        let session = self.sessions.find(namespace, &hold.owner);
        let named = session.zip(node).and_then(|(session, node)| {
            Mode::ALL
                .iter()
                .filter_map(|mode| self.own_claim(session, node, *mode))
                .find(|claim| self.claims[*claim].fence() == hold.fence)
        });
        let (Some(claim), Some(session)) = (named, session) else {
            let present = self.present_holder(node);
            return BreakOutcome::NotThatHold(present.map(|claim| self.blocker(claim)));
        };
        self.take_away(claim, hold.path);
        self.tell(session, EventKind::Killed);
        self.settle_session(session);
        self.wake_waiters();
        self.settle_namespace(namespace);
        BreakOutcome::Broken
    }

    /// Cancels a queued acquire (E5: refuse on deadlock).
    pub(super) fn withdraw(&mut self, withdraw: &Withdraw) -> Withdrawn {
        let Some((namespace, session)) = self.session_of(&withdraw.namespace, &withdraw.owner)
        else {
            return Withdrawn::Gone;
        };
        if let Some(id) = self.sessions[session].waiter
            && self.waiters[id].number == withdraw.waiter
        {
            self.leave(id);
            self.settle_session(session);
            self.wake_waiters();
            self.settle_namespace(namespace);
            return Withdrawn::Withdrawn;
        }
        match self.sessions[session].grant() {
            Some(grant) if grant.waiter == withdraw.waiter => {
                Withdrawn::Granted { fence: grant.fence }
            }
            _ => Withdrawn::Gone,
        }
    }

    /// Ends a hold against its owner's will and remembers it for later renewals.
    ///
    /// A lease stands for all holds of an owner in a namespace, so a renewal that returns OK
    /// confirms all of them. A KILLED event reaches only the streams that are open at that moment.
    /// Therefore renewals return LOST from now on, until the owner names this hold in a release or
    /// in a new acquire: by then it knows the state of the path or gets it as the result. Naming
    /// other paths does not count: an owner that missed the event continues with those and repeats
    /// its queued acquire. A keyed repeat does not count either: its result is a remembered one
    /// (R105: replays report present truth).
    pub(super) fn take_away(&mut self, claim: Id<Claim>, path: Path) {
        let Some(there) = self.claims.get(claim) else {
            return;
        };
        let (session, mode) = (there.session, there.mode());
        let missing = match mode {
            _ if there.is_permit() => Missing::Semaphore,
            Mode::Write => Missing::Write,
            Mode::Read | Mode::ReadTree => Missing::Read,
        };
        // Release 0.1.0 returns OK, and its replicas must agree with ours.
        if self.rules >= 2 {
            self.sessions[session].note_taken(path.clone(), mode, missing);
        }
        self.remove_claim(claim, Some(path), ClaimEnd::Killed);
    }

    /// Returns what a renewal reports about holds ended by force; `None` if there are none.
    pub(super) fn taken_from(&self, session: Id<Session>) -> Option<Missing> {
        let taken = self.sessions[session].taken()?;
        taken.values().next().copied()
    }

    /// Removes all claims of a session.
    pub(super) fn drop_claims(&mut self, session: Id<Session>, ending: ClaimEnd) {
        while let Some(claim) = self.sessions[session].first_claim {
            self.remove_claim(claim, None, ending);
        }
    }

    /// Ends the lease of a session without claims, and removes the session if it is empty.
    pub(super) fn settle_session(&mut self, session: Id<Session>) {
        let there = &mut self.sessions[session];
        if there.claims > 0 {
            return;
        }
        if let Some(lease) = there.end_lease() {
            self.leases -= 1;
            self.long_leases -= u32::from(lease.ttl.millis() > SHORT_LEASE_MS);
            let lease = LeaseNumber(session.number());
            self.out.lease(LeaseChange::Ended { lease });
        }
        if there.waiter.is_none() {
            let namespace = there.namespace;
            self.use_less(session, Tally::OWNER);
            self.sessions.remove(session);
            self.namespaces[namespace].sessions -= 1;
            self.settle_namespace(namespace);
        }
    }

    /// Creates a session, which must not exist yet.
    pub(super) fn open_session(
        &mut self,
        namespace: Id<NamespaceState>,
        owner: &OwnerId,
    ) -> Id<Session> {
        self.namespaces[namespace].sessions += 1;
        self.namespaces.settle(namespace);
        let session = self.sessions.create(namespace, owner);
        self.use_more(session, Tally::OWNER);
        session
    }

    /// Finds a namespace by name, and an owner's session in it.
    pub(super) fn session_of(
        &self,
        namespace: &Namespace,
        owner: &OwnerId,
    ) -> Option<(Id<NamespaceState>, Id<Session>)> {
        let namespace = self.namespaces.find(namespace)?;
        Some((namespace, self.sessions.find(namespace, owner)?))
    }

    /// Returns an owner's sessions in the selected namespaces, sorted by namespace name.
    pub(super) fn selected_sessions(
        &self,
        owner: &OwnerId,
        selection: &Selection,
    ) -> Vec<Id<Session>> {
        let name = |session: &Id<Session>| &self.namespaces[self.sessions[*session].namespace].name;
        let mut sessions = self.sessions.of_owner(owner);
        sessions.retain(|session| selects(selection, name(session)));
        sessions.sort_by(|one, two| name(one).cmp(name(two)));
        sessions
    }
}

/// Returns whether a selection includes this namespace (R126–R128).
fn selects(selection: &Selection, name: &Namespace) -> bool {
    match selection {
        Selection::All => true,
        Selection::Only(domains) => domains.iter().any(|domain| match domain {
            Domain::Namespace(exactly) => exactly == name,
            Domain::Handler(handler) => handler.handler() == name.handler(),
        }),
    }
}
