//! Activity limits: token buckets and caps of each principal on this node.
//!
//! ```text
//!   call ──▶ renewal or release? ──yes──▶ reserved bucket ──empty──┐
//!                 │ no                        └─ ok                ▼
//!                 └──────────────────────────────▶ bucket of the principal ──▶ buckets of `total`
//! ```
//!
//! Renewals and releases of the caller's own owners have a bucket of their own, which no
//! administrator can make smaller: a limit must never cost a holder its lock.
//!
//! A call may cost more than a bucket holds. It then needs a full bucket and leaves a debt.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tenure_core::auth::{AuthTable, Principal, Target, Verb, covers};
use tenure_core::limits::{LimitKind, LimitSubject};
use tenure_core::path::{Namespace, Path};
use tenure_core::text::shell_quoted;
use tenure_core::value::OwnerId;
use tenure_node::ClientRequest;

use crate::status::{Code, Failure};

/// Renewals and releases a second that every principal may make whatever its limits are.
const RESERVED: f64 = 1000.0;
const RESERVED_BURST: f64 = 4000.0;
/// Principals whose activity is remembered. Those that are idle are forgotten beyond it.
const REMEMBERED: usize = 4096;

/// Cost of a watch that starts with a snapshot.
pub(crate) const SNAPSHOT_COST: u64 = 50;
/// Cost of a backup.
const BACKUP_COST: u64 = 1000;

/// Counts refusals by limit, for the metrics.
#[derive(Debug, Default)]
pub(crate) struct LimitRefusals([AtomicU64; LimitKind::ALL.len()]);

impl LimitRefusals {
    pub(crate) fn count(&self, kind: LimitKind) {
        if let Some(counter) = self.0.get(kind as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn read(&self) -> impl Iterator<Item = (LimitKind, u64)> {
        let values = self.0.iter().map(|counter| counter.load(Ordering::Relaxed));
        LimitKind::ALL.into_iter().zip(values)
    }
}

/// A token bucket.
#[derive(Debug)]
struct TokenBucket {
    /// Negative after a call that cost more than the bucket holds.
    level: f64,
    at: Instant,
}

impl TokenBucket {
    /// A full bucket: `take` lowers the level to the burst in force.
    fn full(now: Instant) -> TokenBucket {
        TokenBucket {
            level: f64::INFINITY,
            at: now,
        }
    }

    /// Takes tokens, or returns how long it takes until there are enough.
    fn take(&mut self, now: Instant, cost: f64, rate: f64, burst: f64) -> Result<(), Duration> {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        self.level = (self.level + passed * rate).min(burst);
        self.at = now;
        let needed = cost.min(burst);
        if self.level >= needed {
            self.level -= cost;
            return Ok(());
        }
        let wait = (needed - self.level) / rate;
        Err(Duration::try_from_secs_f64(wait).unwrap_or(Duration::from_secs(3600)))
    }
}

/// The activity of one principal on this node.
#[derive(Debug)]
pub(crate) struct Activity {
    bucket: Mutex<TokenBucket>,
    reserved: Mutex<TokenBucket>,
    /// Open connections, streams, watches and subscriptions, by the number of their limit.
    open: [AtomicU64; LimitKind::ALL.len()],
}

impl Activity {
    fn new(now: Instant) -> Activity {
        Activity {
            bucket: Mutex::new(TokenBucket::full(now)),
            reserved: Mutex::new(TokenBucket::full(now)),
            open: Default::default(),
        }
    }
}

/// The activity of all principals.
#[derive(Debug, Default)]
pub(crate) struct ActivityTable {
    principals: Mutex<HashMap<Principal, Arc<Activity>>>,
    /// Buckets of the rows for all principals together, by place.
    totals: Mutex<HashMap<Option<Namespace>, TokenBucket>>,
    refusals: Arc<LimitRefusals>,
}

impl ActivityTable {
    pub(crate) fn new(refusals: Arc<LimitRefusals>) -> ActivityTable {
        ActivityTable {
            refusals,
            ..ActivityTable::default()
        }
    }

    /// Returns the limits of a principal by this table, with its activity so far.
    pub(super) fn limits_of(
        self: &Arc<Self>,
        principal: &Principal,
        table: Option<&AuthTable>,
    ) -> ActivityLimits {
        let limit = |kind| table.and_then(|table| table.limit(principal, kind, None));
        let rate = |requests: Option<u64>, burst: Option<u64>| {
            requests.map(|requests| Rate {
                per_second: requests as f64,
                burst: burst.unwrap_or(requests) as f64,
            })
        };
        let rows = table.into_iter().flat_map(AuthTable::limits);
        let rows = rows.filter(|row| row.of == LimitSubject::Total);
        let totals = rows.filter_map(|row| {
            let value = |kind| row.values.get(&kind).copied();
            let rate = rate(value(LimitKind::Requests), value(LimitKind::Burst))?;
            Some((row.at.clone(), rate))
        });
        ActivityLimits {
            table: Arc::clone(self),
            activity: self.activity(principal),
            principal: principal.clone(),
            rate: rate(limit(LimitKind::Requests), limit(LimitKind::Burst)),
            totals: totals.collect(),
            caps: LimitKind::ALL.map(limit),
        }
    }

    fn activity(&self, principal: &Principal) -> Arc<Activity> {
        let mut principals = lock(&self.principals);
        if principals.len() >= REMEMBERED {
            principals.retain(|_, activity| Arc::strong_count(activity) > 1);
        }
        let activity = principals
            .entry(principal.clone())
            .or_insert_with(|| Arc::new(Activity::new(Instant::now())));
        Arc::clone(activity)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone, Copy, Debug)]
struct Rate {
    per_second: f64,
    burst: f64,
}

/// The activity limits of one caller.
#[derive(Debug)]
pub(crate) struct ActivityLimits {
    table: Arc<ActivityTable>,
    activity: Arc<Activity>,
    principal: Principal,
    rate: Option<Rate>,
    totals: Vec<(Option<Namespace>, Rate)>,
    caps: [Option<u64>; LimitKind::ALL.len()],
}

impl ActivityLimits {
    /// Returns whether requests are counted at all.
    pub(crate) fn has_rates(&self) -> bool {
        self.rate.is_some() || !self.totals.is_empty()
    }

    /// Counts a call of the lock service, or refuses it. `is_own` is whether the call acts as an
    /// owner of the caller.
    pub(crate) fn take(&self, request: &ClientRequest, is_own: bool) -> Result<(), Failure> {
        let keeps_or_releases = matches!(
            request,
            ClientRequest::Renew { .. }
                | ClientRequest::Release(_)
                | ClientRequest::ReleaseAll { .. }
        );
        if keeps_or_releases && is_own {
            let mut reserved = lock(&self.activity.reserved);
            let taken = reserved.take(Instant::now(), 1.0, RESERVED, RESERVED_BURST);
            if taken.is_ok() {
                return Ok(());
            }
        }
        self.take_cost(cost(request), place_of(request))
    }

    /// Counts a call of another service.
    pub(crate) fn take_service(&self, verb: Verb) -> Result<(), Failure> {
        let cost = if verb == Verb::Backup { BACKUP_COST } else { 1 };
        self.take_cost(cost, None)
    }

    /// Counts a cost. `place` is where the call works, for the rows of namespaces.
    pub(crate) fn take_cost(&self, cost: u64, place: Option<Place<'_>>) -> Result<(), Failure> {
        let (now, cost) = (Instant::now(), cost as f64);
        if let Some(rate) = self.rate {
            let taken = lock(&self.activity.bucket).take(now, cost, rate.per_second, rate.burst);
            let whose = self.principal.as_str();
            taken.map_err(|wait| self.too_many(whose, None, rate, wait))?;
        }
        for (at, rate) in &self.totals {
            let is_there = match (at, place) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(_), Some(place)) => covers(at.as_ref(), place.target()),
            };
            if !is_there {
                continue;
            }
            let mut totals = lock(&self.table.totals);
            let bucket = totals
                .entry(at.clone())
                .or_insert_with(|| TokenBucket::full(now));
            let taken = bucket.take(now, cost, rate.per_second, rate.burst);
            taken.map_err(|wait| self.too_many("total", at.as_ref(), *rate, wait))?;
        }
        Ok(())
    }

    fn too_many(&self, whose: &str, at: Option<&Namespace>, rate: Rate, wait: Duration) -> Failure {
        self.table.refusals.count(LimitKind::Requests);
        let place = at.map_or(String::new(), |at| {
            format!(" {}", shell_quoted(at.as_str()))
        });
        let who = match whose {
            "total" => "all principals together",
            name => name,
        };
        let millis = wait.as_millis().max(1);
        let mut failure = Failure::new(
            Code::ResourceExhausted,
            format!(
                "too many requests: {who} may make {} a second on this node: try again in {millis} ms, or an administrator raises the limit with `tenure auth limit {} requests=NUMBER{place}`",
                rate.per_second,
                shell_quoted(whose),
            ),
        );
        failure.retry_after = Some(wait);
        failure
    }

    /// Returns whether the number of open things of this kind is limited.
    pub(crate) fn is_capped(&self, kind: LimitKind) -> bool {
        self.caps[kind as usize].is_some()
    }

    /// Counts a connection, a stream, a watch or a subscription until the result is dropped.
    pub(crate) fn open(&self, kind: LimitKind) -> Result<OpenPlace, Failure> {
        let counter = &self.activity.open[kind as usize];
        let open = counter.fetch_add(1, Ordering::Relaxed);
        let place = OpenPlace {
            activity: Arc::clone(&self.activity),
            kind,
        };
        match self.caps[kind as usize] {
            Some(cap) if open >= cap => {
                self.table.refusals.count(kind);
                let (name, principal) = (kind.name(), self.principal.as_str());
                Err(Failure::new(
                    Code::ResourceExhausted,
                    format!(
                        "{principal} has {cap} open {name} on this node, and may have no more: close some, or an administrator raises the limit with `tenure auth limit {} {name}=NUMBER`",
                        shell_quoted(principal),
                    ),
                ))
            }
            _ => Ok(place),
        }
    }

    /// Counts the refusal of a quota, which the node has decided.
    pub(crate) fn count_refusal(&self, kind: LimitKind) {
        self.table.refusals.count(kind);
    }
}

/// Something open that counts against a cap.
#[derive(Debug)]
pub(crate) struct OpenPlace {
    activity: Arc<Activity>,
    kind: LimitKind,
}

impl Drop for OpenPlace {
    fn drop(&mut self) {
        self.activity.open[self.kind as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// Where a call works.
#[derive(Clone, Copy)]
pub(crate) enum Place<'a> {
    Path(&'a Path),
    Namespace(&'a Namespace),
}

impl<'a> Place<'a> {
    fn target(self) -> Target<'a> {
        match self {
            Place::Path(path) => Target::Path(path),
            Place::Namespace(name) => Target::Below(name),
        }
    }
}

/// What a call costs: about one for each 16 paths, and more for calls that do work for everyone.
fn cost(request: &ClientRequest) -> u64 {
    let paths = |count: usize| 1 + count as u64 / 16;
    match request {
        ClientRequest::Acquire(acquire) => paths(acquire.requests.len()),
        ClientRequest::Release(release) => paths(release.holds.len()),
        ClientRequest::AssertFencing { paths: all, .. } => paths(all.len()),
        ClientRequest::SetNamespacePolicy { .. } | ClientRequest::DeleteNamespacePolicy { .. } => {
            256
        }
        ClientRequest::DumpLocks { .. }
        | ClientRequest::ListOwnerLocks { .. }
        | ClientRequest::Explain { .. }
        | ClientRequest::DetectCycle { .. } => 8,
        _ => 1,
    }
}

/// The first place that a call names. All paths of an acquire are in one namespace.
fn place_of(request: &ClientRequest) -> Option<Place<'_>> {
    match request {
        ClientRequest::Acquire(acquire) => {
            let first = acquire.requests.first().map(|one| &one.path);
            let first = first.or(acquire.releases.first().map(|hold| &hold.path));
            first.map(Place::Path)
        }
        ClientRequest::Release(release) => {
            release.holds.first().map(|hold| Place::Path(&hold.path))
        }
        ClientRequest::AssertFencing { paths, .. } => paths.first().map(Place::Path),
        ClientRequest::IsBlocking { path, .. }
        | ClientRequest::InspectPath { path }
        | ClientRequest::Explain { path, .. }
        | ClientRequest::Break { path, .. } => Some(Place::Path(path)),
        ClientRequest::SetNamespacePolicy { namespace, .. }
        | ClientRequest::DeleteNamespacePolicy { namespace, .. }
        | ClientRequest::GetNamespacePolicy { namespace } => Some(Place::Namespace(namespace)),
        _ => None,
    }
}

/// Returns the owner that a call acts as, and the name of the action.
pub(super) fn acting_owner(request: &ClientRequest) -> Option<(&OwnerId, &'static str)> {
    match request {
        ClientRequest::Acquire(acquire) => Some((&acquire.owner, "acquire_as")),
        ClientRequest::Release(release) => Some((&release.owner, "release_as")),
        ClientRequest::ReleaseAll { owner, .. } => Some((owner, "release_all_as")),
        ClientRequest::Renew { owner, .. } => Some((owner, "renew_as")),
        ClientRequest::SetWaitEdge { owner, .. } => Some((owner, "set_wait_edge_as")),
        ClientRequest::ClearWaitEdge { owner, .. } => Some((owner, "clear_wait_edge_as")),
        _ => None,
    }
}

/// The principals of one connection that count against a limit on connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionSlots(Arc<Mutex<Vec<(Principal, OpenPlace)>>>);

impl ConnectionSlots {
    /// Counts the connection for a caller, once. A connection that was open before the limit was set
    /// counts from its next request on.
    pub(crate) fn take(&self, caller: &super::Caller) -> Result<(), Failure> {
        let limits = caller.limits();
        if !limits.is_capped(LimitKind::Connections) {
            return Ok(());
        }
        let mut slots = lock(&self.0);
        if slots.iter().all(|(known, _)| known != caller.principal()) {
            let place = limits.open(LimitKind::Connections)?;
            slots.push((caller.principal().clone(), place));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    #[test]
    fn a_bucket_allows_a_burst_and_then_its_rate() {
        let start = Instant::now();
        let mut bucket = TokenBucket::full(start);
        let mut take = |ms, cost| bucket.take(at(start, ms), cost, 10.0, 5.0);
        for _ in 0..5 {
            assert_eq!(take(0, 1.0), Ok(()));
        }
        assert_eq!(take(0, 1.0), Err(Duration::from_millis(100)));
        assert_eq!(take(100, 1.0), Ok(()));
        assert!(take(150, 1.0).is_err());
        // A pause fills the bucket to its burst and no further.
        for _ in 0..5 {
            assert_eq!(take(100_000, 1.0), Ok(()));
        }
        assert!(take(100_000, 1.0).is_err());
    }

    #[test]
    fn a_call_that_costs_more_than_the_burst_leaves_a_debt() {
        let start = Instant::now();
        let mut bucket = TokenBucket::full(start);
        let mut take = |ms, cost| bucket.take(at(start, ms), cost, 10.0, 5.0);
        assert_eq!(take(0, 20.0), Ok(()));
        assert!(take(1_500, 1.0).is_err(), "it is still in debt");
        assert_eq!(take(1_700, 1.0), Ok(()));
    }

    /// A limit of one request a second refuses acquires and lets a thousand renewals pass.
    #[test]
    fn renewals_and_releases_of_own_owners_have_room_of_their_own() {
        use tenure_core::auth::{AuthTable, Principal};
        let table = Arc::new(ActivityTable::default());
        let mut limits = table.limits_of(&Principal::anonymous(), Some(&AuthTable::default()));
        limits.rate = Some(Rate {
            per_second: 1.0,
            burst: 1.0,
        });
        let owner = OwnerId::new("job").unwrap();
        let all = ClientRequest::ReleaseAll {
            owner,
            domains: Vec::new(),
            edge: tenure_node::WaitEdge::Keep,
            key: None,
        };
        assert!(limits.take(&ClientRequest::Health, true).is_ok());
        assert!(limits.take(&ClientRequest::Health, true).is_err());
        for _ in 0..1000 {
            assert!(limits.take(&all, true).is_ok());
        }
        let refused = limits.take(&all, false).unwrap_err();
        assert_eq!(refused.code, Code::ResourceExhausted);
        assert!(refused.retry_after.is_some() && refused.message.contains("tenure auth limit"));
    }

    #[test]
    fn open_things_count_until_they_are_dropped() {
        use tenure_core::auth::Principal;
        let table = Arc::new(ActivityTable::default());
        let mut limits = table.limits_of(&Principal::anonymous(), None);
        limits.caps[LimitKind::Watches as usize] = Some(1);
        let first = limits.open(LimitKind::Watches).unwrap();
        assert!(limits.open(LimitKind::Watches).is_err());
        assert!(limits.open(LimitKind::Streams).is_ok(), "another kind");
        drop(first);
        assert!(limits.open(LimitKind::Watches).is_ok());
        let refused: u64 = table.refusals.read().map(|(_, count)| count).sum();
        assert_eq!(refused, 1);
    }
}
