//! The sidecar lock: a small file beside the file it protects (`state.json` ↔ `state.json.lock`).
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
//! The rules are S1–S30. All generations of the original keep out a Tenure lock, and Tenure keeps
//! out of theirs; on top of that the kernel proves who lives, removal cannot hit a live lock, and a
//! lost lock is noticed.

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

/// A domain of locks in this process. Managers of one key share what they hold; managers of
/// different keys exclude each other like different processes.
#[derive(Clone, Debug)]
pub struct Manager {
    key: Arc<str>,
}

impl Manager {
    /// A manager for this domain.
    pub fn new(key: impl Into<Arc<str>>) -> Manager {
        Manager { key: key.into() }
    }

    /// Acquires a lock, waiting as the options say. In vain is `Timeout`; old and not approved for
    /// removal is `Stale`.
    pub fn acquire(&self, options: &Options) -> Result<SidecarGuard> {
        acquire::acquire(&self.key, options).map(|entry| SidecarGuard { entry: Some(entry) })
    }

    /// Acquires a lock at once or not at all: `Held`, or `Foreign` where the holder's life cannot
    /// be checked.
    pub fn try_acquire(&self, options: &Options) -> Result<SidecarGuard> {
        let once = options.clone().retry(Retry::none());
        self.acquire(&once).map_err(|error| match error.class() {
            Class::Timeout => not_waiting(error),
            _ => error,
        })
    }

    /// Acquires, runs `body`, releases. If the lock was lost meanwhile, that is the answer, and
    /// not the body's value.
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

    /// Releases every lock of this domain by force, and says which could not be (S28).
    pub fn drain(&self) -> Vec<Error> {
        held_table::entries(&self.key)
            .iter()
            .filter_map(|entry| entry.release().err())
            .collect()
    }

    /// The same, for shutdowns and tests that do not care how each of them ended.
    pub fn reset(&self) {
        self.drain();
    }

    /// What this domain holds (S28).
    pub fn held_entries(&self) -> Vec<HeldEntry> {
        held_table::entries(&self.key)
            .into_iter()
            .map(|entry| HeldEntry { entry })
            .collect()
    }
}

/// Acquires a lock with a manager of its own, runs `body`, releases.
pub fn with_lock<T>(options: &Options, body: impl FnOnce(&SidecarGuard) -> T) -> Result<T> {
    Manager::new("one-shot").with_lock(options, body)
}

/// A held lock. Dropping it releases; only [`release`](SidecarGuard::release) can say how that went.
#[derive(Debug)]
#[must_use = "a dropped guard releases at once"]
pub struct SidecarGuard {
    /// `None` once released.
    entry: Option<Arc<HeldLock>>,
}

impl SidecarGuard {
    /// The lock file.
    pub fn lock_path(&self) -> &Path {
        &self.entry().lock_path
    }

    /// The normalized target (S1).
    pub fn target(&self) -> &Path {
        &self.entry().target
    }

    /// This acquisition's token.
    pub fn token(&self) -> Token {
        self.entry().hold.token()
    }

    /// The fencing number, if one was asked for.
    pub fn fence(&self) -> Option<NonZeroU64> {
        self.entry().fence
    }

    /// Whether the lock is still ours, right now (S25, K34). A loss poisons the guard.
    pub fn verify_still_held(&self) -> Result<()> {
        self.entry().hold.check()
    }

    /// Runs once when the loss of the lock is noticed; at once if it already was.
    pub fn on_lost(&self, listener: impl FnOnce(&Loss) + Send + 'static) {
        self.entry().hold.on_lost(listener);
    }

    /// The hold underneath: bytes, pulse and publishing way for those who need them.
    pub fn hold(&self) -> &Arc<FileHolding> {
        &self.entry().hold
    }

    /// Gives the lock back. Of nested acquisitions only the last one removes the file (S26).
    pub fn release(mut self) -> Result<()> {
        let entry = self
            .entry
            .take()
            .expect("a guard has its entry until it is released");
        release(&entry)
    }

    /// Lets go without releasing: the record stays and follows the life of the process that it
    /// names (C13).
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
    /// The locked descriptor, for a child that shall keep the lock (K38).
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
    // A copy that came over fork must not even count (K36).
    if entry.hold.is_ours() && !held_table::count_down(entry) {
        return Ok(());
    }
    entry.release()
}

/// A lock that this process holds, as `held_entries` shows it.
#[derive(Clone, Debug)]
pub struct HeldEntry {
    entry: Arc<HeldLock>,
}

impl HeldEntry {
    /// The normalized target.
    pub fn target(&self) -> &Path {
        &self.entry.target
    }

    /// The lock file.
    pub fn lock_path(&self) -> &Path {
        &self.entry.lock_path
    }

    /// Since when.
    pub fn acquired_at(&self) -> SystemTime {
        self.entry.since
    }

    /// The caller's metadata.
    pub fn metadata(&self) -> &Payload {
        &self.entry.metadata
    }

    /// Releases it whoever still works under it; their guards then say `NotHeld`.
    pub fn force_release(&self) -> Result<()> {
        self.entry.release()
    }
}

/// Takes over a hold that follows another process, by its token: for `renew` (beat) and `unlock`
/// (release), C13.
pub fn adopt(options: &Options, token: Token) -> Result<FileHolding> {
    let place = lock_path::LockPaths::of(options, lock_path::ParentDirectory::Leave)?;
    FileHolding::adopt(place.dir, &place.lock_name, LIMIT, token)
}

/// The path of the lock of a target, without touching anything (S1, S2).
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
            "somebody is taking or removing the lock",
        );
    };
    let class = match blocker.verdict {
        Verdict::Unknown(Doubt::OtherHost | Doubt::OtherNamespace) => Class::Foreign,
        _ => Class::Held,
    };
    Error::new(class, error.path(), "held").blocked_by(blocker)
}

/// Acquires in a thread of its own, for callers that await. Dropping the future withdraws: a lock
/// that is granted at that very moment is given back.
pub fn acquire_async(
    manager: &Manager,
    options: Options,
) -> crate::future::Blocking<Result<SidecarGuard>> {
    let manager = manager.clone();
    crate::future::run(move |cancel: Cancel| manager.acquire(&options.cancel(cancel)))
}
