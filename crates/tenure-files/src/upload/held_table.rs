//! Table of the upload locks of this process: mutual exclusion and release requests between its
//! threads.
//!
//! ```text
//!   enter ──free──▶ Acquiring ──hold──▶ Held ──drop──▶ free, all waiters compete again
//!     └──taken──▶ ask the holder (as soon as it is `Held`), wait
//! ```
//!
//! [`MemoryLocker`](super::MemoryLocker) is this table alone (U21 (locks in memory)).
//! [`FileLocker`](super::FileLocker) checks it before the disk, so that threads of one process
//! exclude and ask each other without a file (U11 (upload locks within one process)); there an
//! entry is `Acquiring` while its thread acquires the lock on disk.
//!
//! Waiters have no order (K44 (no order among waiters)). Callbacks run without the table's mutex,
//! because they may release.

use std::collections::HashMap;
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{OnRequest, UploadReleaseRequest};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::process::Incarnation;

/// How often a waiter with a cancellation handle polls it.
const CANCEL_POLL: Duration = Duration::from_millis(20);

/// A waiter looks at the deadline at least this often. The condition variable wakes it earlier.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// Entries by key, held or being acquired.
pub(crate) struct UploadTable<K> {
    entries: Mutex<HashMap<K, Arc<TableEntry>>>,
}

/// An entry of the table; dropping the ticket removes it.
pub(crate) struct TableTicket<K: Eq + Hash + Clone + 'static> {
    table: Arc<UploadTable<K>>,
    key: K,
    entry: Arc<TableEntry>,
}

/// Another thread of this process had the entry until the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AlreadyHeld;

struct TableEntry {
    /// The process that made the entry. A forked child has a copy of the table, but none of its
    /// locks.
    process: Incarnation,
    /// `None` while the lock on disk is being acquired: there is nothing to release yet.
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
    /// Makes the entry of `key`. If another thread has it, asks that thread to release and waits
    /// until the deadline.
    ///
    /// If the deadline has already passed, it neither waits nor asks (U14 (make a release
    /// request)).
    pub(crate) fn enter(
        self: &Arc<Self>,
        key: &K,
        request: &UploadReleaseRequest,
        wait_deadline: &Deadline,
        in_use: &dyn Fn() -> Error,
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
                call(ask, request);
            }
            wait_deadline.report(in_use);
            self.wait_while(key, &taken_by, holder.is_some(), wait_deadline);
        }
    }

    /// Asks the holder of `key` in this process to release; `false` if this process does not hold
    /// it.
    pub(crate) fn ask(&self, key: &K, request: &UploadReleaseRequest) -> bool {
        let entry = lock(&self.entries).get(key).cloned();
        let holder = entry.and_then(|entry| entry.on_request());
        holder.inspect(|ask| call(ask, request)).is_some()
    }

    /// Makes an entry, or returns the existing one. An entry of the parent process does not count.
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

    /// Waits until the entry is removed or, if there was no holder to ask yet, until its thread has
    /// become the holder.
    fn wait_while(&self, key: &K, entry: &Arc<TableEntry>, held: bool, wait_deadline: &Deadline) {
        let mut entries = lock(&self.entries);
        loop {
            let still_there = entries.get(key).is_some_and(|now| Arc::ptr_eq(now, entry));
            if !still_there || entry.on_request().is_some() != held {
                return;
            }
            if wait_deadline.is_over() || wait_deadline.report_is_due() {
                return;
            }
            // A condition variable cannot wait for a cancellation: poll for it.
            let slice = wait_deadline.cancel.as_ref().map(|_| CANCEL_POLL);
            let now = Instant::now();
            let left = wait_deadline
                .until(now + LONGEST_WAIT)
                .saturating_duration_since(now);
            let waited = entry
                .changed
                .wait_timeout(entries, slice.unwrap_or(left).min(left));
            entries = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl<K: Eq + Hash + Clone + 'static> TableTicket<K> {
    /// Marks the lock as held: from now on waiters ask through `on_request`.
    pub(crate) fn hold(&self, on_request: OnRequest) {
        // Under the table's mutex: otherwise a waiter between its check and its wait would miss the
        // change.
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

/// Calls the holder's callback on the requester's thread. A panic there is the holder's: the
/// requester goes on waiting.
fn call(ask: &OnRequest, request: &UploadReleaseRequest) {
    let _ = catch_unwind(AssertUnwindSafe(|| ask(request)));
}

/// Ignores poisoning: every critical section is a few assignments, so the data is consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
