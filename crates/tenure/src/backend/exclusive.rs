//! Exclusive locks: a tool locks a database directory, and its server pauses meanwhile.

use std::path::Path;
use std::sync::Arc;

use tenure_files::Cancel;
use tenure_files::Error;
use tenure_files::OnWait;
use tenure_files::exclusive::{self, FILE_NAME, Tool};

use super::file_hold::FileHold;
use super::{BackendHold, files};
use crate::address::Address;
use crate::inspect::LockState;
use crate::request::Request;
use crate::signals::Signals;
use crate::tuning::{Durability, Quiesce};

pub(super) fn acquire(
    dir: &Path,
    request: &Request,
    on_wait: Option<OnWait>,
    cancel: Option<&Cancel>,
    signals: &Arc<Signals>,
) -> Result<BackendHold, Error> {
    let mut tool = tool(dir, request, cancel)?;
    if let Some(on_wait) = on_wait {
        tool = tool.on_wait(on_wait);
    }
    let guard = tool.acquire(request.wait)?;
    files::report_loss(guard.hold(), signals);
    Ok(BackendHold::File(FileHold::Exclusive(guard)))
}

/// Uses the purpose as the holder's name: X22 (exclusive address and verbs).
fn tool(dir: &Path, request: &Request, cancel: Option<&Cancel>) -> Result<Tool, Error> {
    let tuning = &request.tuning.exclusive;
    let holder = tuning
        .holder
        .clone()
        .or_else(|| request.purpose())
        .unwrap_or_else(|| request.holder.name.clone());
    let mut tool = Tool::new(dir, &holder)?.settle(tuning.settle);
    if let Some(version) = &tuning.holder_version {
        tool = tool.version(version);
    }
    if tuning.private {
        tool = tool.private();
    }
    tool = match tuning.quiesce {
        Quiesce::Usual => tool,
        Quiesce::For(time) => tool.quiesce(exclusive::Quiesce::For(time)),
        Quiesce::Skip => tool.quiesce(exclusive::Quiesce::Skip),
    };
    let files = &request.tuning.files;
    if let Some(interval) = files.heartbeat {
        tool = tool.heartbeat(interval);
    }
    if files.durability == Durability::Fast {
        tool = tool.durability(tenure_files::Durability::Fast);
    }
    if let Some(mode) = files.mode {
        tool = tool.mode(mode);
    }
    if files.trust_pid {
        tool = tool.trust_pid();
    }
    if files.foreign_pids {
        tool = tool.foreign_pids();
    }
    if request.fenced {
        tool = tool.fenced();
    }
    if let Some(pid) = request.follows {
        tool = tool.follows(pid);
    }
    if let Some(cancel) = cancel {
        tool = tool.cancel(cancel.clone());
    }
    Ok(tool)
}

pub(super) fn inspect(place: &Address, dir: &Path) -> Result<LockState, Error> {
    let seen = exclusive::inspect(dir)?;
    let mut state = files::observed_locks(place, seen.observed_lock.as_ref());
    if seen.cycle_is_running {
        state.notes.push("a cycle of the server is running".into());
    }
    Ok(state)
}

/// Returns the lock of the directory, if there is one.
pub(super) fn in_dir(dir: &Path) -> Option<Address> {
    let lock = dir.join(FILE_NAME).symlink_metadata();
    lock.is_ok().then(|| Address::Exclusive(dir.to_owned()))
}
