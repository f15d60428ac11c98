//! Shared code of the three lock-file protocols: waiting, inspection, listing, watching.
//!
//! All functions block. Acquiring a lock file needs no runtime and no thread: C7 (fast start).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use tenure_files::Cancel;
use tenure_files::Class;
use tenure_files::ObservedLock;
use tenure_files::OnWait;
use tenure_files::Token;
use tenure_files::{FileHolding, LossCause};

pub(super) use super::file_hold::{
    FileHold, acquire_async, acquire_blocking, release_hold, renew_hold,
};
pub(super) use super::upload::ask;
use super::{BreakRequest, exclusive, sidecar, upload};
use crate::address::Address;
use crate::error::{Blocker, BlockerKind, Error, LostCause};
use crate::guard::Guard;
use crate::hold::Hold;
use crate::inspect::{
    Broken, ChangeEvent, ChangeKind, ChangeStream, Force, LockState, WatchStream,
};
use crate::request::Request;
use crate::signals::Signals;
use crate::tenure::Tenure;
use crate::tuning::Tuning;
use crate::values::{Holder, HolderLiveness, Mode, Verdict};

/// Poll interval of a watch.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Acquires a lock file. The wait is one loop in `tenure-files`, which reports from inside.
pub(super) fn acquire(request: &Request, cancel: Option<&Cancel>) -> Result<Guard, Error> {
    let on_wait = request.on_wait.clone().map(|tell| {
        let (place, tuning) = (request.place.clone(), request.tuning.clone());
        OnWait::new(move |error| {
            let error = described(Error::from_files(&place, error), &tuning);
            if let Error::TimedOut(busy) | Error::Busy(busy) = &error {
                tell(busy);
            }
        })
    });
    once(request, on_wait, cancel)
        .map_err(|error| described(Error::from_files(&request.place, &error), &request.tuning))
}

/// Returns whether two addresses lead to one lock file, also through a bind mount, whose path differs.
pub(super) fn is_same_lock_file(one: &Address, other: &Address) -> bool {
    lock_file(one).is_some_and(|one| lock_file(other) == Some(one))
}

/// The directory of a lock file, by device and inode, and the name of the file.
fn lock_file(place: &Address) -> Option<(u64, u64, OsString)> {
    let (dir, name) = match place {
        Address::Sidecar(file) => {
            let mut name = file.file_name()?.to_owned();
            name.push(".lock");
            (file.parent()?.to_owned(), name)
        }
        Address::Exclusive(dir) => (dir.clone(), tenure_files::exclusive::FILE_NAME.into()),
        Address::Upload { dir, id } => {
            let path = dir.join(format!("{id}.lock"));
            (path.parent()?.to_owned(), path.file_name()?.to_owned())
        }
        _ => return None,
    };
    let metadata = std::fs::metadata(dir).ok()?;
    Some((metadata.dev(), metadata.ino(), name))
}

/// Adds the description from the record. A holder in this process is known only by its handle,
/// which has no purpose.
fn described(mut error: Error, tuning: &Tuning) -> Error {
    if let Error::Busy(busy) | Error::TimedOut(busy) = &mut error
        && let Some(blocker) = &mut busy.blocker
        && blocker.holder.purpose.is_empty()
        && let Ok(state) = inspect(&blocker.place, tuning)
        && let Some(seen) = state.holders.into_iter().next()
    {
        blocker.holder = seen.holder;
        blocker.held_for = blocker.held_for.or(seen.held_for);
        blocker.id = blocker.id.take().or(seen.id);
    }
    error
}

fn once(
    request: &Request,
    on_wait: Option<OnWait>,
    cancel: Option<&Cancel>,
) -> Result<Guard, tenure_files::Error> {
    let signals = Signals::new(&request.place);
    let held = match &request.place {
        Address::Sidecar(file) => sidecar::acquire(file, request, on_wait, cancel, &signals)?,
        Address::Exclusive(dir) => exclusive::acquire(dir, request, on_wait, cancel, &signals)?,
        Address::Upload { dir, id } => {
            upload::acquire(dir, id, request, on_wait, cancel, &signals)?
        }
        other => unreachable!("{} is no lock file", other.backend()),
    };
    let place = request.place.clone();
    Ok(Guard::new(place, Mode::Exclusive, signals, held))
}

/// Reports a loss to the guard.
pub(super) fn report_loss(hold: &FileHolding, signals: &Arc<Signals>) {
    let signals = Arc::clone(signals);
    hold.on_lost(move |loss| {
        let cause = match loss.cause {
            LossCause::Gone => LostCause::Broken,
            LossCause::Replaced | LossCause::Overwritten => LostCause::Overwritten,
            LossCause::Expired => LostCause::Expired,
        };
        signals.lose(cause, loss.cause.to_string());
    });
}

pub(super) fn inspect(place: &Address, tuning: &Tuning) -> Result<LockState, Error> {
    let state = match place {
        Address::Sidecar(file) => sidecar::inspect(place, file, tuning),
        Address::Exclusive(dir) => exclusive::inspect(place, dir),
        Address::Upload { dir, id } => upload::inspect(place, dir, id, tuning),
        other => unreachable!("{} is no lock file", other.backend()),
    };
    state.map_err(|error| Error::from_files(place, &error))
}

/// Converts an observed lock file into a state.
pub(super) fn observed_locks(place: &Address, observed_lock: Option<&ObservedLock>) -> LockState {
    let mut state = LockState::free(place);
    match observed_lock.map(ObservedLock::state) {
        None => {}
        Some(tenure_files::ObservedState::Held(blocker)) => {
            state.free = false;
            state.holders.push(Blocker::from_files(place, blocker));
        }
        Some(tenure_files::ObservedState::Dead(blocker)) => {
            let holder = match blocker {
                Some(blocker) => Blocker::from_files(place, blocker),
                None => unknown(place, HolderLiveness::Dead, "its process is gone"),
            };
            state.holders.push(holder);
        }
        Some(tenure_files::ObservedState::Problem(error)) => {
            state.free = false;
            state
                .holders
                .push(unknown(place, HolderLiveness::Unknown, error.what()));
            state.notes.push(error.to_string());
        }
    }
    state
}

fn unknown(place: &Address, life: HolderLiveness, because: &str) -> Blocker {
    Blocker {
        place: place.clone(),
        holder: Holder::default(),
        standing: BlockerKind::Holds,
        mode: Mode::Exclusive,
        held_for: None,
        lease_left: None,
        fence: None,
        verdict: Verdict::new(life, because),
        id: None,
    }
}

pub(super) fn list(place: &Address, tuning: &Tuning) -> Result<Vec<LockState>, Error> {
    let places = match place {
        Address::Sidecar(dir) if dir.is_dir() => {
            let mut places =
                sidecar::below(dir).map_err(|error| Error::from_files(place, &error))?;
            places.extend(exclusive::in_dir(dir));
            places
        }
        Address::Upload { dir, id } if dir.join(id.as_str()).is_dir() => {
            upload::below(&dir.join(id.as_str()))
                .map_err(|error| Error::from_files(place, &error))?
        }
        one => vec![one.clone()],
    };
    let states = places.iter().map(|place| inspect(place, tuning));
    // A lock that vanished after the listing is left out. A lock that cannot be read becomes a note
    // and does not hide the others.
    let states: Vec<LockState> = states
        .zip(&places)
        .map(|(state, place)| {
            state.unwrap_or_else(|error| LockState {
                free: false,
                notes: vec![error.to_string()],
                ..LockState::free(place)
            })
        })
        .filter(|state| !state.holders.is_empty() || !state.notes.is_empty())
        .collect();
    Ok(states)
}

pub(super) fn break_hold(
    place: &Address,
    breaking: BreakRequest<'_>,
    tuning: &Tuning,
) -> Result<Broken, Error> {
    let broken = match place {
        Address::Sidecar(file) => sidecar::break_lock(place, file, breaking, tuning),
        Address::Exclusive(dir) => {
            let found = tenure_files::exclusive::inspect(dir);
            found.and_then(|found| break_observed(place, found.observed_lock, breaking))
        }
        Address::Upload { dir, id } => {
            let found = upload::locker(dir, tuning, false).and_then(|locker| locker.inspect(id));
            found.and_then(|found| break_observed(place, found.observed_lock, breaking))
        }
        other => unreachable!("{} is no lock file", other.backend()),
    };
    broken.map_err(|error| Error::from_files(place, &error))
}

fn break_observed(
    place: &Address,
    observed_lock: Option<ObservedLock>,
    breaking: BreakRequest<'_>,
) -> Result<Broken, tenure_files::Error> {
    let not_held = |what: &str| tenure_files::Error::new(Class::NotHeld, place.to_string(), what);
    let victims = observed_locks(place, observed_lock.as_ref()).holders;
    let Some(observed_lock) = observed_lock else {
        return Err(not_held("there is no lock"));
    };
    let is_named = |id| victims.iter().any(|victim| victim.id.as_ref() == Some(id));
    if breaking.id.is_some_and(|id| !is_named(id)) {
        return Err(not_held("another holds it now"));
    }
    observed_lock.break_it(match breaking.force {
        Force::No => tenure_files::Force::No,
        Force::Yes => tenure_files::Force::Yes,
    })?;
    Ok(Broken {
        victims,
        fence: None,
    })
}

/// Takes over a hold that is bound to another process: C13 (holds for scripts).
pub(super) fn adopt(hold: &Hold, tuning: &Tuning) -> Result<FileHolding, Error> {
    let place = &hold.place;
    let token = Token::parse(&hold.secret)
        .ok_or_else(|| Error::input(&hold.secret, "is no token of a lock file"))?;
    let adopted = match place {
        Address::Sidecar(file) => {
            tenure_files::sidecar::adopt(&sidecar::options(file, tuning), token)
        }
        Address::Exclusive(dir) => tenure_files::exclusive::adopt(dir, token),
        Address::Upload { dir, id } => {
            upload::locker(dir, tuning, false).and_then(|locker| locker.adopt(id, token))
        }
        other => unreachable!("{} is no lock file", other.backend()),
    };
    adopted.map_err(|error| Error::from_files(place, &error))
}

/// Polls on its own thread, which ends with the watch. Lock files send no change events.
pub(super) fn watch(place: &Address, tenure: &Tenure) -> Result<WatchStream, Error> {
    let seen = list(place, tenure.tuning())?;
    let (changes, watch) = WatchStream::new();
    let (at, place, tenure) = (place.clone(), place.clone(), tenure.clone());
    let looking = std::thread::Builder::new().name("tenure-watch".into());
    let spawned = looking.spawn(move || {
        let mut known = present(&seen);
        let mut told = known.values().all(|hold| {
            let change = ChangeEvent::of(ChangeKind::Present, hold);
            changes.send(Ok(change)).is_ok()
        });
        told &= changes.send(Ok(ChangeEvent::present_end(&place))).is_ok();
        while told && !changes.is_closed() {
            std::thread::sleep(LOOK_EVERY);
            match list(&place, tenure.tuning()) {
                Ok(seen) => told = tell_differences(&mut known, present(&seen), &changes),
                Err(error) => {
                    let _ = changes.send(Err(error));
                    return;
                }
            }
        }
    });
    match spawned {
        Ok(_) => Ok(watch),
        Err(error) => Err(Error::refused(&at, Class::Io, error.to_string())),
    }
}

type ExistingLock = BTreeMap<String, Blocker>;

/// Returns the live holds by address and id.
pub(super) fn present(states: &[LockState]) -> ExistingLock {
    let locks = states.iter().filter(|state| !state.not_a_record);
    let holders = locks.flat_map(|state| &state.holders);
    holders
        .filter(|hold| hold.verdict.life != HolderLiveness::Dead)
        .map(|hold| {
            let id = hold.id.as_ref().map_or("", |id| id.as_str());
            (format!("{} {id}", hold.place), hold.clone())
        })
        .collect()
}

/// Sends the differences. Returns whether the receiver still exists.
pub(super) fn tell_differences(
    known: &mut ExistingLock,
    now: ExistingLock,
    changes: &ChangeStream,
) -> bool {
    let gone = known.iter().filter(|(key, _)| !now.contains_key(*key));
    let gone = gone.map(|(_, hold)| ChangeEvent::of(ChangeKind::Released, hold));
    let new = now.iter().filter(|(key, _)| !known.contains_key(*key));
    let new = new.map(|(_, hold)| ChangeEvent::of(ChangeKind::Granted, hold));
    let told = gone
        .chain(new)
        .all(|change| changes.send(Ok(change)).is_ok());
    *known = now;
    told
}
