//! Blocking API for programs without an async runtime.
//!
//! Lock files start no runtime, and no thread until they are held or waited for: C7 (fast start).
//!
//! ```
//! # let temp = tempfile::tempdir()?;
//! # let state = temp.path().join("state.json").display().to_string();
//! match tenure::blocking::lock(&state)?.no_wait().acquire() {
//!     Ok(guard) => {
//!         // … exclusive work …
//!         guard.release()?;
//!     }
//!     Err(error) if error.is_busy() => eprintln!("{error}"), // names who, since when, and what to do
//!     Err(error) => return Err(error.into()),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Lock::blocking`](crate::Lock::blocking) and [`LockAll::blocking`](crate::LockAll::blocking)
//! turn the builders of a [`Tenure`](crate::Tenure) into these. The other calls of `Tenure` return
//! futures that run in any executor.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tenure_base::Lease;
use tenure_base::block_on;

use crate::address::{Address, IntoAddress};
use crate::capabilities::Need;
use crate::error::{Busy, Error, LostLock};
use crate::hold::Hold;
use crate::lock::setters;
use crate::request::Request;
use crate::signals::{HoldEvent, ReleaseRequest};
use crate::values::{Fence, Mode, Wait};

/// Returns a builder for a lock on `place`. See [`crate::lock()`].
pub fn lock(place: impl IntoAddress) -> Result<Lock, Error> {
    crate::lock(place).map(crate::Lock::blocking)
}

/// A builder for one lock; the blocking form of [`crate::Lock`].
#[derive(Clone, Debug)]
#[must_use = "nothing is locked before `acquire`"]
pub struct Lock(pub(crate) crate::Lock);

/// A builder for several locks; the blocking form of [`crate::LockAll`].
#[derive(Clone, Debug)]
#[must_use = "nothing is locked before `acquire`"]
pub struct LockAll(pub(crate) crate::LockAll);

setters!(Lock);
setters!(LockAll);

impl Lock {
    fn each(self, change: impl Fn(&mut Request)) -> Lock {
        Lock(self.0.each(change))
    }

    /// Acquires the lock. See [`crate::Lock::acquire`] for the errors.
    pub fn acquire(self) -> Result<Guard, Error> {
        self.0.acquire_blocking().map(Guard)
    }

    /// Acquires the lock, runs `body`, and releases the lock.
    ///
    /// A loss does not interrupt `body`. If the lock was lost meanwhile, the result is
    /// [`Error::Lost`] and not the value of `body`.
    pub fn with<T, E: From<Error>>(
        self,
        body: impl FnOnce(&Guard) -> Result<T, E>,
    ) -> Result<T, E> {
        let guard = self.acquire()?;
        let result = body(&guard);
        match guard.release() {
            Err(lost @ Error::Lost(_)) => Err(E::from(lost)),
            Ok(()) | Err(_) => result,
        }
    }
}

impl LockAll {
    fn each(self, change: impl Fn(&mut Request)) -> LockAll {
        LockAll(self.0.each(change))
    }

    /// Acquires all locks or none. See [`crate::LockAll::acquire`].
    pub fn acquire(self) -> Result<Vec<Guard>, Error> {
        let guards = self.0.acquire_blocking()?;
        Ok(guards.into_vec().into_iter().map(Guard).collect())
    }
}

/// A lock that is held; the blocking form of [`crate::Guard`].
#[derive(Debug)]
#[must_use = "a guard that is dropped gives the lock back"]
pub struct Guard(crate::Guard);

impl Guard {
    /// Converts into the async guard.
    pub fn into_async(self) -> crate::Guard {
        self.0
    }

    /// Returns the address of the lock.
    pub fn place(&self) -> &Address {
        self.0.place()
    }

    /// Returns the mode of the hold.
    pub fn mode(&self) -> Mode {
        self.0.mode()
    }

    /// Returns the newest fence, or `None` if the backend assigned none.
    pub fn fence(&self) -> Option<Fence> {
        self.0.fence()
    }

    /// Returns how long the protected work may continue. See [`crate::Guard::valid_for`].
    pub fn valid_for(&self) -> Option<Duration> {
        self.0.valid_for()
    }

    /// Returns the lease of the last confirmed renewal, if there is one.
    pub fn lease(&self) -> Option<Lease> {
        self.0.lease()
    }

    /// Returns the id of the holder. See [`crate::Guard::owner`].
    pub fn owner(&self) -> String {
        self.0.owner()
    }

    /// Checks that the lock is held now. See [`crate::Guard::check`].
    pub fn check(&self) -> Result<(), Error> {
        block_on(self.0.check())
    }

    /// Checks whether this process knows that the lock is lost. Does no I/O.
    pub fn still_held(&self) -> Result<(), Error> {
        self.0.still_held()
    }

    /// Blocks until the lock is lost.
    pub fn lost(&self) -> LostLock {
        block_on(self.0.lost())
    }

    /// Returns the first release request, if there is one.
    pub fn requested(&self) -> Option<ReleaseRequest> {
        self.0.requested()
    }

    /// Blocks until another client asks for the lock.
    pub fn release_requested(&self) -> ReleaseRequest {
        block_on(self.0.release_requested())
    }

    /// Calls `listener` for every event of the lock. See [`crate::Guard::listen`].
    pub fn listen(&self, listener: impl Fn(&HoldEvent) + Send + Sync + 'static) {
        self.0.listen(listener);
    }

    /// Releases the lock. See [`crate::Guard::release`].
    pub fn release(self) -> Result<(), Error> {
        block_on(self.0.release())
    }

    /// Ends the guard without releasing the lock; see [`crate::Guard::into_hold`].
    pub fn into_hold(self) -> Result<Hold, Error> {
        block_on(self.0.into_hold())
    }
}
