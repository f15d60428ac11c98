//! Conflict check after our record is written. It closes the races of acquire (steps 4 and 5 of P28
//! (acquire the exclusive lock), 3 and 4 of P30 (acquire a shared lock)) and of revive (P34 (revive
//! a lapsed lease)).
//!
//! Store-buffering pattern: both sides write first and read afterwards, so of two conflicting
//! clients at least one sees the other. The *settle* time is for clients that read before our write
//! and write after it: originals, and Tenure on stores without conditional writes.
//!
//! ```text
//! exclusive: list shared ─clean───────────────────────▶ settle ─▶ read own ─▶ confirmed
//!               └─ conflict, all younger than ours ─▶ wait ─▶ list ─clean─┘
//! shared:    read exclusive ─free─▶ settle, read exclusive (unless settle is 0) ─free─▶ confirmed
//! ```

use super::list::ListLocks;
use super::retry::Retried;
use super::{
    BlockingObject, LockListing, OpFailure, OpResult, OwnRecord, Procedure, ProcedureStep, StoreOp,
    ours, unexpected,
};
use crate::key::ObjectKey;
use crate::lock_terms::{LockMode, LockTerms};
use crate::staleness::{Object, Observations, judge};
use crate::time::{BootTime, Now};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Confirm {
    terms: LockTerms,
    own: OwnRecord,
    /// When our record was known to be written: the settle time starts here.
    written: BootTime,
    observations: Observations,
    stale: Vec<BlockingObject>,
    doing: ConfirmState,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ConfirmState {
    Listing(ListLocks, ConfirmLook),
    Asking(Retried, Question),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Question {
    /// Conflicts were found: read when our own record was written, by the store's clock.
    OwnDate(Vec<BlockingObject>),
    /// Wait until the younger conflicting clients have withdrawn.
    Withdrawn,
    /// Read the exclusive key.
    Exclusive(ConfirmLook),
    /// Wait until late writers have written.
    Settled,
    /// Read whether our record is still ours.
    StillOurs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ConfirmLook {
    First,
    Last,
}

/// The result of the conflict check.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Confirmed {
    /// No conflict. Contains the stale shared locks that were found.
    Held(OwnRecord, Observations, Vec<BlockingObject>),
    /// Another lock conflicts; our record must be removed.
    Conflict(Box<BlockingObject>),
    /// Our record is gone or was replaced.
    Overtaken(Option<Object>),
    /// The store failed; our record must be removed.
    Failed(OpFailure),
}

impl Confirm {
    pub(super) fn new(
        terms: LockTerms,
        mode: LockMode,
        own: OwnRecord,
        observations: Observations,
        now: Now,
    ) -> Confirm {
        let doing = match mode {
            LockMode::Exclusive => {
                let listing = ListLocks::shared(terms.clone(), observations.clone());
                ConfirmState::Listing(listing, ConfirmLook::First)
            }
            LockMode::Shared => {
                let ask = Retried::new(StoreOp::Read(ObjectKey::Exclusive), terms.retries);
                ConfirmState::Asking(ask, Question::Exclusive(ConfirmLook::First))
            }
        };
        Confirm {
            terms,
            own,
            written: now.boot,
            observations,
            stale: Vec::new(),
            doing,
        }
    }

    /// Our record.
    pub(super) fn own(&self) -> &OwnRecord {
        &self.own
    }

    fn read(&mut self, key: ObjectKey, question: Question) -> ProcedureStep<Confirmed> {
        self.doing = ConfirmState::Asking(
            Retried::new(StoreOp::Read(key), self.terms.retries),
            question,
        );
        ProcedureStep::Going
    }

    fn wait(&mut self, until: BootTime, question: Question) -> ProcedureStep<Confirmed> {
        self.doing = ConfirmState::Asking(Retried::new(StoreOp::WaitUntil(until), 0), question);
        ProcedureStep::Going
    }

    fn answered(
        &mut self,
        question: Question,
        answer: OpResult,
        asked: Now,
        now: Now,
    ) -> ProcedureStep<Confirmed> {
        match question {
            Question::OwnDate(conflicts) => match self.read_own(answer) {
                Ok(own) => self.dated(&own, &conflicts, now),
                Err(end) => ProcedureStep::Done(end),
            },
            Question::Withdrawn => {
                let listing = ListLocks::shared(self.terms.clone(), self.observations.clone());
                self.doing = ConfirmState::Listing(listing, ConfirmLook::Last);
                ProcedureStep::Going
            }
            Question::Exclusive(look) => self.exclusive(answer, look, asked, now),
            Question::Settled => self.settled(),
            Question::StillOurs => match self.read_own(answer) {
                Ok(_) => self.held(),
                Err(end) => ProcedureStep::Done(end),
            },
        }
    }

    fn listed(
        &mut self,
        view: LockListing,
        look: ConfirmLook,
        now: Now,
    ) -> ProcedureStep<Confirmed> {
        let (blocking, stale): (Vec<_>, Vec<_>) = view
            .locks
            .into_iter()
            .partition(|lock| lock.verdict.blocks());
        self.stale = stale;
        match (blocking.first(), look) {
            (None, _) => self.settle(now),
            (Some(_), ConfirmLook::First) => {
                self.read(self.own.key.clone(), Question::OwnDate(blocking))
            }
            (Some(blocker), ConfirmLook::Last) => {
                ProcedureStep::Done(Confirmed::Conflict(Box::new(blocker.clone())))
            }
        }
    }

    /// P28.4: a client that wrote after us will see our record and withdraw. If all conflicting
    /// locks are younger than ours, wait for that and list once more.
    fn dated(
        &mut self,
        own: &Object,
        conflicts: &[BlockingObject],
        now: Now,
    ) -> ProcedureStep<Confirmed> {
        let is_younger = |blocker: &BlockingObject| match (own.modified, blocker.object.modified) {
            (Some(ours), Some(theirs)) => theirs > ours,
            // Without both dates the order is unknown: we withdraw.
            (None, _) | (_, None) => false,
        };
        match conflicts.iter().find(|blocker| !is_younger(blocker)) {
            Some(older) => ProcedureStep::Done(Confirmed::Conflict(Box::new(older.clone()))),
            None => self.wait(now.boot + self.terms.withdrawal(), Question::Withdrawn),
        }
    }

    fn settle(&mut self, now: Now) -> ProcedureStep<Confirmed> {
        let until = self.written + self.terms.settle;
        if until > now.boot {
            return self.wait(until, Question::Settled);
        }
        self.settled()
    }

    fn settled(&mut self) -> ProcedureStep<Confirmed> {
        match self.own.key {
            ObjectKey::Exclusive => self.read(ObjectKey::Exclusive, Question::StillOurs),
            ObjectKey::Shared(_) | ObjectKey::Fence | ObjectKey::Probe(_) => {
                self.read(ObjectKey::Exclusive, Question::Exclusive(ConfirmLook::Last))
            }
        }
    }

    fn held(&mut self) -> ProcedureStep<Confirmed> {
        ProcedureStep::Done(Confirmed::Held(
            self.own.clone(),
            std::mem::take(&mut self.observations),
            std::mem::take(&mut self.stale),
        ))
    }

    fn read_own(&mut self, answer: OpResult) -> Result<Object, Confirmed> {
        match answer {
            OpResult::Found(object) => match ours(&object, &self.own.record.identity()) {
                Some(version) => {
                    self.own.version = version;
                    Ok(object)
                }
                None => Err(Confirmed::Overtaken(Some(object))),
            },
            OpResult::Absent => Err(Confirmed::Overtaken(None)),
            other => Err(Confirmed::Failed(unexpected(other))),
        }
    }

    fn exclusive(
        &mut self,
        answer: OpResult,
        look: ConfirmLook,
        asked: Now,
        now: Now,
    ) -> ProcedureStep<Confirmed> {
        match answer {
            OpResult::Absent => self.observations.forget(&ObjectKey::Exclusive),
            OpResult::Found(object) => {
                let key = ObjectKey::Exclusive;
                let watched = self
                    .observations
                    .note(&key, &object.version, asked.boot, now.boot);
                let verdict = judge(&key, &object, watched, asked, self.terms.skew);
                if verdict.blocks() {
                    let blocker = BlockingObject {
                        key,
                        object,
                        verdict,
                    };
                    return ProcedureStep::Done(Confirmed::Conflict(Box::new(blocker)));
                }
            }
            other => return ProcedureStep::Done(Confirmed::Failed(unexpected(other))),
        }
        match look {
            // With a settle time of zero, one read is enough: an exclusive Tenure client also reads
            // after its write and sees our record (P30.4).
            ConfirmLook::First if self.terms.settle.is_zero() => self.held(),
            ConfirmLook::First => self.settle(now),
            ConfirmLook::Last => self.held(),
        }
    }
}

impl Procedure for Confirm {
    type End = Confirmed;

    fn next(&mut self, now: Now) -> StoreOp {
        match &mut self.doing {
            ConfirmState::Listing(listing, _) => listing.next(now),
            ConfirmState::Asking(ask, _) => ask.next(now),
        }
    }

    fn answer(&mut self, answer: OpResult, now: Now) -> ProcedureStep<Confirmed> {
        match &mut self.doing {
            ConfirmState::Listing(listing, look) => {
                let look = *look;
                match listing.answer(answer, now) {
                    ProcedureStep::Going => ProcedureStep::Going,
                    ProcedureStep::Done(Ok((view, observations))) => {
                        self.observations = observations;
                        self.listed(view, look, now)
                    }
                    ProcedureStep::Done(Err(failure)) => {
                        ProcedureStep::Done(Confirmed::Failed(failure))
                    }
                }
            }
            ConfirmState::Asking(ask, question) => {
                let question = question.clone();
                let asked = ask.asked(now);
                match ask.answer(answer, now) {
                    ProcedureStep::Going => ProcedureStep::Going,
                    ProcedureStep::Done(Ok(answer)) => self.answered(question, answer, asked, now),
                    ProcedureStep::Done(Err(failure)) => {
                        ProcedureStep::Done(Confirmed::Failed(failure))
                    }
                }
            }
        }
    }
}
