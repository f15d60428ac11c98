//! Repository locks: shared and exclusive leases made of objects inside a bucket or directory, side
//! by side with the backup programs that invented them.
//!
//! ```text
//!   Repository ── Guard ── blocking            what a program uses
//!        driver ── keeper ── clocks            does, waits, reports; on a thread of its own
//!   steps: Acquire Hold Probe Survey Break     decides; pure, no I/O, no clock
//!        judge   record   terms   key   time   what a record means, how long a lease lasts
//!   store: Directory   Objects ── connector    one operation at a time
//!        onion                                 bytes: zstd, gzip, AES-256-GCM
//! ```
//!
//! Every decision of the protocol is in [`protocol`], as plain data that a model checker can drive
//! through all interleavings. Rule ids (P…, K…, C…) refer to the protocol rules.
//!
//! # What is promised
//!
//! Two Tenure processes never hold conflicting locks in a store with conditional writes and deletes
//! (level 2), as long as each stops when its [`RepositoryGuard`] says that the lock is lost, and clocks run at
//! nearly equal speed; what they *show* does not matter. Where only writes are conditional (level 1)
//! a delete must also take effect within a fifth of the ttl after it was sent, and without
//! conditions (level 0) a write or delete within the settling time after the look that it rests on.
//! The model shows that this is enough, and that it is needed.
//!
//! Against originals, which write without conditions, the windows that remain are the ones they
//! have among themselves, less those that a second look and a moment of settling close. At level 0
//! one remains that Tenure cannot close alone: an exclusive original and an exclusive Tenure that
//! start within the same moment. A paused holder is stopped by the fencing number, by whatever
//! checks it.

#![allow(
    clippy::large_enum_variant,
    clippy::result_large_err,
    reason = "a process has a handful of machines; plain data reads better than boxes"
)]

pub mod address;
pub mod blocking;
mod clocks;
mod connector;
pub mod directory;
mod driver;
pub mod envelope;
mod error;
mod guard;
pub mod key;
pub mod lock_terms;
pub mod messages;
pub mod object;
pub mod protocol;
pub mod record;
mod repository;
mod runtime;
pub mod staleness;
pub mod store;
pub mod time;

pub use address::RepositoryAddress;
pub use clocks::now;
pub use driver::{EventListener, LockEvent};
pub use envelope::{DataKey, Seal};
pub use error::{Error, Loss};
pub use guard::{RepositoryGuard, Ticket, TicketError};
pub use key::ObjectKey;
pub use lock_terms::{ConditionLevel, LockMode, LockSettings, OnConflict, OtherClients};
pub use repository::{
    Demand, FollowedProcess, LockPurpose, Options, Repository, StoreHealth, WaitLimit,
};
pub use tenure_files::Class;
