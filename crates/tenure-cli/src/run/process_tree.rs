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

/// The process group of the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildGroup {
    /// The child leads its own group.
    Own(Pid),
    /// The child is in the group of `tenure`, beside other commands of a pipeline or a script: C19
    /// (job control on terminals). Only our descendants are members for us.
    Shared(Pid),
}

impl ChildGroup {
    /// Returns whether no member is left. A zombie counts until it is reaped.
    pub(crate) fn is_gone(self) -> bool {
        match self {
            ChildGroup::Own(group) => test_kill_process_group(group) == Err(Errno::SRCH),
            ChildGroup::Shared(group) => !descendants().into_iter().any(|pid| is_in(pid, group)),
        }
    }

    /// Sends a signal to all members. An empty group is no error.
    pub(crate) fn signal(self, signal: Signal) {
        match self {
            ChildGroup::Own(group) => {
                let _ = kill_process_group(group, signal);
            }
            ChildGroup::Shared(group) => {
                for pid in descendants().into_iter().filter(|pid| is_in(*pid, group)) {
                    let _ = kill_process(pid, signal);
                }
            }
        }
    }
}

/// Sends a signal to all descendants of this process. A descendant that has ended is no error.
///
/// Parents come before their children, so that a killed parent cannot fork more. Returns the
/// processes that this user may not signal, such as those of `sudo`.
///
/// Without `/proc` the descendants cannot be listed. Then the signal goes to the child's own group,
/// which does not contain processes that left it by `setsid`.
pub(crate) fn signal_tree(child: Option<ChildGroup>, signal: Signal) -> Vec<Pid> {
    if let Some(own @ ChildGroup::Own(_)) = child
        // KILL may be sent twice; other signals may not, because a process may count them.
        && (signal == Signal::KILL || !proc_is_ours())
    {
        own.signal(signal);
    }
    let refused = |pid: &Pid| kill_process(*pid, signal) == Err(Errno::PERM);
    descendants().into_iter().filter(refused).collect()
}

/// Returns whether `/proc` shows the processes of our PID namespace under our numbers.
pub(crate) fn proc_is_ours() -> bool {
    let own = fs::read_link("/proc/self").ok();
    own.as_deref().and_then(|own| parse(own.to_str()?)) == Some(getpid())
}

/// Returns the name of a process for messages.
pub(crate) fn name_of(pid: Pid) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm"))
        .map_or_else(|_| "unknown".to_owned(), |name| name.trim_end().to_owned())
}

/// Returns all descendants, parents before their children; none if `/proc` does not show them.
fn descendants() -> Vec<Pid> {
    if !proc_is_ours() {
        return Vec::new();
    }
    let mut pids = vec![getpid()];
    let mut at = 0;
    while at < pids.len() {
        let children = children_of(pids[at]);
        pids.extend(children);
        at += 1;
    }
    pids.remove(0);
    pids
}

fn is_in(pid: Pid, group: Pid) -> bool {
    stat_field(pid, 2).and_then(|text| parse(&text)) == Some(group)
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

fn parent_of(pid: Pid) -> Option<Pid> {
    parse(&stat_field(pid, 1)?)
}

/// Reads a field of `stat`, counted after the last `)`, because the name may contain any
/// character: K7 (parse the process stat file). The state is 0, the parent 1, the group 2.
fn stat_field(pid: Pid, number: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields
        .split_ascii_whitespace()
        .nth(number)
        .map(ToOwned::to_owned)
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
