//! A held upload lock on disk: the record, its heartbeat, and the listener for requests (U15, U18, U19).

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
    // In this order: no more beats and callbacks, then the next thread of this process may come.
    monitor_options: Option<Monitored>,
    hold: Arc<FileHolding>,
    request_listener: Arc<RequestListener>,
    fence: Option<NonZeroU64>,
    _ticket: TableTicket<LockFileKey>,
}

/// Hears requests, by file and by memory, and passes the first one on (U15).
pub(super) struct RequestListener {
    pub(super) names: Names,
    pub(super) token: String,
    /// When the lock became ours, by the file system's clock.
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

    /// Looks for a request on disk.
    pub(super) fn look(&self, dir: &Dir) {
        if self.was_asked.load(Ordering::SeqCst) {
            return;
        }
        let stop = stop_request::look(dir, &self.names);
        if let Some(asked) = stop.and_then(|stop| stop.is_for(&self.token, self.acquired)) {
            self.hear(&asked);
        }
    }

    /// U10.6: a request that stands since before we came was meant for somebody else. One that was
    /// renewed at that very moment, and would be lost with the file, is heard instead.
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

    /// Passes a request on, if it is the first.
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

    /// The record and its state.
    pub fn hold(&self) -> &Arc<FileHolding> {
        &self.hold
    }

    /// The fencing number, if one was asked for (K39).
    pub fn fence(&self) -> Option<NonZeroU64> {
        self.fence
    }

    /// The request that was heard, if any.
    pub fn requested(&self) -> Option<UploadReleaseRequest> {
        self.request_listener
            .heard
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Runs `listener` once if the lock is lost.
    pub fn on_lost(&self, listener: impl FnOnce(&Loss) + Send + 'static) {
        self.hold.on_lost(listener);
    }

    /// Whether the lock is ours right now (K34).
    pub fn check(&self) -> Result<()> {
        self.hold.check()
    }

    /// Leaves the record to the process that it follows. The table forgets it: it is another's now.
    pub(super) fn leave(mut self) -> Token {
        self.monitor_options = None;
        self.hold.leave();
        self.hold.token()
    }

    pub(super) fn release(mut self) -> Result<()> {
        self.give_back()
    }

    /// Lock first, request second: in the other order a waiter in between would renew its request, and
    /// the next holder would be interrupted for nothing (U19).
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
        // A lock that was released before, or lost, needs nothing more; nobody is here to be told.
        let _ = self.give_back();
    }
}

impl AsFd for FileHold {
    /// The locked descriptor, for a child that shall keep the lock (K38).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.hold.as_fd()
    }
}
