//! Listing: lists the locks, reads each and decides its staleness (steps 2 and 4 of P28 (acquire
//! the exclusive lock), P42 (inspection never writes)).

use std::collections::VecDeque;

use super::retry::Retried;
use super::{BlockingObject, OpFailure, OpResult, Procedure, ProcedureStep, StoreOp, unexpected};
use crate::key::ObjectKey;
use crate::lock_terms::LockTerms;
use crate::staleness::{Object, Observations, judge};
use crate::time::Now;

/// Reads all shared locks, and optionally the exclusive lock first. Writes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ListLocks {
    terms: LockTerms,
    observations: Observations,
    looking: ListState,
    left: VecDeque<ObjectKey>,
    asking: Retried,
    view: LockListing,
}

/// The object of the current request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ListState {
    Exclusive,
    List,
    Shared(ObjectKey),
}

/// The result of a listing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct LockListing {
    /// Every lock object with its verdict; the exclusive lock is first.
    pub locks: Vec<BlockingObject>,
}

impl LockListing {
    /// Returns the locks that block an exclusive request.
    pub fn blocking(&self) -> impl Iterator<Item = &BlockingObject> {
        self.locks.iter().filter(|lock| lock.verdict.blocks())
    }
}

impl ListLocks {
    /// Starts a listing of all locks, including the exclusive one.
    pub fn all(terms: LockTerms, observations: Observations) -> ListLocks {
        ListLocks::start(terms, observations, ListState::Exclusive)
    }

    /// Starts a listing of the shared locks.
    pub(super) fn shared(terms: LockTerms, observations: Observations) -> ListLocks {
        ListLocks::start(terms, observations, ListState::List)
    }

    fn start(terms: LockTerms, observations: Observations, looking: ListState) -> ListLocks {
        let asking = looking.ask(terms.retries);
        let left = VecDeque::new();
        ListLocks {
            terms,
            observations,
            looking,
            left,
            asking,
            view: LockListing::default(),
        }
    }

    fn look(&mut self, looking: ListState) -> ProcedureStep<<ListLocks as Procedure>::End> {
        self.asking = looking.ask(self.terms.retries);
        self.looking = looking;
        ProcedureStep::Going
    }

    fn look_on(&mut self) -> ProcedureStep<<ListLocks as Procedure>::End> {
        match self.left.pop_front() {
            Some(key) => self.look(ListState::Shared(key)),
            None => ProcedureStep::Done(Ok((
                std::mem::take(&mut self.view),
                std::mem::take(&mut self.observations),
            ))),
        }
    }

    fn see(&mut self, key: ObjectKey, object: Object, now: Now) {
        let asked = self.asking.asked(now);
        let watched = self
            .observations
            .note(&key, &object.version, asked.boot, now.boot);
        let verdict = judge(&key, &object, watched, asked, self.terms.skew);
        self.view.locks.push(BlockingObject {
            key,
            object,
            verdict,
        });
    }
}

impl ListState {
    fn ask(&self, retries: u8) -> Retried {
        let op = match self {
            ListState::Exclusive => StoreOp::Read(ObjectKey::Exclusive),
            ListState::List => StoreOp::ListShared,
            ListState::Shared(key) => StoreOp::Read(key.clone()),
        };
        Retried::new(op, retries)
    }
}

impl Procedure for ListLocks {
    /// The listing and the updated observations.
    type End = Result<(LockListing, Observations), OpFailure>;

    fn next(&mut self, now: Now) -> StoreOp {
        self.asking.next(now)
    }

    fn answer(&mut self, answer: OpResult, now: Now) -> ProcedureStep<Self::End> {
        let answer = match self.asking.answer(answer, now) {
            ProcedureStep::Going => return ProcedureStep::Going,
            ProcedureStep::Done(Ok(answer)) => answer,
            ProcedureStep::Done(Err(failure)) => return ProcedureStep::Done(Err(failure)),
        };
        match (self.looking.clone(), answer) {
            (ListState::Exclusive, OpResult::Found(object)) => {
                self.see(ObjectKey::Exclusive, object, now);
                self.look(ListState::List)
            }
            (ListState::Exclusive, OpResult::Absent) => {
                self.observations.forget(&ObjectKey::Exclusive);
                self.look(ListState::List)
            }
            (ListState::List, OpResult::Listed(keys)) => {
                self.observations.keep_shared(&keys);
                self.left = keys.into();
                self.look_on()
            }
            (ListState::Shared(key), OpResult::Found(object)) => {
                self.see(key, object, now);
                self.look_on()
            }
            // Listed but gone: its holder has released it in the meantime.
            (ListState::Shared(key), OpResult::Absent) => {
                self.observations.forget(&key);
                self.look_on()
            }
            (_, other) => ProcedureStep::Done(Err(unexpected(other))),
        }
    }
}
