//! Sidecar locks held by this process, by the key of their `Manager` and the target (S15 (locks
//! within one process), S28 (drain and held)), and their release at exit (S27 (release on exit)).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::options::Payload;
use crate::error::Result;
use crate::heartbeat::Monitored;
use crate::hold::FileHolding;
use crate::process::PerProcess;

/// One lock that this process holds, shared by all guards of a re-entrant owner.
#[derive(Debug)]
pub(super) struct HeldLock {
    pub(super) key: String,
    pub(super) target: PathBuf,
    pub(super) lock_path: PathBuf,
    pub(super) hold: Arc<FileHolding>,
    pub(super) owner: Option<String>,
    pub(super) metadata: Payload,
    pub(super) since: SystemTime,
    pub(super) fence: Option<std::num::NonZeroU64>,
    pub(super) retain_on_exit: bool,
    pub(super) monitored: Mutex<Option<Monitored>>,
}

impl HeldLock {
    /// Ends the heartbeat and removes the record. The table entry is removed first: a waiter of
    /// this process that sees the file removed must not find the lock still listed.
    pub(super) fn release(self: &Arc<HeldLock>) -> Result<()> {
        if !self.hold.is_ours() {
            return self.hold.release(); // Returns the error of a forked copy (K36).
        }
        remove(self);
        drop(
            self.monitored
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
        self.hold.release()
    }

    /// Ends the heartbeat and leaves the record in place.
    pub(super) fn leave(self: &Arc<HeldLock>) {
        if self.hold.is_ours() {
            remove(self);
            drop(
                self.monitored
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take(),
            );
            self.hold.leave();
        }
    }
}

/// A table entry: the lock, and how many guards of its re-entrant owner exist.
struct HeldLocks {
    entry: Arc<HeldLock>,
    count: usize,
}

type HeldTable = BTreeMap<(String, PathBuf), HeldLocks>;

static TABLE: PerProcess<Mutex<HeldTable>> = PerProcess::new();

fn table() -> MutexGuard<'static, HeldTable> {
    TABLE.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// The result of a lookup for an acquisition.
pub(super) enum TableLookup {
    /// Not held by this process.
    Free,
    /// Held by this process, for another owner.
    Held(Arc<HeldLock>),
    /// Held for the same owner; the count was incremented.
    Again(Arc<HeldLock>),
}

/// Looks up a target, and increments the count if the owner is the same (S15).
pub(super) fn enter(key: &str, target: &Path, owner: Option<&str>) -> TableLookup {
    let mut table = table();
    let Some(held) = table.get_mut(&(key.to_owned(), target.to_owned())) else {
        return TableLookup::Free;
    };
    if owner.is_some() && held.entry.owner.as_deref() == owner {
        held.count += 1;
        return TableLookup::Again(Arc::clone(&held.entry));
    }
    TableLookup::Held(Arc::clone(&held.entry))
}

/// Adds a lock that was just acquired.
pub(super) fn insert(entry: &Arc<HeldLock>) {
    crate::exit::at_exit(release_at_exit);
    let held = HeldLocks {
        entry: Arc::clone(entry),
        count: 1,
    };
    table().insert((entry.key.clone(), entry.target.clone()), held);
}

/// Decrements the count; `true` if it was the last guard and the lock must be released.
pub(super) fn count_down(entry: &Arc<HeldLock>) -> bool {
    let mut table = table();
    match table.get_mut(&(entry.key.clone(), entry.target.clone())) {
        Some(held) if Arc::ptr_eq(&held.entry, entry) && held.count > 1 => {
            held.count -= 1;
            false
        }
        _ => true,
    }
}

/// Removes the entry, if it is still in the table.
pub(super) fn remove(entry: &Arc<HeldLock>) {
    let mut table = table();
    let key = (entry.key.clone(), entry.target.clone());
    if table
        .get(&key)
        .is_some_and(|held| Arc::ptr_eq(&held.entry, entry))
    {
        table.remove(&key);
    }
}

/// Returns all locks that managers of this key hold.
pub(super) fn entries(key: &str) -> Vec<Arc<HeldLock>> {
    table()
        .values()
        .filter(|held| held.entry.key == key)
        .map(|held| Arc::clone(&held.entry))
        .collect()
}

/// Whether any manager of this process holds the lock with this token.
pub(super) fn has_token(token: &str) -> bool {
    table()
        .values()
        .any(|held| held.entry.hold.token().to_string() == token)
}

/// Releases all locks without `retain_on_exit`. Runs during exit: it must not block on a mutex that
/// the exiting thread may hold.
fn release_at_exit() {
    let entries: Vec<Arc<HeldLock>> = match TABLE.get().try_lock() {
        Ok(table) => table.values().map(|held| Arc::clone(&held.entry)).collect(),
        Err(_) => return,
    };
    for entry in entries.iter().filter(|entry| !entry.retain_on_exit) {
        let _ = entry.hold.release();
    }
}
