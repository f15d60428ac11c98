//! RAII guard of a repository lock.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use crate::address::RepositoryAddress;
use crate::clocks::boot;
use crate::driver::{DriverState, HolderCommand};
use crate::error::{Error, Loss};
use crate::key::ObjectKey;
use crate::lock_terms::LockMode;
use crate::protocol::{HoldStatus, OpFailure, OwnRecord, Released};

/// A held repository lock.
///
/// The runtime thread refreshes the lease. Dropping the guard releases the lock in the background;
/// [`RepositoryGuard::release`] releases it and reports the outcome.
#[must_use = "a guard that is dropped gives the lock back"]
pub struct RepositoryGuard {
    place: RepositoryAddress,
    mode: LockMode,
    key: ObjectKey,
    token: String,
    /// Process that acquired the lock. A forked copy of the guard must not act (K36 (idempotent
    /// release)).
    pid: u32,
    orders: Option<mpsc::UnboundedSender<HolderCommand>>,
    state: watch::Receiver<DriverState>,
}

impl RepositoryGuard {
    pub(crate) fn new(
        place: RepositoryAddress,
        mode: LockMode,
        own: &OwnRecord,
        orders: mpsc::UnboundedSender<HolderCommand>,
        state: watch::Receiver<DriverState>,
    ) -> RepositoryGuard {
        let token = own
            .record
            .tenure
            .as_ref()
            .and_then(|block| block.token.clone());
        RepositoryGuard {
            place,
            mode,
            key: own.key.clone(),
            token: token.unwrap_or_default(),
            pid: std::process::id(),
            orders: Some(orders),
            state,
        }
    }

    /// Returns the address of the repository.
    pub fn place(&self) -> &RepositoryAddress {
        &self.place
    }

    /// Returns the mode of the lock.
    pub fn mode(&self) -> LockMode {
        self.mode
    }

    /// Returns the key of the lock object.
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// Returns the id of this hold, as listings show it: key and token
    /// ([`BlockingObject::id`](crate::BlockingObject::id)).
    pub fn id(&self) -> String {
        format!("{}#{}", self.key, self.token)
    }

    /// Returns the newest fencing number (P38 (repository fence counter)).
    ///
    /// `None` only for a shared lock in a store without conditional writes whose counter was never
    /// incremented.
    pub fn fence(&self) -> Option<u64> {
        self.state.borrow().fence
    }

    /// Returns how long the work may continue without a newer refresh (P32 (lease limit at 80
    /// percent)). Zero if the lock is not held.
    pub fn valid_for(&self) -> Duration {
        let state = self.state.borrow();
        match state.status {
            HoldStatus::Held if self.is_ours() => state.valid_until.since(boot()),
            HoldStatus::Held | HoldStatus::Lapsed { .. } | HoldStatus::Lost(_) => Duration::ZERO,
        }
    }

    /// Returns how the lock was lost, or `None` if it is held. Does not ask the store.
    pub fn loss(&self) -> Option<Loss> {
        let state = self.state.borrow();
        match &state.status {
            HoldStatus::Held if boot() < state.valid_until => None,
            HoldStatus::Held | HoldStatus::Lapsed { .. } => Some(Loss::Lapsed),
            HoldStatus::Lost(cause) => Some(Loss::For(cause.clone())),
        }
    }

    /// Waits until the lock is lost and returns how; returns at once if it was lost before.
    ///
    /// The work must stop at once: other processes may acquire the lock from now on.
    pub async fn lost(&self) -> Loss {
        let mut state = self.state.clone();
        loop {
            state.mark_unchanged();
            if let Some(loss) = self.loss() {
                return loss;
            }
            if state.changed().await.is_err() {
                // The task on the runtime thread ended without a final status; the lease is not
                // refreshed any more.
                return self.loss().unwrap_or(Loss::Lapsed);
            }
        }
    }

    /// Asks the store whether the record is still ours (K34 (detect a lost lock)).
    ///
    /// # Errors
    ///
    /// Returns [`Error::Lost`] if the lock is lost, [`Error::Store`] if the store cannot be read.
    pub async fn check(&self) -> Result<(), Error> {
        if let Some(loss) = self.loss() {
            return Err(self.lost_error(loss));
        }
        let (answer, answered) = oneshot::channel();
        self.order(HolderCommand::Check(answer))?;
        self.answered(answered.await.ok())
    }

    /// Revives a lapsed lock (P34 (revive a lapsed lease)).
    ///
    /// Succeeds only if no other process can have held the lock in between. The lock then has a new
    /// fencing number. The work must stay stopped until this returns.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Lost`] if the lock is lost or still lapsed, [`Error::NotHeld`] if this
    /// guard holds nothing.
    pub(crate) async fn revive(&self) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        self.order(HolderCommand::Revive(answer))?;
        self.answered(answered.await.ok())
    }

    /// Releases the lock (P35 (repository release)).
    ///
    /// # Errors
    ///
    /// Returns [`Error::Lost`] if the record was not ours any more, [`Error::Store`] if it could
    /// not be removed; it then stays until its lease expires.
    pub async fn release(mut self) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        self.order(HolderCommand::Release(answer))?;
        let released = answered.await;
        self.orders = None;
        let place = Box::new(self.place.clone());
        match released {
            Ok(Released::Done) => Ok(()),
            Ok(Released::Compromised(cause) | Released::WasLost(cause)) => Err(Error::Lost {
                place,
                loss: Box::new(Loss::For(cause)),
            }),
            Ok(Released::Failed(failure)) => Err(Error::Store { place, failure }),
            Err(_) => Err(Error::NotHeld { place }),
        }
    }

    /// Stops refreshing without releasing the lock and returns a ticket (C13 (holds for scripts)).
    ///
    /// The lock stays until its ttl ends. Another process can continue it with the ticket:
    /// [`Repository::adopt`](crate::Repository::adopt).
    pub async fn into_ticket(mut self) -> Result<Ticket, Error> {
        let (answer, answered) = oneshot::channel();
        self.order(HolderCommand::Leave(answer))?;
        let left = answered.await;
        self.orders = None;
        match left {
            Ok(()) => Ok(Ticket {
                key: self.key.clone(),
                token: self.token.clone(),
                fence: self.fence(),
            }),
            Err(_) => Err(Error::NotHeld {
                place: Box::new(self.place.clone()),
            }),
        }
    }

    fn is_ours(&self) -> bool {
        self.pid == std::process::id()
    }

    fn order(&self, order: HolderCommand) -> Result<(), Error> {
        let place = || Box::new(self.place.clone());
        match &self.orders {
            Some(orders) if self.is_ours() => orders
                .send(order)
                .map_err(|_| Error::NotHeld { place: place() }),
            Some(_) | None => Err(Error::NotHeld { place: place() }),
        }
    }

    fn answered(&self, answer: Option<Result<(), OpFailure>>) -> Result<(), Error> {
        match (answer, self.loss()) {
            (_, Some(loss)) => Err(self.lost_error(loss)),
            (Some(Ok(())), None) => Ok(()),
            (Some(Err(failure)), None) => Err(Error::Store {
                place: Box::new(self.place.clone()),
                failure,
            }),
            (None, None) => Err(Error::NotHeld {
                place: Box::new(self.place.clone()),
            }),
        }
    }

    fn lost_error(&self, loss: Loss) -> Error {
        Error::Lost {
            place: Box::new(self.place.clone()),
            loss: Box::new(loss),
        }
    }
}

impl Drop for RepositoryGuard {
    fn drop(&mut self) {
        if !self.is_ours()
            && let Some(orders) = self.orders.take()
        {
            // A copy in a forked child. Closing the channel would wake a runtime thread that does
            // not exist in this process, and the channel's memory may be inconsistent after the
            // fork.
            std::mem::forget(orders);
        }
    }
}

impl fmt::Debug for RepositoryGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("place", &self.place)
            .field("mode", &self.mode)
            .field("key", &self.key)
            .field("state", &*self.state.borrow())
            .finish()
    }
}

/// A hold that outlives its process, as one string: the lock object and the token that proves
/// ownership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub(crate) key: ObjectKey,
    pub(crate) token: String,
    /// Not part of the text: the fencing number that the holder knows.
    pub(crate) fence: Option<u64>,
}

impl Ticket {
    /// Sets the fencing number of the hold, which is not part of the text. It is kept when the hold
    /// is continued, unless another client has taken one since. The record has it, too, but not
    /// yet if its process left right after the acquire.
    pub fn with_fence(self, fence: Option<u64>) -> Ticket {
        Ticket { fence, ..self }
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.key, self.token)
    }
}

/// The error of a text that is not a [`Ticket`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no hold on a repository")]
pub struct TicketError(String);

impl FromStr for Ticket {
    type Err = TicketError;

    fn from_str(text: &str) -> Result<Ticket, TicketError> {
        let parts = text.rsplit_once('#').and_then(|(key, token)| {
            let is_token = token.len() == 32 && token.bytes().all(|byte| byte.is_ascii_hexdigit());
            Some((ObjectKey::lock(key)?, is_token.then(|| token.to_owned())?))
        });
        match parts {
            Some((key, token)) => Ok(Ticket {
                key,
                token,
                fence: None,
            }),
            None => Err(TicketError(text.into())),
        }
    }
}
