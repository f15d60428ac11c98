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

use super::{OnRequest, UploadReleaseRequest};
use crate::deadline::Deadline;
use crate::process::Incarnation;

const CANCEL_POLL: Duration = Duration::from_millis(20);

/// All places held or being acquired, by key.
pub(crate) struct UploadTable<K> {
    entries: Mutex<HashMap<K, Arc<TableEntry>>>,
}

/// One place in the table; leaving it is dropping it.
pub(crate) struct TableTicket<K: Eq + Hash + Clone + 'static> {
    table: Arc<UploadTable<K>>,
    key: K,
    entry: Arc<TableEntry>,
}

/// Somebody of this process sits there, and still did at the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AlreadyHeld;

struct TableEntry {
    /// A forked child has a copy of the table, but none of the locks in it.
    process: Incarnation,
    /// `None` while the disk is being asked: there is nothing to let go of yet.
    holder: Mutex<Option<OnRequest>>,
    changed: Condvar,
}

impl<K> Default for UploadTable<K> {
    fn default() -> UploadTable<K> {
        UploadTable {
            entries: Mutex::default(),
        }
    }
}

impl<K: Eq + Hash + Clone + 'static> UploadTable<K> {
    /// Takes the seat of `key`, asking whoever has it to leave, as long as the patience lasts.
    ///
    /// None at all means: do not wait, and do not ask either (U14).
    pub(crate) fn enter(
        self: &Arc<Self>,
        key: &K,
        request: &UploadReleaseRequest,
        wait_deadline: &Deadline,
    ) -> Result<TableTicket<K>, AlreadyHeld> {
        loop {
            let taken_by = match self.sit(key) {
                Ok(ticket) => return Ok(ticket),
                Err(entry) => entry,
            };
            if wait_deadline.is_over() {
                return Err(AlreadyHeld);
            }
            let holder = taken_by.on_request();
            if let Some(ask) = &holder {
                ask(request);
            }
            self.wait_while(key, &taken_by, holder.is_some(), wait_deadline);
        }
    }

    /// Asks whoever holds `key` in this process; `false` if nobody does.
    pub(crate) fn ask(&self, key: &K, request: &UploadReleaseRequest) -> bool {
        let entry = lock(&self.entries).get(key).cloned();
        let holder = entry.and_then(|entry| entry.on_request());
        holder.inspect(|ask| ask(request)).is_some()
    }

    fn sit(self: &Arc<Self>, key: &K) -> Result<TableTicket<K>, Arc<TableEntry>> {
        let mut entries = lock(&self.entries);
        match entries.get(key) {
            Some(entry) if entry.process == Incarnation::current() => Err(Arc::clone(entry)),
            _ => {
                let entry = Arc::new(TableEntry::new());
                entries.insert(key.clone(), Arc::clone(&entry));
                Ok(TableTicket {
                    table: Arc::clone(self),
                    key: key.clone(),
                    entry,
                })
            }
        }
    }

    /// Until the seat is left or, where nobody could be asked, its acquirer has become the holder.
    fn wait_while(&self, key: &K, entry: &Arc<TableEntry>, held: bool, wait_deadline: &Deadline) {
        let mut entries = lock(&self.entries);
        loop {
            let still_there = entries.get(key).is_some_and(|now| Arc::ptr_eq(now, entry));
            if !still_there || entry.on_request().is_some() != held {
                return;
            }
            if wait_deadline.is_over() {
                return;
            }
            // A condition variable knows no cancellation: look for one now and then.
            let slice = wait_deadline.cancel.as_ref().map(|_| CANCEL_POLL);
            let left = wait_deadline
                .deadline
                .map(|deadline| deadline.saturating_duration_since(Instant::now()));
            entries = match [slice, left].into_iter().flatten().min() {
                Some(time) => {
                    let waited = entry.changed.wait_timeout(entries, time);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => entry
                    .changed
                    .wait(entries)
                    .unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl<K: Eq + Hash + Clone + 'static> TableTicket<K> {
    /// The lock is ours: from now on waiters ask through `on_request`.
    pub(crate) fn hold(&self, on_request: OnRequest) {
        // Under the table's mutex, or a waiter between its look and its sleep would miss it.
        let _entries = lock(&self.table.entries);
        *lock(&self.entry.holder) = Some(on_request);
        self.entry.changed.notify_all();
    }
}

impl<K: Eq + Hash + Clone + 'static> Drop for TableTicket<K> {
    fn drop(&mut self) {
        if self.entry.process != Incarnation::current() {
            return;
        }
        let mut entries = lock(&self.table.entries);
        if entries
            .get(&self.key)
            .is_some_and(|entry| Arc::ptr_eq(entry, &self.entry))
        {
            entries.remove(&self.key);
        }
        self.entry.changed.notify_all();
    }
}

impl TableEntry {
    fn new() -> TableEntry {
        TableEntry {
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
