//! The calling shell: whose life a lock file follows that `tenure lock` leaves behind (C13).

use std::fs;
use std::path::PathBuf;

/// The nearest ancestor that is not a mere fork of its own parent. In `$(tenure lock f | …)` our parent is
/// a subshell that is gone at once; what it was forked from is the shell that matters.
pub(crate) fn shell() -> u32 {
    let mut pid = std::os::unix::process::parent_id();
    while let Some(parent) = parent_of(pid)
        && parent > 1
        && is_fork_of(pid, parent)
    {
        pid = parent;
    }
    pid
}

fn is_fork_of(child: u32, parent: u32) -> bool {
    match (program(child), program(parent)) {
        (Some(child), Some(parent)) => child == parent,
        _ => false,
    }
}

/// Executable and command line: only an exec changes them.
fn program(pid: u32) -> Option<(PathBuf, Vec<u8>)> {
    let executable = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    Some((executable, line))
}

/// Field 4 of `stat`, counted behind the last `)`: the name may contain anything (K7).
fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(1)?.parse().ok()
}
