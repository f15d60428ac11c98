//! The gate: a shared/exclusive `flock` by which a tool waits for the server cycles that began
//! before its lock appeared (X20 (the gate file)).
//!
//! ```text
//!   server: take the gate shared ─▶ check for a lock ─▶ work ─▶ release the gate
//!   tool:   publish the lock ─▶ take the gate exclusively once
//! ```
//!
//! A cycle that began before the lock appeared holds the gate when the tool takes it; a later cycle
//! sees the lock. So a tool that got the gate exclusively is alone with the database.
//!
//! The gate is an empty file that is never removed, so that all processes lock the same inode.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::Errno;

use super::GATE_NAME;
use crate::dir::Dir;
use crate::error::{Class, Error, Result};
use crate::process::Incarnation;
use crate::publish::FileAccess;
use crate::record;

/// A shared lock on the gate, held while a server's cycle runs.
#[derive(Debug)]
pub(super) struct GateShare {
    gate: File,
    /// A forked child shares the open file description: an unlock in the child would release the
    /// parent's lock.
    process: Incarnation,
}

impl GateShare {
    /// Takes the gate shared; `None` if another process has it exclusively. Does not block: that
    /// process may be stopped, and a server must not hang.
    pub(super) fn enter(dir: &Dir) -> Result<Option<GateShare>> {
        let gate = open(dir)?;
        match flock(&gate, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(Some(GateShare {
                gate,
                process: Incarnation::current(),
            })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(record::flock_failed(dir, OsStr::new(GATE_NAME), errno)),
        }
    }
}

impl AsFd for GateShare {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.gate.as_fd()
    }
}

impl Drop for GateShare {
    fn drop(&mut self) {
        if self.process == Incarnation::current() {
            // Unlock explicitly: a child forked during the cycle keeps the descriptor open.
            let _ = flock(&self.gate, FlockOperation::Unlock);
        }
    }
}

/// Whether a cycle is running now (X21 (show running cycles)). A missing gate means that none runs.
pub(super) fn is_busy(dir: &Dir) -> Result<bool> {
    let Some(gate) = open_existing(dir)? else {
        return Ok(false);
    };
    match flock(&gate, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(false),
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(errno) => Err(record::flock_failed(dir, OsStr::new(GATE_NAME), errno)),
    }
}

/// Opens the gate, and creates it if it is missing.
pub(super) fn open(dir: &Dir) -> Result<File> {
    loop {
        if let Some(gate) = open_existing(dir)? {
            return Ok(gate);
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        match openat(dir, GATE_NAME, flags, Mode::from_raw_mode(0o644)) {
            Ok(fd) => {
                // The next tool may be another user's, and need a descriptor that can write.
                let gate = File::from(fd);
                let _ = FileAccess::Group.apply(dir, &gate, 0o644);
                return Ok(gate);
            }
            Err(Errno::EXIST) => {}
            Err(errno) => {
                return Err(Error::io(
                    dir.join(GATE_NAME),
                    "cannot make the gate",
                    errno,
                ));
            }
        }
    }
}

fn open_existing(dir: &Dir) -> Result<Option<File>> {
    let path = || dir.join(GATE_NAME);
    let gate: File = match dir.open_to_lock(OsStr::new(GATE_NAME)) {
        Ok(gate) => gate,
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP) => {
            return Err(Error::new(
                Class::NotALock,
                path(),
                "the gate is a symbolic link",
            ));
        }
        Err(errno) => return Err(Error::io(path(), "cannot open the gate", errno)),
    };
    let is_file = gate.metadata().is_ok_and(|metadata| metadata.is_file());
    is_file
        .then_some(Some(gate))
        .ok_or_else(|| Error::new(Class::NotALock, path(), "the gate is not a regular file"))
}
