//! The guard: a lock in the hands of the program that took it.

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

/// A lock that is held. The runtime thread refreshes it; dropping the guard gives it back in the
/// background, [`RepositoryGuard::release`] gives it back and says what came of it.
#[must_use = "a guard that is dropped gives the lock back"]
pub struct RepositoryGuard {
    place: RepositoryAddress,
    mode: LockMode,
    key: ObjectKey,
    token: String,
    /// Only the process that acquired acts (K36).
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

    /// The repository.
    pub fn place(&self) -> &RepositoryAddress {
        &self.place
    }

    /// Shared or exclusive.
    pub fn mode(&self) -> LockMode {
        self.mode
    }

    /// The object that is our lock.
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// The newest fencing number (P38). `None` only for a shared lock in a store without
    /// conditional writes where nobody ever counted.
    pub fn fence(&self) -> Option<u64> {
        self.state.borrow().fence
    }

    /// How long the work may go on without a newer refresh (P32); zero when it may not.
    pub fn valid_for(&self) -> Duration {
        let state = self.state.borrow();
        match state.status {
            HoldStatus::Held if self.is_ours() => state.valid_until.since(boot()),
            HoldStatus::Held | HoldStatus::Lapsed { .. } | HoldStatus::Lost(_) => Duration::ZERO,
        }
    }

    /// How it was lost, if it was. Local and instant.
    pub fn loss(&self) -> Option<Loss> {
        let state = self.state.borrow();
        match &state.status {
            HoldStatus::Held if boot() < state.valid_until => None,
            HoldStatus::Held | HoldStatus::Lapsed { .. } => Some(Loss::Lapsed),
            HoldStatus::Lost(cause) => Some(Loss::For(cause.clone())),
        }
    }

    /// Resolves when the lock is lost, at once if it was lost before. The work must have stopped
    /// by then: others may take the lock from now on.
    pub async fn lost(&self) -> Loss {
        let mut state = self.state.clone();
        loop {
            state.mark_unchanged();
            if let Some(loss) = self.loss() {
                return loss;
            }
            if state.changed().await.is_err() {
                // The runtime thread is gone without a word; nothing is refreshed any more.
                return self.loss().unwrap_or(Loss::Lapsed);
            }
        }
    }

    /// Mine, right now? Asks the store (K34).
    pub async fn check(&self) -> Result<(), Error> {
        if let Some(loss) = self.loss() {
            return Err(self.lost_error(loss));
        }
        let (answer, answered) = oneshot::channel();
        self.order(HolderCommand::Check(answer))?;
        self.answered(answered.await.ok())
    }

    /// Brings a lapsed lock back, if nobody could have held it in between (P34): held again, with
    /// a new fencing number. Until this has returned the work stays stopped.
    pub async fn revive(&self) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        self.order(HolderCommand::Revive(answer))?;
        self.answered(answered.await.ok())
    }

    /// Gives the lock back (P35).
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

    /// Lets go without giving back: the lock lives by its ttl, and the ticket lets another process
    /// go on with it (C13).
    pub async fn into_ticket(mut self) -> Result<Ticket, Error> {
        let (answer, answered) = oneshot::channel();
        self.order(HolderCommand::Leave(answer))?;
        let left = answered.await;
        self.orders = None;
        match left {
            Ok(()) => Ok(Ticket {
                key: self.key.clone(),
                token: self.token.clone(),
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
            // A copy that came over fork. Closing the channel would wake a runtime thread that does not
            // exist here, through memory that the fork may have cut in the middle.
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

/// A hold that outlives its process, in one word: which object, and the token that proves it ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub(crate) key: ObjectKey,
    pub(crate) token: String,
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.key, self.token)
    }
}

/// A text that is no ticket.
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
            Some((key, token)) => Ok(Ticket { key, token }),
            None => Err(TicketError(text.into())),
        }
    }
}
