//! Two system calls that no safe crate offers: fork, and ignoring a signal. How a child is started is in `spawn.rs`.

#![allow(
    unsafe_code,
    reason = "fork and signal dispositions have no safe form; each block says why it is sound"
)]

use std::io;

/// Which side of a fork this is.
pub(crate) enum Forked {
    /// The new process.
    Child,
    /// The old one.
    Parent,
}

/// Makes a copy of this process. Must be called while there is one thread only (C4).
pub(crate) fn fork() -> io::Result<Forked> {
    // SAFETY: the caller has not started any thread yet, so no lock of the allocator or of the
    // standard library can be held by a thread that does not exist in the copy.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        _ => Ok(Forked::Parent),
    }
}

/// Lets this process use a terminal of which another group is in the foreground.
///
/// Only needed for `tcsetpgrp` (C19): everything else that this signal guards is left to the child,
/// which gets the usual disposition back.
pub(crate) fn ignore_background_output_signal() {
    // SAFETY: setting a signal to be ignored runs no code of ours.
    unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) };
}
