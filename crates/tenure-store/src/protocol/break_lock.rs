//! Break: removes locks of other clients, exactly those that were shown (P37 (break repository
//! locks)).

use std::collections::VecDeque;

use super::fence::TakeFence;
use super::remove::{RemoveObject, Removed};
use super::{BlockingObject, OpResult, Procedure, ProcedureStep, StoreOp};
use crate::key::ObjectKey;
use crate::lock_terms::{ConditionLevel, LockMode, LockTerms};
use crate::staleness::Version;
use crate::time::Now;

/// Removes the given locks, then raises the fencing counter if one of them was live.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BreakLocks {
    terms: LockTerms,
    insist: Insist,
    left: VecDeque<BreakTarget>,
    doing: BreakState,
    broken: BreakResult,
    /// A live lock was among the targets: a higher fencing number excludes its holder (C16 (details
    /// of codes and break)).
    raise: bool,
}

/// An object to remove, in the version that was seen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BreakTarget {
    /// The key of the object.
    pub key: ObjectKey,
    /// The version that was seen.
    pub version: Version,
    /// Whether the object may still be held.
    pub live: bool,
}

impl From<&BlockingObject> for BreakTarget {
    fn from(lock: &BlockingObject) -> BreakTarget {
        BreakTarget {
            key: lock.key.clone(),
            version: lock.object.version.clone(),
            live: lock.verdict.blocks(),
        }
    }
}

/// What to do with an object that has changed since it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Insist {
    /// Keep it: it is not the object that was shown.
    No,
    /// Remove it (`--all`): a live holder changes its record with every refresh.
    Yes,
}

/// The result of a break.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct BreakResult {
    /// The removed objects.
    pub removed: Vec<ObjectKey>,
    /// The objects that remain, each with the reason.
    pub left: Vec<(ObjectKey, String)>,
    /// The fencing number that excludes the holders of removed live locks, if one was taken.
    pub fence: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum BreakState {
    Starting,
    Removing(RemoveObject),
    Raising(TakeFence),
}

impl BreakLocks {
    /// Starts to remove `targets`.
    pub fn new(terms: LockTerms, targets: Vec<BreakTarget>, insist: Insist) -> BreakLocks {
        let raise =
            // At level 0 the counter has no conditional write, and a break does not hold the lock
            // that would make an unconditional one safe.
            targets.iter().any(|target| target.live) && terms.level != ConditionLevel::Nothing;
        let (left, broken) = (targets.into(), BreakResult::default());
        BreakLocks {
            terms,
            insist,
            left,
            doing: BreakState::Starting,
            broken,
            raise,
        }
    }

    fn go_on(&mut self) -> ProcedureStep<BreakResult> {
        if let Some(BreakTarget { key, version, .. }) = self.left.pop_front() {
            let terms = self.terms.clone();
            self.doing = BreakState::Removing(match self.insist {
                Insist::No => RemoveObject::exactly(terms, key, version),
                Insist::Yes => RemoveObject::anything(terms, key, version),
            });
            return ProcedureStep::Going;
        }
        if std::mem::take(&mut self.raise) && !self.broken.removed.is_empty() {
            self.doing =
                BreakState::Raising(TakeFence::new(self.terms.clone(), LockMode::Exclusive));
            return ProcedureStep::Going;
        }
        ProcedureStep::Done(std::mem::take(&mut self.broken))
    }

    fn removed(&mut self, key: ObjectKey, end: Removed) -> ProcedureStep<BreakResult> {
        match end {
            Removed::Gone => self.broken.removed.push(key),
            Removed::Absent => {}
            Removed::Other(_) => {
                self.broken
                    .left
                    .push((key, "it has changed since it was shown".into()));
            }
            Removed::Failed(failure) => self.broken.left.push((key, failure.text)),
        }
        self.go_on()
    }
}

impl Procedure for BreakLocks {
    type End = BreakResult;

    fn next(&mut self, now: Now) -> StoreOp {
        match &mut self.doing {
            BreakState::Starting => StoreOp::WaitUntil(now.boot),
            BreakState::Removing(remove) => remove.next(now),
            BreakState::Raising(fence) => fence.next(now),
        }
    }

    fn answer(&mut self, answer: OpResult, now: Now) -> ProcedureStep<BreakResult> {
        match &mut self.doing {
            BreakState::Starting => self.go_on(),
            BreakState::Removing(remove) => match remove.answer(answer, now) {
                ProcedureStep::Going => ProcedureStep::Going,
                ProcedureStep::Done(end) => {
                    let key = remove.key().clone();
                    self.removed(key, end)
                }
            },
            BreakState::Raising(fence) => match fence.answer(answer, now) {
                ProcedureStep::Going => ProcedureStep::Going,
                ProcedureStep::Done(Ok(number)) => {
                    self.broken.fence = number;
                    self.go_on()
                }
                ProcedureStep::Done(Err(_)) => {
                    let why = "the fencing number could not be raised".to_owned();
                    self.broken.left.push((ObjectKey::Fence, why));
                    self.go_on()
                }
            },
        }
    }
}
