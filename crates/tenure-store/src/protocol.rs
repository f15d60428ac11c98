//! The lock protocol as sans-I/O state machines.
//!
//! A procedure (acquire, hold, break, list, probe) is a value that returns the next store operation
//! and receives its result. It is plain data that can be cloned, compared and hashed. So the model
//! checker drives the shipped code through every interleaving, and tests inject a fault into every
//! step.
//!
//! # How to drive it
//!
//! ```text
//!            ┌───────────── next(now) ─────────────────┐
//!            ▼                                         │
//!   StoreOp: read, list, create, …, wait ──▶ OpResult ──▶ answer(result, now) ──▶ Going
//!                                                              └────────────────▶ Done(end)
//! ```
//!
//! 1. Read both clocks and call [`Procedure::next`]. The records that the operation carries are
//!    stamped with that reading, and leases count from it, so read the clocks **before** you send
//!    the operation. Calling `next` again without an answer returns the same request again.
//! 2. Perform the [`StoreOp`] once, without retries of your own.
//! 3. Read both clocks again **after** the result has arrived and pass both to
//!    [`Procedure::answer`].
//! 4. Repeat until [`ProcedureStep::Done`]. After that, call neither method.
//!
//! [`StoreOp::Batch`] holds requests that do not depend on each other: perform them at the same
//! time, in any order, and answer with [`OpResult::Batch`] when all have ended, in the order of
//! the requests. A store with 60 ms per request answers them all in 60 ms.
//!
//! Answer [`StoreOp::WaitUntil`] with [`OpResult::Waited`] at or after the given time. A result of
//! the wrong kind counts as a failure.
//!
//! [`HoldProcedure`] lives as long as the lock and accepts commands in between (`release`,
//! `revive`, …); see its documentation. To simulate a crash, drop a procedure at any point. To
//! simulate a pause, let both clocks advance between two calls. To simulate a lost response, apply
//! the operation and answer [`OpResult::Failed`].
//!
//! ```
//! use tenure_store::internal::{Now, OpResult, Procedure, ProcedureStep, StoreOp};
//!
//! fn drive<S: Procedure>(
//!     mut steps: S,
//!     mut clocks: impl FnMut() -> Now,
//!     mut perform: impl FnMut(StoreOp) -> OpResult,
//! ) -> S::End {
//!     loop {
//!         let ops = steps.next(clocks()).into_parts();
//!         let answer = OpResult::batch(ops.into_iter().map(&mut perform).collect());
//!         match steps.answer(answer, clocks()) {
//!             ProcedureStep::Going => {}
//!             ProcedureStep::Done(end) => return end,
//!         }
//!     }
//! }
//! ```
//!
//! # Procedures
//!
//! | procedure | task | rules |
//! |---|---|---|
//! | [`Probe`] | finds the abilities of the store | P26 |
//! | [`Acquire`] | acquires a lock, waits for it, withdraws | P19, P28–P30 |
//! | [`HoldProcedure`] | refreshes, checks, revives, releases | P31–P36 |
//! | [`ListLocks`] | reads every lock, writes nothing | P42 |
//! | [`BreakLocks`] | removes the locks that were shown | P37 |

mod acquire;
mod batch;
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

/// A state machine of the protocol that requests one store operation at a time.
pub trait Procedure {
    /// The result of the procedure.
    type End;

    /// Returns the next operation. `now` is read before it is performed.
    fn next(&mut self, now: Now) -> StoreOp;

    /// Receives the result of the operation. `now` is read after it was performed.
    fn answer(&mut self, answer: OpResult, now: Now) -> ProcedureStep<Self::End>;
}

/// Whether a procedure continues.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a procedure that is done must not be asked again"]
pub enum ProcedureStep<End> {
    /// Call [`Procedure::next`] again.
    Going,
    /// The procedure has ended with this result.
    Done(End),
}

/// An operation on the store, or a wait.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StoreOp {
    /// Reads the object: [`OpResult::Found`] or [`OpResult::Absent`].
    Read(ObjectKey),
    /// Lists the keys of all shared locks: [`OpResult::Listed`].
    ListShared,
    /// Writes the object if it does not exist: [`OpResult::Written`] or [`OpResult::Refused`].
    Create(ObjectKey, OpBody),
    /// Overwrites the object if it still has this version: [`OpResult::Written`] or
    /// [`OpResult::Refused`].
    Replace(ObjectKey, OpBody, Version),
    /// Rewrites our own record if it still has this version.
    ///
    /// The same as `Replace` in an object store. A directory writes in place, through the
    /// descriptor kept since the record was created (K21 (change records in place)).
    Renew(ObjectKey, OpBody, Version),
    /// Writes the object unconditionally (level 0): [`OpResult::Written`].
    Put(ObjectKey, OpBody),
    /// Deletes the object if it still has this version: [`OpResult::Deleted`], [`OpResult::Absent`]
    /// or [`OpResult::Refused`].
    DeleteVersion(ObjectKey, Version),
    /// Deletes the object unconditionally: [`OpResult::Deleted`] or [`OpResult::Absent`].
    Delete(ObjectKey),
    /// Waits until this reading of `CLOCK_BOOTTIME`: [`OpResult::Waited`].
    WaitUntil(BootTime),
    /// Performs all of these at the same time: [`OpResult::Batch`]. Never nested.
    Batch(Vec<StoreOp>),
}

impl StoreOp {
    /// Joins operations that are performed at the same time.
    fn batch(ops: Vec<StoreOp>) -> StoreOp {
        match <[StoreOp; 1]>::try_from(ops) {
            Ok([op]) => op,
            Err(ops) => StoreOp::Batch(ops),
        }
    }

    /// Returns the operations that are performed at the same time; the inverse of `batch`.
    pub fn into_parts(self) -> Vec<StoreOp> {
        match self {
            StoreOp::Batch(ops) => ops,
            op => vec![op],
        }
    }
}

/// The content that an operation writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OpBody {
    /// A lock record.
    Record(LockRecord),
    /// The fencing counter.
    Fence(u64),
    /// The n-th scratch text of a probe. All are different.
    Probe(u8),
}

/// The result of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OpResult {
    /// The object exists.
    Found(Object),
    /// The store reports that the object does not exist (P25 (failed reads are not absence)).
    Absent,
    /// The keys of the shared locks.
    Listed(Vec<ObjectKey>),
    /// The object was written and now has this version.
    Written(Version),
    /// The object was deleted.
    Deleted,
    /// The store refused the operation; nothing changed.
    Refused(ConditionFailure),
    /// The operation failed. A write or delete may have taken effect, or may still take effect
    /// later.
    Failed(OpFailure),
    /// The wait has ended.
    Waited,
    /// The results of operations that were performed at the same time, in the order of their
    /// requests.
    Batch(Vec<OpResult>),
}

impl OpResult {
    /// Joins the results of operations that were performed at the same time.
    pub fn batch(results: Vec<OpResult>) -> OpResult {
        match <[OpResult; 1]>::try_from(results) {
            Ok([result]) => result,
            Err(results) => OpResult::Batch(results),
        }
    }

    fn into_parts(self) -> Vec<OpResult> {
        match self {
            OpResult::Batch(results) => results,
            result => vec![result],
        }
    }
}

/// The reason why a store refused a conditional operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConditionFailure {
    /// The condition was false (412).
    Condition,
    /// Another writer of the same key was active (409). Whether the condition holds is unknown.
    Contention,
    /// The store does not support the operation (304, 400, 501).
    NotSupported,
}

/// A failed operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{text}")]
pub struct OpFailure {
    /// The kind of failure.
    pub kind: OpFailureKind,
    /// The message of the store or the operating system.
    pub text: String,
}

/// Whether a retry may help, and which class of error the failure becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpFailureKind {
    /// Network error, timeout or server error: a retry may succeed.
    Passing,
    /// Permission denied, invalid credentials, missing bucket: a retry does not help.
    Lasting,
    /// The object is not a lock: a directory or a symlink (K28 (open an existing record)).
    NotALock,
}

impl OpFailure {
    /// Creates a failure that a retry may resolve.
    pub fn passing(text: impl Into<String>) -> OpFailure {
        OpFailure {
            kind: OpFailureKind::Passing,
            text: text.into(),
        }
    }

    /// Creates a failure that a retry does not resolve.
    pub(crate) fn lasting(text: impl Into<String>) -> OpFailure {
        OpFailure {
            kind: OpFailureKind::Lasting,
            text: text.into(),
        }
    }
}

/// A lock object that was read, with its verdict. It blocks a request if [`Staleness::blocks`] says
/// so.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BlockingObject {
    /// The key, which also decides the mode.
    pub key: ObjectKey,
    /// The object.
    pub object: Object,
    /// The verdict.
    pub verdict: Staleness,
}

impl BlockingObject {
    /// Returns the identity of the acquisition, or `None` if the object is unreadable.
    pub(crate) fn identity(&self) -> Option<AcquisitionId> {
        self.object.record().map(LockRecord::identity)
    }

    /// Returns the id of the hold: its key and what tells this acquisition from a later one under
    /// the same key.
    ///
    /// The key alone if no later acquisition can have it (a shared lock without a token), or if
    /// the object is unreadable.
    pub fn id(&self) -> String {
        let Some(record) = self.object.record() else {
            return self.key.path();
        };
        match (record.token(), &self.key) {
            (Some(token), key) => format!("{key}#{token}"),
            (None, ObjectKey::Exclusive) => format!("{}#{}", self.key, record.acquired_at),
            (None, key) => key.path(),
        }
    }

    /// Returns `true` if `id` names this hold: [`BlockingObject::id`], or the key alone where it
    /// names one acquisition.
    pub fn is_named(&self, id: &str) -> bool {
        let by_key = self.key != ObjectKey::Exclusive || self.object.record().is_none();
        id == self.id() || (by_key && id == self.key.path())
    }

    /// Returns `true` if `other` is the same acquisition: the same identity, or the same version of
    /// an unreadable object.
    pub(crate) fn is_same(&self, other: &BlockingObject) -> bool {
        self.key == other.key
            && match (self.identity(), other.identity()) {
                (Some(mine), Some(theirs)) => mine == theirs,
                (None, None) => self.object.version == other.object.version,
                (Some(_), None) | (None, Some(_)) => false,
            }
    }
}

impl fmt::Display for StoreOp {
    /// One line per operation, for traces.
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
            StoreOp::Batch(ops) => {
                for (at, op) in ops.iter().enumerate() {
                    let before = if at == 0 { "" } else { ", " };
                    write!(f, "{before}{op}")?;
                }
                Ok(())
            }
        }
    }
}

/// Returns the version of `object` if it is the record of `identity`.
fn ours(object: &Object, identity: &AcquisitionId) -> Option<Version> {
    match &object.content {
        ObjectContent::Record(record) if record.is(identity) => Some(object.version.clone()),
        ObjectContent::Record(_) | ObjectContent::Fence(_) | ObjectContent::Unreadable { .. } => {
            None
        }
    }
}

/// Converts a result of the wrong kind into a failure.
fn unexpected(answer: OpResult) -> OpFailure {
    match answer {
        OpResult::Failed(failure) => failure,
        OpResult::Refused(ConditionFailure::Contention) => {
            OpFailure::passing("the store is busy with another writer of the same key")
        }
        OpResult::Refused(ConditionFailure::Condition) => {
            OpFailure::passing("the store refused on a condition that was not set")
        }
        OpResult::Refused(ConditionFailure::NotSupported) => {
            OpFailure::lasting("the store does not support this operation")
        }
        OpResult::Found(_)
        | OpResult::Absent
        | OpResult::Listed(_)
        | OpResult::Written(_)
        | OpResult::Deleted
        | OpResult::Waited
        | OpResult::Batch(_) => OpFailure::lasting("the store gave an answer to another question"),
    }
}
