//! The same without `async`, for programs without a runtime. On lock files nothing is started before the lock is
//! held: no runtime, no thread (C7).
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
use crate::lease::Lease;
use crate::signals::{HoldEvent, ReleaseRequest};
use crate::tenure::Tenure;
use crate::values::{Fence, Mode, Wait};

/// Begins to lock `place`, with the settings of the environment where the daemon needs any.
pub fn lock(place: impl IntoAddress) -> Result<Lock, Error> {
    crate::lock(place).map(Lock::from)
}

/// Waits on this thread for any of this crate's futures. They need no runtime.
pub fn wait<F: Future>(future: F) -> F::Output {
    crate::runtime::block_on(future)
}

/// A lock that is wanted; [`crate::Lock`] on this thread.
#[derive(Clone, Debug)]
#[must_use = "nothing is locked before `acquire`"]
pub struct Lock(crate::Lock);

impl From<crate::Lock> for Lock {
    fn from(lock: crate::Lock) -> Lock {
        Lock(lock)
    }
}

/// Passes a setter on to the lock beneath.
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
    /// Together with other shared holders.
    shared();
    /// Alone. This is the default.
    exclusive();
    /// Shared, for the path and everything below it.
    shared_tree();
    /// One of this many places. Everybody must name the same number.
    permit(of: NonZeroU32);
    /// In this mode.
    mode(mode: Mode);
    /// Wait at most this long. Without a word it is for ever.
    wait(time: Duration);
    /// At once or not at all.
    no_wait();
    /// Wait as this says.
    wait_limit(wait: Wait);
    /// How long the lease lives without a renewal.
    ttl(ttl: Duration);
    /// Ask the holder to let go while waiting.
    ask();
    /// What the lock is for; shown to those who wait.
    purpose(purpose: impl Into<String>);
    /// Anything else that people should see, where the backend keeps it.
    label(key: impl Into<String>, value: impl Into<String>);
    /// Take a fence with the lock, where that has to be asked for.
    fenced();
    /// Refuse to wait in a circle of owners that wait for each other.
    refuse_deadlock();
    /// What the caller cannot do without.
    require(need: Need);
    /// The hold outlives this process; see [`crate::Lock::follows`].
    follows(pid: u32);
    /// Told while waiting: who has it, and the place in line.
    on_wait(tell: impl Fn(&Busy) + Send + Sync + 'static);
}

impl Lock {
    /// Takes the lock.
    pub fn acquire(self) -> Result<Guard, Error> {
        self.0.acquire_blocking().map(Guard)
    }

    /// Takes the lock, runs `body`, gives the lock back. Nothing can interrupt the body; if the lock was lost inside,
    /// the answer is [`Error::Lost`] and not the body's value.
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
    /// Begins to lock `place` on this thread.
    pub fn lock_blocking(&self, place: impl IntoAddress) -> Result<Lock, Error> {
        self.lock(place).map(Lock)
    }
}

impl crate::LockAll {
    /// Takes all of them, or none, on this thread.
    pub fn acquire_all_blocking(self) -> Result<Vec<Guard>, Error> {
        let guards = self.acquire_blocking()?;
        Ok(guards.into_vec().into_iter().map(Guard).collect())
    }
}

/// A lock that is held; [`crate::Guard`] on this thread.
#[derive(Debug)]
#[must_use = "a guard that is dropped gives the lock back"]
pub struct Guard(crate::Guard);

impl Guard {
    /// The guard for those who await.
    pub fn into_async(self) -> crate::Guard {
        self.0
    }

    /// What is locked.
    pub fn place(&self) -> &Address {
        self.0.place()
    }

    /// How it is held.
    pub fn mode(&self) -> Mode {
        self.0.mode()
    }

    /// The newest fence; none where the backend gave none.
    pub fn fence(&self) -> Option<Fence> {
        self.0.fence()
    }

    /// See [`crate::Guard::valid_for`].
    pub fn valid_for(&self) -> Option<Duration> {
        self.0.valid_for()
    }

    /// The lease as last confirmed, where there is one.
    pub fn lease(&self) -> Option<Lease> {
        self.0.lease()
    }

    /// Who holds: the token on files, the owner in memory and on the daemon.
    pub fn owner(&self) -> String {
        self.0.owner()
    }

    /// The hold on disk, where the lock is a file.
    pub fn file(&self) -> Option<&tenure_files::hold::FileHolding> {
        self.0.file()
    }

    /// Mine, right now?
    pub fn check(&self) -> Result<(), Error> {
        wait(self.0.check())
    }

    /// Whether the lock is known to be lost. Asks nobody.
    pub fn still_held(&self) -> Result<(), Error> {
        self.0.still_held()
    }

    /// Waits until the lock is lost.
    pub fn lost(&self) -> LostLock {
        wait(self.0.lost())
    }

    /// Who asked for the lock, if somebody did.
    pub fn requested(&self) -> Option<ReleaseRequest> {
        self.0.requested()
    }

    /// Waits until somebody asks for the lock.
    pub fn release_requested(&self) -> ReleaseRequest {
        wait(self.0.release_requested())
    }

    /// See [`crate::Guard::listen`].
    pub fn listen(&self, listener: impl Fn(&HoldEvent) + Send + Sync + 'static) {
        self.0.listen(listener);
    }

    /// Gives the lock back, or says why it was not ours any more.
    pub fn release(self) -> Result<(), Error> {
        wait(self.0.release())
    }

    /// Lets go without giving back; see [`crate::Guard::into_hold`].
    pub fn into_hold(self) -> Result<Hold, Error> {
        wait(self.0.into_hold())
    }
}
