//! The guard: a lock in the hands of the program that took it.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::address::Address;
use crate::backend::BackendHold;
use crate::error::{Error, LostLock};
use crate::hold::Hold;
use crate::lease::Lease;
use crate::signals::{HoldEvent, ReleaseRequest, Signals};
use crate::values::{Class, Fence, Mode};

/// A lock that is held. Dropping it gives it back: at once on files and in memory, in the background elsewhere;
/// only [`release`](Guard::release) can say how that went.
///
/// A copy that came over `fork` is inert: only the process that acquired acts (K36).
#[must_use = "a guard that is dropped gives the lock back"]
pub struct Guard {
    place: Address,
    mode: Mode,
    signals: Arc<Signals>,
    /// `None` once it was given back or left.
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

    /// Only the process that acquired acts (K36).
    fn must_be_ours(&self) -> Result<(), Error> {
        if self.process == std::process::id() {
            return Ok(());
        }
        let what = "this copy of the guard came over fork; only the process that acquired acts";
        Err(Error::refused(&self.place, Class::NotHeld, what))
    }

    /// What is locked.
    pub fn place(&self) -> &Address {
        &self.place
    }

    /// How it is held.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The newest fence; none where the backend gave none.
    pub fn fence(&self) -> Option<Fence> {
        self.held().fence()
    }

    /// How long the work may go on without a newer renewal: to 80 % of the lease, counted from the *sending* of
    /// the last good renewal, on a clock that runs on while the machine sleeps. Zero when it is used up. `None`:
    /// there is no lease, and the lock is held as long as this process lives.
    pub fn valid_for(&self) -> Option<Duration> {
        if self.signals.loss().is_some() {
            return Some(Duration::ZERO);
        }
        self.held()
            .valid_for()
            .or_else(|| self.signals.lease().map(|lease| lease.valid_for()))
    }

    /// The lease as last confirmed, where there is one.
    pub fn lease(&self) -> Option<Lease> {
        self.held().lease().or_else(|| self.signals.lease())
    }

    /// Who holds: the token on files, the owner in memory and on the daemon.
    pub fn owner(&self) -> String {
        self.held().owner()
    }

    /// The hold on disk, where the lock is a file: its path, descriptor (K38) and pulse.
    pub fn file(&self) -> Option<&tenure_files::hold::FileHolding> {
        self.held().file()
    }

    /// Mine, right now? Asks the daemon or the store; looks at the file. Local and instant on files and in memory.
    pub async fn check(&self) -> Result<(), Error> {
        self.must_be_ours()?;
        self.still_held()?;
        let checked = self.held().check(&self.place).await;
        if let Err(Error::Lost(lost)) = &checked {
            self.signals.lose(lost.cause, lost.what.clone());
        }
        // A lease that ran out while nobody answered is a loss, whatever else went wrong.
        self.still_held()?;
        checked
    }

    /// Whether the lock is known to be lost. Asks nobody.
    pub fn still_held(&self) -> Result<(), Error> {
        match self.signals.loss() {
            Some(lost) => Err(lost.into()),
            None => Ok(()),
        }
    }

    /// Resolves when the lock is lost, at once if it was before, and never after
    /// [`valid_for`](Guard::valid_for) is zero. The work must have stopped by then.
    pub async fn lost(&self) -> LostLock {
        self.signals.lost().await
    }

    /// Resolves when somebody asks for the lock, at once if somebody did before. Nothing is taken away.
    pub async fn release_requested(&self) -> ReleaseRequest {
        self.signals.release_requested().await
    }

    /// Who asked for the lock, if somebody did.
    pub fn requested(&self) -> Option<ReleaseRequest> {
        self.signals.asked()
    }

    /// Calls `listener` for everything that happens to the lock from now on, and for what stands already. It runs
    /// on a thread of Tenure's: it must not take long, and must not panic.
    pub fn listen(&self, listener: impl Fn(&HoldEvent) + Send + Sync + 'static) {
        if let Some(lease) = self.held().lease() {
            listener(&HoldEvent::Renewed(lease));
        }
        self.signals.listen(Box::new(listener));
    }

    /// Gives the lock back, or says why it was not ours any more.
    pub async fn release(mut self) -> Result<(), Error> {
        self.must_be_ours()?;
        match (self.signals.loss(), self.held.take()) {
            // What may be left of it goes in the background: whoever took it away may be out of reach.
            (Some(lost), _) => Err(lost.into()),
            (None, Some(held)) => held.release(&self.place).await,
            (None, None) => Ok(()),
        }
    }

    /// Lets go without giving back, for a lock that was taken with
    /// [`follows`](crate::Lock::follows): it lives on, and the word lets another process renew or release it.
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

    /// Runs `work` until it is done or the lock is lost, whichever comes first.
    pub(crate) async fn while_held<T>(&self, work: impl Future<Output = T>) -> Result<T, LostLock> {
        let (mut work, mut lost) = (pin!(work), pin!(self.lost()));
        poll_fn(|context| {
            // Loss first: what the work does after it does not count.
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
        // A copy that came over fork. Files know that by themselves; the others would use locks and threads that the
        // fork has cut in the middle.
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

/// Several locks, held together and lost as one.
#[derive(Debug)]
#[must_use = "guards that are dropped give the locks back"]
pub struct Guards {
    guards: Vec<Guard>,
}

impl Guards {
    pub(crate) fn new(guards: Vec<Guard>) -> Guards {
        Guards { guards }
    }

    /// The guards, in the order in which the places were given. The same lock twice is there once.
    pub fn iter(&self) -> impl Iterator<Item = &Guard> {
        self.guards.iter()
    }

    /// The shortest time that one of them is still good for.
    pub fn valid_for(&self) -> Option<Duration> {
        self.guards.iter().filter_map(Guard::valid_for).min()
    }

    /// Resolves when one of them is lost.
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

    /// Whether all of them are ours right now.
    pub async fn check(&self) -> Result<(), Error> {
        for guard in &self.guards {
            guard.check().await?;
        }
        Ok(())
    }

    /// Gives all of them back, the last one taken first; the first trouble is reported, and the others are given
    /// back all the same.
    pub async fn release(self) -> Result<(), Error> {
        let mut result = Ok(());
        for guard in self.guards.into_iter().rev() {
            let released = guard.release().await;
            result = result.and(released);
        }
        result
    }

    /// The guards, one by one.
    pub fn into_vec(self) -> Vec<Guard> {
        self.guards
    }
}
