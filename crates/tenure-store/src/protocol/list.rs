//! Listing: lists the locks, reads each and decides its staleness (steps 2 and 4 of P28 (acquire
//! the exclusive lock), P42 (inspection never writes)).
//!
//! One round of requests lists, the next ones read the listed locks, up to [`AT_ONCE`] together.

use std::collections::VecDeque;

use super::batch::Part;
use super::retry::{Read, ReadPart, Retried};
use super::{BlockingObject, OpFailure, OpResult, Procedure, ProcedureStep, StoreOp, unexpected};
use crate::key::ObjectKey;
use crate::lock_terms::LockTerms;
use crate::staleness::{Object, Observations, judge};
use crate::time::Now;

/// Maximum number of locks that are read at the same time.
const AT_ONCE: usize = 16;

/// Reads all shared locks, and optionally the exclusive lock. Writes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ListLocks {
    terms: LockTerms,
    observations: Observations,
    /// The list of the shared locks, until its keys are taken over.
    list: Option<Part<Retried, Result<OpResult, OpFailure>>>,
    /// The locks that are being read.
    reading: Vec<(ObjectKey, ReadPart)>,
    /// The listed locks that are not read yet.
    left: VecDeque<ObjectKey>,
    view: LockListing,
}

/// The listing and the updated observations.
pub(super) type ListEnd = Result<(LockListing, Observations), OpFailure>;

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
        let exclusive = Read::part(ObjectKey::Exclusive, terms.retries);
        ListLocks {
            reading: vec![(ObjectKey::Exclusive, exclusive)],
            ..ListLocks::shared(terms, observations)
        }
    }

    /// Starts a listing of the shared locks.
    pub(super) fn shared(terms: LockTerms, observations: Observations) -> ListLocks {
        let list = Part::new(Retried::new(StoreOp::ListShared, terms.retries));
        ListLocks {
            terms,
            observations,
            list: Some(list),
            reading: Vec::new(),
            left: VecDeque::new(),
            view: LockListing::default(),
        }
    }

    fn see(&mut self, key: ObjectKey, object: Object, asked: Now, now: Now) {
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

    /// Takes over the keys of the list. Returns `false` while it is under way.
    fn take_list(&mut self) -> Result<bool, OpFailure> {
        match self.list.take() {
            None => Ok(true),
            Some(Part::Done(Ok(OpResult::Listed(keys)))) => {
                self.observations.keep_shared(&keys);
                self.left = keys.into();
                Ok(true)
            }
            Some(Part::Done(Ok(other))) => Err(unexpected(other)),
            Some(Part::Done(Err(failure))) => Err(failure),
            going @ Some(Part::Going(..)) => {
                self.list = going;
                Ok(false)
            }
        }
    }

    /// Takes the locks that were read.
    fn take_read(&mut self, now: Now) -> Result<(), OpFailure> {
        for (key, read) in std::mem::take(&mut self.reading) {
            match read {
                Part::Going(..) => self.reading.push((key, read)),
                Part::Done((found, asked)) => match found? {
                    OpResult::Found(object) => self.see(key, object, asked, now),
                    // Listed but gone: its holder has released it in the meantime.
                    OpResult::Absent => self.observations.forget(&key),
                    other => return Err(unexpected(other)),
                },
            }
        }
        Ok(())
    }

    /// Continues with the listed keys when the list and the reads under way have ended.
    fn advance(&mut self, now: Now) -> Result<ProcedureStep<ListEnd>, OpFailure> {
        let is_listed = self.take_list()?;
        self.take_read(now)?;
        if !is_listed || !self.reading.is_empty() {
            return Ok(ProcedureStep::Going);
        }
        let next = self.left.len().min(AT_ONCE);
        for key in self.left.drain(..next) {
            let read = Read::part(key.clone(), self.terms.retries);
            self.reading.push((key, read));
        }
        Ok(match self.reading.is_empty() {
            false => ProcedureStep::Going,
            true => ProcedureStep::Done(Ok((
                std::mem::take(&mut self.view),
                std::mem::take(&mut self.observations),
            ))),
        })
    }
}

impl Procedure for ListLocks {
    type End = ListEnd;

    fn next(&mut self, now: Now) -> StoreOp {
        let mut request = Vec::new();
        if let Some(list) = &mut self.list {
            list.ask(&mut request, now);
        }
        for (_, read) in &mut self.reading {
            read.ask(&mut request, now);
        }
        StoreOp::batch(request)
    }

    fn answer(&mut self, answer: OpResult, now: Now) -> ProcedureStep<ListEnd> {
        let mut answers = answer.into_parts().into_iter();
        if let Some(list) = &mut self.list {
            list.answer(&mut answers, now);
        }
        for (_, read) in &mut self.reading {
            read.answer(&mut answers, now);
        }
        match self.advance(now) {
            Ok(step) => step,
            Err(failure) => ProcedureStep::Done(Err(failure)),
        }
    }
}
