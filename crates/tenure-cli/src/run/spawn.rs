//! Process creation: the child leads a process group of its own and ends with its supervisor.

#![allow(
    unsafe_code,
    reason = "the steps between fork and exec have no safe form; each block says why it is sound"
)]

use std::collections::BTreeMap;
use std::ffi::{OsString, c_int};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::Pid;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};

/// Signals with handlers in the supervisor. The child starts with their default actions.
pub(super) const HANDLED: [c_int; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGCHLD];

/// Steps of the child before `exec`.
#[derive(Clone, Copy)]
pub(super) struct BeforeExec {
    /// Kills the child when this parent dies: C4 (keeper and process group).
    pub(super) dies_with: Option<Pid>,
    /// Makes the child's group the foreground group of the terminal on this descriptor: C19 (job
    /// control on terminals).
    pub(super) terminal: Option<c_int>,
}

/// Starts a child as the leader of a new process group. The first word is searched along `PATH`.
/// Returns after `exec`, or with the reason why it failed.
pub(super) fn spawn(
    words: Vec<OsString>,
    environment: BTreeMap<OsString, OsString>,
    steps: BeforeExec,
) -> io::Result<Pid> {
    let mut words = words.into_iter();
    let program = words
        .next()
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let mut command = Command::new(program);
    command
        .args(words)
        .env_clear()
        .envs(environment)
        .process_group(0);
    // SAFETY: `prepare` makes only async-signal-safe calls, and nothing in it allocates.
    unsafe { command.pre_exec(move || prepare(steps)) };
    let child = command.spawn()?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Runs in the child, between fork and `exec`.
fn prepare(steps: BeforeExec) -> io::Result<()> {
    // SAFETY: system calls on the child's own process, with values that they accept.
    unsafe {
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
            // A terminal that is gone must not prevent the start.
            libc::signal(libc::SIGTTOU, libc::SIG_IGN);
            libc::tcsetpgrp(terminal, libc::getpid());
        }
        for signal in HANDLED.into_iter().chain([libc::SIGTTOU]) {
            libc::signal(signal, libc::SIG_DFL);
        }
    }
    Ok(())
}
