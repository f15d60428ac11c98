//! RAII guards of held locks: [`Guard`] for one, [`Guards`] for several.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::address::{Address, IntoAddress};
use crate::backend::BackendHold;
use crate::error::{Error, LostLock};
use crate::hold::Hold;
use crate::lock::LockAll;
use crate::signals::{HoldEvent, ReleaseRequest, Signals};
use crate::values::{Class, Fence, Mode};
use tenure_base::Lease;

/// A lock that is held.
///
/// Dropping the guard releases the lock: immediately on files and in memory, in the background on
/// other backends. Only [`release`](Guard::release) reports whether that succeeded.
///
/// A copy in a child of `fork` does nothing: only the process that acquired the lock may use it,
/// K36 (idempotent release).
#[must_use = "a guard that is dropped gives the lock back"]
pub struct Guard {
    place: Address,
    mode: Mode,
    signals: Arc<Signals>,
    /// `None` after `release` or `into_hold`.
    held: Option<BackendHold>,
    process: u32,
}

impl Guard {
    pub(crate) fn new(
        place: Address,
        mode: Mode,
        signals: Arc<Signals>,
        held: BackendHold,
    ) -> Guard {
        Guard {
            place,
            mode,
            signals,
            held: Some(held),
            process: std::process::id(),
        }
    }

    fn held(&self) -> &BackendHold {
        self.held
            .as_ref()
            .expect("a guard has its hold until it is given back")
    }

    /// Fails in a child of `fork` (K36).
    fn must_be_ours(&self) -> Result<(), Error> {
        if self.process == std::process::id() {
            return Ok(());
        }
        let what = "this copy of the guard came over fork; only the process that acquired acts";
        Err(Error::refused(&self.place, Class::NotHeld, what))
    }

    /// Returns the address of the lock.
    pub fn place(&self) -> &Address {
        &self.place
    }

    /// Returns the mode of the hold.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the newest fence, or `None` if the backend assigned none.
    pub fn fence(&self) -> Option<Fence> {
        self.held().fence()
    }

    /// Returns how long the protected work may continue without another renewal.
    ///
    /// This is 80 % of the lease, counted from the *sending* of the last confirmed renewal on a
    /// clock that includes suspended time. It is zero when the lock is lost. Returns `None` if
    /// there is no lease: then the lock is held until it is released or this process ends.
    pub fn valid_for(&self) -> Option<Duration> {
        if self.signals.loss().is_some() {
            return Some(Duration::ZERO);
        }
        self.held()
            .valid_for()
            .or_else(|| self.signals.lease().map(|lease| lease.valid_for()))
    }

    /// Returns the lease of the last confirmed renewal, if there is one.
    pub fn lease(&self) -> Option<Lease> {
        self.held().lease().or_else(|| self.signals.lease())
    }

    /// Returns the id of the holder: the token in a lock file or repository, the owner in memory
    /// and on the daemon.
    pub fn owner(&self) -> String {
        self.held().owner()
    }

    /// Returns the hold on disk if the lock is a file: path, descriptor and heartbeat. See K38
    /// (inherit the locked descriptor).
    #[cfg(feature = "files")]
    pub fn file(&self) -> Option<&tenure_files::FileHolding> {
        self.held().file()
    }

    /// Checks that the lock is held now.
    ///
    /// Queries the daemon or the store; reads the lock file; in memory it is a lookup.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lock is lost. Other errors mean that the state is unknown.
    pub async fn check(&self) -> Result<(), Error> {
        self.must_be_ours()?;
        self.still_held()?;
        let checked = self.held().check(&self.place).await;
        if let Err(Error::Lost(lost)) = &checked {
            self.signals.lose(lost.cause, lost.what.clone());
        }
        // The lease may have run out while the query had no answer. A loss outweighs the error of
        // the query.
        self.still_held()?;
        checked
    }

    /// Checks whether this process knows that the lock is lost. Does no I/O.
    pub fn still_held(&self) -> Result<(), Error> {
        match self.signals.loss() {
            Some(lost) => Err(lost.into()),
            None => Ok(()),
        }
    }

    /// Completes when the lock is lost; immediately if it is lost already.
    ///
    /// On a backend with leases this happens at the latest when [`valid_for`](Guard::valid_for)
    /// reaches zero. The protected work must have stopped by then.
    pub async fn lost(&self) -> LostLock {
        self.signals.lost().await
    }

    /// Completes when another client asks for the lock; immediately if one has asked already. The
    /// lock stays held.
    pub async fn release_requested(&self) -> ReleaseRequest {
        self.signals.release_requested().await
    }

    /// Returns the first release request, if there is one.
    pub fn requested(&self) -> Option<ReleaseRequest> {
        self.signals.asked()
    }

    /// Calls `listener` for every event of the lock from now on, and once for each present fact
    /// (lease, release request, loss).
    ///
    /// The listeners of a process run one after the other on a thread that has no other task. So a
    /// listener may block, and may use the blocking API, but it delays the others meanwhile.
    pub fn listen(&self, listener: impl Fn(&HoldEvent) + Send + Sync + 'static) {
        self.signals.listen(Arc::new(listener), self.held().lease());
    }

    /// Releases the lock.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lock was lost before.
    pub async fn release(mut self) -> Result<(), Error> {
        self.must_be_ours()?;
        match (self.signals.loss(), self.held.take()) {
            // Dropping the hold releases what the backend may still have of it, in the background:
            // the backend may be unreachable.
            (Some(lost), _) => Err(lost.into()),
            (None, Some(held)) => held.release(&self.place).await,
            (None, None) => Ok(()),
        }
    }

    /// Ends the guard without releasing the lock, which must have been acquired with
    /// [`follows`](crate::Lock::follows).
    ///
    /// Another process can renew or release the lock with the returned [`Hold`].
    pub async fn into_hold(mut self) -> Result<Hold, Error> {
        self.must_be_ours()?;
        self.still_held()?;
        let ttl = self.lease().map(|lease| lease.ttl);
        let held = self
            .held
            .take()
            .expect("a guard has its hold until it is given back");
        held.leave(self.place.clone(), self.mode, ttl).await
    }

    /// Runs `work` until it completes or the lock is lost.
    pub(crate) async fn while_held<T>(&self, work: impl Future<Output = T>) -> Result<T, LostLock> {
        let (mut work, mut lost) = (pin!(work), pin!(self.lost()));
        poll_fn(|context| {
            // Poll the loss first: results of work after the loss must not count.
            if let Poll::Ready(lost) = lost.as_mut().poll(context) {
                return Poll::Ready(Err(lost));
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // In a child of `fork`, mutexes and threads of the parent are in an undefined state, so
        // nothing may run. File holds check the process id themselves.
        if self.process != std::process::id() && !self.place.is_file() {
            std::mem::forget(self.held.take());
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("place", &self.place)
            .field("mode", &self.mode)
            .field("fence", &self.fence())
            .finish_non_exhaustive()
    }
}

/// Several locks that are held together. The loss of one is the loss of all.
///
/// More locks can be added, and single ones removed, while the others stay held. Those of one daemon
/// have one owner and share its leases.
#[derive(Debug)]
#[must_use = "guards that are dropped give the locks back"]
pub struct Guards {
    guards: Vec<Guard>,
    /// Makes the locks that are added.
    lock: LockAll,
}

impl Guards {
    pub(crate) fn new(guards: Vec<Guard>, lock: LockAll) -> Guards {
        Guards { guards, lock }
    }

    /// Acquires one more lock with the options of the others. An address that is held already stays
    /// held.
    ///
    /// The order of acquires is up to the caller here: two programs that add each other's locks can
    /// wait for each other. Use [`refuse_deadlock`](crate::LockAll::refuse_deadlock) or a time limit.
    ///
    /// # Errors
    ///
    /// Those of [`Lock::acquire`](crate::Lock::acquire). The other locks stay held.
    pub async fn add(&mut self, place: impl IntoAddress) -> Result<(), Error> {
        let place = place.into_address()?.normalized();
        if self.find(&place).is_none() {
            self.guards.push(self.lock.one_more(place).await?);
        }
        Ok(())
    }

    /// Releases one of the locks; the others stay held.
    ///
    /// # Errors
    ///
    /// [`Error::Input`] if none of the locks has this address; [`Error::Lost`] if it was lost before.
    pub async fn remove(&mut self, place: impl IntoAddress) -> Result<(), Error> {
        let place = place.into_address()?.normalized();
        match self.find(&place) {
            Some(number) => self.guards.remove(number).release().await,
            None => Err(Error::input(place.to_string(), "is none of these locks")),
        }
    }

    fn find(&self, place: &Address) -> Option<usize> {
        let place = self.lock.resolved(place);
        let is_it = |guard: &Guard| self.lock.resolved(guard.place()) == place;
        self.guards.iter().position(is_it)
    }

    /// Returns the guards in the order of the requested addresses. Duplicates appear once.
    pub fn iter(&self) -> impl Iterator<Item = &Guard> {
        self.guards.iter()
    }

    /// Returns the shortest [`Guard::valid_for`] of all guards.
    pub fn valid_for(&self) -> Option<Duration> {
        self.guards.iter().filter_map(Guard::valid_for).min()
    }

    /// Completes when one of the locks is lost.
    pub async fn lost(&self) -> LostLock {
        let mut waits: Vec<_> = self
            .guards
            .iter()
            .map(|guard| Box::pin(guard.lost()))
            .collect();
        poll_fn(|context| {
            let lost = waits
                .iter_mut()
                .find_map(|wait| match wait.as_mut().poll(context) {
                    Poll::Ready(lost) => Some(lost),
                    Poll::Pending => None,
                });
            lost.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Checks that all locks are held now. See [`Guard::check`].
    pub async fn check(&self) -> Result<(), Error> {
        for guard in &self.guards {
            guard.check().await?;
        }
        Ok(())
    }

    /// Releases all locks in reverse order.
    ///
    /// Tries all of them and returns the first error.
    pub async fn release(self) -> Result<(), Error> {
        let mut result = Ok(());
        for guard in self.guards.into_iter().rev() {
            let released = guard.release().await;
            result = result.and(released);
        }
        result
    }

    /// Returns the single guards.
    pub fn into_vec(self) -> Vec<Guard> {
        self.guards
    }
}
