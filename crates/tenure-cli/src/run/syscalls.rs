//! System calls without a safe wrapper: fork, ignoring a signal. Process creation is in `spawn.rs`.

#![allow(
    unsafe_code,
    reason = "fork and signal dispositions have no safe form; each block says why it is sound"
)]

use std::io;

/// The side of a fork.
pub(crate) enum Forked {
    /// The new process.
    Child,
    /// The old process.
    Parent,
}

/// Forks this process. Must be called while there is only one thread: C4 (keeper and process
/// group).
pub(crate) fn fork() -> io::Result<Forked> {
    // SAFETY: the caller has started no thread, so no lock of the allocator or the standard library
    // is held by a thread that does not exist in the child.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        _ => Ok(Forked::Parent),
    }
}

/// Ignores SIGTTOU, so that this process may change the foreground group from the background.
///
/// Only `tcsetpgrp` needs this: C19 (job control on terminals). The child gets the default
/// disposition back.
pub(crate) fn ignore_background_output_signal() {
    // SAFETY: ignoring a signal runs no code.
    unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) };
}
