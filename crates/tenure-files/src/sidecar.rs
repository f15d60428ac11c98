//! Sidecar locks: a lock file beside the file that it protects (`state.json` ↔ `state.json.lock`).
//!
//! ```
//! use tenure_files::sidecar::{Manager, Options};
//! # let directory = tempfile::tempdir()?;
//! # let target = directory.path().join("state.json");
//!
//! let locks = Manager::new("snapshot");
//! let guard = locks.acquire(&Options::new(&target))?;
//! // … exclusive work on the target …
//! guard.release()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Rules S1–S30. Tenure and all three generations of the original library exclude each other. By
//! default, Tenure removes a lock only on proof that its holder is dead. It also detects a lost
//! lock.

mod acquire;
mod held_table;
mod inspect;
mod lock_path;
mod options;
mod payload;
mod reclaim;
mod staleness;

use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

pub use crate::exit::release_on_signals;
pub use crate::remove::RemovalStep;
#[doc(hidden)]
pub use acquire::AcquireStep;
pub use inspect::{
    Broken, Force, GuardState, LockState, TargetState, break_guard, break_lock, inspect, list,
};
pub use options::{
    Heartbeat, Options, Payload, ReclaimCandidate, Retry, StaleCandidate, StalePolicy,
};
pub use payload::LIMIT;
pub use staleness::peer_code;

use crate::error::{Class, Error, Result};
use crate::hold::{FileHolding, Loss};
use crate::identity::Token;
use crate::liveness::{Doubt, Verdict};
use crate::wait::Cancel;
use held_table::HeldLock;

/// A domain of locks in this process.
///
/// Managers with the same key share their table of held locks. Managers with different keys exclude
/// each other as different processes do.
#[derive(Clone, Debug)]
pub struct Manager {
    key: Arc<str>,
}

impl Manager {
    /// Creates a manager for the domain `key`.
    pub fn new(key: impl Into<Arc<str>>) -> Manager {
        Manager { key: key.into() }
    }

    /// Acquires a lock, and waits as long as `options` allow.
    ///
    /// # Errors
    ///
    /// `Timeout` if the lock stays held, `Stale` if the lock is old and its removal is not
    /// approved, or the class of the problem that makes waiting useless, such as `NotALock`.
    pub fn acquire(&self, options: &Options) -> Result<SidecarGuard> {
        acquire::acquire(&self.key, options).map(|entry| SidecarGuard { entry: Some(entry) })
    }

    /// Acquires a lock without waiting.
    ///
    /// # Errors
    ///
    /// `Held` if the lock is held, or `Foreign` if this process cannot check whether the holder is
    /// alive.
    pub fn try_acquire(&self, options: &Options) -> Result<SidecarGuard> {
        let once = options.clone().retry(Retry::none());
        self.acquire(&once).map_err(|error| match error.class() {
            Class::Timeout => not_waiting(error),
            _ => error,
        })
    }

    /// Acquires a lock, runs `body` and releases the lock.
    ///
    /// # Errors
    ///
    /// Returns `Compromised` instead of the value of `body` if the lock was lost in the meantime.
    pub fn with_lock<T>(
        &self,
        options: &Options,
        body: impl FnOnce(&SidecarGuard) -> T,
    ) -> Result<T> {
        let guard = self.acquire(options)?;
        let value = body(&guard);
        guard.release()?;
        Ok(value)
    }

    /// Releases every lock of this domain, also nested ones, and returns the errors (S28 (drain and
    /// held)).
    pub fn drain(&self) -> Vec<Error> {
        held_table::entries(&self.key)
            .iter()
            .filter_map(|entry| entry.release().err())
            .collect()
    }

    /// Releases every lock of this domain like [`drain`](Manager::drain) and ignores errors.
    pub fn reset(&self) {
        self.drain();
    }

    /// Returns the locks that this domain holds (S28).
    pub fn held_entries(&self) -> Vec<HeldEntry> {
        held_table::entries(&self.key)
            .into_iter()
            .map(|entry| HeldEntry { entry })
            .collect()
    }
}

/// Acquires a lock with a manager of its own, runs `body` and releases the lock. See
/// [`Manager::with_lock`].
pub fn with_lock<T>(options: &Options, body: impl FnOnce(&SidecarGuard) -> T) -> Result<T> {
    Manager::new("one-shot").with_lock(options, body)
}

/// A held sidecar lock.
///
/// Dropping the guard releases the lock and ignores errors; use [`release`](SidecarGuard::release)
/// to see them.
#[derive(Debug)]
#[must_use = "a dropped guard releases at once"]
pub struct SidecarGuard {
    /// `None` after `release` or `leave`.
    entry: Option<Arc<HeldLock>>,
}

impl SidecarGuard {
    /// Returns the path of the lock file.
    pub fn lock_path(&self) -> &Path {
        &self.entry().lock_path
    }

    /// Returns the normalized target (S1 (normalized target)).
    pub fn target(&self) -> &Path {
        &self.entry().target
    }

    /// Returns the token of this acquisition.
    pub fn token(&self) -> Token {
        self.entry().hold.token()
    }

    /// Returns the fencing number, if the options asked for one.
    pub fn fence(&self) -> Option<NonZeroU64> {
        self.entry().fence
    }

    /// Checks that this process still holds the lock (S25 (verify a held lock), K34 (detect a lost
    /// lock)).
    ///
    /// # Errors
    ///
    /// `Compromised` if the lock is lost; from then on every check fails.
    pub fn verify_still_held(&self) -> Result<()> {
        self.entry().hold.check()
    }

    /// Registers `listener`, which runs once when the loss of the lock is detected. Runs it
    /// immediately if the lock is already lost.
    pub fn on_lost(&self, listener: impl FnOnce(&Loss) + Send + 'static) {
        self.entry().hold.on_lost(listener);
    }

    /// Returns the underlying hold, with the record bytes, the heartbeat position and the publish
    /// method.
    pub fn hold(&self) -> &Arc<FileHolding> {
        &self.entry().hold
    }

    /// Releases the lock. Only the last of nested acquisitions removes the file (S26 (sidecar
    /// release)).
    ///
    /// # Errors
    ///
    /// `Compromised` if the lock was lost, `NotHeld` if it was already released by force.
    pub fn release(mut self) -> Result<()> {
        let entry = self
            .entry
            .take()
            .expect("a guard has its entry until it is released");
        release(&entry)
    }

    /// Drops the guard without releasing the lock and returns the token.
    ///
    /// The record stays, and the lock then lives as long as the process that the record names (C13
    /// (holds for scripts)).
    pub fn leave(mut self) -> Token {
        let entry = self
            .entry
            .take()
            .expect("a guard has its entry until it is released");
        entry.leave();
        entry.hold.token()
    }

    fn entry(&self) -> &Arc<HeldLock> {
        self.entry
            .as_ref()
            .expect("a guard has its entry until it is released")
    }
}

impl AsFd for SidecarGuard {
    /// Returns the locked descriptor, for a child process that keeps the lock (K38 (inherit the
    /// locked descriptor)).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.entry().hold.as_fd()
    }
}

impl Drop for SidecarGuard {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            let _ = release(&entry);
        }
    }
}

fn release(entry: &Arc<HeldLock>) -> Result<()> {
    // A forked copy of the guard must not change the count: the acquiring process alone releases
    // (K36 (idempotent release)).
    if entry.hold.is_ours() && !held_table::count_down(entry) {
        return Ok(());
    }
    entry.release()
}

/// A lock that this process holds, as returned by [`Manager::held_entries`].
#[derive(Clone, Debug)]
pub struct HeldEntry {
    entry: Arc<HeldLock>,
}

impl HeldEntry {
    /// Returns the normalized target.
    pub fn target(&self) -> &Path {
        &self.entry.target
    }

    /// Returns the path of the lock file.
    pub fn lock_path(&self) -> &Path {
        &self.entry.lock_path
    }

    /// Returns the time of the acquisition.
    pub fn acquired_at(&self) -> SystemTime {
        self.entry.since
    }

    /// Returns the metadata that the caller set in [`Options::metadata`].
    pub fn metadata(&self) -> &Payload {
        &self.entry.metadata
    }

    /// Releases the lock although guards for it exist. Those guards then return `NotHeld`.
    pub fn force_release(&self) -> Result<()> {
        self.entry.release()
    }
}

/// Takes over a hold that follows another process (C13), identified by its token: for `renew`
/// (heartbeat) and `unlock` (release).
pub fn adopt(options: &Options, token: Token) -> Result<FileHolding> {
    let place = lock_path::LockPaths::of(options, lock_path::ParentDirectory::Leave)?;
    FileHolding::adopt(place.dir, &place.lock_name, LIMIT, token)
}

/// Returns the lock path of a target without creating anything (S1, S2 (lock path)).
pub fn lock_path(target: impl AsRef<Path>) -> Result<PathBuf> {
    let mut path =
        lock_path::normalize(target.as_ref(), lock_path::ParentDirectory::Leave)?.into_os_string();
    path.push(".lock");
    Ok(path.into())
}

fn not_waiting(error: Error) -> Error {
    let Some(blocker) = error.blocker().cloned() else {
        return Error::new(
            Class::Held,
            error.path(),
            "another process acquires or removes the lock",
        );
    };
    let class = match blocker.verdict {
        Verdict::Unknown(Doubt::OtherHost | Doubt::OtherNamespace) => Class::Foreign,
        _ => Class::Held,
    };
    Error::new(class, error.path(), "held").blocked_by(blocker)
}

/// Acquires a lock on a separate thread and returns a future.
///
/// Dropping the future cancels the wait. A lock that is granted at the same moment is released.
pub fn acquire_async(
    manager: &Manager,
    options: Options,
) -> crate::future::Blocking<Result<SidecarGuard>> {
    let manager = manager.clone();
    crate::future::run(move |cancel: Cancel| manager.acquire(&options.cancel(cancel)))
}
