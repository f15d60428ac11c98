//! Exclusive locks: a tool locks a whole database, and the database's server pauses meanwhile. The
//! server works in *cycles* and checks for a lock before each one.
//!
//! ```text
//! tool:    publish `.exclusive-lock` ──▶ wait for running cycles ──▶ work ──▶ remove it
//! server:  take the gate shared ──▶ is there a lock? ──yes──▶ skip this cycle
//!                                                    └─no───▶ work ──▶ release the gate
//! ```
//!
//! The published protocol only keeps server and tools apart. Tenure adds: tools exclude each other;
//! a dead tool's lock is removed, on proof and without removing a live one; and a tool knows when
//! the last cycle before its lock has ended. In doubt the server skips (X9 (skip when in doubt)).
//!
//! ```no_run
//! use tenure_files::exclusive::{CycleKind, ExclusiveServer, Tool, Wait};
//!
//! // The tool:
//! let guard = Tool::new(".beads", "night-import")?.acquire(Wait::No)?;
//! // … work on the database …
//! guard.release()?;
//!
//! // The server:
//! match ExclusiveServer::new(".beads").begin_cycle() {
//!     Ok(cycle) => { /* … one cycle of work … */ drop(cycle) }
//!     Err(answer) => eprintln!("{}", answer.log_line(CycleKind::Sync).unwrap_or_default()),
//! }
//! # Ok::<(), tenure_files::Error>(())
//! ```

mod decision;
mod gate;
mod inspect;
mod record;
mod server;
mod staleness;
mod timestamp;
mod tool;

pub use crate::deadline::Wait;
use crate::identity::Here;
use crate::liveness::{PidTrust, Verdict, verdict_of_bare_pid};
use crate::process::valid_pid;
pub use decision::{CycleDecision, CycleKind};
pub use inspect::{Inspection, inspect};
pub use record::{ExclusiveRecord, RecordError};
pub use server::{Cycle, ExclusiveServer};
pub use tool::{ExclusiveGuard, Quiesce, Tool, adopt};

/// Name of the lock file in the database's directory (X1 (exclusive lock file)).
pub const FILE_NAME: &str = ".exclusive-lock";
/// Name of the gate file beside it (X20 (the gate file)).
pub const GATE_NAME: &str = ".exclusive-lock.gate";

/// Returns whether the process of a record may be alive (X8 (dead holder on this host)). Returns
/// `false` only if the host is this one and no process has this pid, also not in another container.
pub fn is_process_alive(pid: i64, hostname: &str) -> bool {
    let here = Here::now();
    match valid_pid(pid) {
        Some(pid) if here.is_host(hostname) => !matches!(
            verdict_of_bare_pid(pid, None, PidTrust::Checked, &here),
            Verdict::Dead(_)
        ),
        _ => true,
    }
}

/// How records of other holders are judged.
#[derive(Clone, Copy, Debug, Default)]
struct StalenessRules {
    /// What a missing process proves (X12.4 order of exclusive tests).
    pids: PidTrust,
}
