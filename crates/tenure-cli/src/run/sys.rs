//! The few system calls that no safe crate offers: fork, ignoring a signal, preparing a child.

#![allow(
    unsafe_code,
    reason = "fork, signal dispositions and the moment between fork and exec have no safe form; \
              each block says why it is sound"
)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::Pid;

/// Which side of a fork this is.
pub(crate) enum Forked {
    /// The new process.
    Child,
    /// The old one, with the new one's id.
    Parent(Pid),
}

/// Makes a copy of this process. Must be called while there is one thread only (C4).
pub(crate) fn fork() -> io::Result<Forked> {
    // SAFETY: the caller has not started any thread yet, so no lock of the allocator or of the
    // standard library can be held by a thread that does not exist in the copy.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        pid => Pid::from_raw(pid)
            .map(Forked::Parent)
            .ok_or_else(|| io::Error::other("fork returned an impossible process id")),
    }
}

/// Lets this process use a terminal of which another group is in the foreground.
///
/// Only needed for `tcsetpgrp` (C19): everything else that this signal guards is left to the child,
/// whose disposition [`before_exec`] puts back.
pub(crate) fn ignore_background_output_signal() {
    // SAFETY: setting a signal to be ignored runs no code of ours.
    unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) };
}

/// What a child does between fork and exec.
#[derive(Clone, Copy)]
pub(crate) struct BeforeExec {
    /// Ends the child when its parent dies (C4).
    pub(crate) dies_with: Option<Pid>,
    /// Makes its group the foreground group of the terminal on this descriptor (C19).
    pub(crate) terminal: Option<libc::c_int>,
}

/// Registers the steps with the command. The child becomes the leader of its own group.
pub(crate) fn before_exec(command: &mut Command, steps: BeforeExec) {
    command.process_group(0);
    // SAFETY: only async-signal-safe calls are made between fork and exec, and nothing allocates.
    unsafe {
        command.pre_exec(move || {
            if let Some(parent) = steps.dies_with {
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                    return Err(io::Error::last_os_error());
                }
                // The parent may have died before the call above.
                if libc::getppid() != parent.as_raw_nonzero().get() {
                    libc::_exit(128 + libc::SIGKILL);
                }
            }
            if let Some(terminal) = steps.terminal {
                // The standard library has set the group already. A terminal that is gone is no
                // reason not to run.
                libc::signal(libc::SIGTTOU, libc::SIG_IGN);
                libc::tcsetpgrp(terminal, libc::getpid());
            }
            libc::signal(libc::SIGTTOU, libc::SIG_DFL);
            Ok(())
        });
    }
}
