//! Process tree of the child: list, signal and reap all descendants.
//!
//! The wrapper and its child, the supervisor (the keeper of C4 (keeper and process group)), are
//! subreapers: an orphaned descendant becomes a child of one of them. So no descendant escapes, and
//! `ECHILD` proves that the whole tree has ended.

use std::fs;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, test_kill_process_group,
    wait,
};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProcessEnd {
    /// It exited with this code.
    Exited(i32),
    /// A signal killed it.
    Killed(i32),
}

impl ProcessEnd {
    /// Returns the exit code of `tenure` for this end: C2 (exit codes).
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            ProcessEnd::Exited(code) => u8::try_from(code & 0xff).unwrap_or(u8::MAX),
            ProcessEnd::Killed(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        }
    }
}

/// The result of a non-blocking wait for children.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reaped {
    /// This child has ended.
    Ended(Pid, ProcessEnd),
    /// This child was stopped by a signal.
    Stopped(Pid, i32),
    /// There are children, but no event.
    Nothing,
    /// There is no child.
    NoChildren,
}

/// Returns the next child event, without blocking.
pub(crate) fn reap() -> Reaped {
    loop {
        match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(Some((pid, status))) => {
                if let Some(code) = status.exit_status() {
                    return Reaped::Ended(pid, ProcessEnd::Exited(code));
                }
                if let Some(signal) = status.terminating_signal() {
                    return Reaped::Ended(pid, ProcessEnd::Killed(signal));
                }
                if let Some(signal) = status.stopping_signal() {
                    return Reaped::Stopped(pid, signal);
                }
            }
            Ok(None) => return Reaped::Nothing,
            Err(Errno::INTR) => {}
            Err(_) => return Reaped::NoChildren,
        }
    }
}

/// Returns whether a process group is empty. A zombie counts until it is reaped.
pub(crate) fn group_is_gone(group: Pid) -> bool {
    test_kill_process_group(group) == Err(Errno::SRCH)
}

/// Sends a signal to a process group. An empty group is no error.
pub(crate) fn signal_group(group: Pid, signal: Signal) {
    let _ = kill_process_group(group, signal);
}

/// Sends a signal to all descendants of this process. A descendant that has ended is no error.
///
/// Parents come before their children, so that a killed parent cannot fork more.
pub(crate) fn signal_tree(signal: Signal) {
    let mut pids = vec![getpid()];
    let mut at = 0;
    while at < pids.len() {
        let children = children_of(pids[at]);
        pids.extend(children);
        at += 1;
    }
    for pid in &pids[1..] {
        let _ = kill_process(*pid, signal);
    }
}

/// Returns the children of a process from the kernel's list, or by a scan of `/proc` if the kernel
/// has no list.
fn children_of(pid: Pid) -> Vec<Pid> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let mut children = Vec::new();
    for task in tasks.flatten() {
        match fs::read_to_string(task.path().join("children")) {
            Ok(list) => children.extend(list.split_ascii_whitespace().filter_map(parse)),
            Err(_) if task.path().exists() => return scan_for_children_of(pid),
            Err(_) => {}
        }
    }
    children
}

fn scan_for_children_of(parent: Pid) -> Vec<Pid> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    processes
        .flatten()
        .filter_map(|entry| parse(entry.file_name().to_str()?))
        .filter(|pid| parent_of(*pid) == Some(parent))
        .collect()
}

/// Reads field 4 of `stat`, counted after the last `)`, because the name may contain any character:
/// K7 (parse the process stat file).
fn parent_of(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    parse(fields.split_ascii_whitespace().nth(1)?)
}

fn parse(text: &str) -> Option<Pid> {
    Pid::from_raw(text.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// C4: both ways to find children agree.
    #[test]
    fn the_scan_finds_what_the_kernel_lists() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(children_of(getpid()).contains(&pid));
        assert!(scan_for_children_of(getpid()).contains(&pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!children_of(getpid()).contains(&pid));
    }

    /// C2: the child's own code, or 128 + the signal.
    #[test]
    fn exit_codes_follow_convention() {
        assert_eq!(ProcessEnd::Exited(7).exit_code(), 7);
        assert_eq!(ProcessEnd::Killed(9).exit_code(), 137);
        assert_eq!(ProcessEnd::Killed(15).exit_code(), 143);
    }
}
