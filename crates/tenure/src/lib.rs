//! Locks for files, repositories and clusters behind one API.
//!
//! A lock protects a file on one machine, a repository in a bucket, or a path in a tree of
//! resources that a daemon serves to a whole fleet. Every backend uses the same terms: holder,
//! lease, fence, queue, release request.
//!
//! ```
//! use std::time::Duration;
//!
//! # async fn example() -> Result<(), tenure::Error> {
//! let guard = tenure::lock("mem:reports/2026")?
//!     .wait(Duration::from_secs(30))
//!     .purpose("reindex")
//!     .acquire()
//!     .await?;
//! guard.check().await?; // mine, right now?
//! println!("fence {:?}", guard.fence());
//! guard.release().await?;
//! # Ok(()) }
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(example()).unwrap();
//! ```
//!
//! To move from a lock file to a replicated cluster, change the address ([`Address`]). Each backend
//! declares what it supports ([`Capabilities`]). A call that needs more fails with
//! [`Error::Unsupported`] before it changes anything.
//!
//! ```text
//!   Tenure ── Lock ── Guard ── blocking             the API of most programs
//!   LockState  WatchStream  Broken  Hold            behind `why`, `watch`, `break` and `lock`
//!   Address  Mode  Wait  Fence  Holder  Error       values
//!   backend: memory  sidecar  exclusive  upload  repository  daemon
//!   signals  lease  runtime                         while held: renewals, release requests, loss
//! ```

mod address;
mod backend;
pub mod blocking;
#[cfg(feature = "daemon")]
mod boot_timer;
mod callbacks;
#[cfg(feature = "daemon")]
pub mod calls;
mod capabilities;
mod endpoint;
mod error;
#[cfg(feature = "files")]
mod error_messages;
mod guard;
mod hold;
mod inspect;
mod lock;
mod policy;
mod request;
mod runtime;
mod signals;
mod tenure;
pub mod testing;
mod tuning;
mod values;

use std::sync::{LazyLock, Mutex, PoisonError};

pub use address::{Address, IntoAddress, MemoryName};
#[cfg(feature = "postgres")]
pub use backend::daemon::engine::EngineAdmin;
pub use capabilities::{Across, Capabilities, Fencing, Liveness, Modes, Need, Order};
pub use endpoint::Endpoint;
pub use error::{
    Blocker, BlockerKind, Busy, Error, InputError, LostCause, LostLock, Refusal, Unavailable,
    Unsupported,
};
pub use guard::{Guard, Guards};
pub use hold::Hold;
pub use inspect::{
    Broken, ChangeEvent, ChangeKind, Force, LockState, Permits, QueuedWaiter, WatchStream,
};
pub use lock::{Lock, LockAll};
pub use policy::{Algorithm, Policy};
pub use signals::{HoldEvent, ReleaseRequest};
pub use tenure_base::{HumanDuration, Lease, UploadId, UploadIdError};
pub use tenure_core::path::Path;
pub use tenure_core::value::Invalid as PathError;
#[cfg(feature = "files")]
pub use tenure_files::FileHolding;
#[cfg(feature = "store")]
pub use tenure_store::{
    AddressError, Bucket, DataKey, Demand, KeyError, RepositoryAddress, Scheme, Seal,
};
#[cfg(feature = "store")]
pub use tuning::RepositoryTuning;
pub use tuning::{Durability, ExclusiveTuning, FileTuning, Quiesce, Reclaim, Tuning};
pub use values::{Class, Fence, HoldId, Holder, HolderLiveness, Mode, Verdict, Wait};

pub use crate::tenure::{Builder, Tenure};

/// Returns a builder for a lock on `place`, with the settings of the environment.
///
/// Nothing is locked before [`Lock::acquire`]. Only a daemon address reads the environment
/// ([`Tenure::from_env`]).
///
/// # Errors
///
/// [`Error::Input`] if `place` is no valid address, or a variable of the environment is wrong.
pub fn lock(place: impl IntoAddress) -> Result<Lock, Error> {
    let place = place.into_address()?;
    // Only the daemon has settings in the environment. Files must stay lockable when they are
    // wrong.
    static PLAIN: LazyLock<Tenure> = LazyLock::new(Tenure::default);
    match place {
        Address::Daemon { .. } => shared()?.lock(place),
        _ => PLAIN.lock(place),
    }
}

/// Acquires the lock of `place`, runs `body`, and releases the lock.
///
/// If the lock is lost, `body` is dropped at its next await. See [`Lock::with`].
///
/// ```
/// # async fn example() -> Result<(), tenure::Error> {
/// tenure::with("mem:cache", async |guard| {
///     println!("alone with {}", guard.place());
///     Ok::<_, tenure::Error>(())
/// })
/// .await?;
/// # Ok(()) }
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(example()).unwrap();
/// ```
pub async fn with<T, E: From<Error>>(
    place: impl IntoAddress,
    body: impl AsyncFnOnce(&Guard) -> Result<T, E>,
) -> Result<T, E> {
    lock(place)?.with(body).await
}

/// Translates a message of the gRPC library into what happened and what to do next, for programs
/// with connections of their own.
#[cfg(feature = "daemon")]
#[doc(hidden)]
pub fn connection_trouble(raw: &str) -> (String, Option<&'static str>) {
    backend::daemon::connection_trouble(raw)
}

/// Returns the process-wide instance, so that all callers share connections.
///
/// A failure is not kept: the next call reads the environment again.
fn shared() -> Result<Tenure, Error> {
    static SHARED: Mutex<Option<Tenure>> = Mutex::new(None);
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(tenure) = &*shared {
        return Ok(tenure.clone());
    }
    let tenure = Tenure::from_env()?;
    *shared = Some(tenure.clone());
    Ok(tenure)
}
