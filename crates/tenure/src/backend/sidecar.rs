//! Backend for sidecar locks (`state.json.lock` beside `state.json`), on `tenure_files::sidecar`.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use tenure_files::Cancel;
use tenure_files::OnWait;
use tenure_files::sidecar::{self, GuardState, Heartbeat, Manager, Options, Payload, StalePolicy};
use tenure_files::{Decision, Error};

use super::file_hold::FileHold;
use super::{BackendHold, BreakRequest, files};
use crate::address::Address;
use crate::error::Blocker;
use crate::inspect::{Broken, Force, LockState};
use crate::request::Request;
use crate::signals::Signals;
use crate::tuning::{Durability, Reclaim, Tuning};
use crate::values::{Fence, Wait};

/// Separates the in-process locks of this crate from those of others: S15 (locks within one
/// process).
const DOMAIN: &str = "tenure";

pub(super) fn acquire(
    file: &Path,
    request: &Request,
    on_wait: Option<OnWait>,
    cancel: Option<&Cancel>,
    signals: &Arc<Signals>,
) -> Result<BackendHold, Error> {
    let mut options = options(file, &request.tuning);
    if request.fenced {
        options = options.fence();
    }
    if let Some(purpose) = request.purpose() {
        options = options.payload(move || {
            let mut payload = Payload::new();
            payload.insert("purpose".into(), purpose.clone().into());
            payload
        });
    }
    if let Some(pid) = request.follows {
        options = options.follows(pid);
    }
    if let Some(owner) = &request.owner {
        options = options.reentrant_owner(owner);
    }
    if let Some(cancel) = cancel {
        options = options.cancel(cancel.clone());
    }
    if let Some(on_wait) = on_wait {
        options = options.on_wait(on_wait);
    }
    let manager = Manager::new(DOMAIN);
    let guard = match request.wait {
        Wait::No => manager.try_acquire(&options)?,
        Wait::For(time) => manager.acquire(&options.timeout(time))?,
        Wait::Forever => manager.acquire(&options.timeout(None))?,
    };
    files::report_loss(guard.hold(), signals);
    Ok(BackendHold::File(FileHold::Sidecar(guard)))
}

pub(super) fn options(file: &Path, tuning: &Tuning) -> Options {
    let tuning = &tuning.files;
    let mut options = Options::new(file);
    options = match tuning.reclaim {
        Reclaim::Proof => options.recovery(StalePolicy::FailClosed),
        Reclaim::Age => options
            .recovery(StalePolicy::RemoveIfUnchanged)
            .approve(|_| true),
        Reclaim::Never => options.recovery(StalePolicy::Never),
    };
    if let Some(stale) = tuning.stale {
        options = options.stale(stale);
    }
    if let Some(heartbeat) = tuning.heartbeat {
        options = options.heartbeat(Heartbeat::Every(heartbeat));
    }
    if tuning.durability == Durability::Fast {
        options = options.durability(tenure_files::Durability::Fast);
    }
    if let Some(mode) = tuning.mode {
        options = options.mode(mode);
    }
    if tuning.trust_pid {
        options = options.trust_pid();
    }
    if let Some(path) = &tuning.lock_path {
        options = options.lock_path(path);
    }
    options
}

pub(super) fn inspect(place: &Address, file: &Path, tuning: &Tuning) -> Result<LockState, Error> {
    let seen = sidecar::inspect(&options(file, tuning))?;
    let free = matches!(seen.decision(), Decision::Proceed | Decision::Reclaim);
    let mut state = LockState {
        free,
        ..LockState::free(place)
    };
    if seen.lock.is_some() && !is_record(&seen.lock_path) {
        state.not_a_record = true;
        state.notes.push(format!(
            "{} exists and is not a lock record: it belongs to another program. To lock under another name, \
             add --lock-path FILE",
            seen.lock_path.display()
        ));
    }
    if let Some(lock) = seen.lock {
        let fence = lock.identity.and_then(|identity| identity.fence);
        state.holders.push(Blocker {
            fence: fence.and_then(Fence::new),
            ..Blocker::from_files(place, &lock.blocker)
        });
    }
    match seen.guard {
        Some(GuardState::Locked) => state.notes.push("a dead lock is being removed right now".into()),
        Some(GuardState::Foreign { .. }) => state.notes.push(format!(
            "another program's reclaim guard stands beside the lock; to remove one that was left behind: \
             tenure break --guard {place}"
        )),
        Some(GuardState::Left) | None => {}
    }
    Ok(state)
}

/// Returns whether a file can be a lock record: a JSON object with a member that some generation of
/// the protocol writes, or text that is still being written. Package managers use the same suffix
/// for other files (`Cargo.lock`, `yarn.lock`, `flake.lock`).
fn is_record(path: &Path) -> bool {
    /// Enough for every record, and a limit for other files.
    const LIMIT: u64 = 64 << 10;
    const MEMBERS: [&str; 6] = [
        "pid",
        "createdAt",
        "acquiredAt",
        "tenure",
        "host",
        "hostname",
    ];
    let mut text = String::new();
    let Ok(file) = std::fs::File::open(path) else {
        // Removed meanwhile, or the lock of another user.
        return true;
    };
    if file.take(LIMIT).read_to_string(&mut text).is_err() {
        return false;
    }
    match serde_json::from_str::<serde_json::Value>(&text) {
        Ok(serde_json::Value::Object(record)) => {
            MEMBERS.iter().any(|member| record.contains_key(*member))
        }
        Ok(_) => false,
        Err(error) => error.is_eof() && (text.is_empty() || text.starts_with('{')),
    }
}

pub(super) fn break_lock(
    place: &Address,
    file: &Path,
    breaking: BreakRequest<'_>,
    tuning: &Tuning,
) -> Result<Broken, Error> {
    let force = match breaking.force {
        Force::No => sidecar::Force::No,
        Force::Yes => sidecar::Force::Yes,
    };
    let id = breaking.id.map(|id| id.as_str());
    let broken = sidecar::break_lock(&options(file, tuning), force, id)?;
    let victim = broken.blocker.as_ref();
    Ok(Broken {
        victims: victim
            .map(|blocker| Blocker::from_files(place, blocker))
            .into_iter()
            .collect(),
        fence: broken.fence.map(Fence::from),
    })
}

/// Returns the locked files of a directory.
pub(super) fn below(dir: &Path) -> Result<Vec<Address>, Error> {
    Ok(sidecar::list(dir)?
        .into_iter()
        .map(Address::Sidecar)
        .collect())
}
