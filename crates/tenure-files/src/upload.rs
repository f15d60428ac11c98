//! Upload locks: one request at a time works on a resumable upload, and a newcomer can ask the one
//! before it to stop.
//!
//! ```text
//! newcomer ──held──▶ request (`ID.stop`, or memory) ──▶ holder's callback ──▶ saves, releases
//!     ▲                                                                          │
//!     └──────────────────────── gets the lock ◀──────────────────────────────────┘
//! ```
//!
//! Two lockers with one trait: [`FileLocker`] shares its files with every process that works in the
//! upload directory, the original upload server included; [`MemoryLocker`] is for one process.
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
//! # Ok::<(), tenure_files::error::Error>(())
//! ```

mod acquire;
mod client_response;
mod file;
mod held;
mod held_table;
mod id;
mod inspect;
mod memory;
mod record;
mod staleness;
mod stop_request;

use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;

use crate::clock::Clock;
pub use crate::deadline::Wait;
use crate::dir::FileId;
use crate::error::Result;
use crate::future;
use crate::identity::{Identity, Token};
use crate::wait::Cancel;
pub use client_response::{ClientAnswer, takes_lock};
pub use file::{Fencing, FileLocker, Options, UploadTimes};
pub use held::FileHold;
pub use id::{UploadId, UploadIdError};
pub use inspect::{Cleaned, Inspection};
pub use memory::MemoryLocker;

/// Told to the holder when somebody wants the lock. It may release from inside; it must not mind being
/// called again, and not take long: it runs on a thread that others need.
pub type OnRequest = Arc<dyn Fn(&UploadReleaseRequest) + Send + Sync>;

/// Who wants a lock, as far as is known: an original says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UploadReleaseRequest {
    /// The process that asks.
    pub by: Option<Identity>,
    /// What it wants to do. Written by others: escape it before printing.
    pub reason: Option<String>,
}

/// How a lock is wanted.
#[derive(Clone)]
pub struct LockRequest {
    /// How long to wait. Who does not wait does not ask either.
    pub wait: Wait,
    /// What for, such as `PATCH up/7`: shown to others in the record and in requests.
    pub purpose: Option<String>,
    /// Called when somebody else wants the lock.
    pub on_request: OnRequest,
    /// Ends the wait from another thread.
    pub cancel: Option<Cancel>,
    /// The lock shall follow the life of this process of our PID namespace instead of ours, and
    /// outlive us (C13). Not for locks in memory.
    pub follows: Option<u32>,
}

/// Locks uploads by their identifier (U23).
pub trait UploadLocker: Send + Sync {
    /// Takes the lock of one upload. No re-entrance: a second acquire in the same process waits (U12).
    fn lock_for(&self, id: &UploadId, request: LockRequest) -> Result<UploadGuard>;

    /// The same without a purpose.
    fn lock(&self, id: &UploadId, wait: Wait, on_request: OnRequest) -> Result<UploadGuard> {
        self.lock_for(id, LockRequest::new(wait, on_request))
    }
}

/// Locks on a thread of its own, for callers that await. Dropping the future withdraws: a lock that is
/// granted at that very moment is given back.
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

/// A held upload lock. Dropping it releases; only [`release`](UploadGuard::release) can say how that went.
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

    /// The upload.
    pub fn id(&self) -> &UploadId {
        &self.id
    }

    /// The hold on disk; `None` for a lock in memory.
    pub fn file(&self) -> Option<&FileHold> {
        match &self.hold {
            GuardInner::Memory { .. } => None,
            GuardInner::File(hold) => Some(hold),
        }
    }

    /// Whether the lock is ours right now (K34). A lock in memory cannot be lost.
    pub fn check(&self) -> Result<()> {
        self.file().map_or(Ok(()), FileHold::check)
    }

    /// Lets go of the handle and leaves the record, which follows the process that it names (C13).
    /// `None` for a lock in memory, which is given back.
    pub fn leave(self) -> Option<Token> {
        match self.hold {
            GuardInner::Memory { .. } => None,
            GuardInner::File(hold) => Some(hold.leave()),
        }
    }

    /// Gives the lock back, and says if it had been lost before.
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
    /// A request without a purpose, for this process.
    pub fn new(wait: Wait, on_request: OnRequest) -> LockRequest {
        LockRequest {
            wait,
            purpose: None,
            on_request,
            cancel: None,
            follows: None,
        }
    }

    /// What the holder is told.
    fn release_request(&self) -> UploadReleaseRequest {
        UploadReleaseRequest::new(self.purpose.clone())
    }
}

/// This process, as one who asks: it holds nothing, so it has no token.
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

/// A lock file, whatever path leads to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct LockFileKey {
    dir: FileId,
    name: OsString,
}

/// How records of others are judged.
#[derive(Clone, Copy, Debug, Default)]
struct StalenessRules {
    /// Process ids may belong to other containers: a missing process proves nothing (U13.3).
    foreign_pids: bool,
    clock: Clock,
}

/// The names of one upload's files in its directory, and its address for messages.
#[derive(Debug)]
struct Names {
    lock: OsString,
    stop: OsString,
    address: String,
}
