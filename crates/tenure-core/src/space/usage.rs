//! Usage of a space by principals: how many paths, waiting paths and owners each of them has in
//! each namespace, and the decision on quotas.
//!
//! An owner id names its principal ([`scope_of`]). The counts of a namespace are in its
//! [`NamespaceState`], those of the principals that owner ids name are here; the rest belongs to
//! owners without a principal. All of it is derived state: a snapshot does not contain it.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;

use hashbrown::HashTable;

use super::Space;
use super::conflict::new_pairs;
use super::namespaces::NamespaceState;
use super::sessions::Session;
use crate::auth::scope_of;
use crate::command::Acquire;
use crate::hash::Hasher;
use crate::limits::{LimitKind, Quota, QuotaScope, QuotaValues};
use crate::outcome::Refusal;
use crate::path::Path;
use crate::policy::Mode;
use crate::slab::Id;
use crate::value::OwnerId;

/// What a principal, or all of them, have in a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) held: u32,
    pub(super) waiting: u32,
    pub(super) owners: u32,
}

impl Tally {
    pub(super) const HOLD: Tally = Tally::of(1, 0, 0);
    pub(super) const OWNER: Tally = Tally::of(0, 0, 1);

    const fn of(held: u32, waiting: u32, owners: u32) -> Tally {
        Tally {
            held,
            waiting,
            owners,
        }
    }

    pub(super) fn holds(count: u32) -> Tally {
        Tally::of(count, 0, 0)
    }

    pub(super) fn waiting(count: u32) -> Tally {
        Tally::of(0, count, 0)
    }

    fn add(&mut self, other: Tally) {
        self.held += other.held;
        self.waiting += other.waiting;
        self.owners += other.owners;
    }

    fn subtract(&mut self, other: Tally) {
        self.held -= other.held;
        self.waiting -= other.waiting;
        self.owners -= other.owners;
    }

    fn paths(self) -> u64 {
        u64::from(self.held) + u64::from(self.waiting)
    }
}

/// The tallies of the principals that owner ids name.
#[derive(Clone, Debug)]
pub(super) struct Usage {
    accounts: HashTable<Account>,
    hasher: Hasher,
}

#[derive(Clone, Debug)]
struct Account {
    namespace: Id<NamespaceState>,
    scope: Box<str>,
    tally: Tally,
}

impl Usage {
    pub(super) fn new(hasher: Hasher) -> Usage {
        Usage {
            accounts: HashTable::new(),
            hasher,
        }
    }

    #[cfg(any(test, feature = "check"))]
    pub(super) fn len(&self) -> usize {
        self.accounts.len()
    }

    fn hash(&self, namespace: Id<NamespaceState>, scope: &str) -> u64 {
        self.hasher.hash(namespace.number(), scope.as_bytes())
    }

    fn find(&self, namespace: Id<NamespaceState>, scope: &str) -> Tally {
        let hash = self.hash(namespace, scope);
        let is_it = |account: &Account| account.namespace == namespace && *account.scope == *scope;
        let account = self.accounts.find(hash, is_it);
        account.map(|account| account.tally).unwrap_or_default()
    }

    fn add(&mut self, namespace: Id<NamespaceState>, scope: &str, more: Tally) {
        let (hash, hasher) = (self.hash(namespace, scope), self.hasher);
        let is_it = |account: &Account| account.namespace == namespace && *account.scope == *scope;
        let of =
            |account: &Account| hasher.hash(account.namespace.number(), account.scope.as_bytes());
        let entry = self.accounts.entry(hash, is_it, of);
        let mut entry = entry.or_insert_with(|| Account {
            namespace,
            scope: scope.into(),
            tally: Tally::default(),
        });
        entry.get_mut().tally.add(more);
    }

    fn subtract(&mut self, namespace: Id<NamespaceState>, scope: &str, less: Tally) {
        let hash = self.hash(namespace, scope);
        let is_it = |account: &Account| account.namespace == namespace && *account.scope == *scope;
        if let Ok(mut entry) = self.accounts.find_entry(hash, is_it) {
            entry.get_mut().tally.subtract(less);
            if entry.get().tally == Tally::default() {
                entry.remove();
            }
        }
    }
}

impl Space {
    /// Counts something of an owner in.
    pub(super) fn use_more(&mut self, session: Id<Session>, more: Tally) {
        let Session {
            namespace, owner, ..
        } = &self.sessions[session];
        let namespace = *namespace;
        let state = &mut self.namespaces[namespace];
        state.tally.add(more);
        if let Some(scope) = scope_of(owner.as_str()) {
            state.named.add(more);
            self.usage.add(namespace, scope, more);
        }
    }

    /// Counts something of an owner out.
    pub(super) fn use_less(&mut self, session: Id<Session>, less: Tally) {
        let Session {
            namespace, owner, ..
        } = &self.sessions[session];
        let namespace = *namespace;
        let state = &mut self.namespaces[namespace];
        state.tally.subtract(less);
        if let Some(scope) = scope_of(owner.as_str()) {
            state.named.subtract(less);
            self.usage.subtract(namespace, scope, less);
        }
    }

    /// Returns what the principal of an owner has in a namespace.
    pub(super) fn tally_of(&self, namespace: Id<NamespaceState>, owner: &OwnerId) -> Tally {
        match scope_of(owner.as_str()) {
            Some(scope) => self.usage.find(namespace, scope),
            None => {
                let state = &self.namespaces[namespace];
                let mut rest = state.tally;
                rest.subtract(state.named);
                rest
            }
        }
    }

    /// Decides whether an acquire that is granted now stays within its quotas.
    pub(super) fn grant_over_quota(
        &self,
        namespace: Id<NamespaceState>,
        session: Option<Id<Session>>,
        acquire: &Acquire,
        quota: &Quota,
    ) -> Option<Refusal> {
        let new = new_pairs(acquire);
        let holds = |path: &Path, mode: Mode| {
            let node = self.path_position(namespace, path).at;
            session
                .zip(node)
                .is_some_and(|(session, node)| self.own_claim(session, node, mode).is_some())
        };
        let gained = new.iter().filter(|(path, mode)| !holds(path, *mode));
        let gained = gained.count() as u64;
        let released = acquire.releases.iter().map(|hold| (&hold.path, hold.mode));
        let released: BTreeSet<(&Path, Mode)> = released.collect();
        let lost = released
            .iter()
            .filter(|pair| new.contains(*pair) || holds(pair.0, pair.1));
        let lost = lost.count() as u64;
        // A queued acquire of the owner ends with the grant.
        let waited = session.map_or(0, |session| self.waiting_parts(session));
        let change = UsageChange {
            gained,
            lost: lost + waited,
            waiting_gained: 0,
            waiting_lost: waited,
            owners: u64::from(session.is_none() && !new.is_empty()),
        };
        self.over_quota(namespace, &acquire.owner, quota, change)
    }

    /// Decides whether an acquire that joins the queue stays within its quotas.
    pub(super) fn wait_over_quota(
        &self,
        namespace: Id<NamespaceState>,
        session: Option<Id<Session>>,
        acquire: &Acquire,
        quota: &Quota,
    ) -> Option<Refusal> {
        let waits = new_pairs(acquire).len() as u64;
        let waited = session.map_or(0, |session| self.waiting_parts(session));
        let change = UsageChange {
            gained: waits,
            lost: waited,
            waiting_gained: waits,
            waiting_lost: waited,
            owners: u64::from(session.is_none()),
        };
        self.over_quota(namespace, &acquire.owner, quota, change)
    }

    fn waiting_parts(&self, session: Id<Session>) -> u64 {
        let waiter = self.sessions[session].waiter;
        waiter.map_or(0, |waiter| self.waiters[waiter].parts.len() as u64)
    }

    fn over_quota(
        &self,
        namespace: Id<NamespaceState>,
        owner: &OwnerId,
        quota: &Quota,
        change: UsageChange,
    ) -> Option<Refusal> {
        let of = |scope, tally, values: QuotaValues| {
            let exceeded = change.exceeds(tally, values);
            exceeded.map(|(limit, value)| Refusal::Quota {
                scope,
                limit,
                value,
            })
        };
        let own = || of(QuotaScope::Own, self.tally_of(namespace, owner), quota.own);
        let state = &self.namespaces[namespace];
        let total = || of(QuotaScope::Total, state.tally, quota.total);
        own().or_else(total)
    }
}

/// How an acquire changes a tally.
#[derive(Clone, Copy, Debug)]
struct UsageChange {
    gained: u64,
    lost: u64,
    waiting_gained: u64,
    waiting_lost: u64,
    owners: u64,
}

impl UsageChange {
    /// Returns the first limit that the change exceeds. What does not grow is never refused, so that
    /// a lowered limit takes nothing away.
    fn exceeds(self, tally: Tally, values: QuotaValues) -> Option<(LimitKind, u64)> {
        let over = |kind, limit: Option<u64>, now: u64, gained: u64, lost: u64| {
            let limit = limit?;
            let after = (now + gained).saturating_sub(lost);
            (gained > lost && after > limit).then_some((kind, limit))
        };
        let paths = tally.paths();
        let waiting = u64::from(tally.waiting);
        let owners = u64::from(tally.owners);
        over(
            LimitKind::Paths,
            values.paths,
            paths,
            self.gained,
            self.lost,
        )
        .or_else(|| {
            over(
                LimitKind::Waiting,
                values.waiting,
                waiting,
                self.waiting_gained,
                self.waiting_lost,
            )
        })
        .or_else(|| over(LimitKind::Owners, values.owners, owners, self.owners, 0))
    }
}
