//! Inspection and administration of locks in memory.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::command::{BreakLock, Command};
use tenure_core::event::LockChange;
use tenure_core::outcome::{BreakOutcome, Outcome};
use tenure_core::path::Path;
use tenure_core::policy::{Algorithm, Mode as CoreMode};
use tenure_core::value::OwnerId;

use super::convert::{
    blocker, holder_out, mode_out, namespace, no_owner, place_of, route, split_id,
};
use super::lock_table::{MEMORY, OwnerClaim};
use crate::address::Address;
use crate::backend::BreakRequest;
use crate::error::{Blocker, Busy, Error, LostCause};
use crate::inspect::{
    Broken, ChangeEvent, ChangeKind, ChangeStream, LockState, QueuedWaiter, WatchStream,
};
use crate::signals::{ReleaseRequest, Signals};
use crate::values::{Class, Fence, Holder, Mode};

pub(crate) fn inspect(place: &Address, path: &Path) -> LockState {
    let inner = MEMORY.lock();
    let explained = inner.space.explain(
        &route(Algorithm::RecursiveRw),
        &no_owner(),
        path,
        CoreMode::Write,
        MEMORY.time(),
    );
    let fence = inner.space.inspect(&namespace(), path, MEMORY.time()).fence;
    LockState {
        free: explained.conflict.is_none(),
        holders: explained.blockers.iter().map(blocker).collect(),
        waiters: Some(
            explained
                .ahead
                .iter()
                .map(|waiter| QueuedWaiter {
                    place: place_of(&waiter.path),
                    holder: waiter.holder.as_ref().map(holder_out).unwrap_or_default(),
                    owner: waiter.owner.as_str().to_owned(),
                    mode: mode_out(waiter.mode, None),
                    waited: Some(Duration::from_millis(waiter.waited_ms)),
                })
                .collect(),
        ),
        fence: fence.and_then(|fence| Fence::new(fence.number())),
        ..LockState::free(place)
    }
}

/// Returns all locks at or below a path; without a path, all locks.
pub(crate) fn list(below: Option<&Path>) -> Vec<LockState> {
    let mut paths: Vec<Path> = {
        let inner = MEMORY.lock();
        let (mut paths, mut after) = (Vec::new(), None);
        loop {
            let page = inner.space.dump(after, 512);
            paths.extend(page.locks.into_iter().map(|lock| lock.path));
            match page.next {
                Some(next) => after = Some(next),
                None => break paths,
            }
        }
    };
    paths.retain(|path| below.is_none_or(|below| path == below || below.is_ancestor_of(path)));
    paths.sort();
    paths.dedup();
    paths
        .iter()
        .map(|path| inspect(&place_of(path), path))
        .collect()
}

/// Asks the holders that block an exclusive request.
pub(crate) fn ask(place: &Address, path: &Path, reason: Option<&str>) -> Vec<Blocker> {
    let state = inspect(place, path);
    let request = ReleaseRequest {
        by: Holder::here(),
        reason: reason.map(str::to_owned),
    };
    let mut asked: Vec<Arc<Signals>> = Vec::new();
    {
        let inner = MEMORY.lock();
        for (_, owner_entry) in inner.owners.iter() {
            let claims = owner_entry.holds.iter().filter(|claim| {
                state
                    .holders
                    .iter()
                    .any(|holder| holder.place == place_of(&claim.path))
            });
            asked.extend(claims.map(|claim| Arc::clone(&claim.signals)));
        }
    }
    asked.iter().for_each(|signals| signals.ask(&request));
    state.holders
}

/// Ends the holds of a path with this cause. Used by `tenure::testing`.
pub(crate) fn lose(path: &Path, cause: LostCause, what: &str) -> usize {
    let claims = claims_at(path);
    for (owner, claim) in &claims {
        claim.signals.lose(cause, what);
        MEMORY.lock().release(owner, claim);
    }
    claims.len()
}

/// Returns the signals of all holds of a path.
pub(crate) fn signals_at(path: &Path) -> Vec<Arc<Signals>> {
    let claims = claims_at(path).into_iter();
    claims
        .map(|(_, claim)| Arc::clone(&claim.signals))
        .collect()
}

fn claims_at(path: &Path) -> Vec<(OwnerId, Arc<OwnerClaim>)> {
    let inner = MEMORY.lock();
    let owner_entries = inner.owners.iter();
    let claims = owner_entries
        .flat_map(|(owner, owner_entry)| owner_entry.holds.iter().map(move |claim| (owner, claim)));
    claims
        .filter(|(owner, claim)| claim.path == *path && inner.holds(owner, claim))
        .map(|(owner, claim)| (owner.clone(), Arc::clone(claim)))
        .collect()
}

pub(crate) fn break_hold(
    place: &Address,
    path: &Path,
    breaking: BreakRequest<'_>,
) -> Result<Broken, Error> {
    let state = inspect(place, path);
    let victims: Vec<Blocker> = state
        .holders
        .into_iter()
        .filter(|holder| breaking.id.is_none_or(|id| holder.id.as_ref() == Some(id)))
        .collect();
    if victims.is_empty() {
        return Err(Error::refused(
            place,
            Class::NotHeld,
            "there is no such hold",
        ));
    }
    if breaking.force == crate::Force::No {
        let busy = Busy::new(place, victims.into_iter().next(), "held");
        return Err(Error::Busy(Box::new(busy)));
    }
    for victim in &victims {
        let (owner, fence) = split_id(victim.id.as_ref());
        let Address::Memory(name) = &victim.place else {
            continue;
        };
        let owner =
            OwnerId::new(owner).map_err(|invalid| Error::input(owner, invalid.to_string()))?;
        let hold = BreakLock {
            route: route(Algorithm::RecursiveRw),
            path: name.path().clone(),
            owner,
            fence,
        };
        // Owner and fence must still match: the lock may have changed hands since `inspect`.
        match MEMORY.lock().apply(Command::Break(hold), None) {
            Outcome::Break(outcome) if *outcome == BreakOutcome::Broken => {}
            _ => {
                return Err(Error::refused(
                    place,
                    Class::LostRace,
                    "another holds it now",
                ));
            }
        }
    }
    Ok(Broken {
        victims,
        fence: inspect(place, path).fence,
    })
}

pub(crate) fn watch(path: &Path) -> WatchStream {
    let (changes, watch) = WatchStream::new();
    let mut inner = MEMORY.lock();
    for state in inner.space.watch_snapshot(&namespace(), MEMORY.time()) {
        tell_watcher(path, &changes, &state, Some(ChangeKind::Present));
    }
    let _ = changes.send(Ok(ChangeEvent::present_end(&place_of(path))));
    inner.space.watch();
    inner.watchers.push((path.clone(), changes));
    watch
}

/// Sends a change to a watcher. Returns whether the watcher still receives.
pub(super) fn tell_watcher(
    path: &Path,
    watcher: &ChangeStream,
    change: &LockChange,
    kind: Option<ChangeKind>,
) -> bool {
    use tenure_core::event::ChangeKind as Core;
    let (Some(at), Some(owner)) = (&change.path, &change.owner) else {
        return true;
    };
    if at != path && !path.is_ancestor_of(at) {
        return true;
    }
    let kind = match change.kind {
        // In the initial list, a grant means "present".
        Core::Granted => kind.unwrap_or(ChangeKind::Granted),
        Core::Queued => ChangeKind::Queued,
        Core::Released => ChangeKind::Released,
        Core::Expired => ChangeKind::Expired,
        Core::Killed => ChangeKind::Killed,
        Core::Dequeued => ChangeKind::Dequeued,
        Core::Asked => ChangeKind::Asked,
        Core::Policy { .. } => ChangeKind::Policy,
    };
    let change = ChangeEvent {
        kind,
        place: place_of(at),
        owner: owner.as_str().to_owned(),
        holder: change.holder.as_ref().map(holder_out).unwrap_or_default(),
        mode: change
            .mode
            .map_or(Mode::Exclusive, |mode| mode_out(mode, None)),
        fence: change.fence.and_then(|fence| Fence::new(fence.number())),
    };
    watcher.send(Ok(change)).is_ok()
}
