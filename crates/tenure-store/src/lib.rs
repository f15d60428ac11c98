//! Repository locks: shared and exclusive leases stored as objects in a bucket or as files in a
//! directory.
//!
//! The protocol is compatible with the backup programs that defined it. Comments call those
//! programs *originals*.
//!
//! ```text
//!   Repository ── RepositoryGuard ── blocking     public API
//!        driver ── runtime ── clocks              runs procedures on one background thread
//!   protocol: Acquire HoldProcedure Probe         decides; pure, no I/O, no clock
//!             ListLocks BreakLocks
//!        staleness   record   lock_terms          meaning of a record, times of a lease
//!        key   time                               object names, clock readings
//!   store: Directory   Objects ── connector       performs one operation at a time
//!        envelope                                 bytes: zstd, gzip, AES-256-GCM
//! ```
//!
//! [`protocol`] makes every decision as plain data, so a model checker can drive it through all
//! interleavings. Rule ids (P…, K…, C…) refer to `docs/spec/`.
//!
//! # Guarantees
//!
//! Two Tenure processes never hold conflicting locks under these conditions:
//!
//! - Each process stops its work when its [`RepositoryGuard`] reports that the lock is lost.
//! - The clocks of the machines run at nearly the same speed. The time that they show does not
//!   matter.
//! - With conditional writes and conditional deletes (level 2), nothing else is needed.
//! - With conditional writes only (level 1), a delete takes effect within a fifth of the ttl after
//!   it was sent.
//! - Without conditions (level 0), a write or delete takes effect within the settle time after the
//!   read that it is based on.
//!
//! The model checker shows that these conditions are sufficient and necessary.
//!
//! Originals write without conditions. Tenure closes some of the race windows that originals have
//! among themselves, by a second read and by the settle time; the others remain. At level 0 one
//! window remains that Tenure cannot close alone: an exclusive original and an exclusive Tenure
//! process start at the same moment. A paused holder is stopped by the fencing number, wherever the
//! protected resource checks it.

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
