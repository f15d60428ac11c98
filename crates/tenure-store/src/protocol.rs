//! The protocol as steps: every decision of it, and not one byte of I/O.
//!
//! A procedure (acquiring, holding, breaking, looking) is a value that says what to ask of the
//! store next and is told the answer. It is plain data: it can be cloned, compared and hashed, so
//! a checker can drive the shipped machine through every interleaving, and a test can put a fault
//! into every step.
//!
//! # How to drive it
//!
//! ```text
//!            ┌───────────── next(now) ──────────────┐
//!            ▼                                      │
//!   Op: read, list, create, replace, …, wait ──▶ Answer ──▶ answer(answer, now) ──▶ Going
//!                                                                └─────────────▶ Done(end)
//! ```
//!
//! 1. Read both clocks and call [`Procedure::next`]. Records that the operation carries are stamped
//!    with that reading, and leases count from it, so the reading must come **before** the
//!    operation goes out. Calling `next` again without an answer asks for the same thing again.
//! 2. Do what the [`StoreOp`] says, once, without retries of your own.
//! 3. Read both clocks again, **after** the answer is there, and hand it to [`Procedure::answer`].
//! 4. Repeat until [`ProcedureStep::Done`]. After that neither method may be called.
//!
//! [`StoreOp::WaitUntil`] is answered with [`OpResult::Waited`], at or after the moment named. Answers
//! of the wrong kind for an operation count as failures, never as news.
//!
//! [`HoldProcedure`] lives as long as the lock and takes orders in between (`release`, `revive`, …); its own
//! documentation says how. A crash is simulated by dropping a machine at any point, a pause by
//! letting both clocks run between any two calls, a lost answer by applying the operation and
//! answering [`OpResult::Failed`].
//!
//! ```
//! use tenure_store::steps::{Answer, Op, Progress, Steps};
//! use tenure_store::time::Now;
//!
//! fn drive<S: Steps>(
//!     mut steps: S,
//!     mut clocks: impl FnMut() -> Now,
//!     mut perform: impl FnMut(Op) -> Answer,
//! ) -> S::End {
//!     loop {
//!         let op = steps.next(clocks());
//!         let answer = perform(op);
//!         match steps.answer(answer, clocks()) {
//!             Progress::Going => {}
//!             Progress::Done(end) => return end,
//!         }
//!     }
//! }
//! ```
//!
//! # The machines
//!
//! | machine | does | rules |
//! |---|---|---|
//! | [`Probe`] | finds out what the store can do | P26 |
//! | [`Acquire`] | takes a lock, waits for it, withdraws | P19, P28–P30 |
//! | [`HoldProcedure`] | refreshes, watches, revives, releases | P31–P36 |
//! | [`ListLocks`] | looks at every lock, writes nothing | P42 |
//! | [`BreakLocks`] | removes what was shown | P37 |

mod acquire;
mod break_lock;
mod confirm;
#[cfg(test)]
mod fake_store;
mod fence;
mod hold;
mod list;
mod probe;
mod remove;
mod renew;
mod retry;
mod revive;
mod rng;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod vectors;
mod write;

pub use acquire::{Acquire, AcquireParams, AcquireRefusal, Acquired, WaitBehavior};
pub use break_lock::{BreakLocks, BreakResult, BreakTarget, Insist};
pub use hold::{HoldProcedure, HoldStatus, LossCause, Notice, Released};
pub use list::{ListLocks, LockListing};
pub use probe::{Abilities, Probe};
pub use write::OwnRecord;

use std::fmt;

use crate::key::ObjectKey;
use crate::record::{AcquisitionId, LockRecord};
use crate::staleness::{Object, ObjectContent, Staleness, Version};
use crate::time::{BootTime, Now};

/// A procedure of the protocol, one operation at a time.
pub trait Procedure {
    /// How it can end.
    type End;

    /// What to do next. `now` is read before it is done.
    fn next(&mut self, now: Now) -> StoreOp;

    /// Takes what came of it. `now` is read after it was done.
    fn answer(&mut self, answer: OpResult, now: Now) -> ProcedureStep<Self::End>;
}

/// Whether a procedure goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a procedure that is done must not be asked again"]
pub enum ProcedureStep<End> {
    /// Ask it for the next step.
    Going,
    /// This is how it ended.
    Done(End),
}

/// One operation on the store, or a wait.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StoreOp {
    /// Get the object: [`OpResult::Found`] or [`OpResult::Absent`].
    Read(ObjectKey),
    /// Name every shared lock: [`OpResult::Listed`].
    ListShared,
    /// Write the object if there is none: [`OpResult::Written`] or [`OpResult::Refused`].
    Create(ObjectKey, OpBody),
    /// Take over the object if it still has this version. [`OpResult::Written`] or `Refused`.
    Replace(ObjectKey, OpBody, Version),
    /// Rewrite our own record if it still has this version. The same as `Replace` in an object
    /// store; in a directory it happens in place, through the descriptor kept since the record was
    /// created (K21).
    Renew(ObjectKey, OpBody, Version),
    /// Write the object whatever is there (level 0): [`OpResult::Written`].
    Put(ObjectKey, OpBody),
    /// Delete the object if it still has this version: [`OpResult::Deleted`], [`OpResult::Absent`] or
    /// [`OpResult::Refused`].
    DeleteVersion(ObjectKey, Version),
    /// Delete the object whatever it is: [`OpResult::Deleted`] or [`OpResult::Absent`].
    Delete(ObjectKey),
    /// Wait until this reading of the clock: [`OpResult::Waited`].
    WaitUntil(BootTime),
}

/// What an operation writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OpBody {
    /// A lock record.
    Record(LockRecord),
    /// The fencing counter.
    Fence(u64),
    /// The n-th scratch text of a probe; each is different.
    Probe(u8),
}

/// What came of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OpResult {
    /// The object is there.
    Found(Object),
    /// The store itself says that there is no such object (P25).
    Absent,
    /// The shared locks.
    Listed(Vec<ObjectKey>),
    /// It was written, and is now this version.
    Written(Version),
    /// It was deleted.
    Deleted,
    /// The store refused, and nothing changed.
    Refused(ConditionFailure),
    /// It failed. A write or delete may have happened, now or later, all the same.
    Failed(OpFailure),
    /// The wait is over.
    Waited,
}

/// Why a store refused a conditional operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConditionFailure {
    /// The condition did not hold (412).
    Condition,
    /// The store was busy with another writer of the same key (409); nothing is known.
    Contention,
    /// The store does not do this (304, 400, 501).
    NotSupported,
}

/// An operation that failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{text}")]
pub struct OpFailure {
    /// What kind of failure.
    pub kind: OpFailureKind,
    /// What the store or the system said.
    pub text: String,
}

/// Whether it is worth trying again, and which class of error it becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpFailureKind {
    /// Network, time-out, server error: may go by itself.
    Passing,
    /// Permission, bad credentials, no such bucket: will not.
    Lasting,
    /// What is there is no lock and never will be: a directory, a symlink (K28).
    NotALock,
}

impl OpFailure {
    /// A failure that may go by itself.
    pub fn passing(text: impl Into<String>) -> OpFailure {
        OpFailure {
            kind: OpFailureKind::Passing,
            text: text.into(),
        }
    }

    /// A failure that will not.
    pub fn lasting(text: impl Into<String>) -> OpFailure {
        OpFailure {
            kind: OpFailureKind::Lasting,
            text: text.into(),
        }
    }
}

/// An object that stands in the way, and why it counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BlockingObject {
    /// Where it lies; this is also whether it is shared or exclusive.
    pub key: ObjectKey,
    /// The object.
    pub object: Object,
    /// The judgement.
    pub verdict: Staleness,
}

impl BlockingObject {
    /// Who took it; `None` if it cannot be read.
    pub fn identity(&self) -> Option<AcquisitionId> {
        self.object.record().map(LockRecord::identity)
    }

    /// Whether `other` is the same acquisition: the same record, or the same unreadable bytes.
    pub fn is_same(&self, other: &BlockingObject) -> bool {
        self.key == other.key
            && match (self.identity(), other.identity()) {
                (Some(mine), Some(theirs)) => mine == theirs,
                (None, None) => self.object.version == other.object.version,
                (Some(_), None) | (None, Some(_)) => false,
            }
    }
}

impl fmt::Display for StoreOp {
    /// One line per step, for traces.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreOp::Read(key) => write!(f, "read {key}"),
            StoreOp::ListShared => write!(f, "list {}", ObjectKey::SHARED_PREFIX),
            StoreOp::Create(key, _) => write!(f, "create {key}"),
            StoreOp::Replace(key, _, _) => write!(f, "replace {key}"),
            StoreOp::Renew(key, _, _) => write!(f, "renew {key}"),
            StoreOp::Put(key, _) => write!(f, "put {key}"),
            StoreOp::DeleteVersion(key, _) => write!(f, "delete {key} by version"),
            StoreOp::Delete(key) => write!(f, "delete {key}"),
            StoreOp::WaitUntil(until) => write!(f, "wait until {:?}", until.0),
        }
    }
}

/// Whether an answer to a read shows the record of `identity`, and at which version.
fn ours(object: &Object, identity: &AcquisitionId) -> Option<Version> {
    match &object.content {
        ObjectContent::Record(record) if record.is(identity) => Some(object.version.clone()),
        ObjectContent::Record(_) | ObjectContent::Fence(_) | ObjectContent::Unreadable { .. } => {
            None
        }
    }
}

/// The failure that an answer of the wrong kind amounts to.
fn unexpected(answer: OpResult) -> OpFailure {
    match answer {
        OpResult::Failed(failure) => failure,
        OpResult::Refused(ConditionFailure::Contention) => {
            OpFailure::passing("the store is busy with another writer of the same key")
        }
        OpResult::Refused(ConditionFailure::Condition) => {
            OpFailure::passing("the store refused on a condition nobody set")
        }
        OpResult::Refused(ConditionFailure::NotSupported) => {
            OpFailure::lasting("the store does not support this operation")
        }
        OpResult::Found(_)
        | OpResult::Absent
        | OpResult::Listed(_)
        | OpResult::Written(_)
        | OpResult::Deleted
        | OpResult::Waited => OpFailure::lasting("the store gave an answer to another question"),
    }
}
