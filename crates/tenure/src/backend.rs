//! The backends: one file each, behind one enum. What is the same for all is decided before and above them.

#[cfg_attr(not(feature = "daemon"), path = "backend/no_daemon.rs")]
pub(crate) mod daemon;
mod exclusive;
mod files;
pub(crate) mod memory;
#[cfg(feature = "store")]
pub(crate) mod repository;
mod sidecar;
mod upload;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

use crate::address::Address;
use crate::error::{Blocker, Busy, Error};
use crate::guard::Guard;
use crate::hold::Hold;
use crate::inspect::{Broken, Force, LockState, WatchStream};
use crate::lease::Lease;
use crate::request::Request;
use crate::tenure::Tenure;
use crate::values::{Class, Fence, HoldId, Mode, Wait};

/// A guard's inside.
pub(crate) enum BackendHold {
    Memory(memory::MemoryHold),
    Sidecar(tenure_files::sidecar::SidecarGuard),
    Exclusive(tenure_files::exclusive::ExclusiveGuard),
    Upload(tenure_files::upload::UploadGuard),
    #[cfg(feature = "store")]
    Repository(repository::RepositoryHold),
    #[cfg_attr(
        not(feature = "daemon"),
        expect(dead_code, reason = "nobody makes one in that build")
    )]
    Daemon(daemon::DaemonHold),
}

impl BackendHold {
    pub(crate) fn fence(&self) -> Option<Fence> {
        match self {
            BackendHold::Memory(held) => held.fence(),
            BackendHold::Sidecar(guard) => guard.fence().map(Fence::from),
            BackendHold::Exclusive(guard) => guard.fence().map(Fence::from),
            BackendHold::Upload(guard) => guard.file()?.fence().map(Fence::from),
            #[cfg(feature = "store")]
            BackendHold::Repository(held) => held.fence(),
            BackendHold::Daemon(held) => held.fence(),
        }
    }

    /// What is left of the lease, where the backend keeps that itself.
    pub(crate) fn valid_for(&self) -> Option<Duration> {
        match self {
            BackendHold::Memory(_)
            | BackendHold::Sidecar(_)
            | BackendHold::Exclusive(_)
            | BackendHold::Upload(_) => None,
            #[cfg(feature = "store")]
            BackendHold::Repository(held) => Some(held.valid_for()),
            BackendHold::Daemon(_) => None,
        }
    }

    pub(crate) fn lease(&self) -> Option<Lease> {
        match self {
            BackendHold::Memory(_)
            | BackendHold::Sidecar(_)
            | BackendHold::Exclusive(_)
            | BackendHold::Upload(_) => None,
            #[cfg(feature = "store")]
            BackendHold::Repository(held) => Some(held.lease()),
            BackendHold::Daemon(_) => None,
        }
    }

    pub(crate) fn owner(&self) -> String {
        match self {
            BackendHold::Memory(held) => held.owner(),
            BackendHold::Sidecar(_) | BackendHold::Exclusive(_) | BackendHold::Upload(_) => self
                .file()
                .map_or_else(String::new, |hold| hold.token().to_string()),
            #[cfg(feature = "store")]
            BackendHold::Repository(held) => held.owner(),
            BackendHold::Daemon(held) => held.owner(),
        }
    }

    pub(crate) fn file(&self) -> Option<&tenure_files::hold::FileHolding> {
        match self {
            BackendHold::Sidecar(guard) => Some(guard.hold()),
            BackendHold::Exclusive(guard) => Some(guard.hold()),
            BackendHold::Upload(guard) => guard.file().map(|hold| hold.hold().as_ref()),
            BackendHold::Memory(_) => None,
            #[cfg(feature = "store")]
            BackendHold::Repository(_) => None,
            BackendHold::Daemon(_) => None,
        }
    }

    pub(crate) async fn check(&self, place: &Address) -> Result<(), Error> {
        let files = |result: tenure_files::Result<()>| {
            result.map_err(|error| Error::from_files(place, &error))
        };
        match self {
            BackendHold::Memory(held) => held.check(place),
            BackendHold::Sidecar(guard) => files(guard.verify_still_held()),
            BackendHold::Exclusive(guard) => files(guard.check()),
            BackendHold::Upload(guard) => files(guard.check()),
            #[cfg(feature = "store")]
            BackendHold::Repository(held) => held.check(place).await,
            BackendHold::Daemon(held) => held.check(place).await,
        }
    }

    pub(crate) async fn release(self, place: &Address) -> Result<(), Error> {
        let files = |result: tenure_files::Result<()>| {
            result.map_err(|error| Error::from_files(place, &error))
        };
        match self {
            BackendHold::Memory(held) => held.release(place),
            BackendHold::Sidecar(guard) => files(guard.release()),
            BackendHold::Exclusive(guard) => files(guard.release()),
            BackendHold::Upload(guard) => files(guard.release()),
            #[cfg(feature = "store")]
            BackendHold::Repository(held) => held.release(place).await,
            BackendHold::Daemon(held) => held.release(place).await,
        }
    }

    /// Lets go without giving back (C13).
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
            BackendHold::Sidecar(guard) => guard.leave().to_string(),
            BackendHold::Exclusive(guard) => guard.leave().to_string(),
            BackendHold::Upload(guard) => match guard.leave() {
                Some(token) => token.to_string(),
                None => return Err(Error::unsupported(&place, "it has no record to leave")),
            },
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

/// Takes a lock. A future that is dropped leaves nothing behind.
pub(crate) async fn acquire(tenure: &Tenure, request: Request) -> Result<Guard, Error> {
    request.check()?;
    match &request.place {
        Address::Memory(_) | Address::Daemon { .. } => {
            let places = vec![request.place.clone()];
            let mut taken = acquire_together(tenure, request, places).await?;
            Ok(taken.pop().expect("one path was asked for"))
        }
        Address::Sidecar(_) | Address::Exclusive(_) | Address::Upload { .. } => {
            tenure_files::future::run(move |cancel| files::acquire(&request, Some(&cancel))).await
        }
        #[cfg(feature = "store")]
        Address::Repository(_) => repository::acquire(tenure, request).await,
    }
}

/// Takes several paths of one tree, all as `request` says, in as few steps as it allows (C6). All of them or none; the
/// guards come in any order.
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

/// The same on this thread. Lock files start no runtime and no thread before they are held (C7).
pub(crate) fn acquire_blocking(tenure: &Tenure, request: Request) -> Result<Guard, Error> {
    if request.place.is_file() {
        request.check()?;
        return files::acquire(&request, None);
    }
    crate::runtime::block_on(acquire(tenure, request))
}

/// Gives back what was taken when the rest cannot be had. Waits for it: a program that is told so may end at once.
pub(crate) async fn give_up(taken: Vec<Guard>) {
    for guard in taken.into_iter().rev() {
        let _ = guard.release().await;
    }
}

/// What is known of one place.
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

/// Every lock at or below a place.
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

/// Asks the holders to let go. The answer is who was asked.
pub(crate) async fn ask(
    tenure: &Tenure,
    place: &Address,
    reason: Option<&str>,
) -> Result<Vec<Blocker>, Error> {
    crate::Capabilities::of(place).require(place, crate::Need::Ask)?;
    match place {
        Address::Memory(name) => Ok(memory::ask(place, name.path(), reason)),
        Address::Sidecar(_) | Address::Exclusive(_) => Ok(Vec::new()),
        Address::Upload { dir, id } => upload::ask(place, dir, id, reason, tenure.tuning()),
        #[cfg(feature = "store")]
        Address::Repository(_) => Ok(Vec::new()),
        Address::Daemon { nodes, path } => daemon::ask(&tenure.client(nodes)?, place, path).await,
    }
}

/// What to break, and how sure the caller is.
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

/// Breaks a hold, or all of them where no id is given.
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

/// Everything that changes at or below a place, beginning with what is held.
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

/// Shows once more that a hold that was left is wanted (C13).
pub(crate) async fn renew_hold(tenure: &Tenure, hold: &Hold) -> Result<(), Error> {
    match &hold.place {
        Address::Memory(_) => Err(not_held(hold)),
        Address::Sidecar(_) | Address::Exclusive(_) | Address::Upload { .. } => {
            files::adopt(hold, tenure.tuning())?
                .beat()
                .map_err(|error| Error::from_files(&hold.place, &error))
        }
        #[cfg(feature = "store")]
        Address::Repository(_) => repository::renew_hold(tenure, hold).await,
        Address::Daemon { nodes, path } => {
            daemon::renew_hold(&tenure.client(nodes)?, hold, path).await
        }
    }
}

/// Gives back a hold that was left (C13).
pub(crate) async fn release_hold(tenure: &Tenure, hold: &Hold) -> Result<(), Error> {
    match &hold.place {
        Address::Memory(_) => Err(not_held(hold)),
        Address::Sidecar(_) | Address::Exclusive(_) | Address::Upload { .. } => {
            files::adopt(hold, tenure.tuning())?
                .release()
                .map_err(|error| Error::from_files(&hold.place, &error))
        }
        #[cfg(feature = "store")]
        Address::Repository(_) => repository::release_hold(tenure, hold).await,
        Address::Daemon { nodes, path } => {
            daemon::release_hold(&tenure.client(nodes)?, hold, path).await
        }
    }
}

/// A turn in a session: one owner has one place in line (R83), so its requests come one after the other.
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
