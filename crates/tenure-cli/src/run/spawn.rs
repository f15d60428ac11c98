//! Process creation: process group, signal dispositions and terminal of the child, which ends with
//! its supervisor.

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

/// Signals with handlers in the supervisor.
pub(super) const HANDLED: [c_int; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGCHLD];

/// Signals whose dispositions the child gets back as they were when `tenure` started. The Rust
/// runtime ignores SIGPIPE from the start.
pub(super) const RESTORED: [c_int; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, libc::SIGTTOU];

/// Steps of the child before `exec`.
#[derive(Clone, Copy)]
pub(super) struct BeforeExec {
    /// Kills the child when this parent dies: C4 (keeper and process group).
    pub(super) dies_with: Option<Pid>,
    /// The group that the child joins; otherwise it leads its own.
    pub(super) joins: Option<Pid>,
    /// Signals that were ignored when `tenure` started, as a bit set. The child ignores them, too.
    pub(super) ignored: u64,
    /// Makes the child's group the foreground group of the terminal on this descriptor: C19 (job
    /// control on terminals).
    pub(super) terminal: Option<c_int>,
}

/// Starts a child in its process group. The first word is searched along `PATH`.
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
    let group = steps.joins.map_or(0, |group| group.as_raw_nonzero().get());
    let mut command = Command::new(program);
    command
        .args(words)
        .env_clear()
        .envs(environment)
        .process_group(group);
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
            let disposition = match steps.ignored & 1 << signal {
                0 => libc::SIG_DFL,
                _ => libc::SIG_IGN,
            };
            libc::signal(signal, disposition);
        }
    }
    Ok(())
}
