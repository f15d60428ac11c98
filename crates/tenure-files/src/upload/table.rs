//! Who holds what inside this process, and who wants it.
//!
//!   enter ──free──▶ Acquiring ──hold──▶ Held ──drop──▶ free, all waiters compete again
//!     └──taken──▶ ask the holder (once it is one), wait
//!
//! The in-memory locker is this table and nothing else (U21). The file locker has it in front of the
//! disk, so that threads of one process exclude and ask each other without touching a file (U11); there
//! the time between `Acquiring` and `Held` is the time spent on the disk.
//!
//! No order among waiters (K44). No callback runs under the table's mutex: it may well release.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{OnRequest, ReleaseRequest};
use crate::deadline::Patience;
use crate::process::Incarnation;

const CANCEL_POLL: Duration = Duration::from_millis(20);

/// All places held or being acquired, by key.
pub(crate) struct Table<K> {
    seats: Mutex<HashMap<K, Arc<Seat>>>,
}

/// One place in the table; leaving it is dropping it.
pub(crate) struct Ticket<K: Eq + Hash + Clone + 'static> {
    table: Arc<Table<K>>,
    key: K,
    seat: Arc<Seat>,
}

/// Somebody of this process sits there, and still did at the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken;

struct Seat {
    /// A forked child has a copy of the table, but none of the locks in it.
    process: Incarnation,
    /// `None` while the disk is being asked: there is nothing to let go of yet.
    holder: Mutex<Option<OnRequest>>,
    changed: Condvar,
}

impl<K> Default for Table<K> {
    fn default() -> Table<K> {
        Table {
            seats: Mutex::default(),
        }
    }
}

impl<K: Eq + Hash + Clone + 'static> Table<K> {
    /// Takes the seat of `key`, asking whoever has it to leave, as long as the patience lasts.
    ///
    /// None at all means: do not wait, and do not ask either (U14).
    pub(crate) fn enter(
        self: &Arc<Self>,
        key: &K,
        request: &ReleaseRequest,
        patience: &Patience,
    ) -> Result<Ticket<K>, Taken> {
        loop {
            let taken_by = match self.sit(key) {
                Ok(ticket) => return Ok(ticket),
                Err(seat) => seat,
            };
            if patience.is_over() {
                return Err(Taken);
            }
            let holder = taken_by.on_request();
            if let Some(ask) = &holder {
                ask(request);
            }
            self.wait_while(key, &taken_by, holder.is_some(), patience);
        }
    }

    /// Asks whoever holds `key` in this process; `false` if nobody does.
    pub(crate) fn ask(&self, key: &K, request: &ReleaseRequest) -> bool {
        let seat = lock(&self.seats).get(key).cloned();
        let holder = seat.and_then(|seat| seat.on_request());
        holder.inspect(|ask| ask(request)).is_some()
    }

    fn sit(self: &Arc<Self>, key: &K) -> Result<Ticket<K>, Arc<Seat>> {
        let mut seats = lock(&self.seats);
        match seats.get(key) {
            Some(seat) if seat.process == Incarnation::current() => Err(Arc::clone(seat)),
            _ => {
                let seat = Arc::new(Seat::new());
                seats.insert(key.clone(), Arc::clone(&seat));
                Ok(Ticket {
                    table: Arc::clone(self),
                    key: key.clone(),
                    seat,
                })
            }
        }
    }

    /// Until the seat is left or, where nobody could be asked, its acquirer has become the holder.
    fn wait_while(&self, key: &K, seat: &Arc<Seat>, held: bool, patience: &Patience) {
        let mut seats = lock(&self.seats);
        loop {
            let still_there = seats.get(key).is_some_and(|now| Arc::ptr_eq(now, seat));
            if !still_there || seat.on_request().is_some() != held {
                return;
            }
            if patience.is_over() {
                return;
            }
            // A condition variable knows no cancellation: look for one now and then.
            let slice = patience.cancel.as_ref().map(|_| CANCEL_POLL);
            let left = patience
                .deadline
                .map(|deadline| deadline.saturating_duration_since(Instant::now()));
            seats = match [slice, left].into_iter().flatten().min() {
                Some(time) => {
                    let waited = seat.changed.wait_timeout(seats, time);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => seat
                    .changed
                    .wait(seats)
                    .unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl<K: Eq + Hash + Clone + 'static> Ticket<K> {
    /// The lock is ours: from now on waiters ask through `on_request`.
    pub(crate) fn hold(&self, on_request: OnRequest) {
        // Under the table's mutex, or a waiter between its look and its sleep would miss it.
        let _seats = lock(&self.table.seats);
        *lock(&self.seat.holder) = Some(on_request);
        self.seat.changed.notify_all();
    }
}

impl<K: Eq + Hash + Clone + 'static> Drop for Ticket<K> {
    fn drop(&mut self) {
        if self.seat.process != Incarnation::current() {
            return;
        }
        let mut seats = lock(&self.table.seats);
        if seats
            .get(&self.key)
            .is_some_and(|seat| Arc::ptr_eq(seat, &self.seat))
        {
            seats.remove(&self.key);
        }
        self.seat.changed.notify_all();
    }
}

impl Seat {
    fn new() -> Seat {
        Seat {
            process: Incarnation::current(),
            holder: Mutex::new(None),
            changed: Condvar::new(),
        }
    }

    fn on_request(&self) -> Option<OnRequest> {
        lock(&self.holder).clone()
    }
}

/// Every critical section here is a few assignments, so a poisoned mutex guards sound data.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
