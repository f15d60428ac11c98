//! The gate: which cycles were running when the lock appeared, and are they over? (X20)
//!
//!   server: share the gate ─▶ ask for the lock ─▶ work ─▶ leave the gate
//!   tool:   publish the lock ─▶ have the gate alone once
//!
//! A cycle that began before the lock appeared is inside the gate when the tool comes; one that begins
//! later sees the lock. So a tool that had the gate alone is alone with the database.
//!
//! The gate is an empty file that is never removed: whoever locks it locks the same inode.

use std::ffi::OsStr;
use std::fs::File;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::Errno;

use super::GATE_NAME;
use crate::dir::Dir;
use crate::error::{Class, Error, Result};
use crate::process::Incarnation;
use crate::record;

/// A share of the gate, held while a server's cycle runs.
#[derive(Debug)]
pub(super) struct GateShare {
    gate: File,
    /// A forked child has the same open file: unlocking it there would open the gate under its parent.
    process: Incarnation,
}

impl GateShare {
    /// Goes in, unless somebody has the gate alone. No waiting here: that somebody may be stopped, and
    /// a server must not hang on it.
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

impl Drop for GateShare {
    fn drop(&mut self) {
        if self.process == Incarnation::current() {
            // Not by closing alone: a child forked during the cycle has the descriptor too.
            let _ = flock(&self.gate, FlockOperation::Unlock);
        }
    }
}

/// Whether a cycle is running now (X21). A gate that does not exist has nobody inside.
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

/// Opens the gate, making it if it is missing.
pub(super) fn open(dir: &Dir) -> Result<File> {
    loop {
        if let Some(gate) = open_existing(dir)? {
            return Ok(gate);
        }
        let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        match openat(dir, GATE_NAME, flags, Mode::from_raw_mode(0o644)) {
            Ok(fd) => return Ok(fd.into()),
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
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let path = || dir.join(GATE_NAME);
    let gate: File = match openat(dir, OsStr::new(GATE_NAME), flags, Mode::empty()) {
        Ok(fd) => fd.into(),
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
