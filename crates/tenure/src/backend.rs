//! Dispatch to the backends: one module each, behind one enum.
//!
//! Everything that is the same for all backends is checked before this layer.

#[cfg_attr(not(feature = "daemon"), path = "backend/no_daemon.rs")]
pub(crate) mod daemon;
#[cfg(feature = "files")]
mod exclusive;
#[cfg(feature = "files")]
mod file_hold;
#[cfg_attr(not(feature = "files"), path = "backend/no_files.rs")]
mod files;
pub(crate) mod memory;
#[cfg(feature = "store")]
pub(crate) mod repository;
#[cfg(feature = "files")]
mod sidecar;
#[cfg(feature = "files")]
mod upload;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

use crate::address::Address;
use crate::error::{Blocker, Busy, Error};
use crate::guard::Guard;
use crate::hold::Hold;
use crate::inspect::{Broken, Force, LockState, WatchStream};
use crate::request::Request;
use crate::tenure::Tenure;
use crate::values::{Class, Fence, HoldId, Mode, Wait};
use tenure_base::Lease;

/// Returns whether two addresses lead to one lock file.
pub(crate) fn is_same_lock_file(one: &Address, other: &Address) -> bool {
    files::is_same_lock_file(one, other)
}

/// The backend-specific part of a [`Guard`].
pub(crate) enum BackendHold {
    Memory(memory::MemoryHold),
    #[cfg_attr(
        not(feature = "files"),
        expect(dead_code, reason = "that build never makes one")
    )]
    File(files::FileHold),
    #[cfg(feature = "store")]
    Repository(repository::RepositoryHold),
    #[cfg_attr(
        not(feature = "daemon"),
        expect(dead_code, reason = "that build never makes one")
    )]
    Daemon(daemon::DaemonHold),
}

impl BackendHold {
    pub(crate) fn fence(&self) -> Option<Fence> {
        match self {
            BackendHold::Memory(held) => held.fence(),
            BackendHold::File(held) => held.fence(),
            #[cfg(feature = "store")]
            BackendHold::Repository(held) => held.fence(),
            BackendHold::Daemon(held) => held.fence(),
        }
    }

    /// Returns the remaining validity, if the backend computes it itself.
    pub(crate) fn valid_for(&self) -> Option<Duration> {
        match self {
            BackendHold::Memory(_) | BackendHold::File(_) => None,
            #[cfg(feature = "store")]
            BackendHold::Repository(held) => Some(held.valid_for()),
            BackendHold::Daemon(_) => None,
        }
    }

    pub(crate) fn lease(&self) -> Option<Lease> {
        match self {
            BackendHold::Memory(_) | BackendHold::File(_) => None,
            #[cfg(feature = "store")]
            BackendHold::Repository(held) => Some(held.lease()),
            BackendHold::Daemon(_) => None,
        }
    }

    pub(crate) fn owner(&self) -> String {
        match self {
            BackendHold::Memory(held) => held.owner(),
            BackendHold::File(held) => held.owner(),
            #[cfg(feature = "store")]
            BackendHold::Repository(held) => held.owner(),
            BackendHold::Daemon(held) => held.owner(),
        }
    }

    #[cfg(feature = "files")]
    pub(crate) fn file(&self) -> Option<&tenure_files::FileHolding> {
        match self {
            BackendHold::File(held) => held.file(),
            _ => None,
        }
    }

    pub(crate) async fn check(&self, place: &Address) -> Result<(), Error> {
        match self {
            BackendHold::Memory(held) => held.check(place),
            BackendHold::File(held) => held.check(place),
            #[cfg(feature = "store")]
            BackendHold::Repository(held) => held.check(place).await,
            BackendHold::Daemon(held) => held.check(place).await,
        }
    }

    pub(crate) async fn release(self, place: &Address) -> Result<(), Error> {
        match self {
            BackendHold::Memory(held) => held.release(place),
            BackendHold::File(held) => held.release(place),
            #[cfg(feature = "store")]
            BackendHold::Repository(held) => held.release(place).await,
            BackendHold::Daemon(held) => held.release(place).await,
        }
    }

    /// Detaches the hold without releasing it: C13 (holds for scripts).
    pub(crate) async fn leave(
        self,
        place: Address,
        mode: Mode,
        ttl: Option<Duration>,
    ) -> Result<Hold, Error> {
        let fence = self.fence();
        let secret = match self {
            BackendHold::Memory(_) => {
                let what = "a lock in memory cannot outlive its process";
                return Err(Error::unsupported(&place, what));
            }
            BackendHold::File(held) => held.leave(&place)?,
            #[cfg(feature = "store")]
            BackendHold::Repository(held) => held.leave(&place).await?,
            BackendHold::Daemon(held) => held.leave(),
        };
        Ok(Hold {
            place,
            secret,
            mode,
            ttl,
            fence,
        })
    }
}

/// Acquires a lock. Cancel safe: a dropped future leaves nothing behind.
pub(crate) async fn acquire(tenure: &Tenure, request: Request) -> Result<Guard, Error> {
    request.check()?;
    match &request.place {
        Address::Memory(_) | Address::Daemon { .. } => {
            let places = vec![request.place.clone()];
            let mut taken = acquire_together(tenure, request, places).await?;
            Ok(taken.pop().expect("one path was asked for"))
        }
        Address::Sidecar(_) | Address::Exclusive(_) | Address::Upload { .. } => {
            files::acquire_async(request).await
        }
        #[cfg(feature = "store")]
        Address::Repository(_) => repository::acquire(tenure, request).await,
    }
}

/// Acquires several paths of one tree with the options of `request`, all or none: C6 (several locks
/// at once).
///
/// Takes as few steps as the backend allows. The guards come in any order.
pub(crate) async fn acquire_together(
    tenure: &Tenure,
    request: Request,
    places: Vec<Address>,
) -> Result<Vec<Guard>, Error> {
    let paths = places.into_iter().filter_map(|place| {
        let path = place.path()?.clone();
        Some((place, path))
    });
    let paths = paths.collect();
    match &request.place {
        Address::Daemon { nodes, .. } => {
            let client = tenure.client(nodes)?;
            daemon::acquire(client, request, paths).await
        }
        _ => memory::acquire(request, paths).await,
    }
}

/// Acquires a lock and blocks this thread. Lock files start no runtime and no thread: C7 (fast
/// start).
pub(crate) fn acquire_blocking(tenure: &Tenure, request: Request) -> Result<Guard, Error> {
    if request.place.is_file() {
        request.check()?;
        return files::acquire_blocking(&request);
    }
    tenure_base::block_on(acquire(tenure, request))
}

/// Releases what was acquired when a later acquire fails. Waits for the releases, because the
/// program may exit right after the error.
pub(crate) async fn give_up(taken: Vec<Guard>) {
    for guard in taken.into_iter().rev() {
        let _ = guard.release().await;
    }
}

/// Returns the state of one lock.
pub(crate) async fn inspect(tenure: &Tenure, place: &Address) -> Result<LockState, Error> {
    match place {
        Address::Memory(name) => Ok(memory::inspect(place, name.path())),
        Address::Sidecar(_) | Address::Exclusive(_) | Address::Upload { .. } => {
            files::inspect(place, tenure.tuning())
        }
        #[cfg(feature = "store")]
        Address::Repository(_) => repository::inspect(tenure, place).await,
        Address::Daemon { nodes, path } => {
            daemon::inspect(&tenure.client(nodes)?, place, path).await
        }
    }
}

/// Returns all locks at or below an address.
pub(crate) async fn list(tenure: &Tenure, place: &Address) -> Result<Vec<LockState>, Error> {
    match place {
        Address::Memory(name) => Ok(memory::list(Some(name.path()))),
        Address::Sidecar(_) | Address::Exclusive(_) | Address::Upload { .. } => {
            files::list(place, tenure.tuning())
        }
        #[cfg(feature = "store")]
        Address::Repository(_) => Ok(vec![repository::inspect(tenure, place).await?]),
        Address::Daemon { nodes, path } => {
            daemon::list(&tenure.client(nodes)?, nodes, Some(path)).await
        }
    }
}

/// Asks the holders to release. Returns the holders that were asked.
pub(crate) async fn ask(
    tenure: &Tenure,
    place: &Address,
    reason: Option<&str>,
) -> Result<Vec<Blocker>, Error> {
    crate::Capabilities::of(place).require(place, crate::Need::Ask)?;
    match place {
        Address::Memory(name) => Ok(memory::ask(place, name.path(), reason)),
        Address::Sidecar(_) | Address::Exclusive(_) => Ok(Vec::new()),
        Address::Upload { dir, id } => files::ask(place, dir, id, reason, tenure.tuning()),
        #[cfg(feature = "store")]
        Address::Repository(_) => Ok(Vec::new()),
        Address::Daemon { nodes, path } => daemon::ask(&tenure.client(nodes)?, place, path).await,
    }
}

/// What to break, and whether a live holder may be hit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BreakRequest<'a> {
    pub(crate) id: Option<&'a HoldId>,
    pub(crate) force: Force,
    #[cfg_attr(
        not(feature = "daemon"),
        expect(dead_code, reason = "only the daemon writes it down")
    )]
    pub(crate) reason: &'a str,
}

/// Breaks the hold with the id, or all blocking holds without one.
pub(crate) async fn break_hold(
    tenure: &Tenure,
    place: &Address,
    breaking: BreakRequest<'_>,
) -> Result<Broken, Error> {
    match place {
        Address::Memory(name) => memory::break_hold(place, name.path(), breaking),
        Address::Sidecar(_) | Address::Exclusive(_) | Address::Upload { .. } => {
            files::break_hold(place, breaking, tenure.tuning())
        }
        #[cfg(feature = "store")]
        Address::Repository(_) => repository::break_hold(tenure, place, breaking).await,
        Address::Daemon { nodes, path } => {
            daemon::break_hold(&tenure.client(nodes)?, place, path, breaking).await
        }
    }
}

/// Returns a stream of changes that begins with the present holds.
pub(crate) async fn watch(tenure: &Tenure, place: &Address) -> Result<WatchStream, Error> {
    match place {
        Address::Memory(name) => Ok(memory::watch(name.path())),
        Address::Sidecar(_) | Address::Exclusive(_) | Address::Upload { .. } => {
            files::watch(place, tenure)
        }
        #[cfg(feature = "store")]
        Address::Repository(_) => Ok(repository::watch(tenure, place)),
        Address::Daemon { nodes, path } => daemon::watch(&tenure.client(nodes)?, nodes, path).await,
    }
}

/// Renews a detached hold (C13). Returns its fence.
pub(crate) async fn renew_hold(tenure: &Tenure, hold: &Hold) -> Result<Option<Fence>, Error> {
    match &hold.place {
        Address::Memory(_) => return Err(not_held(hold)),
        Address::Sidecar(_) | Address::Exclusive(_) | Address::Upload { .. } => {
            files::renew_hold(hold, tenure.tuning())?;
        }
        #[cfg(feature = "store")]
        Address::Repository(_) => return repository::renew_hold(tenure, hold).await,
        Address::Daemon { nodes, path } => {
            daemon::renew_hold(&tenure.client(nodes)?, hold, path).await?;
        }
    }
    Ok(hold.fence)
}

/// Releases a detached hold (C13).
pub(crate) async fn release_hold(tenure: &Tenure, hold: &Hold) -> Result<(), Error> {
    match &hold.place {
        Address::Memory(_) => Err(not_held(hold)),
        Address::Sidecar(_) | Address::Exclusive(_) | Address::Upload { .. } => {
            files::release_hold(hold, tenure.tuning())
        }
        #[cfg(feature = "store")]
        Address::Repository(_) => repository::release_hold(tenure, hold).await,
        Address::Daemon { nodes, path } => {
            daemon::release_hold(&tenure.client(nodes)?, hold, path).await
        }
    }
}

/// Waits for the turn in a session. An owner has at most one queue entry, R83 (one pending entry
/// per namespace), so the requests of a session run one after the other.
async fn turn(turn: Arc<Turn<()>>, request: &Request) -> Result<OwnedMutexGuard<()>, Error> {
    let others = "another lock of this session is being waited for";
    let busy = || Box::new(Busy::new(&request.place, None, others));
    match request.wait {
        Wait::No => turn.try_lock_owned().map_err(|_| Error::Busy(busy())),
        Wait::Forever => Ok(turn.lock_owned().await),
        Wait::For(time) => tokio::select! {
            turn = turn.lock_owned() => Ok(turn),
            () = crate::runtime::sleep(time) => Err(Error::TimedOut(busy())),
        },
    }
}

fn not_held(hold: &Hold) -> Error {
    Error::refused(&hold.place, Class::NotHeld, "this hold is not held")
}
