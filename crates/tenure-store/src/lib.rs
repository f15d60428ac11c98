//! Repository locks: shared and exclusive leases stored as objects in a bucket or as files in a
//! directory.
//!
//! The protocol is compatible with the backup programs that defined it, called *originals* here.
//!
//! ```text
//!   Repository ── RepositoryGuard                 public API
//!        driver ── runtime ── clocks              runs procedures on one background thread
//!   protocol: Acquire HoldProcedure Probe         decides; pure, no I/O, no clock
//!             ListLocks BreakLocks
//!        staleness   record   lock_terms          meaning of a record, times of a lease
//!        key   time                               object names, clock readings
//!   store: Directory   Objects ── connector       performs one operation at a time
//!        envelope                                 bytes: zstd, gzip, AES-256-GCM
//! ```
//!
//! The module `protocol` makes every decision as plain data, so a model checker drives it through all
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
//! - Without conditions (level 0), a write or delete takes effect within the *settle time* (the
//!   wait between an acquirer's write and its last read) after the read that it is based on.
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

#[cfg(not(any(feature = "dir", feature = "bucket")))]
compile_error!("tenure-store needs one of its features: dir, s3, gcs, azure");

mod address;
mod clocks;
#[cfg(feature = "bucket")]
mod connector;
#[cfg(feature = "dir")]
mod directory;
mod driver;
mod envelope;
mod error;
mod guard;
mod key;
mod lock_terms;
pub mod messages;
#[cfg(feature = "bucket")]
mod object;
mod protocol;
mod record;
mod repository;
mod runtime;
mod staleness;
mod store;
#[cfg(feature = "bucket")]
mod store_messages;
mod time;

pub use address::{AddressError, Bucket, RepositoryAddress, Scheme};
pub use driver::{EventListener, LockEvent};
pub use envelope::{Accept, DataKey, KeyError, Seal};
pub use error::{Error, Loss};
pub use guard::{RepositoryGuard, Ticket, TicketError};
pub use key::ObjectKey;
pub use lock_terms::{
    ConditionLevel, LockMode, LockSettings, OnConflict, OtherClients, SettingsError,
};
pub use protocol::{
    Abilities, AcquireRefusal, BlockingObject, BreakResult, BreakTarget, Insist, LockListing,
    LossCause, Notice,
};
pub use record::{AcquisitionId, HolderBlock, LockRecord};
pub use repository::{
    Demand, FollowedProcess, LockPurpose, Options, Repository, StoreHealth, WaitLimit,
};
pub use staleness::{
    Evidence, HeldReason, Object, ObjectContent, ProcessLiveness, Staleness, Unreadable, Version,
};
pub use tenure_files::Class;

/// The protocol as a step machine, and the stores that carry out its steps. The model check and the
/// tests of the stores use them; they may change in any release.
#[doc(hidden)]
pub mod internal {
    pub use crate::clocks::now;
    #[cfg(feature = "dir")]
    pub use crate::directory::{Directory, ProbeAccess};
    pub use crate::envelope::Codec;
    pub use crate::lock_terms::LockTerms;
    #[cfg(feature = "bucket")]
    pub use crate::object::Objects;
    pub use crate::protocol::{
        Acquire, AcquireParams, Acquired, BreakLocks, ConditionFailure, HoldProcedure, HoldStatus,
        ListLocks, OpBody, OpFailure, OpFailureKind, OpResult, OwnRecord, Probe, Procedure,
        ProcedureStep, Released, StoreOp, WaitBehavior,
    };
    pub use crate::staleness::Observations;
    pub use crate::store::{BoxFuture, Store};
    pub use crate::time::{BootTime, Now, parse_stamp, stamp};
}
