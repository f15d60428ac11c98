//! Conflict check after our record is written. It closes the races of acquire (steps 4 and 5 of P28
//! (acquire the exclusive lock), 3 and 4 of P30 (acquire a shared lock)) and of revive (P34 (revive
//! a lapsed lease)), and takes the fencing number (P38 (repository fence counter)).
//!
//! Store-buffering pattern: both sides write first and read afterwards, so of two conflicting
//! clients at least one sees the other. The *settle* time is for clients that read before our write
//! and write after it: originals, and Tenure on stores without conditional writes.
//!
//! ```text
//! exclusive: list shared ─clean───────────────────────▶ settle ─▶ read own ─▶ confirmed
//!               └─ conflict, all younger than ours ─▶ wait ─▶ list ─clean─┘
//! shared:    read exclusive ─free─▶ settle ─▶ read exclusive ─free─▶ confirmed
//! ```
//!
//! With a settle time of zero, the first look is the last one.
//!
//! # The fencing number
//!
//! The number is requested together with the last look, by a write on the condition that the
//! counter is unchanged since it was read. The counter must be read **before the looks are sent**;
//! if the write is refused, all of them are repeated. Then numbers grow in the order of conflicting
//! holds, although the number may be taken before the look is answered:
//!
//! - *A shared hold B, then an exclusive hold A.* B's last look saw no record of A, so it was before
//!   A's write, and B read the counter before that. A's number is written after A's record. If it
//!   were written before B's, the counter would have changed since B read it, and B's write would
//!   be refused. So B's number is smaller.
//! - *An exclusive hold A, then a shared hold B.* If B's number were written before A's, A read the
//!   counter after B's write of it, and listed the shared locks after that. B's record was written
//!   before B's number, so A would have seen it, and would not hold. So A's number is smaller.
//! - *Two exclusive holds.* The second record is written after the first is removed or stale, and a
//!   number is always written after the record and before the hold.
//!
//! At level 0 there are no conditions: the caller takes the number after the last look.

use super::batch::{Answers, Part};
use super::fence::{FenceBase, FenceError, TakeFence, contention_pause};
use super::list::{ListEnd, ListLocks};
use super::retry::{Once, Read, ReadPart, Retried};
use super::{
    BlockingObject, ConditionFailure, LockListing, OpFailure, OpFailureKind, OpResult, OwnRecord,
    Procedure, ProcedureStep, StoreOp, ours, unexpected,
};
use crate::key::ObjectKey;
use crate::lock_terms::{ConditionLevel, LockMode, LockTerms};
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
    plan: FencePlan,
    /// How often another client was faster to take a number.
    overtaken: u8,
    /// How many more writes of the counter may fail.
    failures: u8,
    doing: ConfirmState,
}

/// How the fencing number is taken.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum FencePlan {
    /// By the caller, after the last look (level 0).
    Later,
    /// With the last look. The base is read before that look if it is not known.
    Take(Option<FenceBase>),
    /// The number of a revived lock is kept if the counter still shows it after the last look: then
    /// no other client has taken one since. Otherwise a new one is taken.
    Keep(u64),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ConfirmState {
    /// A look, and with the last one the write of the counter.
    Looking(Look, LookPart, Option<NumberPart>),
    Asking(Retried, Question),
}

/// A look at the locks that conflict with ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Look {
    /// List the shared locks.
    Shared(ConfirmLook),
    /// Read the exclusive key.
    Exclusive(ConfirmLook),
    /// Read whether our exclusive record is still ours.
    StillOurs,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum LookPart {
    List(Part<ListLocks, ListEnd>),
    Read(ReadPart),
}

/// The write that takes a number.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct NumberPart {
    number: u64,
    write: Part<Once, OpResult>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Question {
    /// Conflicts were found: read when our own record was written, by the store's clock.
    OwnDate(Vec<BlockingObject>),
    /// Wait until the younger conflicting clients have withdrawn.
    Withdrawn,
    /// Wait until late writers have written.
    Settled,
    /// Another client took a number: wait before the counter is read again.
    Contended,
    /// Read the counter, then do this look.
    Counter(Look),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ConfirmLook {
    First,
    Last,
}

/// The result of the conflict check.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Confirmed {
    /// No conflict.
    Held(ConfirmedHold),
    /// Another lock conflicts; our record must be removed.
    Conflict(Box<BlockingObject>),
    /// Our record is gone or was replaced.
    Overtaken(Option<Object>),
    /// The store failed; our record must be removed.
    Failed(OpFailure),
    /// No fencing number was taken; our record must be removed.
    NoFence(FenceError),
}

/// A lock without conflicts.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ConfirmedHold {
    pub(super) own: OwnRecord,
    pub(super) observations: Observations,
    /// The stale shared locks that were found.
    pub(super) stale: Vec<BlockingObject>,
    /// The fencing number; `None` with [`FencePlan::Later`].
    pub(super) fence: Option<u64>,
}

impl Confirm {
    pub(super) fn new(
        terms: LockTerms,
        mode: LockMode,
        own: OwnRecord,
        observations: Observations,
        plan: FencePlan,
        now: Now,
    ) -> Confirm {
        let first = match mode {
            LockMode::Exclusive => Look::Shared(ConfirmLook::First),
            LockMode::Shared => Look::Exclusive(ConfirmLook::First),
        };
        let failures = terms.retries;
        let counter = Retried::new(StoreOp::Read(ObjectKey::Fence), terms.retries);
        let mut confirm = Confirm {
            terms,
            own,
            written: now.boot,
            observations,
            stale: Vec::new(),
            plan,
            overtaken: 0,
            failures,
            doing: ConfirmState::Asking(counter, Question::Counter(first)),
        };
        if confirm.plan != FencePlan::Take(None) {
            confirm.doing = confirm.looking(first);
        }
        confirm
    }

    /// Our record.
    pub(super) fn own(&self) -> &OwnRecord {
        &self.own
    }

    /// Returns `true` if no other look follows.
    fn is_last(&self, look: Look) -> bool {
        let settles = !self.terms.settle.is_zero();
        match look {
            // Without conditions, another acquirer may overwrite our record: read it once more.
            Look::Shared(_) => !settles && self.terms.level != ConditionLevel::Nothing,
            // With a settle time of zero, one read is enough: an exclusive Tenure client also reads
            // after its write and sees our record (P30.4).
            Look::Exclusive(ConfirmLook::First) => !settles,
            Look::Exclusive(ConfirmLook::Last) | Look::StillOurs => true,
        }
    }

    fn looking(&self, look: Look) -> ConfirmState {
        let number = match &self.plan {
            // A counter at its maximum is reported when the look is clean.
            FencePlan::Take(Some(base)) if self.is_last(look) => base.raise(self.terms.level).ok(),
            FencePlan::Take(_) | FencePlan::Later | FencePlan::Keep(_) => None,
        };
        let part = match look {
            Look::Shared(_) => {
                let listing = ListLocks::shared(self.terms.clone(), self.observations.clone());
                LookPart::List(Part::new(listing))
            }
            Look::Exclusive(_) | Look::StillOurs => {
                LookPart::Read(Read::part(ObjectKey::Exclusive, self.terms.retries))
            }
        };
        let number = number.map(|(number, write)| NumberPart {
            number,
            write: Part::new(Once(write)),
        });
        ConfirmState::Looking(look, part, number)
    }

    fn look(&mut self, look: Look) -> ProcedureStep<Confirmed> {
        self.doing = self.looking(look);
        ProcedureStep::Going
    }

    fn read(&mut self, key: ObjectKey, question: Question) -> ProcedureStep<Confirmed> {
        let read = Retried::new(StoreOp::Read(key), self.terms.retries);
        self.doing = ConfirmState::Asking(read, question);
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
        now: Now,
    ) -> ProcedureStep<Confirmed> {
        match question {
            Question::OwnDate(conflicts) => match self.read_own(answer) {
                Ok(own) => self.dated(&own, &conflicts, now),
                Err(end) => ProcedureStep::Done(end),
            },
            Question::Withdrawn => self.look(Look::Shared(ConfirmLook::Last)),
            Question::Settled => self.settled(),
            Question::Contended => self.read_counter(),
            Question::Counter(look) => match FenceBase::read(answer) {
                Ok(base) if self.plan == FencePlan::Keep(base.number) => {
                    self.held(Some(base.number))
                }
                Ok(base) => {
                    self.plan = FencePlan::Take(Some(base));
                    self.look(look)
                }
                Err(error) => ProcedureStep::Done(Confirmed::NoFence(error)),
            },
        }
    }

    /// Handles the results of a look, and of the write of the counter beside it.
    fn looked(
        &mut self,
        look: Look,
        part: LookPart,
        number: Option<NumberPart>,
        now: Now,
    ) -> ProcedureStep<Confirmed> {
        let taken = match number.map(|part| (part.number, part.write.end())) {
            None | Some((_, None)) => None,
            Some((number, Some(answer))) => match self.counted(number, answer) {
                Ok(taken) => taken,
                Err(error) => return ProcedureStep::Done(Confirmed::NoFence(error)),
            },
        };
        let clean = match (part, look) {
            (LookPart::List(part), Look::Shared(which)) => match part.end() {
                Some(Ok((view, observations))) => {
                    self.observations = observations;
                    self.listed(view, which)
                }
                Some(Err(failure)) => Err(ProcedureStep::Done(Confirmed::Failed(failure))),
                None => Ok(()),
            },
            (LookPart::Read(part), _) => match (part.end(), look) {
                (Some((Ok(answer), _)), Look::StillOurs) => {
                    self.read_own(answer).map(drop).map_err(ProcedureStep::Done)
                }
                (Some((Ok(answer), asked)), _) => self.exclusive(answer, asked, now),
                (Some((Err(failure), _)), _) => {
                    Err(ProcedureStep::Done(Confirmed::Failed(failure)))
                }
                (None, _) => Ok(()),
            },
            (LookPart::List(_), Look::Exclusive(_) | Look::StillOurs) => Ok(()),
        };
        match clean {
            Err(step) => step,
            Ok(()) if self.is_last(look) => self.clean(taken, now),
            Ok(()) => self.settle(now),
        }
    }

    /// The last look found no conflict.
    fn clean(&mut self, taken: Option<u64>, now: Now) -> ProcedureStep<Confirmed> {
        match (&self.plan, taken) {
            (FencePlan::Later, _) => self.held(None),
            (FencePlan::Keep(_), _) => self.read_counter(),
            (FencePlan::Take(_), Some(number)) => self.held(Some(number)),
            (FencePlan::Take(Some(_)), None) => {
                ProcedureStep::Done(Confirmed::NoFence(FenceError::Used))
            }
            (FencePlan::Take(None), None) => {
                if self.overtaken == TakeFence::ROUNDS {
                    return ProcedureStep::Done(Confirmed::NoFence(FenceError::busy()));
                }
                self.overtaken += 1;
                let until = now.boot + contention_pause(self.overtaken);
                self.wait(until, Question::Contended)
            }
        }
    }

    /// Reads the counter. All looks are repeated after it, because they must be later than the read.
    fn read_counter(&mut self) -> ProcedureStep<Confirmed> {
        let again = match self.own.key {
            ObjectKey::Exclusive => Look::Shared(ConfirmLook::Last),
            ObjectKey::Shared(_) | ObjectKey::Fence | ObjectKey::Probe(_) => {
                Look::Exclusive(ConfirmLook::Last)
            }
        };
        self.read(ObjectKey::Fence, Question::Counter(again))
    }

    /// Returns the number if it is ours. Sets the base of the next attempt.
    fn counted(&mut self, number: u64, answer: OpResult) -> Result<Option<u64>, FenceError> {
        let (base, taken) = match answer {
            OpResult::Written(version) => (Some(FenceBase::written(number, version)), Some(number)),
            OpResult::Refused(ConditionFailure::Condition | ConditionFailure::Contention) => {
                (None, None)
            }
            // The write may have taken effect. A skipped number does no harm.
            OpResult::Failed(failure)
                if failure.kind == OpFailureKind::Passing && self.failures > 0 =>
            {
                self.failures -= 1;
                (None, None)
            }
            other => return Err(FenceError::Failed(unexpected(other))),
        };
        self.plan = FencePlan::Take(base);
        Ok(taken)
    }

    fn listed(
        &mut self,
        view: LockListing,
        look: ConfirmLook,
    ) -> Result<(), ProcedureStep<Confirmed>> {
        let (blocking, stale): (Vec<_>, Vec<_>) = view
            .locks
            .into_iter()
            .partition(|lock| lock.verdict.blocks());
        self.stale = stale;
        match (blocking.first(), look) {
            (None, _) => Ok(()),
            (Some(_), ConfirmLook::First) => {
                Err(self.read(self.own.key.clone(), Question::OwnDate(blocking)))
            }
            (Some(blocker), ConfirmLook::Last) => Err(conflict(blocker.clone())),
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
            Some(older) => conflict(older.clone()),
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
        self.look(match self.own.key {
            ObjectKey::Exclusive => Look::StillOurs,
            ObjectKey::Shared(_) | ObjectKey::Fence | ObjectKey::Probe(_) => {
                Look::Exclusive(ConfirmLook::Last)
            }
        })
    }

    fn held(&mut self, fence: Option<u64>) -> ProcedureStep<Confirmed> {
        ProcedureStep::Done(Confirmed::Held(ConfirmedHold {
            own: self.own.clone(),
            observations: std::mem::take(&mut self.observations),
            stale: std::mem::take(&mut self.stale),
            fence,
        }))
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
        asked: Now,
        now: Now,
    ) -> Result<(), ProcedureStep<Confirmed>> {
        match answer {
            OpResult::Absent => self.observations.forget(&ObjectKey::Exclusive),
            OpResult::Found(object) => {
                let key = ObjectKey::Exclusive;
                let watched = self
                    .observations
                    .note(&key, &object.version, asked.boot, now.boot);
                let verdict = judge(&key, &object, watched, asked, self.terms.skew);
                if verdict.blocks() {
                    return Err(conflict(BlockingObject {
                        key,
                        object,
                        verdict,
                    }));
                }
            }
            other => {
                return Err(ProcedureStep::Done(Confirmed::Failed(unexpected(other))));
            }
        }
        Ok(())
    }
}

fn conflict(blocker: BlockingObject) -> ProcedureStep<Confirmed> {
    ProcedureStep::Done(Confirmed::Conflict(Box::new(blocker)))
}

impl LookPart {
    fn ask(&mut self, request: &mut Vec<StoreOp>, now: Now) {
        match self {
            LookPart::List(part) => part.ask(request, now),
            LookPart::Read(part) => part.ask(request, now),
        }
    }

    fn answer(&mut self, answers: &mut Answers, now: Now) {
        match self {
            LookPart::List(part) => part.answer(answers, now),
            LookPart::Read(part) => part.answer(answers, now),
        }
    }

    fn is_done(&self) -> bool {
        match self {
            LookPart::List(part) => part.is_done(),
            LookPart::Read(part) => part.is_done(),
        }
    }
}

impl Procedure for Confirm {
    type End = Confirmed;

    fn next(&mut self, now: Now) -> StoreOp {
        match &mut self.doing {
            ConfirmState::Asking(ask, _) => ask.next(now),
            ConfirmState::Looking(_, part, number) => {
                let mut request = Vec::new();
                part.ask(&mut request, now);
                if let Some(number) = number {
                    number.write.ask(&mut request, now);
                }
                StoreOp::batch(request)
            }
        }
    }

    fn answer(&mut self, answer: OpResult, now: Now) -> ProcedureStep<Confirmed> {
        match self.doing.clone() {
            ConfirmState::Looking(look, mut part, mut number) => {
                let mut answers = answer.into_parts().into_iter();
                part.answer(&mut answers, now);
                if let Some(number) = &mut number {
                    number.write.answer(&mut answers, now);
                }
                if part.is_done() && number.as_ref().is_none_or(|part| part.write.is_done()) {
                    return self.looked(look, part, number, now);
                }
                self.doing = ConfirmState::Looking(look, part, number);
                ProcedureStep::Going
            }
            ConfirmState::Asking(mut ask, question) => match ask.answer(answer, now) {
                ProcedureStep::Going => {
                    self.doing = ConfirmState::Asking(ask, question);
                    ProcedureStep::Going
                }
                ProcedureStep::Done(Ok(answer)) => self.answered(question, answer, now),
                ProcedureStep::Done(Err(failure)) => {
                    ProcedureStep::Done(Confirmed::Failed(failure))
                }
            },
        }
    }
}
