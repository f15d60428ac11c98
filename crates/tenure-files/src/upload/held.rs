//! A held upload lock on disk: the record, its heartbeat, and the listener for release requests
//! (U15 (react to a release request), U18 (heartbeat of upload locks), U19 (upload release)).

use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use super::held_table::TableTicket;
use super::stop_request;
use super::{LockFileKey, Names, OnRequest, UploadReleaseRequest};
use crate::dir::Dir;
use crate::error::Result;
use crate::heartbeat::Monitored;
use crate::hold::{FileHolding, Loss};
use crate::identity::Token;

/// The lock of one upload, held by this process.
pub struct FileHold {
    // Drop order: first the heartbeat and the callbacks end, last the ticket lets the next thread
    // of this process in.
    monitor_options: Option<Monitored>,
    hold: Arc<FileHolding>,
    request_listener: Arc<RequestListener>,
    fence: Option<NonZeroU64>,
    _ticket: TableTicket<LockFileKey>,
}

/// Receives release requests from the file and from this process, and passes the first one to the
/// callback (U15).
pub(super) struct RequestListener {
    pub(super) names: Names,
    pub(super) token: String,
    /// Time of acquisition by the clock of the file system.
    pub(super) acquired: SystemTime,
    on_request: OnRequest,
    was_asked: AtomicBool,
    heard: Mutex<Option<UploadReleaseRequest>>,
}

impl RequestListener {
    pub(super) fn new(
        names: Names,
        token: String,
        acquired: SystemTime,
        on_request: OnRequest,
    ) -> RequestListener {
        let (was_asked, heard) = (AtomicBool::new(false), Mutex::new(None));
        RequestListener {
            names,
            token,
            acquired,
            on_request,
            was_asked,
            heard,
        }
    }

    /// Reads the request file, and passes on a request that is meant for this holder.
    pub(super) fn look(&self, dir: &Dir) {
        if self.was_asked.load(Ordering::SeqCst) {
            return;
        }
        let stop = stop_request::look(dir, &self.names);
        if let Some(asked) = stop.and_then(|stop| stop.is_for(&self.token, self.acquired)) {
            self.hear(&asked);
        }
    }

    /// Removes a request from before our acquisition: it was meant for the previous holder (U10.6
    /// acquire an upload lock). If a waiter renewed the request during the removal, the file is
    /// lost, so the request is passed on here.
    pub(super) fn drop_older_request(&self, dir: &Dir) {
        let Some(stop) = stop_request::look(dir, &self.names) else {
            return;
        };
        if stop.is_for(&self.token, self.acquired).is_none()
            && stop.is_older_than(self.acquired)
            && !stop.remove(dir)
            && let Some(asked) = stop.is_for(&self.token, self.acquired)
        {
            self.hear(&asked);
        }
    }

    /// Calls the callback, if this is the first request.
    pub(super) fn hear(&self, asked: &UploadReleaseRequest) {
        if !self.was_asked.swap(true, Ordering::SeqCst) {
            *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Some(asked.clone());
            (self.on_request)(asked);
        }
    }
}

impl FileHold {
    pub(super) fn new(
        hold: Arc<FileHolding>,
        request_listener: Arc<RequestListener>,
        monitor_options: Monitored,
        fence: Option<NonZeroU64>,
        ticket: TableTicket<LockFileKey>,
    ) -> FileHold {
        FileHold {
            monitor_options: Some(monitor_options),
            hold,
            request_listener,
            fence,
            _ticket: ticket,
        }
    }

    /// Returns the underlying hold: the record and its state.
    pub fn hold(&self) -> &Arc<FileHolding> {
        &self.hold
    }

    /// Returns the fencing number, if one was asked for (K39 (fencing number per acquisition)).
    pub fn fence(&self) -> Option<NonZeroU64> {
        self.fence
    }

    /// Returns the release request that was received, if any.
    pub fn requested(&self) -> Option<UploadReleaseRequest> {
        self.request_listener
            .heard
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Registers `listener`, which runs once when the loss of the lock is detected. Runs it
    /// immediately if the lock is already lost.
    pub fn on_lost(&self, listener: impl FnOnce(&Loss) + Send + 'static) {
        self.hold.on_lost(listener);
    }

    /// Checks that this process still holds the lock (K34 (detect a lost lock)).
    ///
    /// # Errors
    ///
    /// `Compromised` if the lock is lost.
    pub fn check(&self) -> Result<()> {
        self.hold.check()
    }

    /// Leaves the record to the process that it names. The table drops its entry: the lock is no
    /// longer this process's.
    pub(super) fn leave(mut self) -> Token {
        self.monitor_options = None;
        self.hold.leave();
        self.hold.token()
    }

    pub(super) fn release(mut self) -> Result<()> {
        self.give_back()
    }

    /// Removes the lock first and the request second. In the other order a waiter could renew its
    /// request in between, and the next holder would be interrupted for nothing (U19).
    fn give_back(&mut self) -> Result<()> {
        self.monitor_options = None;
        let answered = stop_request::look(self.hold.dir(), &self.request_listener.names);
        self.hold.release()?;
        if let Some(answered) = answered {
            answered.remove(self.hold.dir());
        }
        Ok(())
    }
}

impl Drop for FileHold {
    fn drop(&mut self) {
        // Already released, or lost: `drop` cannot report it.
        let _ = self.give_back();
    }
}

impl AsFd for FileHold {
    /// Returns the locked descriptor, for a child process that keeps the lock (K38 (inherit the
    /// locked descriptor)).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.hold.as_fd()
    }
}
