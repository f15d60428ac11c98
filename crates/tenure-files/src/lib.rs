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

mod clock;
mod deadline;
mod dir;
mod error;
pub mod exclusive;
mod exit;
mod fence;
mod future;
mod heartbeat;
mod hold;
mod identity;
mod leftovers;
mod liveness;
mod observed;
mod process;
mod publish;
mod record;
mod record_layout;
mod remove;
pub mod sidecar;
pub mod upload;
mod wait;

pub use clock::Clock;
pub use deadline::{OnWait, Wait};
pub use error::{BlockingHolder, Class, Decision, Error, Result};
pub use future::Blocking;
pub use hold::{FileHolding, Loss, LossCause};
pub use identity::{Identity, Token};
pub use liveness::{Doubt, Proof, Verdict};
pub use observed::{Force, ObservedLock, ObservedState};
pub use publish::{Durability, FileAccess, PublishMethod};
pub use tenure_base::Lease;
pub use wait::Cancel;

/// Parts that the other crates of Tenure share with this one. They may change in any release.
#[doc(hidden)]
pub mod internal {
    pub use crate::clock::HumanDuration;
    pub use crate::dir::{Dir, FileSystemReach};
    pub use crate::error::printable;
    pub use crate::future::{block_on, run};
    pub use crate::heartbeat::{HeartbeatPause, rest};
    pub use crate::hold::beat_inherited;
    pub use crate::identity::{FENCE_ROOM, Here, host_name};
    pub use crate::leftovers::leftovers;
    pub use crate::liveness::{verdict, verdict_without_lock};
    pub use crate::process::{Presence, presence, start_time};
    pub use crate::publish::{Draft, Options as PublishOptions};
    pub use crate::record::OpenRecord;
    pub use crate::remove::{Removal, no_pause, remove};
    pub use crate::wait::jittered;
    pub use tenure_base::BootTimer;
}
