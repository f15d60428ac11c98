//! Upload locks: a PID lock file per resumable upload, with a request to release. At most one
//! request works on an upload, and a new request can ask the current holder to stop.
//!
//! ```text
//! requester ──held──▶ request (`ID.stop`, or memory) ──▶ holder's callback ──▶ saves, releases
//!     ▲                                                                          │
//!     └──────────────────────── gets the lock ◀──────────────────────────────────┘
//! ```
//!
//! Two lockers implement one trait: [`FileLocker`] locks between all processes that share the
//! upload directory, including existing upload servers that use the same file names and formats;
//! [`MemoryLocker`] locks within one process.
//!
//! ```no_run
//! use std::sync::Arc;
//! use tenure_files::upload::{FileLocker, UploadId, UploadLocker};
//!
//! let locker = FileLocker::new("/srv/uploads")?;
//! let id = UploadId::new("7f3a").expect("a harmless name");
//! let guard = locker.lock(&id, locker.default_wait(), Arc::new(|request| {
//!     // Stop reading the body, save what has come, release.
//! }))?;
//! guard.release()?;
//! # Ok::<(), tenure_files::Error>(())
//! ```

mod acquire;
mod client_response;
mod file;
mod held;
mod held_table;
mod inspect;
mod memory;
mod record;
mod staleness;
mod stop_request;

use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;

use crate::clock::Clock;
use crate::deadline::OnWait;
pub use crate::deadline::Wait;
use crate::dir::FileId;
use crate::error::Result;
use crate::future;
use crate::identity::{Identity, Token};
use crate::liveness::PidTrust;
use crate::wait::Cancel;
pub use client_response::{ClientAnswer, takes_lock};
pub use file::{Fencing, FileLocker, Options, UploadTimes};
pub use held::FileHold;
pub use inspect::{Cleaned, Inspection};
pub use memory::MemoryLocker;
pub use tenure_base::{UploadId, UploadIdError};

/// Callback of a holder, called when another request wants the lock.
///
/// It may release the lock. It may be called more than once, and should return quickly: it runs on
/// the thread for callbacks, where later ones wait for it, or on the requester's thread.
pub type OnRequest = Arc<dyn Fn(&UploadReleaseRequest) + Send + Sync>;

/// A request to release an upload lock. An original provides no details.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UploadReleaseRequest {
    /// The process that requests the lock.
    pub by: Option<Identity>,
    /// What it wants to do. Foreign text: escape it before printing.
    pub reason: Option<String>,
}

/// Parameters of an acquisition.
#[derive(Clone)]
pub struct LockRequest {
    /// How long to wait. With [`Wait::No`] the holder is not asked to release, either.
    pub wait: Wait,
    /// The purpose, such as `PATCH up/7`: shown to others in the record and in release requests.
    pub purpose: Option<String>,
    /// Called when another request wants the lock.
    pub on_request: OnRequest,
    /// Lets another thread cancel the wait.
    pub cancel: Option<Cancel>,
    /// Called about once a second while another process or thread holds the lock.
    pub on_wait: Option<OnWait>,
    /// Binds the lock to the life of this process, in our PID namespace, instead of the calling
    /// process (C13 (holds for scripts)). Not for locks in memory.
    pub follows: Option<u32>,
}

/// Locks uploads by their identifier (U23 (library interface)).
pub trait UploadLocker: Send + Sync {
    /// Acquires the lock of one upload. The lock is not re-entrant: a second acquisition in the
    /// same process waits (U12 (no re-entrance)).
    ///
    /// # Errors
    ///
    /// `Held` with [`Wait::No`], `Timeout` if the lock is not released in time, `Foreign` if the
    /// holder cannot be checked from here, or the problem of the lock file.
    fn lock_for(&self, id: &UploadId, request: LockRequest) -> Result<UploadGuard>;

    /// Acquires the lock of one upload without a purpose. See [`lock_for`](UploadLocker::lock_for).
    fn lock(&self, id: &UploadId, wait: Wait, on_request: OnRequest) -> Result<UploadGuard> {
        self.lock_for(id, LockRequest::new(wait, on_request))
    }
}

/// Acquires a lock on a separate thread and returns a future.
///
/// Dropping the future cancels the wait. A lock that is granted at the same moment is released.
pub fn lock_async<L: UploadLocker + Clone + 'static>(
    locker: &L,
    id: &UploadId,
    request: LockRequest,
) -> future::Blocking<Result<UploadGuard>> {
    let (locker, id) = (locker.clone(), id.clone());
    future::run(move |cancel| {
        locker.lock_for(
            &id,
            LockRequest {
                cancel: Some(cancel),
                ..request
            },
        )
    })
}

/// A held upload lock.
///
/// Dropping the guard releases the lock and ignores errors; use [`release`](UploadGuard::release)
/// to see them.
#[must_use = "the lock is released when the guard is dropped"]
pub struct UploadGuard {
    id: UploadId,
    hold: GuardInner,
}

enum GuardInner {
    Memory {
        _ticket: held_table::TableTicket<UploadId>,
    },
    File(FileHold),
}

impl UploadGuard {
    fn in_memory(id: UploadId, ticket: held_table::TableTicket<UploadId>) -> UploadGuard {
        UploadGuard {
            id,
            hold: GuardInner::Memory { _ticket: ticket },
        }
    }

    fn on_disk(id: UploadId, hold: FileHold) -> UploadGuard {
        UploadGuard {
            id,
            hold: GuardInner::File(hold),
        }
    }

    /// Returns the identifier of the upload.
    pub fn id(&self) -> &UploadId {
        &self.id
    }

    /// Returns the hold on disk, or `None` for a lock in memory.
    pub fn file(&self) -> Option<&FileHold> {
        match &self.hold {
            GuardInner::Memory { .. } => None,
            GuardInner::File(hold) => Some(hold),
        }
    }

    /// Checks that this process still holds the lock (K34 (detect a lost lock)). A lock in memory
    /// cannot be lost.
    ///
    /// # Errors
    ///
    /// `Compromised` if the lock is lost.
    pub fn check(&self) -> Result<()> {
        self.file().map_or(Ok(()), FileHold::check)
    }

    /// Drops the guard without releasing the lock and returns the token. The lock then lives as
    /// long as the process that the record names (C13).
    ///
    /// A lock in memory is released, and the result is `None`.
    pub fn leave(self) -> Option<Token> {
        match self.hold {
            GuardInner::Memory { .. } => None,
            GuardInner::File(hold) => Some(hold.leave()),
        }
    }

    /// Releases the lock.
    ///
    /// # Errors
    ///
    /// `Compromised` if the lock was lost before.
    pub fn release(self) -> Result<()> {
        match self.hold {
            GuardInner::Memory { .. } => Ok(()),
            GuardInner::File(hold) => hold.release(),
        }
    }
}

impl fmt::Debug for UploadGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl LockRequest {
    /// Creates a request without a purpose, for this process.
    pub fn new(wait: Wait, on_request: OnRequest) -> LockRequest {
        LockRequest {
            wait,
            purpose: None,
            on_request,
            cancel: None,
            on_wait: None,
            follows: None,
        }
    }

    /// The release request that the holder gets.
    fn release_request(&self) -> UploadReleaseRequest {
        UploadReleaseRequest::new(self.purpose.clone())
    }
}

/// The identity of this process as a requester: it holds nothing, so it has no token.
fn asking() -> Identity {
    let own = Identity::own(Token::random(), false);
    Identity {
        token: None,
        beat: None,
        flock: None,
        local: None,
        ..own
    }
}

/// Identity of a lock file, independent of the path used.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct LockFileKey {
    dir: FileId,
    name: OsString,
}

/// How records of other holders are judged.
#[derive(Clone, Copy, Debug, Default)]
struct StalenessRules {
    /// What a missing process proves (U13.3 order of upload tests).
    pids: PidTrust,
    clock: Clock,
}

/// The file names of one upload in its directory, and its address for messages.
#[derive(Debug)]
struct Names {
    lock: OsString,
    stop: OsString,
    address: String,
}
