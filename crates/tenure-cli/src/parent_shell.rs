//! Calling shell of `tenure lock`: the process that a lock file is bound to. C13 (holds for
//! scripts).

use std::fs;

/// `PF_FORKNOEXEC`: the process was forked and has not called `exec` since.
const FORKED_ONLY: u64 = 0x40;

/// Returns the nearest ancestor that is not a mere fork of its own parent.
///
/// In `$(tenure lock f | …)` the parent is a subshell that exits at once; the shell that it was
/// forked from is the right one. A shell that was started inside another shell is no mere fork.
pub(crate) fn shell() -> u32 {
    let mut pid = std::os::unix::process::parent_id();
    while let Some((parent, flags)) = parent_and_flags(pid)
        && parent > 1
        && flags & FORKED_ONLY != 0
    {
        pid = parent;
    }
    pid
}

/// Reads fields 4 and 9 of `stat`, counted after the last `)`, because the name may contain any
/// character: K7 (parse the process stat file).
fn parent_and_flags(pid: u32) -> Option<(u32, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    Some((fields.get(1)?.parse().ok()?, fields.get(6)?.parse().ok()?))
}
