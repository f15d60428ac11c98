//! One lock for everything that is shared: a file on one machine, a repository in a bucket, a tree of resources
//! across a fleet. The same words at every backend: holder, lease, fence, queue, release request.
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
//! # tenure::blocking::wait(example()).unwrap();
//! ```
//!
//! You start with a lock file and end on a replicated cluster by changing one address ([`Address`]). What a backend
//! cannot do it declares ([`Capabilities`]); a call that needs it is refused before anything is touched.
//!
//! ```text
//!   Tenure ── Lock ── Guard ── blocking          what a program uses
//!   State  Watch  Broken  Hold                   what `why`, `watch`, `break` and `lock` are made of
//!   Where  Mode  Wait  Fence  Holder  Error      values
//!   reach: memory  sidecar  exclusive  upload  repository  daemon
//!   signals  lease  keeper                       held: renewed, asked for, lost
//! ```

mod address;
mod backend;
pub mod blocking;
#[cfg(feature = "daemon")]
mod boot_timer;
mod capabilities;
mod endpoint;
mod error;
mod guard;
mod hold;
mod inspect;
mod lease;
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
pub use capabilities::{Across, Capabilities, Fencing, Liveness, Modes, Need, Order};
pub use endpoint::Endpoint;
pub use error::{
    Blocker, BlockerKind, Busy, Error, InputError, LostCause, LostLock, Refusal, Unavailable,
    Unsupported,
};
pub use guard::{Guard, Guards};
pub use hold::Hold;
pub use inspect::{Broken, ChangeEvent, ChangeKind, Force, LockState, QueuedWaiter, WatchStream};
pub use lease::Lease;
pub use lock::{Lock, LockAll};
pub use policy::{Algorithm, Policy};
pub use request::OnWait;
pub use signals::{HoldEvent, ReleaseRequest};
#[cfg(feature = "store")]
pub use tenure_store::{DataKey, Demand, Seal};
#[cfg(feature = "store")]
pub use tuning::RepositoryTuning;
pub use tuning::{Durability, ExclusiveTuning, FileTuning, Quiesce, Reclaim, Tuning};
pub use values::{Class, Fence, HoldId, Holder, HolderLiveness, Mode, Verdict, Wait};

pub use crate::tenure::{Builder, Tenure};

/// Begins to lock `address`, with the settings of the environment.
pub fn lock(place: impl IntoAddress) -> Result<Lock, Error> {
    let place = place.into_where()?;
    // A file needs no settings, and none of them can be wrong.
    static PLAIN: LazyLock<Tenure> = LazyLock::new(Tenure::default);
    match place {
        Address::Daemon { .. } => shared()?.lock(place),
        _ => PLAIN.lock(place),
    }
}

/// Takes the lock of `address`, runs `body`, gives it back. On loss `body` is dropped at its next await; see
/// [`Lock::with`].
///
/// ```
/// # async fn example() -> Result<(), tenure::Error> {
/// tenure::with("mem:cache", async |guard| {
///     println!("alone with {}", guard.place());
///     Ok::<_, tenure::Error>(())
/// })
/// .await?;
/// # Ok(()) }
/// # tenure::blocking::wait(example()).unwrap();
/// ```
pub async fn with<T, E: From<Error>>(
    place: impl IntoAddress,
    body: impl AsyncFnOnce(&Guard) -> Result<T, E>,
) -> Result<T, E> {
    lock(place)?.with(body).await
}

/// One for the process, so that connections are shared.
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

/// The guide's examples are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guides/library.md")]
struct Guide;
