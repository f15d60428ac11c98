//! Inspection and administration of daemon locks: Explain, DumpLocks, RequestRevoke, Break, Watch.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::path::Path;
use tenure_wire::v1;

use super::client::{CallFailure, DaemonClient, NO_OWNER};
use super::connection::Connection;
use super::{convert, failed};
use crate::address::Address;
use crate::backend::BreakRequest;
use crate::endpoint::Endpoint;
use crate::error::{Blocker, BlockerKind, Busy, Error};
use crate::inspect::{
    Broken, ChangeEvent, ChangeKind, Force, LockState, Permits, QueuedWaiter, WatchStream,
};
use crate::runtime;
use crate::values::{Class, HoldId, Holder, HolderLiveness, Mode, Verdict};
use tenure_base::Lease;

/// Returns the owners of a deadlock, the first one again at the end: the cycle that the daemon
/// found for the request, or a holder and a waiter that wait for each other.
fn cycle(found: &v1::ExplainResponse) -> Vec<String> {
    if !found.cycle.is_empty() {
        return found.cycle.clone();
    }
    let waits_here = |owner: &String| found.waiters_ahead.iter().any(|w| w.owner == *owner);
    let pairs = found.blockers.iter().filter_map(|blocker| {
        let holder = blocker.blocker.as_ref()?.owner.clone();
        let other = blocker.waits_for.iter().find(|owner| waits_here(owner))?;
        Some(vec![holder.clone(), other.clone(), holder])
    });
    pairs.into_iter().next().unwrap_or_default()
}

/// Searches a deadlock of several owners. Each owner of a cycle that runs through this lock waits, and one
/// of them waits here, so the waiters of the lock are asked about. A failure means that none is known.
async fn longer_cycle(
    client: &DaemonClient,
    path: &Path,
    found: &v1::ExplainResponse,
) -> Vec<String> {
    for waiter in found.waiters_ahead.iter().take(ASKED_WAITERS) {
        let request = v1::ExplainRequest {
            path: path.as_str().to_owned(),
            mode: waiter.mode,
            owner_id: waiter.owner.clone(),
        };
        let explained = client.call_from_anywhere(request).await;
        if let Some(first) = explained.as_ref().ok().and_then(|one| one.cycle.first()) {
            let mut cycle = explained
                .as_ref()
                .map_or_else(|_| Vec::new(), |one| one.cycle.clone());
            // The first one again at the end, as in a cycle of two.
            if cycle.len() == 1 || cycle.last() != Some(first) {
                cycle.push(first.clone());
            }
            return cycle;
        }
    }
    Vec::new()
}

/// Of how many waiters of a lock a deadlock is searched.
const ASKED_WAITERS: usize = 8;

pub(crate) async fn inspect(
    client: &DaemonClient,
    place: &Address,
    path: &Path,
) -> Result<LockState, Error> {
    let request = v1::ExplainRequest {
        path: path.as_str().to_owned(),
        mode: v1::Mode::Write.into(),
        owner_id: NO_OWNER.to_owned(),
    };
    let found = client
        .call_from_anywhere(request)
        .await
        .map_err(|trouble| failed(place, trouble))?;
    let at = |path: &str| convert::place_like(place, path);
    let holders = found
        .blockers
        .iter()
        .filter_map(|found| found.blocker.as_ref());
    let mut holders: Vec<Blocker> = holders
        .map(|found| convert::blocker(at(&found.path), found))
        .collect();
    let mut permits = None;
    if found.algorithm() == v1::LockAlgorithm::Semaphore {
        // Explain does not know how many permits there are.
        let nodes = match place {
            Address::Daemon { nodes, .. } => nodes.as_slice(),
            _ => &[],
        };
        let here = list(client, nodes, Some(path)).await?.into_iter().next();
        permits = here
            .filter(|here| here.place == *place)
            .and_then(|here| here.permits);
        let of = permits.and_then(|permits| NonZeroU32::new(permits.of));
        for holder in &mut holders {
            holder.mode = of.map_or(holder.mode, Mode::Permit);
        }
    }
    let waiters = found.waiters_ahead.iter().map(|waiter| QueuedWaiter {
        place: at(&waiter.path),
        holder: convert::holder_or_owner(waiter.holder.as_ref(), &waiter.owner),
        owner: waiter.owner.clone(),
        mode: convert::hold_mode(waiter.mode(), permits.map_or(0, |permits| permits.of)),
        waited: Some(Duration::from_millis(waiter.held_ms)),
    });
    let algorithm = found
        .algorithm()
        .as_str_name()
        .trim_start_matches("LOCK_ALGORITHM_");
    // Show which blockers wait themselves: this is how a chain of waits becomes visible.
    let waits = found
        .blockers
        .iter()
        .filter(|found| !found.waits_for.is_empty());
    let notes = waits.filter_map(|found| {
        let owner = &found.blocker.as_ref()?.owner;
        let others: BTreeSet<&str> = found.waits_for.iter().map(String::as_str).collect();
        let others: Vec<&str> = others.into_iter().collect();
        Some(format!("{owner} waits for {}", others.join(", ")))
    });
    let mut deadlock = cycle(&found);
    let is_chain = found.blockers.iter().any(|one| !one.waits_for.is_empty());
    if deadlock.is_empty() && is_chain {
        deadlock = longer_cycle(client, path, &found).await;
    }
    Ok(LockState {
        free: found.free,
        fence: holders.iter().filter_map(|holder| holder.fence).max(),
        waiters: Some(waiters.collect()),
        permits,
        rule: Some(format!(
            "namespace {}, {}, {}",
            found.namespace,
            algorithm.to_lowercase(),
            match found.free {
                true => "free",
                false => found
                    .reason()
                    .as_str_name()
                    .trim_start_matches("REASON_CODE_"),
            }
            .to_lowercase()
        )),
        deadlock,
        notes: notes.collect(),
        holders,
        ..LockState::free(place)
    })
}

/// Returns all holds and waiters at or below a path, ordered by path; without a path, all of them.
pub(crate) async fn list(
    client: &DaemonClient,
    nodes: &[Endpoint],
    below: Option<&Path>,
) -> Result<Vec<LockState>, Error> {
    let place = |path: &Path| Address::Daemon {
        nodes: nodes.to_vec(),
        path: path.clone(),
    };
    let anywhere = || below.map_or_else(|| everything(nodes), place);
    let survey = client
        .survey(below)
        .await
        .map_err(|trouble| failed(&anywhere(), trouble))?;
    let is_below =
        |path: &Path| below.is_none_or(|below| path == below || below.is_ancestor_of(path));
    // A path that this version cannot parse is skipped, so that it does not hide the others. A release
    // without surveys lists all paths.
    let parsed = |text: &str| Path::parse(text).ok().filter(is_below);
    let empty = |path: &Path| LockState {
        free: false,
        waiters: survey.detailed.then(Vec::new),
        ..LockState::free(&place(path))
    };
    let mut states: BTreeMap<Path, LockState> = BTreeMap::new();
    for hold in &survey.holds {
        let Some(path) = parsed(&hold.path) else {
            continue;
        };
        let state = states.entry(path.clone()).or_insert_with(|| empty(&path));
        let fence = hold.has_fence.then(|| convert::fence(hold.fence)).flatten();
        state.fence = state.fence.max(fence);
        if hold.permits > 0 {
            let held = state.permits.map_or(0, |permits| permits.held) + 1;
            let of = hold.permits;
            state.permits = Some(Permits { held, of });
        }
        let known = |millis| survey.detailed.then(|| Duration::from_millis(millis));
        state.holders.push(Blocker {
            place: place(&path),
            holder: convert::holder_or_owner(hold.holder.as_ref(), &hold.owner),
            standing: BlockerKind::Holds,
            mode: convert::hold_mode(hold.mode(), hold.permits),
            held_for: known(hold.held_ms),
            // Zero is sent when the leader does not know it, in the first moment of its term.
            lease_left: known(hold.lease_left_ms).filter(|left| !left.is_zero()),
            fence,
            verdict: Verdict::new(HolderLiveness::Alive, "its lease has not run out"),
            id: Some(HoldId::of(&hold.owner, fence)),
        });
    }
    for waiter in &survey.waiters {
        let Some(path) = parsed(&waiter.path) else {
            continue;
        };
        let state = states.entry(path.clone()).or_insert_with(|| empty(&path));
        // A waiter in a semaphore wants a permit.
        let permits = state.permits.map_or(0, |permits| permits.of);
        let waiters = state.waiters.get_or_insert_default();
        waiters.push(QueuedWaiter {
            place: place(&path),
            holder: convert::holder_or_owner(waiter.holder.as_ref(), &waiter.owner),
            owner: waiter.owner.clone(),
            mode: convert::hold_mode(waiter.mode(), permits),
            waited: Some(Duration::from_millis(waiter.waited_ms)),
        });
    }
    Ok(states.into_values().collect())
}

/// Returns a stand-in address for messages that concern no single path.
pub(super) fn everything(nodes: &[Endpoint]) -> Address {
    let path = Path::parse("all:/").expect("a root is a path");
    Address::Daemon {
        nodes: nodes.to_vec(),
        path,
    }
}

/// All pages of DumpLocks with details: E18 (survey of holds and waiters).
struct Survey {
    holds: Vec<v1::LockEntry>,
    waiters: Vec<v1::WaitEntry>,
    /// Whether holds have details, and all waiters are listed.
    detailed: bool,
}

impl DaemonClient {
    async fn survey(&self, below: Option<&Path>) -> Result<Survey, CallFailure> {
        let mut survey = Survey {
            holds: Vec::new(),
            waiters: Vec::new(),
            detailed: true,
        };
        let mut cursor = Vec::new();
        loop {
            let request = v1::DumpLocksRequest {
                cursor: std::mem::take(&mut cursor),
                owner_page: 512,
                read_tree: true,
                details: true,
                prefix: below.map_or_else(String::new, |below| below.as_str().to_owned()),
            };
            let page = self.call_from_anywhere(request).await?;
            survey.holds.extend(page.entries);
            survey.waiters.extend(page.waiters);
            survey.detailed &= page.detailed;
            if page.done {
                survey.waiters.sort_by_key(|waiter| waiter.number);
                return Ok(survey);
            }
            cursor = page.next_cursor;
        }
    }
}

/// Asks every blocking owner to release: R115 (RequestRevoke sends an event).
pub(crate) async fn ask(
    client: &DaemonClient,
    place: &Address,
    path: &Path,
) -> Result<Vec<Blocker>, Error> {
    let holders = inspect(client, place, path).await?.holders;
    let mut owners: Vec<String> = holders
        .iter()
        .map(|holder| split(holder.id.as_ref()).0)
        .collect();
    owners.sort();
    owners.dedup();
    for owner_id in owners {
        let request = v1::RequestRevokeRequest { owner_id };
        client
            .call_from_anywhere(request)
            .await
            .map_err(|trouble| failed(place, trouble))?;
    }
    Ok(holders)
}

/// Ends the named hold, or every blocking one: E9 (Break one hold).
///
/// Always needs force: leases end dead holds, so every listed hold is live.
pub(crate) async fn break_hold(
    client: &DaemonClient,
    place: &Address,
    path: &Path,
    breaking: BreakRequest<'_>,
) -> Result<Broken, Error> {
    let holders = inspect(client, place, path).await?.holders;
    let is_named = |holder: &Blocker| match (breaking.id, &holder.id) {
        (None, _) => true,
        // The owner alone is enough, without the fence.
        (Some(id), Some(held)) => id == held || id.as_str() == split(Some(held)).0,
        (Some(_), None) => false,
    };
    let victims: Vec<Blocker> = holders.into_iter().filter(is_named).collect();
    if victims.is_empty() {
        return Err(Error::refused(
            place,
            Class::NotHeld,
            "there is no such hold",
        ));
    }
    if breaking.force == Force::No {
        let busy = Busy::new(place, victims.into_iter().next(), "held");
        return Err(Error::Busy(Box::new(busy)));
    }
    for victim in &victims {
        let (owner_id, fence) = split(victim.id.as_ref());
        let Address::Daemon { path, .. } = &victim.place else {
            continue;
        };
        let request = v1::BreakRequest {
            path: path.as_str().to_owned(),
            owner_id,
            fence,
            reason: breaking.reason.to_owned(),
            actor: Holder::here().to_string(),
        };
        client
            .call_from_anywhere(request)
            .await
            .map_err(|trouble| failed(place, trouble))?;
    }
    Ok(Broken {
        fence: victims.iter().filter_map(|victim| victim.fence).max(),
        victims,
    })
}

/// Splits an id into owner and fence; the fence is zero if there is none.
fn split(id: Option<&HoldId>) -> (String, i64) {
    let text = id.map_or("", HoldId::as_str);
    match text
        .rsplit_once('@')
        .map(|(owner, fence)| (owner, fence.parse()))
    {
        Some((owner, Ok(fence))) => (owner.to_owned(), fence),
        _ => (text.to_owned(), 0),
    }
}

/// Streams all changes at or below a path: E8 (Watch lock changes).
///
/// If the connection breaks, the watch goes on at another node. Its snapshot is compared with the
/// last state, and the differences are reported as changes.
pub(crate) async fn watch(
    client: &DaemonClient,
    nodes: &[Endpoint],
    path: &Path,
) -> Result<WatchStream, Error> {
    let place = Address::Daemon {
        nodes: nodes.to_vec(),
        path: path.clone(),
    };
    let request = v1::WatchRequest {
        prefix: path.as_str().to_owned(),
        snapshot: true,
    };
    let (first, client) = (request.clone(), client.clone());
    let watcher = client.clone();
    let opened = runtime::run(async move { watcher.open_watch(first).await }).await;
    let opened =
        opened.unwrap_or_else(|| Err(CallFailure::Unreachable("the runtime ended".into())));
    let mut opened = opened.map_err(|trouble| failed(&place, trouble))?;
    let (changes, watch) = WatchStream::new();
    runtime::handle().spawn(async move {
        let mut seen = WatchedState::default();
        loop {
            let (mut stream, link) = opened;
            loop {
                let message = tokio::select! {
                    message = stream.message() => message,
                    () = link.broken() => break,
                    () = changes.closed() => return,
                };
                let Ok(Some(change)) = message else {
                    break;
                };
                for change in seen.advance(change) {
                    if changes.send(Ok(translated(&place, &change))).is_err() {
                        return;
                    }
                }
            }
            drop((stream, link));
            seen.begin_again();
            // A node that ends the stream may do so again at once.
            tokio::time::sleep(WATCH_AGAIN).await;
            opened = loop {
                let again = tokio::select! {
                    again = client.open_watch(request.clone()) => again,
                    () = changes.closed() => return,
                };
                match again {
                    Ok(opened) => break opened,
                    // An outage: the watch outlives it.
                    Err(CallFailure::Unreachable(_)) => {}
                    Err(trouble) => {
                        let _ = changes.send(Err(failed(&place, trouble)));
                        return;
                    }
                }
            };
        }
    });
    Ok(watch)
}

/// Delay before a watch is opened again.
const WATCH_AGAIN: Duration = Duration::from_millis(50);
/// How long the opening of a watch is retried before its trouble is known.
const WATCH_TIMEOUT: Duration = Duration::from_secs(10);
const WATCH_EACH_TRY: Duration = Duration::from_secs(4);

type OpenWatch = (tonic::Streaming<v1::LockChange>, Arc<Connection>);

impl DaemonClient {
    async fn open_watch(&self, request: v1::WatchRequest) -> Result<OpenWatch, CallFailure> {
        let until = Lease::now() + WATCH_TIMEOUT;
        self.call_on(request, until, WATCH_EACH_TRY).await
    }
}

/// A hold or waiter in a watch.
type WatchedKey = (String, String, i32);

/// The holds and waiters that a watch has reported.
#[derive(Default)]
struct WatchedState {
    holds: BTreeMap<WatchedKey, v1::LockChange>,
    waiters: BTreeMap<WatchedKey, v1::LockChange>,
    /// The snapshot that a second stream has sent so far.
    snapshot: Option<Box<WatchedState>>,
}

impl WatchedState {
    /// The next stream starts with a snapshot, which replaces this state.
    fn begin_again(&mut self) {
        self.snapshot = Some(Box::default());
    }

    /// Takes a message of the stream; returns the changes to report.
    fn advance(&mut self, change: v1::LockChange) -> Vec<v1::LockChange> {
        let is_end = change.kind() == v1::ChangeKind::SnapshotEnd;
        match self.snapshot.take() {
            Some(snapshot) if is_end => {
                let changes = self.differences(&snapshot);
                *self = *snapshot;
                changes
            }
            Some(mut snapshot) => {
                snapshot.apply(&change);
                self.snapshot = Some(snapshot);
                Vec::new()
            }
            None => {
                self.apply(&change);
                vec![change]
            }
        }
    }

    fn apply(&mut self, change: &v1::LockChange) {
        use v1::ChangeKind::{
            Asked, Dequeued, Expired, Granted, Killed, Policy, Queued, Released, Snapshot,
            SnapshotEnd, Unspecified,
        };
        let key = (change.path.clone(), change.owner.clone(), change.mode);
        match change.kind() {
            Snapshot | Granted => {
                self.waiters.remove(&key);
                self.holds.insert(key, change.clone());
            }
            Queued => drop(self.waiters.insert(key, change.clone())),
            Released | Expired | Killed => drop(self.holds.remove(&key)),
            Dequeued => drop(self.waiters.remove(&key)),
            Asked | Policy | SnapshotEnd | Unspecified => {}
        }
    }

    /// Returns the changes that lead from this state to the later one. How a hold ended is not known
    /// any more: it is reported as released.
    fn differences(&self, later: &WatchedState) -> Vec<v1::LockChange> {
        let as_kind = |change: &v1::LockChange, kind: v1::ChangeKind| v1::LockChange {
            kind: kind.into(),
            ..change.clone()
        };
        let mut changes = Vec::new();
        for (key, hold) in &self.holds {
            if later
                .holds
                .get(key)
                .is_none_or(|now| now.fence != hold.fence)
            {
                changes.push(as_kind(hold, v1::ChangeKind::Released));
            }
        }
        for (key, waiter) in &self.waiters {
            let is_granted = later.holds.contains_key(key);
            if !later.waiters.contains_key(key) && !is_granted {
                changes.push(as_kind(waiter, v1::ChangeKind::Dequeued));
            }
        }
        for (key, hold) in &later.holds {
            if self
                .holds
                .get(key)
                .is_none_or(|then| then.fence != hold.fence)
            {
                changes.push(as_kind(hold, v1::ChangeKind::Granted));
            }
        }
        for (key, waiter) in &later.waiters {
            if !self.waiters.contains_key(key) {
                changes.push(as_kind(waiter, v1::ChangeKind::Queued));
            }
        }
        changes
    }
}

fn translated(place: &Address, change: &v1::LockChange) -> ChangeEvent {
    let kind = match change.kind() {
        v1::ChangeKind::Snapshot => ChangeKind::Present,
        v1::ChangeKind::SnapshotEnd => ChangeKind::PresentEnd,
        v1::ChangeKind::Granted => ChangeKind::Granted,
        v1::ChangeKind::Queued => ChangeKind::Queued,
        v1::ChangeKind::Released => ChangeKind::Released,
        v1::ChangeKind::Expired => ChangeKind::Expired,
        v1::ChangeKind::Killed => ChangeKind::Killed,
        v1::ChangeKind::Dequeued => ChangeKind::Dequeued,
        v1::ChangeKind::Asked => ChangeKind::Asked,
        v1::ChangeKind::Policy | v1::ChangeKind::Unspecified => ChangeKind::Policy,
    };
    ChangeEvent {
        kind,
        place: convert::place_like(place, &change.path),
        owner: change.owner.clone(),
        holder: convert::holder_or_owner(change.holder.as_ref(), &change.owner),
        mode: convert::mode_out(change.mode()),
        fence: convert::fence(change.fence),
    }
}
