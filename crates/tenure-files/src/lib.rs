//! Lock files on one machine: sidecar (guards one file), exclusive (stops a database server)
//! and upload locks (one request per upload). They interoperate with existing programs (*the
//! original* in the comments): both sides use the same files and exclude each other.
//!
//! ```text
//!   sidecar   exclusive   upload                      protocols: names, formats, rules
//!      └──────────┼──────────┘
//!   hold   heartbeat   exit   future   observed       hold, monitor, release, await, inspect
//!   publish   remove   wait   fence   leftovers       create, remove, wait, number, clean up
//!   identity   liveness   process                     holder identity and proof of liveness
//!   dir   record   record_layout   clock   error      files, JSON text, time, errors
//! ```
//!
//! The API is synchronous and needs no async runtime. The crate starts no thread before a lock is
//! held or a wait begins. Rule ids (K…, S…, X…, U…) refer to the protocol rules in `docs/spec/`.
//!
//! Linux only: the proofs of liveness and the atomic steps use `flock`, `O_TMPFILE`, `renameat2`,
//! pidfd and inotify.

pub mod clock;
mod deadline;
pub mod dir;
pub mod error;
pub mod exclusive;
pub mod exit;
pub mod fence;
pub mod future;
pub mod heartbeat;
pub mod hold;
pub mod identity;
pub mod leftovers;
pub mod liveness;
pub mod observed;
pub mod process;
pub mod publish;
pub mod record;
pub mod record_layout;
pub mod remove;
pub mod sidecar;
pub mod upload;
pub mod wait;

pub use deadline::Wait;
pub use error::{BlockingHolder, Class, Decision, Error, Result};
