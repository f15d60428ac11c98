//! Breaking: removing other people's locks, exactly those that were shown (P37).

use std::collections::VecDeque;

use super::fence::TakeFence;
use super::remove::{RemoveObject, Removed};
use super::{BlockingObject, OpResult, Procedure, ProcedureStep, StoreOp};
use crate::key::ObjectKey;
use crate::lock_terms::{ConditionLevel, LockMode, LockTerms};
use crate::staleness::Version;
use crate::time::Now;

/// Removes the locks it was given.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BreakLocks {
    terms: LockTerms,
    insist: Insist,
    left: VecDeque<BreakTarget>,
    doing: BreakState,
    broken: BreakResult,
    /// A live lock was among them: its holder is shut out by a higher number (C16).
    raise: bool,
}

/// One object to remove, as it was seen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BreakTarget {
    /// Where it lies.
    pub key: ObjectKey,
    /// What was seen there.
    pub version: Version,
    /// Whether anybody may hold it.
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

/// What to do about an object that has changed since it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Insist {
    /// Leave it: it is not what was shown.
    No,
    /// Remove it all the same (`--all`): a live holder refreshes, and is meant.
    Yes,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct BreakResult {
    /// What is gone now.
    pub removed: Vec<ObjectKey>,
    /// What was left, and why.
    pub left: Vec<(ObjectKey, String)>,
    /// The number that shuts the victims out, if one was taken.
    pub fence: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum BreakState {
    Starting,
    Removing(RemoveObject),
    Raising(TakeFence),
}

impl BreakLocks {
    /// Begins to remove `targets`.
    pub fn new(terms: LockTerms, targets: Vec<BreakTarget>, insist: Insist) -> BreakLocks {
        let raise =
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
