//! Repository locks: shared and exclusive leases stored as objects, in a directory or a bucket.

use std::sync::Arc;
use std::time::Duration;

use tenure_store::{
    Accept, Class, FollowedProcess, LockEvent, LockMode as StoreMode, LockPurpose, LockSettings,
    Loss, OnConflict, Options, OtherClients, Repository, RepositoryAddress,
    RepositoryGuard as StoreGuard, Ticket, WaitLimit,
};
use tenure_store::{
    BlockingObject as StoreBlocker, BreakTarget, Insist, LockListing, LossCause, Notice,
};
use tenure_store::{ProcessLiveness as StoreLife, Staleness as StoreVerdict};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::{BreakRequest, files};
use tenure_base::HumanDuration;

use crate::address::Address;
use crate::error::{Blocker, BlockerKind, Busy, Error, LostCause, LostLock};
use crate::guard::Guard;
use crate::hold::Hold;
use crate::inspect::{
    Broken, ChangeEvent, ChangeKind, ChangeStream, Force, LockState, WatchStream,
};
use crate::request::Request;
use crate::runtime;
use crate::signals::Signals;
use crate::tenure::Tenure;
use crate::tuning::Tuning;
use crate::values::{Fence, HoldId, Holder, HolderLiveness, Mode, Verdict, Wait};
use tenure_files::Lease;

/// Default ttl: C1 (options of `run`).
const TTL: Duration = Duration::from_secs(60);
/// A record that lives longer than ten leases is suspicious.
const SUSPICIOUS: Duration = Duration::from_secs(600);
/// Poll interval of a watch.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// A hold in a repository. The store's runtime thread refreshes it; a task here reports its loss to
/// the guard.
pub(crate) struct RepositoryHold {
    guard: Arc<StoreGuard>,
    ttl: Duration,
    watching: Option<JoinHandle<()>>,
}

pub(super) async fn acquire(tenure: &Tenure, request: Request) -> Result<Guard, Error> {
    let place = &request.place;
    let ttl = request.ttl.unwrap_or(TTL);
    let repository = tenure.repository(place, ttl)?;
    let signals = Signals::new(place);
    let refreshed = Arc::new(Notify::new());
    let want = LockPurpose {
        mode: match request.mode {
            Mode::Exclusive => StoreMode::Exclusive,
            Mode::Shared | Mode::SharedTree | Mode::Permit(_) => StoreMode::Shared,
        },
        operation: request
            .tuning
            .repository
            .operation
            .clone()
            .or_else(|| request.purpose())
            .unwrap_or_else(|| request.holder.name.clone()),
        wait_limit: match request.wait {
            Wait::No => WaitLimit::None,
            Wait::For(time) => WaitLimit::For(time),
            Wait::Forever => WaitLimit::Forever,
        },
        liveness: match request.follows {
            Some(_) => FollowedProcess::Lease,
            None => FollowedProcess::Process,
        },
        listener: Some({
            let (place, tell) = (place.clone(), request.on_wait.clone());
            let refreshed = Arc::clone(&refreshed);
            Arc::new(move |event| match (event, &tell) {
                (LockEvent::Waiting(found), Some(tell)) => {
                    tell(&Busy::new(&place, Some(blocker(&place, found)), "held"));
                }
                (LockEvent::Held(Notice::Refreshed), _) => refreshed.notify_one(),
                (LockEvent::Waiting(_) | LockEvent::Held(_), _) => {}
            })
        }),
    };
    let taken = repository.lock(want).await;
    let guard = Arc::new(taken.map_err(|error| translated(place, &error))?);
    // The store refreshes on its own thread. This task reports refreshes and the loss to the guard.
    let watching = runtime::handle().spawn({
        let (guard, signals) = (Arc::clone(&guard), Arc::clone(&signals));
        async move {
            loop {
                tokio::select! {
                    loss = guard.lost() => {
                        let (cause, what) = loss_words(&loss);
                        signals.lose(cause, what);
                        return;
                    }
                    () = refreshed.notified() => signals.tell_renewed(lease(&guard, ttl)),
                }
            }
        }
    });
    let held = RepositoryHold {
        guard,
        ttl,
        watching: Some(watching),
    };
    let held = super::BackendHold::Repository(held);
    Ok(Guard::new(place.clone(), request.mode, signals, held))
}

impl RepositoryHold {
    pub(super) fn fence(&self) -> Option<Fence> {
        self.guard.fence().and_then(Fence::new)
    }

    pub(super) fn valid_for(&self) -> Duration {
        self.guard.valid_for()
    }

    pub(super) fn lease(&self) -> Lease {
        lease(&self.guard, self.ttl)
    }

    pub(super) fn owner(&self) -> String {
        self.guard.id()
    }

    pub(super) async fn check(&self, place: &Address) -> Result<(), Error> {
        self.guard
            .check()
            .await
            .map_err(|error| translated(place, &error))
    }

    pub(super) async fn release(self, place: &Address) -> Result<(), Error> {
        let guard = self.into_guard(place).await?;
        guard
            .release()
            .await
            .map_err(|error| translated(place, &error))
    }

    pub(super) async fn leave(self, place: &Address) -> Result<String, Error> {
        let guard = self.into_guard(place).await?;
        match guard.into_ticket().await {
            Ok(ticket) => Ok(ticket.to_string()),
            Err(error) => Err(translated(place, &error)),
        }
    }

    /// Stops the task and returns the store's guard, which then has no other reference.
    async fn into_guard(mut self, place: &Address) -> Result<StoreGuard, Error> {
        if let Some(watching) = self.watching.take() {
            watching.abort();
            let _ = watching.await;
        }
        let guard = Arc::clone(&self.guard);
        drop(self);
        Arc::into_inner(guard).ok_or_else(|| {
            Error::refused(place, Class::NotHeld, "this handle does not hold the lock")
        })
    }
}

impl Drop for RepositoryHold {
    fn drop(&mut self) {
        if let Some(watching) = self.watching.take() {
            watching.abort();
        }
    }
}

/// Converts the store's remaining validity into a lease with the same end.
fn lease(guard: &StoreGuard, ttl: Duration) -> Lease {
    let until = Lease::now() + guard.valid_for();
    Lease::new(until.saturating_sub(Lease::usable(ttl)), ttl)
}

/// Opens a repository. Does no I/O.
pub(crate) fn open(place: &Address, tuning: &Tuning, ttl: Duration) -> Result<Repository, Error> {
    let Address::Repository(address) = place else {
        unreachable!("{place} is no repository");
    };
    let tuning = &tuning.repository;
    let options = Options {
        settings: LockSettings {
            ttl,
            refresh: ttl / 3,
            settle: tuning.settle,
            company: match tuning.tenure_only {
                true => OtherClients::TenureOnly,
                false => OtherClients::Originals,
            },
            on_conflict: match tuning.strict {
                true => OnConflict::Stop,
                false => OnConflict::Warn,
            },
            ..LockSettings::default()
        },
        key: tuning.key.clone(),
        seal: tuning.seal,
        accept: match tuning.require_sealed {
            true => Accept::Sealed,
            false => Accept::Any,
        },
        demand: tuning.demand,
        config: tuning.config.clone(),
    };
    let address: RepositoryAddress = address.clone();
    Repository::open(address, options).map_err(|error| translated(place, &error))
}

pub(super) async fn inspect(tenure: &Tenure, place: &Address) -> Result<LockState, Error> {
    let view = tenure.repository(place, TTL)?.inspect().await;
    let view = view.map_err(|error| translated(place, &error))?;
    Ok(state(place, &view))
}

fn state(place: &Address, view: &LockListing) -> LockState {
    let holders: Vec<Blocker> = view.locks.iter().map(|lock| blocker(place, lock)).collect();
    let fence = holders.iter().filter_map(|holder| holder.fence).max();
    // P20 (unexpired is not stale): such a record blocks until its date, so it must be pointed out.
    let notes = holders.iter().filter_map(|holder| {
        let left = holder.lease_left.filter(|left| *left > SUSPICIOUS)?;
        Some(format!(
            "suspicious: the record of {} expires in {}, and a lease is about {} long; the clock of its writer may \
             be wrong",
            holder.holder,
            HumanDuration(left),
            HumanDuration(TTL)
        ))
    });
    LockState {
        notes: notes.collect(),
        free: view.blocking().next().is_none(),
        holders,
        fence,
        ..LockState::free(place)
    }
}

/// Breaks dead and stale locks; with force also live ones: P37 (break repository locks).
pub(super) async fn break_hold(
    tenure: &Tenure,
    place: &Address,
    breaking: BreakRequest<'_>,
) -> Result<Broken, Error> {
    let repository = tenure.repository(place, TTL)?;
    let view = repository
        .inspect()
        .await
        .map_err(|error| translated(place, &error))?;
    let is_named = |lock: &&StoreBlocker| breaking.id.is_none_or(|id| lock.is_named(id.as_str()));
    let named: Vec<&StoreBlocker> = view.locks.iter().filter(is_named).collect();
    if named.is_empty() {
        return Err(Error::refused(
            place,
            Class::NotHeld,
            "there is no such lock",
        ));
    }
    let may = |lock: &&&StoreBlocker| breaking.force == Force::Yes || !lock.verdict.blocks();
    let targets: Vec<&StoreBlocker> = named.iter().filter(may).copied().collect();
    if targets.is_empty() {
        let busy = Busy::new(
            place,
            named.first().map(|lock| blocker(place, lock)),
            "held",
        );
        return Err(Error::Busy(Box::new(busy)));
    }
    // A live holder refreshes its record, so its version changes between listing and break. Force
    // without an id means it anyway.
    let insist = match (breaking.force, breaking.id) {
        (Force::Yes, None) => Insist::Yes,
        (Force::Yes | Force::No, _) => Insist::No,
    };
    let wanted = targets
        .iter()
        .map(|lock| BreakTarget::from(*lock))
        .collect();
    let broken = repository.break_locks(wanted, insist).await;
    let broken = broken.map_err(|error| translated(place, &error))?;
    if let Some((key, why)) = broken.left.first() {
        let what = format!("{key} was not removed: {why}");
        return Err(Error::refused(place, Class::LostRace, what));
    }
    Ok(Broken {
        victims: targets.iter().map(|lock| blocker(place, lock)).collect(),
        fence: broken.fence.and_then(Fence::new),
    })
}

pub(super) fn watch(tenure: &Tenure, place: &Address) -> WatchStream {
    let (changes, watch) = WatchStream::new();
    let (tenure, place) = (tenure.clone(), place.clone());
    runtime::handle().spawn(async move {
        if let Err(error) = look_on(&tenure, &place, &changes).await {
            let _ = changes.send(Err(error));
        }
    });
    watch
}

/// Polls: a store sends no change events.
async fn look_on(tenure: &Tenure, place: &Address, changes: &ChangeStream) -> Result<(), Error> {
    let mut known = files::present(&[inspect(tenure, place).await?]);
    for hold in known.values() {
        let _ = changes.send(Ok(ChangeEvent::of(ChangeKind::Present, hold)));
    }
    let mut told = changes.send(Ok(ChangeEvent::present_end(place))).is_ok();
    while told {
        tokio::select! {
            () = changes.closed() => return Ok(()),
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        let seen = files::present(&[inspect(tenure, place).await?]);
        told = files::tell_differences(&mut known, seen, changes);
    }
    Ok(())
}

pub(super) async fn renew_hold(tenure: &Tenure, hold: &Hold) -> Result<Option<Fence>, Error> {
    let repository = tenure.repository(&hold.place, hold.ttl.unwrap_or(TTL))?;
    let known = ticket(hold)?.with_fence(hold.fence.map(Fence::get));
    let renewed = async {
        let guard = repository.adopt(known).await?;
        let fence = guard.fence();
        guard.into_ticket().await?;
        Ok(fence.and_then(Fence::new))
    };
    renewed
        .await
        .map_err(|error| translated(&hold.place, &error))
}

pub(super) async fn release_hold(tenure: &Tenure, hold: &Hold) -> Result<(), Error> {
    let repository = tenure.repository(&hold.place, hold.ttl.unwrap_or(TTL))?;
    let released = repository.release(ticket(hold)?).await;
    released.map_err(|error| translated(&hold.place, &error))
}

fn ticket(hold: &Hold) -> Result<Ticket, Error> {
    let parsed = hold.secret.parse::<Ticket>();
    parsed.map_err(|error| Error::input(hold.secret.clone(), error.to_string()))
}

fn blocker(place: &Address, found: &StoreBlocker) -> Blocker {
    let record = found.object.record();
    let life = match (&found.verdict, found.object.liveness) {
        (StoreVerdict::Stale(_) | StoreVerdict::Scratch, _) => HolderLiveness::Dead,
        (_, StoreLife::Alive | StoreLife::Locked) => HolderLiveness::Alive,
        (StoreVerdict::Held(_) | StoreVerdict::Unreadable(_), _) => HolderLiveness::Unknown,
    };
    let moment = |text: &str| text.parse::<jiff::Timestamp>().ok();
    let now = jiff::Timestamp::now();
    let since = record.and_then(|record| moment(&record.acquired_at));
    let until = record.and_then(|record| moment(&record.expires_at));
    Blocker {
        place: place.clone(),
        holder: Holder {
            name: record
                .map(|record| record.holder.clone())
                .unwrap_or_default(),
            // The name already contains host and process.
            host: String::new(),
            pid: None,
            purpose: record
                .map(|record| record.operation.clone())
                .unwrap_or_default(),
            ..Holder::default()
        },
        standing: BlockerKind::Holds,
        mode: match found.key {
            tenure_store::ObjectKey::Shared(_) => Mode::Shared,
            _ => Mode::Exclusive,
        },
        held_for: since.and_then(|since| Duration::try_from(now.duration_since(since)).ok()),
        lease_left: until
            .filter(|_| found.verdict.blocks())
            .map(|until| Duration::try_from(until.duration_since(now)).unwrap_or_default()),
        fence: record
            .and_then(|record| record.fence())
            .and_then(Fence::new),
        verdict: Verdict::new(life, found.verdict.to_string()),
        id: Some(HoldId::new(found.id())),
    }
}

fn loss_words(loss: &Loss) -> (LostCause, String) {
    let (cause, what) = match loss {
        Loss::Lapsed => (LostCause::Unconfirmed, "no refresh was confirmed in time"),
        Loss::For(LossCause::Expired) => (LostCause::Expired, "its lease expired"),
        Loss::For(LossCause::Removed) => (LostCause::Broken, "another client removed its record"),
        Loss::For(LossCause::Overwritten(_)) => (
            LostCause::Overwritten,
            "the record of another client replaced it",
        ),
        Loss::For(LossCause::Intruder(_)) => (
            LostCause::Overwritten,
            "another client holds a conflicting lock",
        ),
    };
    (cause, what.to_owned())
}

fn translated(place: &Address, error: &tenure_store::Error) -> Error {
    // The errors of this crate begin with the address themselves.
    let text = || {
        let text = error.to_string();
        match text.strip_prefix(&format!("{place}: ")) {
            Some(rest) => rest.to_owned(),
            None => text,
        }
    };
    let busy = |class| {
        let found = error.blocker().map(|found| blocker(place, found));
        let sentence = error.original_sentence();
        let mut busy = Busy::new(place, found, sentence.unwrap_or_else(text));
        busy.class = class;
        Box::new(busy)
    };
    match (error, error.class()) {
        (tenure_store::Error::Lost { loss, .. }, _) => {
            let (cause, what) = loss_words(loss);
            LostLock::new(place, cause, what).into()
        }
        (_, Class::Timeout) => Error::TimedOut(busy(Class::Timeout)),
        (_, class) if error.is_busy() => Error::Busy(busy(class)),
        (_, Class::BadInput) => Error::input(place.to_string(), text()),
        (_, class) => Error::refused(place, class, text()),
    }
}
