//! Events of a held lock: renewed, release requested, lost.
//!
//! Backends report here. Guards wait here, and listeners get their events from here.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use tokio::sync::watch;

use crate::address::Address;
use crate::callbacks;
use crate::error::{LostCause, LostLock};
use crate::values::Holder;
use tenure_base::Lease;

/// An event of a lock that is held.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum HoldEvent {
    /// A renewal was confirmed.
    Renewed(Lease),
    /// Another client asks for the lock.
    Asked(ReleaseRequest),
    /// The lock is lost.
    Lost(LostLock),
}

/// A request to the holder to release.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReleaseRequest {
    /// The requester, as far as it is known.
    pub by: Holder,
    /// The reason. Untrusted text of another process: `Display` escapes it.
    pub reason: Option<String>,
}

impl fmt::Display for ReleaseRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.by == Holder::default() {
            true => f.write_str("an unknown client asks for the lock")?,
            false => write!(f, "{} asks for the lock", self.by)?,
        }
        match &self.reason {
            Some(reason) => write!(f, ": {}", tenure_base::printable(reason)),
            None => Ok(()),
        }
    }
}

type SignalListener = Arc<dyn Fn(&HoldEvent) + Send + Sync>;

/// The state of one hold, shared by the backend, the guard and the listeners.
pub(crate) struct Signals {
    place: Address,
    update: watch::Sender<SignalState>,
    listeners: Mutex<Vec<SignalListener>>,
}

#[derive(Clone, Debug, Default)]
struct SignalState {
    lost: Option<LostLock>,
    asked: Option<ReleaseRequest>,
    lease: Option<Lease>,
}

impl Signals {
    pub(crate) fn new(place: &Address) -> Arc<Signals> {
        Arc::new(Signals {
            place: place.clone(),
            update: watch::Sender::new(SignalState::default()),
            listeners: Mutex::default(),
        })
    }

    /// Records the loss. Only the first cause counts.
    pub(crate) fn lose(&self, cause: LostCause, what: impl Into<String>) {
        let lost = LostLock::new(&self.place, cause, what);
        let is_first = self.update.send_if_modified(|update| {
            let is_first = update.lost.is_none();
            update.lost.get_or_insert(lost.clone());
            is_first
        });
        if is_first {
            self.tell(&HoldEvent::Lost(lost));
        }
    }

    /// Records a release request. Only the first one counts.
    pub(crate) fn ask(&self, request: &ReleaseRequest) {
        let is_first = self.update.send_if_modified(|update| {
            let is_first = update.asked.is_none();
            update.asked.get_or_insert(request.clone());
            is_first
        });
        if is_first {
            self.tell(&HoldEvent::Asked(request.clone()));
        }
    }

    /// Records a confirmed renewal. Ignored after a loss.
    pub(crate) fn renew(&self, lease: Lease) {
        let is_held = self.update.send_if_modified(|update| {
            let is_held = update.lost.is_none();
            if is_held {
                update.lease = Some(lease);
            }
            is_held
        });
        if is_held {
            self.tell(&HoldEvent::Renewed(lease));
        }
    }

    /// Notifies listeners of a renewal. For backends that keep the lease themselves.
    #[cfg(feature = "store")]
    pub(crate) fn tell_renewed(&self, lease: Lease) {
        self.tell(&HoldEvent::Renewed(lease));
    }

    /// Returns the loss, if there is one.
    ///
    /// A used-up lease counts as lost even if no timer has fired yet, so a guard never reports a
    /// lock as held too long.
    pub(crate) fn loss(&self) -> Option<LostLock> {
        let (lost, lease) = {
            let update = self.update.borrow();
            (update.lost.clone(), update.lease)
        };
        if lost.is_none() && lease.is_some_and(|lease| lease.valid_for().is_zero()) {
            self.lose(LostCause::Unconfirmed, "no renewal was confirmed in time");
            return self.update.borrow().lost.clone();
        }
        lost
    }

    pub(crate) fn lease(&self) -> Option<Lease> {
        self.update.borrow().lease
    }

    pub(crate) fn asked(&self) -> Option<ReleaseRequest> {
        self.update.borrow().asked.clone()
    }

    /// Completes with the loss; immediately if there is one already.
    pub(crate) async fn lost(&self) -> LostLock {
        let mut update = self.update.subscribe();
        loop {
            update.mark_unchanged();
            if let Some(lost) = self.loss() {
                return lost;
            }
            // The sender is in `self`, so this cannot fail.
            let _ = update.changed().await;
        }
    }

    /// Completes with the first request; immediately if there is one already.
    pub(crate) async fn release_requested(&self) -> ReleaseRequest {
        let mut update = self.update.subscribe();
        loop {
            update.mark_unchanged();
            if let Some(asked) = self.asked() {
                return asked;
            }
            let _ = update.changed().await;
        }
    }

    /// Adds a listener and calls it once for each present fact. `lease` is the lease of a backend that
    /// keeps it itself.
    ///
    /// It is registered first, so that no event is lost in between; an event may be reported twice.
    pub(crate) fn listen(&self, listener: SignalListener, lease: Option<Lease>) {
        self.lock().push(Arc::clone(&listener));
        let update = self.update.borrow().clone();
        let stands = [
            update.lease.or(lease).map(HoldEvent::Renewed),
            update.asked.map(HoldEvent::Asked),
            update.lost.map(HoldEvent::Lost),
        ];
        for event in stands.into_iter().flatten() {
            tell_one(&listener, event);
        }
    }

    fn tell(&self, event: &HoldEvent) {
        for listener in self.lock().iter() {
            tell_one(listener, event.clone());
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<SignalListener>> {
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls a listener on the callback thread.
fn tell_one(listener: &SignalListener, event: HoldEvent) {
    let listener = Arc::clone(listener);
    callbacks::post(move || listener(&event));
}
