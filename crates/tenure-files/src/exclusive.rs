//! Exclusive locks: a tool claims a whole database, and the database's own server leaves it alone.
//!
//! ```text
//! tool:    publish `.exclusive-lock` ──▶ wait for running cycles ──▶ work ──▶ remove it
//! server:  share the gate ──▶ is there a lock? ──yes──▶ skip this cycle
//!                                              └─no───▶ work ──▶ leave the gate
//! ```
//!
//! The published protocol keeps server and tools apart. Tenure adds that tools exclude each other, that
//! the lock of a dead tool is recognised on proof and removed without hitting a live one, and that a
//! tool knows when the last cycle that began before it is over. Everything is judged toward skipping
//! (X9).
//!
//! ```no_run
//! use tenure_files::exclusive::{Server, Tool, Wait, Work};
//!
//! // The tool:
//! let guard = Tool::new(".beads", "night-import")?.acquire(Wait::No)?;
//! // … work on the database …
//! guard.release()?;
//!
//! // The server:
//! match Server::new(".beads").begin_cycle() {
//!     Ok(cycle) => { /* … one cycle of work … */ drop(cycle) }
//!     Err(answer) => eprintln!("{}", answer.log_line(Work::Sync).unwrap_or_default()),
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
use crate::process::{Presence, presence, valid_pid};
pub use decision::{CycleDecision, CycleKind};
pub use inspect::{Inspection, inspect};
pub use record::{ExclusiveRecord, RecordError};
pub use server::{Cycle, ExclusiveServer};
pub use tool::{ExclusiveGuard, Quiesce, Tool, adopt};

/// The lock's name in the database's directory (X1).
pub const FILE_NAME: &str = ".exclusive-lock";
/// The gate's name beside it (X20).
pub const GATE_NAME: &str = ".exclusive-lock.gate";

/// Whether the process of a record may be alive (X8): only a process that is known not to exist, on this
/// very host, is not.
pub fn is_process_alive(pid: i64, hostname: &str) -> bool {
    match valid_pid(pid) {
        Some(pid) if Here::now().is_host(hostname) => presence(pid, None) != Presence::Gone,
        _ => true,
    }
}

/// How records of others are judged.
#[derive(Clone, Copy, Debug, Default)]
struct StalenessRules {
    /// Process ids may belong to other containers with the same host name (X12.4).
    foreign_pids: bool,
}
