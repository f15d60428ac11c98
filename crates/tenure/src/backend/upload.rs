//! Upload locks: one request per upload at a time. A new request can ask the current one to stop.

use std::path::Path;
use std::sync::Arc;

use tenure_files::Cancel;
use tenure_files::Error;
use tenure_files::OnWait;
use tenure_files::upload::{self, Fencing, FileLocker, LockRequest, UploadId, UploadLocker};

use super::file_hold::FileHold;
use super::{BackendHold, files};
use crate::address::Address;
use crate::error::Blocker;
use crate::inspect::LockState;
use crate::request::Request;
use crate::signals::{ReleaseRequest, Signals};
use crate::tuning::{Durability, Tuning};
use crate::values::{Fence, Holder};

/// Acquires an upload lock. Every waiter also makes a release request: U14 (make a release
/// request).
pub(super) fn acquire(
    dir: &Path,
    id: &UploadId,
    request: &Request,
    on_wait: Option<OnWait>,
    cancel: Option<&Cancel>,
    signals: &Arc<Signals>,
) -> Result<BackendHold, Error> {
    let heard = Arc::clone(signals);
    let guard = locker(dir, &request.tuning, request.fenced)?.lock_for(
        id,
        LockRequest {
            wait: request.wait,
            purpose: request.purpose(),
            on_request: Arc::new(move |asked| heard.ask(&translated(asked))),
            cancel: cancel.cloned(),
            on_wait,
            follows: request.follows,
        },
    )?;
    if let Some(hold) = guard.file() {
        files::report_loss(hold.hold(), signals);
    }
    Ok(BackendHold::File(FileHold::Upload(guard)))
}

pub(super) fn locker(dir: &Path, tuning: &Tuning, fenced: bool) -> Result<FileLocker, Error> {
    let mut options = upload::Options {
        foreign_pids: tuning.files.foreign_pids,
        trust_pid: tuning.files.trust_pid,
        mode: tuning.files.mode,
        ..upload::Options::default()
    };
    if let Some(heartbeat) = tuning.files.heartbeat {
        options.heartbeat = heartbeat;
    }
    if tuning.files.durability == Durability::Fast {
        options.durability = tenure_files::Durability::Fast;
    }
    if fenced {
        options.fence = Fencing::Taken;
    }
    FileLocker::with(dir, options)
}

pub(super) fn inspect(
    place: &Address,
    dir: &Path,
    id: &UploadId,
    tuning: &Tuning,
) -> Result<LockState, Error> {
    let seen = locker(dir, tuning, false)?.inspect(id)?;
    let mut state = files::observed_locks(place, seen.observed_lock.as_ref());
    let block = seen
        .observed_lock
        .as_ref()
        .and_then(|observed_lock| block(observed_lock.bytes()?));
    if let (Some(holder), Some(block)) = (state.holders.first_mut(), block) {
        let text = |name: &str| block.get(name).and_then(serde_json::Value::as_str);
        holder.holder.purpose = text("request").unwrap_or_default().to_owned();
        let fence = block.get("fence").and_then(serde_json::Value::as_u64);
        holder.fence = fence.and_then(Fence::new);
    }
    if let Some(request) = &seen.request {
        state.notes.push(translated(request).to_string());
    }
    Ok(state)
}

/// Parses Tenure's line of the record, which has the purpose: U5 (the `tenure` line).
fn block(bytes: &[u8]) -> Option<serde_json::Map<String, serde_json::Value>> {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    lines.find_map(|line| serde_json::from_slice(line.strip_prefix(b"tenure ")?).ok())
}

pub(super) fn ask(
    place: &Address,
    dir: &Path,
    id: &UploadId,
    reason: Option<&str>,
    tuning: &Tuning,
) -> Result<Vec<Blocker>, crate::Error> {
    let request = upload::UploadReleaseRequest::new(reason.map(str::to_owned));
    let asked = locker(dir, tuning, false).and_then(|locker| locker.ask(id, &request));
    match asked {
        Ok(asked) => Ok(asked
            .iter()
            .map(|blocker| Blocker::from_files(place, blocker))
            .collect()),
        Err(error) => Err(crate::Error::from_files(place, &error)),
    }
}

/// Returns the locked uploads of a directory.
pub(super) fn below(dir: &Path) -> Result<Vec<Address>, Error> {
    let ids = FileLocker::new(dir)?.list()?;
    let dir = dir.to_owned();
    Ok(ids
        .into_iter()
        .map(|id| Address::Upload {
            dir: dir.clone(),
            id,
        })
        .collect())
}

fn translated(asked: &upload::UploadReleaseRequest) -> ReleaseRequest {
    let by = asked.by.as_ref();
    ReleaseRequest {
        by: Holder {
            host: by.and_then(|by| by.host.clone()).unwrap_or_default(),
            pid: by.and_then(|by| by.pid),
            ..Holder::default()
        },
        reason: asked.reason.clone(),
    }
}
