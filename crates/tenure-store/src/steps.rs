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
//! 1. Read both clocks and call [`Steps::next`]. Records that the operation carries are stamped
//!    with that reading, and leases count from it, so the reading must come **before** the
//!    operation goes out. Calling `next` again without an answer asks for the same thing again.
//! 2. Do what the [`Op`] says, once, without retries of your own.
//! 3. Read both clocks again, **after** the answer is there, and hand it to [`Steps::answer`].
//! 4. Repeat until [`Progress::Done`]. After that neither method may be called.
//!
//! [`Op::WaitUntil`] is answered with [`Answer::Waited`], at or after the moment named. Answers
//! of the wrong kind for an operation count as failures, never as news.
//!
//! [`Hold`] lives as long as the lock and takes orders in between (`release`, `revive`, …); its own
//! documentation says how. A crash is simulated by dropping a machine at any point, a pause by
//! letting both clocks run between any two calls, a lost answer by applying the operation and
//! answering [`Answer::Failed`].
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
//! | [`Hold`] | refreshes, watches, revives, releases | P31–P36 |
//! | [`Survey`] | looks at every lock, writes nothing | P42 |
//! | [`Break`] | removes what was shown | P37 |

mod acquire;
mod ask;
mod breaking;
mod confirm;
mod dice;
mod fence;
mod hold;
mod probe;
mod remove;
mod renew;
mod revive;
mod survey;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod vectors;
#[cfg(test)]
mod world;
mod write;

pub use acquire::{Acquire, Acquired, Refusal, Request, Wait};
pub use breaking::{Break, Broken, Insist, Target};
pub use hold::{Cause, Hold, Notice, Released, Status};
pub use probe::{Abilities, Probe};
pub use survey::{Survey, View};
pub use write::Own;

use std::fmt;

use crate::judge::{Content, Object, Verdict, Version};
use crate::key::Key;
use crate::record::{Identity, Record};
use crate::time::{Boot, Now};

/// A procedure of the protocol, one operation at a time.
pub trait Steps {
    /// How it can end.
    type End;

    /// What to do next. `now` is read before it is done.
    fn next(&mut self, now: Now) -> Op;

    /// Takes what came of it. `now` is read after it was done.
    fn answer(&mut self, answer: Answer, now: Now) -> Progress<Self::End>;
}

/// Whether a procedure goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a procedure that is done must not be asked again"]
pub enum Progress<End> {
    /// Ask it for the next step.
    Going,
    /// This is how it ended.
    Done(End),
}

/// One operation on the store, or a wait.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Get the object: [`Answer::Found`] or [`Answer::Absent`].
    Read(Key),
    /// Name every shared lock: [`Answer::Listed`].
    ListShared,
    /// Write the object if there is none: [`Answer::Written`] or [`Answer::Refused`].
    Create(Key, Body),
    /// Take over the object if it still has this version. [`Answer::Written`] or `Refused`.
    Replace(Key, Body, Version),
    /// Rewrite our own record if it still has this version. The same as `Replace` in an object
    /// store; in a directory it happens in place, through the descriptor kept since the record was
    /// created (K21).
    Renew(Key, Body, Version),
    /// Write the object whatever is there (level 0): [`Answer::Written`].
    Put(Key, Body),
    /// Delete the object if it still has this version: [`Answer::Deleted`], [`Answer::Absent`] or
    /// [`Answer::Refused`].
    DeleteVersion(Key, Version),
    /// Delete the object whatever it is: [`Answer::Deleted`] or [`Answer::Absent`].
    Delete(Key),
    /// Wait until this reading of the clock: [`Answer::Waited`].
    WaitUntil(Boot),
}

/// What an operation writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    /// A lock record.
    Record(Record),
    /// The fencing counter.
    Fence(u64),
    /// The n-th scratch text of a probe; each is different.
    Probe(u8),
}

/// What came of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// The object is there.
    Found(Object),
    /// The store itself says that there is no such object (P25).
    Absent,
    /// The shared locks.
    Listed(Vec<Key>),
    /// It was written, and is now this version.
    Written(Version),
    /// It was deleted.
    Deleted,
    /// The store refused, and nothing changed.
    Refused(Why),
    /// It failed. A write or delete may have happened, now or later, all the same.
    Failed(Failure),
    /// The wait is over.
    Waited,
}

/// Why a store refused a conditional operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
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
pub struct Failure {
    /// What kind of failure.
    pub kind: FailureKind,
    /// What the store or the system said.
    pub text: String,
}

/// Whether it is worth trying again, and which class of error it becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// Network, time-out, server error: may go by itself.
    Passing,
    /// Permission, bad credentials, no such bucket: will not.
    Lasting,
    /// What is there is no lock and never will be: a directory, a symlink (K28).
    NotALock,
}

impl Failure {
    /// A failure that may go by itself.
    pub fn passing(text: impl Into<String>) -> Failure {
        Failure {
            kind: FailureKind::Passing,
            text: text.into(),
        }
    }

    /// A failure that will not.
    pub fn lasting(text: impl Into<String>) -> Failure {
        Failure {
            kind: FailureKind::Lasting,
            text: text.into(),
        }
    }
}

/// An object that stands in the way, and why it counts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Blocker {
    /// Where it lies; this is also whether it is shared or exclusive.
    pub key: Key,
    /// The object.
    pub object: Object,
    /// The judgement.
    pub verdict: Verdict,
}

impl Blocker {
    /// Who took it; `None` if it cannot be read.
    pub fn identity(&self) -> Option<Identity> {
        self.object.record().map(Record::identity)
    }

    /// Whether `other` is the same acquisition: the same record, or the same unreadable bytes.
    pub fn is_same(&self, other: &Blocker) -> bool {
        self.key == other.key
            && match (self.identity(), other.identity()) {
                (Some(mine), Some(theirs)) => mine == theirs,
                (None, None) => self.object.version == other.object.version,
                (Some(_), None) | (None, Some(_)) => false,
            }
    }
}

impl fmt::Display for Op {
    /// One line per step, for traces.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Read(key) => write!(f, "read {key}"),
            Op::ListShared => write!(f, "list {}", Key::SHARED_PREFIX),
            Op::Create(key, _) => write!(f, "create {key}"),
            Op::Replace(key, _, _) => write!(f, "replace {key}"),
            Op::Renew(key, _, _) => write!(f, "renew {key}"),
            Op::Put(key, _) => write!(f, "put {key}"),
            Op::DeleteVersion(key, _) => write!(f, "delete {key} by version"),
            Op::Delete(key) => write!(f, "delete {key}"),
            Op::WaitUntil(until) => write!(f, "wait until {:?}", until.0),
        }
    }
}

/// Whether an answer to a read shows the record of `identity`, and at which version.
fn ours(object: &Object, identity: &Identity) -> Option<Version> {
    match &object.content {
        Content::Record(record) if record.is(identity) => Some(object.version.clone()),
        Content::Record(_) | Content::Fence(_) | Content::Unreadable { .. } => None,
    }
}

/// The failure that an answer of the wrong kind amounts to.
fn unexpected(answer: Answer) -> Failure {
    match answer {
        Answer::Failed(failure) => failure,
        Answer::Refused(Why::Contention) => {
            Failure::passing("the store is busy with another writer of the same key")
        }
        Answer::Refused(Why::Condition) => {
            Failure::passing("the store refused on a condition nobody set")
        }
        Answer::Refused(Why::NotSupported) => {
            Failure::lasting("the store does not support this operation")
        }
        Answer::Found(_)
        | Answer::Absent
        | Answer::Listed(_)
        | Answer::Written(_)
        | Answer::Deleted
        | Answer::Waited => Failure::lasting("the store gave an answer to another question"),
    }
}
