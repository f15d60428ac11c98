//! Lock files on one machine: sidecar, exclusive and upload locks, each in full, each sharing its
//! files with the programs that invented it.
//!
//! ```text
//!   sidecar   exclusive   upload                    the protocols: what a record means
//!      └──────────┼──────────┘
//!   hold ── heart    exit    future                 kept alive, watched, given back, awaited
//!   publish   remove   wait   fence   clean         one step in, no live lock hit, no blind polling
//!   identity ── liveness ── process                 who holds it, does it run, how do we know
//!   dir   record   text   clock   error             paths, bytes, time, words
//! ```
//!
//! Everything is synchronous: no runtime is needed to lock a file, and no thread is started before
//! a lock is held or a wait begins. Rule ids (K…, S…, X…, U…) refer to the protocol rules.
//!
//! Built for Linux: `flock`, `O_TMPFILE`, `renameat2`, pidfd and inotify carry the proofs.

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
