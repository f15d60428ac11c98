//! Calling shell of `tenure lock`: the process that a lock file is bound to. C13 (holds for
//! scripts).

use std::fs;
use std::path::PathBuf;

/// Returns the nearest ancestor that is not a mere fork of its own parent.
///
/// In `$(tenure lock f | …)` the parent is a subshell that exits at once; the shell that it was
/// forked from is the right one.
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

/// Returns executable and command line. Only `exec` changes them.
fn program(pid: u32) -> Option<(PathBuf, Vec<u8>)> {
    let executable = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    Some((executable, line))
}

/// Reads field 4 of `stat`, counted after the last `)`, because the name may contain any character:
/// K7 (parse the process stat file).
fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(1)?.parse().ok()
}
