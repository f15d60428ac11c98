//! Lease renewal per owner.
//!
//! The holds of an owner in one namespace share one lease. One Renew call renews all its leases.
//!
//! ```text
//!   acquire ──▶ add ──▶ [namespace: lease, holds] ──at 1/3 of the ttl──▶ Renew ──▶ new lease
//!                              └── 80 % of the ttl without an answer ──▶ lost
//! ```

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::path::Path;
use tenure_wire::v1;
use tokio::sync::{Mutex as Turn, Notify};

use super::client::{Answer, Backoff, CallFailure, DaemonClient, Op};
use super::{convert, give_back_later};
use crate::boot_timer;
use crate::error::LostCause;
use crate::signals::{ReleaseRequest, Signals};
use crate::values::{Fence, Holder, Mode, whole_millis};
use tenure_base::Lease;

/// A lock session that the daemon knows by its owner id.
pub(super) struct Owner {
    id: String,
    ttl: Duration,
    state: Mutex<OwnerState>,
    changed: Notify,
    released: Notify,
    /// Wakes the waiting acquire: there is news for it.
    news: Notify,
    kind: OwnerKind,
    /// Serializes the acquires of a session: R83 (one pending entry per namespace).
    pub(super) turn: Arc<Turn<()>>,
}

/// Shared state. The mutex is never held across an await or while listeners run.
#[derive(Default)]
struct OwnerState {
    leases: BTreeMap<String, HeldClaims>,
    /// What the waiting acquire has not taken yet. Events of one kind count once, however many
    /// there are.
    news: WaitNews,
    /// A renewal task runs.
    is_kept: bool,
    renew_now: bool,
    /// The connection was replaced. After the first renewal on the new one, the holds are compared
    /// with the daemon's list.
    compare_now: bool,
    /// A release had no answer. It may arrive late and drop what is acquired later, so the owner
    /// must not be used again.
    is_spoiled: bool,
    /// Paths with a running release. An acquire of one of them waits for its answer.
    releasing: Vec<HeldPath>,
    /// The paths of the running acquire. `Release`: a guard dropped the path meanwhile and left its
    /// release to the acquire.
    wanted: Vec<(HeldPath, LeftBehind)>,
}

/// A path with its mode on the wire: the unit that the daemon counts as one hold of an owner.
pub(super) type HeldPath = (Path, v1::Mode);

#[derive(Clone, Copy, PartialEq, Eq)]
enum LeftBehind {
    Nothing,
    Release,
}

struct HeldClaims {
    lease: Lease,
    claims: Vec<Arc<HeldClaim>>,
}

/// Whether an owner id is used more than once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum OwnerKind {
    /// For one acquire.
    Single,
    /// For all locks of a session.
    Session,
}

/// What an acquire may have caused without the client's knowledge.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum UnseenOutcome {
    /// It is queued, or its answer is missing: it may be granted at any time.
    MayBeGranted,
    /// It had no effect.
    Nothing,
}

/// When a lost claim must be released on the daemon.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needed {
    /// Only if the lease continues. The daemon does not list the claim, but answers renewals with
    /// LOST until it gets the release.
    WithLease,
    /// Always: the daemon may still have the claim.
    Always,
}

/// A path that is held.
pub(super) struct HeldClaim {
    pub(super) path: Path,
    pub(super) mode: Mode,
    /// The newest fence, zero for none. A later acquire of the same session raises it: R69 (OK
    /// stores the token).
    pub(super) fence: AtomicU64,
    pub(super) namespace: String,
    /// When its acquire was sent.
    pub(super) acquired: Duration,
    pub(super) signals: Arc<Signals>,
}

/// The events for a waiting acquire since it asked last.
#[derive(Default)]
pub(super) struct WaitNews {
    /// GRANT events, by namespace.
    pub(super) granted: BTreeMap<String, Option<Fence>>,
    /// The owner was killed as a whole, and its queue entries with it.
    pub(super) is_killed: bool,
    /// The daemon must be asked again: the connection broke, or a hold in this namespace was taken
    /// away, perhaps with the queue entry.
    pub(super) ask_again: bool,
    killed_in: Vec<String>,
}

impl HeldClaim {
    /// Returns whether an entry of the daemon's list is this claim.
    pub(super) fn is(&self, lock: &v1::OwnedLock) -> bool {
        lock.path == self.path.as_str() && lock.mode() == convert::mode(self.mode)
    }

    pub(super) fn fence(&self) -> Option<Fence> {
        Fence::new(self.fence.load(Ordering::Relaxed))
    }

    pub(super) fn held_path(&self) -> HeldPath {
        (self.path.clone(), convert::mode(self.mode))
    }
}

impl Owner {
    pub(super) fn new(id: &str, ttl: Duration, kind: OwnerKind) -> Arc<Owner> {
        Arc::new(Owner {
            released: Notify::new(),
            news: Notify::new(),
            kind,
            id: id.to_owned(),
            ttl,
            state: Mutex::default(),
            changed: Notify::new(),
            turn: Arc::default(),
        })
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Returns the time limit for one try, so that several tries fit into a lease.
    pub(super) fn each_try(&self) -> Duration {
        (self.ttl / 6).clamp(Duration::from_millis(250), Duration::from_secs(4))
    }

    pub(super) fn is_spoiled(&self) -> bool {
        self.lock().is_spoiled
    }

    /// Registers the paths of a new acquire, once no release of them is running.
    ///
    /// Otherwise that release could arrive after the grant and drop it.
    pub(super) async fn want(&self, held_paths: &[HeldPath]) {
        loop {
            let mut released = pin!(self.released.notified());
            // Enabled before the check, so that a notification in between is not missed.
            released.as_mut().enable();
            {
                let mut state = self.lock();
                if !held_paths
                    .iter()
                    .any(|held_path| state.releasing.contains(held_path))
                {
                    let held_paths = held_paths.iter().cloned();
                    state.wanted = held_paths
                        .map(|held_path| (held_path, LeftBehind::Nothing))
                        .collect();
                    return;
                }
            }
            released.await;
        }
    }

    /// Ends an acquire without a lock. Returns the paths to release: grants that the client may not
    /// have seen, and releases that a guard left to this acquire. Paths that a guard still holds
    /// are left out.
    pub(super) fn want_no_more(&self, unseen: UnseenOutcome) -> Vec<HeldPath> {
        let mut state = self.lock();
        let wanted = std::mem::take(&mut state.wanted);
        let given_back = wanted.into_iter().filter(|(held_path, left)| {
            !state.holds(held_path)
                && (unseen == UnseenOutcome::MayBeGranted || *left == LeftBehind::Release)
        });
        let given_back: Vec<HeldPath> = given_back.map(|(held_path, _)| held_path).collect();
        state.releasing.extend(given_back.iter().cloned());
        given_back
    }

    /// Records that a release was answered or given up.
    pub(super) fn released(&self, held_paths: &[HeldPath], answer: &Result<Answer, CallFailure>) {
        {
            let mut state = self.lock();
            state
                .releasing
                .retain(|held_path| !held_paths.contains(held_path));
            state.is_spoiled |= self.kind == OwnerKind::Session && answer.is_err();
        }
        self.released.notify_waiters();
    }

    /// Adds the claims of a grant. The first claims start the renewal task.
    pub(super) fn add(
        self: &Arc<Owner>,
        client: &DaemonClient,
        namespace: &str,
        claims: &[Arc<HeldClaim>],
        lease: Lease,
    ) {
        let starts = {
            let mut state = self.lock();
            state.wanted.clear();
            // Older guards of the same path share the hold, and with it the newer fence.
            for claim in claims {
                let (held_path, fence) = (claim.held_path(), claim.fence.load(Ordering::Relaxed));
                for older in state.claims().filter(|held| held.held_path() == held_path) {
                    older.fence.fetch_max(fence, Ordering::Relaxed);
                }
            }
            let holding = state
                .leases
                .entry(namespace.to_owned())
                .or_insert(HeldClaims {
                    lease,
                    claims: Vec::new(),
                });
            holding.claims.extend(claims.iter().cloned());
            !std::mem::replace(&mut state.is_kept, true)
        };
        self.renewed(&[namespace.to_owned()], lease);
        if starts {
            tokio::spawn(Arc::clone(self).keep(client.clone()));
        }
    }

    /// Removes a claim of a released or dropped guard. Returns whether the caller must release the
    /// path on the daemon: a session may hold one path twice.
    pub(super) fn forget(&self, claim: &Arc<HeldClaim>) -> bool {
        let held_path = claim.held_path();
        let mut state = self.lock();
        state.remove(claim);
        let wanted = state
            .wanted
            .iter_mut()
            .find(|(wanted, _)| *wanted == held_path);
        let gives_back = match wanted {
            // An acquire of the same path is running. A release now could drop its grant, so the
            // acquire takes over.
            Some((_, left)) => {
                *left = LeftBehind::Release;
                false
            }
            None => !state.holds(&held_path),
        };
        if gives_back {
            state.releasing.push(held_path);
        }
        drop(state);
        self.changed.notify_one();
        gives_back
    }

    /// Removes a claim without a release: it was detached, or is lost.
    pub(super) fn let_go(&self, claim: &Arc<HeldClaim>) {
        self.lock().remove(claim);
        self.changed.notify_one();
    }

    /// Forgets the news of earlier acquires. There is one acquire at a time: `turn` serializes them.
    pub(super) fn begin_wait(&self) {
        self.lock().news = WaitNews::default();
    }

    /// Waits for news and takes them. `namespace` is the one that the acquire waits in.
    pub(super) async fn take_news(&self, namespace: &str) -> WaitNews {
        loop {
            let news = self.news.notified();
            let mut taken = std::mem::take(&mut self.lock().news);
            taken.ask_again |= taken.killed_in.iter().any(|killed| killed == namespace);
            if taken.ask_again || taken.is_killed || !taken.granted.is_empty() {
                return taken;
            }
            news.await;
        }
    }

    /// Handles an event for this owner.
    pub(super) fn hear(self: &Arc<Owner>, client: &DaemonClient, event: &v1::Event) {
        let namespace = event.namespace.clone();
        match event.r#type() {
            v1::EventType::Grant => {
                let fence = convert::fence(event.fence);
                self.tell_waiting(|news| {
                    news.granted.insert(namespace, fence);
                });
            }
            v1::EventType::Revoke => self.asked(client, &namespace),
            v1::EventType::Killed if namespace.is_empty() => {
                self.tell_waiting(|news| news.is_killed = true);
                self.lose_everything(client);
            }
            v1::EventType::Killed => {
                self.tell_waiting(|news| news.killed_in.push(namespace));
                tokio::spawn(Arc::clone(self).compare(client.clone()));
            }
            v1::EventType::Unspecified => {}
        }
    }

    pub(super) fn link_broke(&self) {
        {
            let mut state = self.lock();
            state.renew_now = true;
            state.compare_now = true;
        }
        self.changed.notify_one();
        self.tell_waiting(|news| news.ask_again = true);
    }

    fn tell_waiting(&self, add: impl FnOnce(&mut WaitNews)) {
        add(&mut self.lock().news);
        self.news.notify_one();
    }

    /// Passes on a release request to the claims of a namespace; without one, to all.
    ///
    /// Events carry no requester. The first waiter for a path is the one that the release would
    /// serve, so the request names it, with its purpose.
    fn asked(self: &Arc<Owner>, client: &DaemonClient, namespace: &str) {
        let mut claims = self.claims();
        claims.retain(|claim| {
            let is_meant = namespace.is_empty() || claim.namespace == namespace;
            is_meant && claim.signals.asked().is_none()
        });
        let (owner, client) = (Arc::clone(self), client.clone());
        tokio::spawn(async move {
            for claim in claims {
                let until = Lease::now() + owner.each_try();
                let explained = client.explain(&claim.path, until).await;
                let waiter = explained.ok().and_then(|explained| {
                    let mut waiters = explained.waiters_ahead.into_iter();
                    waiters.find(|waiter| waiter.owner != owner.id)
                });
                let by = waiter.map_or_else(Holder::default, |waiter| {
                    convert::holder_or_owner(waiter.holder.as_ref(), &waiter.owner)
                });
                let reason = Some(by.purpose.clone()).filter(|purpose| !purpose.is_empty());
                claim.signals.ask(&ReleaseRequest { by, reason });
            }
        });
    }

    fn claims(&self) -> Vec<Arc<HeldClaim>> {
        self.lock().claims().cloned().collect()
    }

    /// Loses all claims because the owner was killed: R101 (ForceRelease always notifies the
    /// victim).
    ///
    /// The event precedes the end of the holds, so the daemon's list may still have them. Therefore
    /// the list is not queried.
    fn lose_everything(self: &Arc<Owner>, client: &DaemonClient) {
        let lost = self.lose_all_taken(&self.claims());
        self.release_lost(client, &lost, Needed::Always);
    }

    /// Compares the claims with the daemon's list: after a KILLED event for one namespace, and after a
    /// connection broke, because such an event may have been lost with it.
    ///
    /// Then it runs after a renewal was answered on the new connection, so later events arrive.
    /// Without an answer nothing is lost: the lease still limits the holds, and the query is retried.
    async fn compare(self: Arc<Owner>, client: DaemonClient) {
        loop {
            let claims = self.claims();
            if claims.is_empty() {
                return;
            }
            let until = Lease::now() + self.each_try();
            if let Ok(left) = client.owner_locks(&self.id, until, self.each_try()).await {
                return self.lose_unlisted(&client, &claims, &left);
            }
            tokio::time::sleep(self.ttl / 10).await;
        }
    }

    /// Loses the claims that the daemon does not list.
    ///
    /// If the lease continues with other claims, the lost ones are also released: the daemon
    /// answers renewals with LOST until then.
    fn lose_unlisted(
        self: &Arc<Owner>,
        client: &DaemonClient,
        claims: &[Arc<HeldClaim>],
        left: &[v1::OwnedLock],
    ) {
        let gone: Vec<Arc<HeldClaim>> = claims
            .iter()
            .filter(|claim| !left.iter().any(|lock| claim.is(lock)))
            .cloned()
            .collect();
        let lost = self.lose_all_taken(&gone);
        self.release_lost(client, &lost, Needed::WithLease);
    }

    /// Loses the given claims, except those whose guard released them meanwhile: a later claim may
    /// hold the same path. Returns the lost claims.
    fn lose_all_taken(&self, claims: &[Arc<HeldClaim>]) -> Vec<Arc<HeldClaim>> {
        let lost = claims.iter().filter(|claim| self.lose_taken(claim));
        lost.cloned().collect()
    }

    /// Releases lost claims, so that the daemon keeps nothing of them. Skips paths that are held or
    /// requested again.
    fn release_lost(
        self: &Arc<Owner>,
        client: &DaemonClient,
        lost: &[Arc<HeldClaim>],
        needed: Needed,
    ) {
        let mut held_paths: Vec<HeldPath> = Vec::new();
        {
            let mut state = self.lock();
            for claim in lost {
                let held_path = claim.held_path();
                let is_wanted = state.wanted.iter().any(|(wanted, _)| *wanted == held_path);
                let is_known =
                    held_paths.contains(&held_path) || state.releasing.contains(&held_path);
                // A running acquire of the path informs the daemon itself, and a release could drop
                // its grant.
                let is_held_anew = is_wanted || is_known || state.holds(&held_path);
                let is_needed =
                    needed == Needed::Always || state.leases.contains_key(&claim.namespace);
                if is_needed && !is_held_anew {
                    held_paths.push(held_path);
                }
            }
            state.releasing.extend(held_paths.iter().cloned());
        }
        if !held_paths.is_empty() {
            give_back_later(client.clone(), Arc::clone(self), held_paths);
        }
    }

    /// Loses a claim if it is still held here; its guard may have released it meanwhile. Returns
    /// whether it was held.
    fn lose_taken(&self, claim: &Arc<HeldClaim>) -> bool {
        let is_held = self.lock().claims().any(|held| Arc::ptr_eq(held, claim));
        if is_held {
            self.let_go(claim);
            claim
                .signals
                .lose(LostCause::Killed, "the daemon took it away");
        }
        is_held
    }

    /// Renews the leases until nothing is held.
    async fn keep(self: Arc<Owner>, client: DaemonClient) {
        // Retry delay: starts at 2 % of the ttl and doubles up to 10 %.
        let first = (self.ttl / 50).clamp(Duration::from_millis(5), Duration::from_millis(200));
        let mut backoff = Backoff::new(first, self.ttl / 10);
        while let Some(plan) = self.plan() {
            if !plan.is_due {
                tokio::select! {
                    () = boot_timer::until(plan.renew_at.min(plan.safe_until)) => {}
                    () = self.changed.notified() => {}
                }
                continue;
            }
            let renewed = tokio::select! {
                renewed = self.renew(&client, &plan.namespaces) => renewed,
                // Out of time: `plan` finds the used-up lease in the next iteration and marks its
                // claims as lost.
                () = boot_timer::until(plan.safe_until) => Ok(()),
            };
            if renewed.is_err() && Lease::now() > plan.in_danger {
                client.leave_node(self.each_try());
            }
            if renewed.is_ok() {
                backoff.reset();
                if std::mem::take(&mut self.lock().compare_now) {
                    tokio::spawn(Arc::clone(&self).compare(client.clone()));
                }
                continue;
            }
            tokio::select! {
                () = tokio::time::sleep(backoff.delay()) => {}
                () = boot_timer::until(plan.safe_until) => {}
            }
        }
    }

    /// Returns what to do next, or `None` if nothing is held. Claims of used-up leases are lost on
    /// the way.
    fn plan(&self) -> Option<RenewalPlan> {
        let mut used_up = Vec::new();
        let plan = {
            let mut state = self.lock();
            state.leases.retain(|_, holding| {
                let is_good = !holding.lease.valid_for().is_zero();
                if !is_good {
                    used_up.append(&mut holding.claims);
                }
                is_good
            });
            // Under the same lock as the check above: `add` starts a new task if this one is about
            // to end.
            state.is_kept = !state.leases.is_empty();
            let leases = state.leases.values().map(|holding| holding.lease);
            let renew_at = leases.clone().map(|lease| lease.renew_at()).min();
            let in_danger = leases.clone().map(|lease| lease.sent + lease.ttl / 2).min();
            let safe_until = leases.map(|lease| lease.safe_until()).min();
            renew_at
                .zip(safe_until)
                .map(|(renew_at, safe_until)| RenewalPlan {
                    in_danger: in_danger.unwrap_or(safe_until),
                    namespaces: state.leases.keys().cloned().collect(),
                    is_due: state.renew_now || renew_at <= Lease::now(),
                    renew_at,
                    safe_until,
                })
        };
        // Outside the mutex: `lose` calls listeners.
        for claim in used_up {
            let what = "no renewal was confirmed in time";
            claim.signals.lose(LostCause::Unconfirmed, what);
        }
        plan
    }

    /// Renews all namespaces with one call.
    ///
    /// Without an idempotency key: a repeated renewal only extends the lease, and a stored answer
    /// would cost the daemon a log entry.
    async fn renew(
        self: &Arc<Owner>,
        client: &DaemonClient,
        namespaces: &[String],
    ) -> Result<(), CallFailure> {
        let renew = v1::RenewRequest {
            owner_id: self.id.clone(),
            ttl_ms: whole_millis(self.ttl),
            domains: namespaces.to_vec(),
            idempotency_key: String::new(),
        };
        // Taken before the request is handed to the transport: the lease counts from here.
        let sent = Lease::now();
        let answer = match client.ask_once(Op::Renew(renew), self.each_try()).await? {
            Answer::Renew(answer) => answer,
            other => {
                return Err(CallFailure::Unreachable(format!(
                    "a strange answer: {other:?}"
                )));
            }
        };
        match (answer.status(), namespaces) {
            (v1::RenewStatus::Ok, _) => {
                self.renewed(namespaces, Lease::new(sent, self.ttl));
                if answer.revoke_requested {
                    self.asked(client, "");
                }
            }
            (v1::RenewStatus::Lost, [one]) => return self.lost_in(client, one, sent).await,
            // One of the namespaces is lost, but the answer does not say which: R90 (Renew with
            // domains). Renew them one by one.
            (v1::RenewStatus::Lost, several) => {
                let mut trouble = Ok(());
                for namespace in several {
                    let one = std::slice::from_ref(namespace);
                    let renewed = Box::pin(self.renew(client, one)).await;
                    trouble = trouble.and(renewed);
                }
                return trouble;
            }
        }
        Ok(())
    }

    /// Handles LOST for one namespace: the lease has ended, or the daemon took a hold from it. The
    /// list of locks shows which.
    ///
    /// Claims that were acquired after the renewal was `sent` are not concerned: they may belong to
    /// the next lease.
    ///
    /// Returns an error if there is no list, or if some claims are left: then the lease must be
    /// renewed again after the daemon has the release of the lost ones.
    async fn lost_in(
        self: &Arc<Owner>,
        client: &DaemonClient,
        namespace: &str,
        sent: Duration,
    ) -> Result<(), CallFailure> {
        let claims = self.concerned(namespace, sent);
        let until = Lease::now() + self.each_try();
        // Without a list nothing is lost here: `plan` ends the claims with their lease.
        let left = client.owner_locks(&self.id, until, self.each_try()).await?;
        if claims
            .iter()
            .any(|claim| left.iter().any(|lock| claim.is(lock)))
        {
            self.lose_unlisted(client, &claims, &left);
            let what = "the daemon took a lock away and has not heard that this is known";
            return Err(CallFailure::Unreachable(what.into()));
        }
        let mut lost = Vec::new();
        for claim in claims {
            let is_held = self.lock().claims().any(|held| Arc::ptr_eq(held, &claim));
            if is_held {
                self.let_go(&claim);
                let what = "the daemon says that the lease has ended";
                claim.signals.lose(LostCause::Expired, what);
                lost.push(claim);
            }
        }
        self.release_lost(client, &lost, Needed::WithLease);
        Ok(())
    }

    /// Returns the claims of a namespace that were acquired before `sent`.
    fn concerned(&self, namespace: &str, sent: Duration) -> Vec<Arc<HeldClaim>> {
        let state = self.lock();
        let holding = state.leases.get(namespace);
        let claims = holding.into_iter().flat_map(|holding| &holding.claims);
        let concerned = claims.filter(|claim| claim.acquired <= sent);
        concerned.cloned().collect()
    }

    /// Stores a confirmed lease. The later sending wins, because answers may overtake each other.
    fn renewed(&self, namespaces: &[String], lease: Lease) {
        let mut told = Vec::new();
        {
            let mut state = self.lock();
            state.renew_now = false;
            for namespace in namespaces {
                if let Some(holding) = state.leases.get_mut(namespace) {
                    if holding.lease.sent < lease.sent {
                        holding.lease = lease;
                    }
                    told.extend(
                        holding
                            .claims
                            .iter()
                            .map(|claim| (Arc::clone(claim), holding.lease)),
                    );
                }
            }
        }
        // Outside the mutex: `renew` calls listeners.
        for (claim, lease) in told {
            claim.signals.renew(lease);
        }
    }

    fn lock(&self) -> MutexGuard<'_, OwnerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OwnerState {
    fn claims(&self) -> impl Iterator<Item = &Arc<HeldClaim>> {
        self.leases.values().flat_map(|holding| &holding.claims)
    }

    fn holds(&self, held_path: &HeldPath) -> bool {
        self.claims().any(|held| held.held_path() == *held_path)
    }

    fn remove(&mut self, claim: &Arc<HeldClaim>) {
        if let Some(holding) = self.leases.get_mut(&claim.namespace) {
            holding.claims.retain(|held| !Arc::ptr_eq(held, claim));
            if holding.claims.is_empty() {
                self.leases.remove(&claim.namespace);
            }
        }
    }
}

struct RenewalPlan {
    namespaces: Vec<String>,
    is_due: bool,
    renew_at: Duration,
    /// Half of a ttl has passed without a confirmed renewal: a node that cannot renew is left.
    in_danger: Duration,
    safe_until: Duration,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::address::Address;
    use crate::endpoint::Endpoint;
    use crate::tenure::DaemonAccess;

    const TTL: Duration = Duration::from_secs(3);

    /// A client whose node does not listen: queries of the list fail.
    fn client() -> DaemonClient {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        DaemonClient::new(
            vec![Endpoint::new("127.0.0.1", port)],
            &DaemonAccess::default(),
        )
        .unwrap()
    }

    fn claim(path: &str) -> Arc<HeldClaim> {
        let place: Address = path.parse().unwrap();
        Arc::new(HeldClaim {
            path: Path::parse(path).unwrap(),
            mode: Mode::Exclusive,
            fence: AtomicU64::new(1),
            namespace: "t:/a".to_owned(),
            acquired: Lease::now(),
            signals: Signals::new(&place),
        })
    }

    fn holding(client: &DaemonClient, paths: &[&str]) -> (Arc<Owner>, Vec<Arc<HeldClaim>>) {
        let owner = Owner::new("amy", TTL, OwnerKind::Session);
        let claims: Vec<Arc<HeldClaim>> = paths.iter().map(|path| claim(path)).collect();
        owner.add(client, "t:/a", &claims, Lease::new(Lease::now(), TTL));
        (owner, claims)
    }

    fn killed(namespace: &str) -> v1::Event {
        v1::Event {
            r#type: v1::EventType::Killed.into(),
            namespace: namespace.to_owned(),
            ..Default::default()
        }
    }

    /// R101: the KILLED event of an owner precedes the end of its holds. A list in between still
    /// has them.
    #[tokio::test]
    async fn all_claims_of_a_killed_owner_are_lost_without_a_list() {
        let client = client();
        let (owner, claims) = holding(&client, &["t:/a/x", "t:/a/y"]);
        owner.hear(&client, &killed(""));
        assert!(owner.claims().is_empty());
        assert_eq!(owner.lock().releasing.len(), claims.len());
        // With a namespace, only some claims are affected, and the list shows which.
        let (owner, claims) = holding(&client, &["t:/a/x", "t:/a/y"]);
        owner.hear(&client, &killed("t:/a"));
        assert_eq!(owner.claims().len(), claims.len());
    }

    /// Without a list nothing is lost early: the lease limits the claims.
    #[tokio::test]
    async fn nothing_is_lost_without_a_list() {
        let client = client();
        let (owner, claims) = holding(&client, &["t:/a/x"]);
        let lost = owner.lost_in(&client, "t:/a", Lease::now()).await;
        assert!(lost.is_err());
        assert_eq!(owner.claims().len(), claims.len());
        assert!(owner.lock().releasing.is_empty());
    }

    /// A LOST answer says nothing of what was acquired after its renewal was sent.
    #[tokio::test]
    async fn a_late_answer_does_not_end_what_was_acquired_after_it() {
        let client = client();
        let sent = Lease::now();
        let (owner, claims) = holding(&client, &["t:/a/x"]);
        assert!(claims[0].acquired > sent);
        let concerned = owner.concerned("t:/a", sent);
        assert!(concerned.is_empty());
        assert_eq!(owner.concerned("t:/a", Lease::now()).len(), 1);
    }

    /// News of one kind count once, and a GRANT keeps its namespace.
    #[tokio::test]
    async fn news_of_one_kind_count_once() {
        let owner = Owner::new("amy", TTL, OwnerKind::Session);
        owner.begin_wait();
        (0..5).for_each(|_| owner.link_broke());
        let news = owner.take_news("t:/a").await;
        assert!(news.ask_again && news.granted.is_empty());
        owner.hear(&client(), &killed("t:/b"));
        let waiting = owner.take_news("t:/a");
        let none = tokio::time::timeout(Duration::from_millis(50), waiting).await;
        assert!(none.is_err(), "another namespace is no news");
        owner.hear(&client(), &killed("t:/a"));
        assert!(owner.take_news("t:/a").await.ask_again);
    }

    /// A path that was released and acquired again while the list was queried is neither lost nor
    /// released.
    #[tokio::test]
    async fn a_path_that_was_acquired_anew_is_neither_lost_nor_released() {
        let client = client();
        let (owner, claims) = holding(&client, &["t:/a/x", "t:/a/y"]);
        owner.let_go(&claims[0]);
        let again = claim("t:/a/x");
        let lease = Lease::new(Lease::now(), TTL);
        owner.add(&client, "t:/a", std::slice::from_ref(&again), lease);
        // The list has neither of them.
        owner.lose_unlisted(&client, &claims, &[]);
        assert!(owner.lock().holds(&again.held_path()));
        assert_eq!(owner.lock().releasing, vec![claims[1].held_path()]);
    }

    /// A path with a running acquire is not released either: the acquire informs the daemon.
    #[tokio::test]
    async fn a_path_that_is_being_acquired_is_not_released() {
        let client = client();
        let (owner, claims) = holding(&client, &["t:/a/x", "t:/a/y"]);
        owner.want(&[claims[0].held_path()]).await;
        owner.lose_unlisted(&client, &claims[..1], &[]);
        assert!(owner.lock().releasing.is_empty());
    }
}
