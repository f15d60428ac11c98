//! Blocking API for programs without an async runtime.
//!
//! Lock files start no runtime and no thread before the lock is held: C7 (fast start).
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

use std::future::Future;
use std::num::NonZeroU32;
use std::time::Duration;

use crate::address::{Address, IntoAddress};
use crate::capabilities::Need;
use crate::error::{Busy, Error, LostLock};
use crate::hold::Hold;
use crate::signals::{HoldEvent, ReleaseRequest};
use crate::tenure::Tenure;
use crate::values::{Fence, Mode, Wait};
use tenure_files::Lease;

/// Returns a builder for a lock on `place`. See [`crate::lock()`].
pub fn lock(place: impl IntoAddress) -> Result<Lock, Error> {
    crate::lock(place).map(Lock::from)
}

/// Runs a future of this crate and blocks this thread. Needs no runtime.
pub fn wait<F: Future>(future: F) -> F::Output {
    tenure_files::internal::block_on(future)
}

/// A builder for one lock; the blocking form of [`crate::Lock`].
#[derive(Clone, Debug)]
#[must_use = "nothing is locked before `acquire`"]
pub struct Lock(crate::Lock);

impl From<crate::Lock> for Lock {
    fn from(lock: crate::Lock) -> Lock {
        Lock(lock)
    }
}

/// Forwards setters to the inner [`crate::Lock`].
macro_rules! forward {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*);)+) => {
        impl Lock {
            $($(#[$doc])*
            pub fn $name(self, $($argument: $type),*) -> Lock {
                Lock(self.0.$name($($argument),*))
            })+
        }
    };
}

forward! {
    /// Acquires in shared mode, together with other shared holders.
    shared();
    /// Acquires in exclusive mode. This is the default.
    exclusive();
    /// Acquires the path and everything below it in shared mode.
    shared_tree();
    /// Acquires one of `of` permits. All holders of a path must give the same number.
    permit(of: NonZeroU32);
    /// Sets the mode.
    mode(mode: Mode);
    /// Sets the maximum time to wait. Default: no limit.
    wait(time: Duration);
    /// Fails with [`Error::Busy`] instead of waiting.
    no_wait();
    /// Sets whether and how long to wait.
    wait_limit(wait: Wait);
    /// Sets the time after which the lease ends without a renewal. Tenure renews by itself.
    ttl(ttl: Duration);
    /// Asks the holder to release the lock while this request waits.
    ask();
    /// Sets what the lock is for. Waiters see it.
    purpose(purpose: impl Into<String>);
    /// Adds a label for people. Backends without labels ignore it.
    label(key: impl Into<String>, value: impl Into<String>);
    /// Requests a fence. Lock files assign one only on request; the other backends always do.
    fenced();
    /// Fails instead of waiting if the wait would close a cycle of owners. Daemon only.
    refuse_deadlock();
    /// Requires a capability; see [`crate::Lock::require`].
    require(need: Need);
    /// Makes a hold that outlives this process; see [`crate::Lock::follows`].
    follows(pid: u32);
    /// Sets a callback that reports the blocker and the queue position while the request waits.
    on_wait(tell: impl Fn(&Busy) + Send + Sync + 'static);
}

impl Lock {
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

impl Tenure {
    /// Returns a builder for a lock on `place`, for blocking use.
    pub fn lock_blocking(&self, place: impl IntoAddress) -> Result<Lock, Error> {
        self.lock(place).map(Lock)
    }
}

impl crate::LockAll {
    /// Acquires all locks or none. The blocking form of [`acquire`](crate::LockAll::acquire).
    pub fn acquire_all_blocking(self) -> Result<Vec<Guard>, Error> {
        let guards = self.acquire_blocking()?;
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

    /// Returns the hold on disk if the lock is a file.
    pub fn file(&self) -> Option<&tenure_files::FileHolding> {
        self.0.file()
    }

    /// Checks that the lock is held now. See [`crate::Guard::check`].
    pub fn check(&self) -> Result<(), Error> {
        wait(self.0.check())
    }

    /// Checks whether this process knows that the lock is lost. Does no I/O.
    pub fn still_held(&self) -> Result<(), Error> {
        self.0.still_held()
    }

    /// Blocks until the lock is lost.
    pub fn lost(&self) -> LostLock {
        wait(self.0.lost())
    }

    /// Returns the first release request, if there is one.
    pub fn requested(&self) -> Option<ReleaseRequest> {
        self.0.requested()
    }

    /// Blocks until another client asks for the lock.
    pub fn release_requested(&self) -> ReleaseRequest {
        wait(self.0.release_requested())
    }

    /// Calls `listener` for every event of the lock. See [`crate::Guard::listen`].
    pub fn listen(&self, listener: impl Fn(&HoldEvent) + Send + Sync + 'static) {
        self.0.listen(listener);
    }

    /// Releases the lock. See [`crate::Guard::release`].
    pub fn release(self) -> Result<(), Error> {
        wait(self.0.release())
    }

    /// Ends the guard without releasing the lock; see [`crate::Guard::into_hold`].
    pub fn into_hold(self) -> Result<Hold, Error> {
        wait(self.0.into_hold())
    }
}
