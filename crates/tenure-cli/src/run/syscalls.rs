//! System calls without a safe wrapper: fork, signal dispositions. Process creation is in
//! `spawn.rs`.

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

/// Returns which of the signals are ignored, as a bit set with the signal's number as the bit.
pub(crate) fn ignored_signals(signals: &[i32]) -> u64 {
    let mut ignored = 0;
    for signal in signals {
        let mut action = std::mem::MaybeUninit::uninit();
        // SAFETY: only queries the disposition, which the call writes on success.
        let is_ignored = unsafe {
            libc::sigaction(*signal, std::ptr::null(), action.as_mut_ptr()) == 0
                && action.assume_init().sa_sigaction == libc::SIG_IGN
        };
        if is_ignored {
            ignored |= 1 << signal;
        }
    }
    ignored
}

/// Ignores SIGTTOU, so that this process may change the foreground group and print messages from the
/// background.
///
/// `tcsetpgrp` needs this: C19 (job control on terminals). A message on a terminal with `stty
/// tostop` would stop the process. The child gets its own disposition back.
pub(crate) fn ignore_background_output_signal() {
    // SAFETY: ignoring a signal runs no code.
    unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) };
}
