//! Acquire: read, write, check for conflicts, take a fencing number (P28 (acquire the exclusive
//! lock) to P30 (acquire a shared lock)), and wait if requested (P19 (waiting for the repository)).
//!
//! ```text
//!   ┌── pause ◀── another lock is held, and the caller waits
//!   ▼
//! look ──▶ write ──▶ confirm and fence ──▶ clean up ──▶ Acquired
//!   ▲        │                └── failed ─▶ withdraw ─▶ AcquireRefusal
//!   └────────┘ taken, up to 5 times
//! ```
//!
//! With conditional writes, the look is one round of requests: the exclusive key, the shared locks
//! and the fencing counter are read at the same time. It decides whether a write makes sense and
//! which version it replaces. What it saw is not relied on: the write has a condition, the shared
//! locks are listed again, and the counter is written on the condition that it is unchanged.
//!
//! Every failure while our record may be in the store goes through `withdraw`, which removes the
//! record (P29 (unknown write outcome)). [`Acquire::cancel`] does the same.

use super::batch::Part;
use super::confirm::{Confirm, Confirmed, ConfirmedHold, FencePlan};
use super::fence::{FenceBase, FenceError, TakeFence};
use super::list::{ListEnd, ListLocks};
use super::remove::{RemoveObject, Removed};
use super::retry::{Read, ReadPart, Retried};
use super::rng::Rng;
use super::write::{KeyPlan, RecordDraft, WriteExpectation, WriteRecord, WriteResult};
use super::{
    BlockingObject, LockListing, OpFailure, OpResult, OwnRecord, Procedure, ProcedureStep, StoreOp,
    unexpected,
};
use crate::key::ObjectKey;
use crate::lock_terms::{ConditionLevel, LockMode, LockTerms};
use crate::record::{HolderBlock, LockRecord};
use crate::staleness::{Object, Observations, Staleness, Version, judge};
use crate::time::{BootTime, Now};

/// The parameters of an acquire.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AcquireParams {
    /// The requested mode.
    pub mode: LockMode,
    /// The `operation` of the record.
    pub operation: String,
    /// The `holder` of the record.
    pub holder: String,
    /// The description of this process (K6 (the `tenure` block)). `Acquire` fills in token, ttl and
    /// fence.
    pub block: HolderBlock,
    /// Whether to wait while the lock is held.
    pub wait: WaitBehavior,
    /// A random seed from the operating system. It separates acquisitions and adds jitter to waits.
    pub seed: u128,
}

/// What to do while another client holds the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitBehavior {
    /// Refuse at once, as the originals do.
    No,
    /// Try again every [`LockTerms::poll`] (P19) until [`Acquire::stop_waiting`].
    Yes,
}

/// An acquired lock. [`HoldProcedure::new`](super::HoldProcedure::new) keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Acquired {
    /// The mode of the lock.
    pub mode: LockMode,
    /// Our record.
    pub own: OwnRecord,
    /// The fencing number (P38 (repository fence counter)).
    pub fence: Option<u64>,
    /// The observed versions of other locks.
    pub observations: Observations,
}

/// The reason why a lock was not acquired. Nothing of ours remains in the store, except for
/// [`AcquireRefusal::LeftBehind`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AcquireRefusal {
    /// Another lock is held. An unreadable object counts as held (P24 (unparsable repository
    /// records)).
    Held(Box<BlockingObject>),
    /// Another client was faster.
    LostRace {
        /// The other lock, if it is known.
        to: Option<Box<BlockingObject>>,
    },
    /// The lock was still held when the time to wait ended.
    TimedOut(Box<BlockingObject>),
    /// The store failed (P25 (failed reads are not absence)).
    Store(OpFailure),
    /// The acquire failed, and then the removal of our record failed. The record stays until it
    /// expires.
    LeftBehind {
        /// The first failure.
        cause: Box<AcquireRefusal>,
        /// The key of the record.
        key: ObjectKey,
        /// Why it could not be removed.
        failure: OpFailure,
    },
    /// The fencing counter is damaged or at its maximum.
    Fence,
    /// The store was too slow: the lease was used up before the lock was held, or, without
    /// conditional writes, the listing took longer than the settle time.
    TooSlow,
    /// The caller cancelled the request.
    Cancelled,
}

/// Acquires a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Acquire {
    terms: LockTerms,
    request: AcquireParams,
    rng: Rng,
    observations: Observations,
    /// The fencing counter as the look saw it; `None` at level 0.
    counter: Option<FenceBase>,
    round: u8,
    stage: AcquireStage,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum AcquireStage {
    /// Reads the exclusive key, and with conditional writes also the shared locks and the fencing
    /// counter (P28.1, P28.2, P30.1).
    Looking(Look),
    /// Level 0: lists the shared locks (P28.2), with the time when the exclusive key was read,
    /// because no condition protects the write.
    Listing(ListLocks, WriteExpectation, BootTime),
    /// Writes our record (P28.3, P30.2).
    Writing(WriteRecord),
    /// Reads the conflicting locks again and takes the fencing number (P28.4, P28.5, P30.3, P30.4,
    /// P38).
    Confirming(Confirm),
    /// Level 0: takes a fencing number (P38).
    Fencing(TakeFence, OwnRecord, Vec<BlockingObject>),
    /// Removes stale shared locks (P28.6).
    Sweeping(RemoveObject, Vec<(ObjectKey, Version)>, Acquired),
    /// Removes our own record after a failure (P29).
    Withdrawing(RemoveObject, AcquireRefusal),
    /// Waits before the next attempt (P19).
    Pausing(Retried, AcquireRefusal),
    /// Cancelled before a write was sent.
    Over(AcquireRefusal),
}

type AcquireEnd = Result<Acquired, AcquireRefusal>;

/// The look before the write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Look {
    exclusive: ReadPart,
    shared: Option<Part<ListLocks, ListEnd>>,
    counter: Option<ReadPart>,
}

impl Look {
    fn new(terms: &LockTerms, mode: LockMode, observations: &Observations) -> Look {
        // At level 0 the time between the read of the exclusive key and the write is limited, so
        // the key is read first, and the list only follows if it is free.
        let at_once = terms.level != ConditionLevel::Nothing;
        let listing = || ListLocks::shared(terms.clone(), observations.clone());
        Look {
            exclusive: Read::part(ObjectKey::Exclusive, terms.retries),
            shared: (at_once && mode == LockMode::Exclusive).then(|| Part::new(listing())),
            counter: at_once.then(|| Read::part(ObjectKey::Fence, terms.retries)),
        }
    }

    fn next(&mut self, now: Now) -> StoreOp {
        let mut request = Vec::new();
        self.exclusive.ask(&mut request, now);
        if let Some(shared) = &mut self.shared {
            shared.ask(&mut request, now);
        }
        if let Some(counter) = &mut self.counter {
            counter.ask(&mut request, now);
        }
        StoreOp::batch(request)
    }

    fn answer(&mut self, answer: OpResult, now: Now) {
        let mut answers = answer.into_parts().into_iter();
        self.exclusive.answer(&mut answers, now);
        if let Some(shared) = &mut self.shared {
            shared.answer(&mut answers, now);
        }
        if let Some(counter) = &mut self.counter {
            counter.answer(&mut answers, now);
        }
    }

    fn is_done(&self) -> bool {
        self.exclusive.is_done()
            && self.shared.as_ref().is_none_or(Part::is_done)
            && self.counter.as_ref().is_none_or(Part::is_done)
    }
}

impl Acquire {
    /// Starts an acquire. `observations` are the versions that this process has seen before.
    pub fn new(terms: LockTerms, request: AcquireParams, observations: Observations) -> Acquire {
        let rng = Rng::new(request.seed);
        let stage = AcquireStage::Looking(Look::new(&terms, request.mode, &observations));
        Acquire {
            terms,
            request,
            rng,
            observations,
            counter: None,
            round: 0,
            stage,
        }
    }

    /// Returns the lock that blocks the request, while the acquire pauses between two attempts.
    pub fn blocker(&self) -> Option<&BlockingObject> {
        match &self.stage {
            AcquireStage::Pausing(_, AcquireRefusal::Held(blocker)) => Some(blocker),
            AcquireStage::Pausing(_, AcquireRefusal::LostRace { to: Some(blocker) }) => {
                Some(blocker)
            }
            _ => None,
        }
    }

    /// Stops waiting at the deadline: the attempt under way is finished, but no new one starts. A
    /// pause between two attempts may be answered at once.
    pub fn stop_waiting(&mut self) {
        self.request.wait = WaitBehavior::No;
    }

    /// Cancels the request.
    ///
    /// If an operation is under way, pass its result first; that may end the procedure with a lock,
    /// which the caller then releases. A wait need not be answered. Then keep driving: the
    /// procedure ends with [`AcquireRefusal::Cancelled`] and leaves nothing in the store.
    pub fn cancel(&mut self) {
        self.request.wait = WaitBehavior::No;
        let own = match &self.stage {
            AcquireStage::Looking(_)
            | AcquireStage::Listing(..)
            | AcquireStage::Pausing(..)
            | AcquireStage::Over(_) => None,
            AcquireStage::Writing(write) => write.own(),
            AcquireStage::Confirming(confirm) => Some(confirm.own().clone()),
            AcquireStage::Fencing(_, own, _) => Some(own.clone()),
            AcquireStage::Sweeping(_, _, acquired) => Some(acquired.own.clone()),
            AcquireStage::Withdrawing(..) => return,
        };
        self.stage = match own {
            Some(own) => self.withdrawing(&own, AcquireRefusal::Cancelled),
            None => AcquireStage::Over(AcquireRefusal::Cancelled),
        };
    }

    fn go(&mut self, stage: AcquireStage) -> ProcedureStep<AcquireEnd> {
        self.stage = stage;
        ProcedureStep::Going
    }

    /// Ends an attempt that has left nothing in the store.
    fn refuse(&mut self, refusal: AcquireRefusal, now: Now) -> ProcedureStep<AcquireEnd> {
        let again = matches!(
            refusal,
            AcquireRefusal::Held(_) | AcquireRefusal::LostRace { .. }
        );
        if !again || self.request.wait == WaitBehavior::No {
            return ProcedureStep::Done(Err(refusal));
        }
        let until = now.boot + self.rng.around(self.terms.poll);
        self.go(AcquireStage::Pausing(
            Retried::new(StoreOp::WaitUntil(until), 0),
            refusal,
        ))
    }

    /// Ends an attempt whose record may be in the store.
    fn withdraw(&mut self, own: &OwnRecord, refusal: AcquireRefusal) -> ProcedureStep<AcquireEnd> {
        let stage = self.withdrawing(own, refusal);
        self.go(stage)
    }

    fn withdrawing(&self, own: &OwnRecord, refusal: AcquireRefusal) -> AcquireStage {
        AcquireStage::Withdrawing(RemoveObject::own(self.terms.clone(), own), refusal)
    }

    /// Starts the look of an attempt.
    fn look(&mut self) -> ProcedureStep<AcquireEnd> {
        let look = Look::new(&self.terms, self.request.mode, &self.observations);
        self.go(AcquireStage::Looking(look))
    }

    /// Decides how to continue after the look (P28.1, P28.2, P30.1).
    fn looked(&mut self, look: Look, now: Now) -> ProcedureStep<AcquireEnd> {
        // The shared locks first: their observations are the newer ones.
        let listed = match look.shared.and_then(Part::end) {
            None => None,
            Some(Ok((view, observations))) => {
                self.observations = observations;
                Some(view)
            }
            Some(Err(failure)) => return self.refuse(AcquireRefusal::Store(failure), now),
        };
        let (found, asked) = match look.exclusive.end() {
            Some((Ok(OpResult::Absent), asked)) => (None, asked),
            Some((Ok(OpResult::Found(object)), asked)) => (Some(object), asked),
            Some((Ok(other), _)) => {
                return self.refuse(AcquireRefusal::Store(unexpected(other)), now);
            }
            Some((Err(failure), _)) => return self.refuse(AcquireRefusal::Store(failure), now),
            None => (None, now),
        };
        let expect = match found {
            None => {
                self.observations.forget(&ObjectKey::Exclusive);
                WriteExpectation::Nothing
            }
            Some(object) => {
                let blocker = self.judged(ObjectKey::Exclusive, object, asked, now);
                if blocker.verdict.blocks() {
                    return self.refuse(AcquireRefusal::Held(Box::new(blocker)), now);
                }
                WriteExpectation::Stale(blocker.object.version)
            }
        };
        if let Some(blocker) = listed.iter().flat_map(LockListing::blocking).next() {
            return self.refuse(AcquireRefusal::Held(Box::new(blocker.clone())), now);
        }
        self.counter = match look.counter.and_then(Part::end) {
            None => None,
            Some((Err(failure), _)) => return self.refuse(AcquireRefusal::Store(failure), now),
            Some((Ok(answer), _)) => match FenceBase::read(answer) {
                Ok(base) => Some(base),
                Err(error) => return self.refuse(error.into(), now),
            },
        };
        match (self.request.mode, listed) {
            // Level 0.
            (LockMode::Exclusive, None) => {
                let listing = ListLocks::shared(self.terms.clone(), self.observations.clone());
                self.go(AcquireStage::Listing(listing, expect, asked.boot))
            }
            (LockMode::Exclusive, Some(_)) => self.write(expect),
            // A shared lock has its own key; a stale exclusive record stays.
            (LockMode::Shared, _) => self.write(WriteExpectation::Nothing),
        }
    }

    fn judged(&mut self, key: ObjectKey, object: Object, asked: Now, now: Now) -> BlockingObject {
        let watched = self
            .observations
            .note(&key, &object.version, asked.boot, now.boot);
        let verdict = judge(&key, &object, watched, asked, self.terms.skew);
        BlockingObject {
            key,
            object,
            verdict,
        }
    }

    fn listed(
        &mut self,
        view: &LockListing,
        expect: WriteExpectation,
        looked: BootTime,
        now: Now,
    ) -> ProcedureStep<AcquireEnd> {
        if let Some(blocker) = view.blocking().next() {
            return self.refuse(AcquireRefusal::Held(Box::new(blocker.clone())), now);
        }
        // At level 0 no condition prevents us from overwriting a record that appeared after our
        // read. Other Tenure clients wait `settle` for writes that are based on older reads, so our
        // write must be sent within that time.
        if now.boot.since(looked) >= self.terms.settle {
            if self.round == LockTerms::ROUNDS {
                return self.refuse(AcquireRefusal::TooSlow, now);
            }
            self.round += 1;
            return self.look();
        }
        self.write(expect)
    }

    fn write(&mut self, expect: WriteExpectation) -> ProcedureStep<AcquireEnd> {
        let key = match self.request.mode {
            LockMode::Exclusive => KeyPlan::Exclusive,
            LockMode::Shared => KeyPlan::Shared {
                suffix: self.rng.number(),
            },
        };
        let block = HolderBlock {
            token: Some(self.rng.token()),
            ttl: Some(self.terms.ttl.as_secs()),
            fence: None,
            ..self.request.block.clone()
        };
        let record = LockRecord {
            operation: self.request.operation.clone(),
            holder: self.request.holder.clone(),
            acquired_at: String::new(),
            expires_at: String::new(),
            is_shared: self.request.mode == LockMode::Shared,
            tenure: Some(block),
        };
        let write = WriteRecord::new(self.terms.clone(), expect, RecordDraft { key, record });
        self.go(AcquireStage::Writing(write))
    }

    fn wrote(&mut self, end: WriteResult, now: Now) -> ProcedureStep<AcquireEnd> {
        match end {
            WriteResult::Ours(own) => {
                // A copy: if this attempt fails, the next one continues with these observations.
                let observations = self.observations.clone();
                let mode = self.request.mode;
                let plan = match self.terms.level {
                    ConditionLevel::Nothing => FencePlan::Later,
                    ConditionLevel::Writes | ConditionLevel::Deletes => {
                        FencePlan::Take(self.counter.take())
                    }
                };
                let confirm = Confirm::new(self.terms.clone(), mode, own, observations, plan, now);
                self.go(AcquireStage::Confirming(confirm))
            }
            WriteResult::Taken(found) => {
                if self.round == LockTerms::ROUNDS {
                    let to = self.other(found, now);
                    return self.refuse(AcquireRefusal::LostRace { to }, now);
                }
                self.round += 1;
                self.look()
            }
            WriteResult::Overtaken(object) => {
                let to = self.other(Some(object), now);
                self.refuse(AcquireRefusal::LostRace { to }, now)
            }
            WriteResult::Unknown(own, failure) => {
                self.withdraw(&own, AcquireRefusal::Store(failure))
            }
            WriteResult::Failed(failure) => self.refuse(AcquireRefusal::Store(failure), now),
        }
    }

    /// Returns the lock at the exclusive key that replaced ours.
    fn other(&mut self, found: Option<Object>, now: Now) -> Option<Box<BlockingObject>> {
        match self.request.mode {
            LockMode::Exclusive => {
                found.map(|object| Box::new(self.judged(ObjectKey::Exclusive, object, now, now)))
            }
            LockMode::Shared => None,
        }
    }

    fn confirmed(&mut self, own: OwnRecord, end: Confirmed, now: Now) -> ProcedureStep<AcquireEnd> {
        match end {
            Confirmed::Held(ConfirmedHold {
                own,
                observations,
                stale,
                fence,
            }) => {
                self.observations = observations;
                if self.terms.level != ConditionLevel::Nothing {
                    return self.fenced(own, stale, fence, now);
                }
                let fence = TakeFence::new(self.terms.clone(), self.request.mode);
                self.go(AcquireStage::Fencing(fence, own, stale))
            }
            Confirmed::Conflict(blocker) => {
                self.withdraw(&own, AcquireRefusal::LostRace { to: Some(blocker) })
            }
            // Another record or none is there: nothing of ours to remove.
            Confirmed::Overtaken(found) => {
                let to = self.other(found, now);
                self.refuse(AcquireRefusal::LostRace { to }, now)
            }
            Confirmed::Failed(failure) => self.withdraw(&own, AcquireRefusal::Store(failure)),
            Confirmed::NoFence(error) => self.withdraw(&own, error.into()),
        }
    }

    fn fenced(
        &mut self,
        mut own: OwnRecord,
        stale: Vec<BlockingObject>,
        fence: Option<u64>,
        now: Now,
    ) -> ProcedureStep<AcquireEnd> {
        if let Some(block) = &mut own.record.tenure {
            block.fence = fence;
        }
        let observations = std::mem::take(&mut self.observations);
        let acquired = Acquired {
            mode: self.request.mode,
            own,
            fence,
            observations,
        };
        // Remove stale locks by version only. With a plain delete, the holder may revive its lock
        // (P34 (revive a lapsed lease)) between our read and our delete, and would then hold
        // without a record.
        let by_version = self.terms.level == ConditionLevel::Deletes;
        let dead = stale
            .into_iter()
            .filter(|lock| by_version && matches!(lock.verdict, Staleness::Stale(_)))
            .map(|lock| (lock.key, lock.object.version))
            .collect();
        self.sweep(dead, acquired, now)
    }

    fn sweep(
        &mut self,
        mut dead: Vec<(ObjectKey, Version)>,
        acquired: Acquired,
        now: Now,
    ) -> ProcedureStep<AcquireEnd> {
        match dead.pop() {
            Some((key, version)) => {
                let terms = LockTerms {
                    retries: 0,
                    ..self.terms.clone()
                };
                let remove = RemoveObject::exactly(terms, key, version);
                self.go(AcquireStage::Sweeping(remove, dead, acquired))
            }
            None => self.hold(acquired, now),
        }
    }

    /// Last check: if the lease is already used up, the lock was never held (P32 (lease limit at 80
    /// percent)).
    fn hold(&mut self, acquired: Acquired, now: Now) -> ProcedureStep<AcquireEnd> {
        let safe_until: BootTime = acquired.own.sent + self.terms.reliance();
        if now.boot >= safe_until {
            return self.withdraw(&acquired.own, AcquireRefusal::TooSlow);
        }
        ProcedureStep::Done(Ok(acquired))
    }

    fn withdrew(
        &mut self,
        key: ObjectKey,
        refusal: AcquireRefusal,
        end: Removed,
        now: Now,
    ) -> ProcedureStep<AcquireEnd> {
        match end {
            Removed::Gone | Removed::Absent | Removed::Other(_) => self.refuse(refusal, now),
            Removed::Failed(failure) => {
                let cause = Box::new(refusal);
                ProcedureStep::Done(Err(AcquireRefusal::LeftBehind {
                    cause,
                    key,
                    failure,
                }))
            }
        }
    }
}

impl From<FenceError> for AcquireRefusal {
    fn from(error: FenceError) -> AcquireRefusal {
        match error {
            FenceError::Failed(failure) => AcquireRefusal::Store(failure),
            FenceError::Malformed | FenceError::Used => AcquireRefusal::Fence,
        }
    }
}

impl Procedure for Acquire {
    type End = AcquireEnd;

    fn next(&mut self, now: Now) -> StoreOp {
        match &mut self.stage {
            AcquireStage::Looking(look) => look.next(now),
            AcquireStage::Pausing(ask, _) => ask.next(now),
            AcquireStage::Listing(listing, _, _) => listing.next(now),
            AcquireStage::Writing(write) => write.next(now),
            AcquireStage::Confirming(confirm) => confirm.next(now),
            AcquireStage::Fencing(fence, _, _) => fence.next(now),
            AcquireStage::Sweeping(remove, _, _) | AcquireStage::Withdrawing(remove, _) => {
                remove.next(now)
            }
            AcquireStage::Over(_) => StoreOp::WaitUntil(now.boot),
        }
    }

    fn answer(&mut self, answer: OpResult, now: Now) -> ProcedureStep<AcquireEnd> {
        match self.stage.clone() {
            AcquireStage::Looking(mut look) => {
                look.answer(answer, now);
                match look.is_done() {
                    true => self.looked(look, now),
                    false => self.go(AcquireStage::Looking(look)),
                }
            }
            AcquireStage::Listing(mut listing, expect, looked) => match listing.answer(answer, now)
            {
                ProcedureStep::Going => self.go(AcquireStage::Listing(listing, expect, looked)),
                ProcedureStep::Done(Ok((view, observations))) => {
                    self.observations = observations;
                    self.listed(&view, expect, looked, now)
                }
                ProcedureStep::Done(Err(failure)) => {
                    self.refuse(AcquireRefusal::Store(failure), now)
                }
            },
            AcquireStage::Writing(mut write) => match write.answer(answer, now) {
                ProcedureStep::Going => self.go(AcquireStage::Writing(write)),
                ProcedureStep::Done(end) => self.wrote(end, now),
            },
            AcquireStage::Confirming(mut confirm) => match confirm.answer(answer, now) {
                ProcedureStep::Going => self.go(AcquireStage::Confirming(confirm)),
                ProcedureStep::Done(end) => self.confirmed(confirm.own().clone(), end, now),
            },
            AcquireStage::Fencing(mut fence, own, stale) => match fence.answer(answer, now) {
                ProcedureStep::Going => self.go(AcquireStage::Fencing(fence, own, stale)),
                ProcedureStep::Done(Ok(number)) => self.fenced(own, stale, number, now),
                ProcedureStep::Done(Err(error)) => self.withdraw(&own, error.into()),
            },
            AcquireStage::Sweeping(mut remove, dead, acquired) => {
                match remove.answer(answer, now) {
                    ProcedureStep::Going => self.go(AcquireStage::Sweeping(remove, dead, acquired)),
                    // The outcome does not matter: a stale object blocks nothing.
                    ProcedureStep::Done(_) => self.sweep(dead, acquired, now),
                }
            }
            AcquireStage::Withdrawing(mut remove, refusal) => match remove.answer(answer, now) {
                ProcedureStep::Going => self.go(AcquireStage::Withdrawing(remove, refusal)),
                ProcedureStep::Done(end) => self.withdrew(remove.key().clone(), refusal, end, now),
            },
            // The pause has ended: report the timeout at the deadline, otherwise start a new
            // attempt with all rounds.
            AcquireStage::Pausing(_, refusal) => {
                if self.request.wait == WaitBehavior::No {
                    return ProcedureStep::Done(Err(timed_out(refusal)));
                }
                self.round = 0;
                self.look()
            }
            AcquireStage::Over(refusal) => ProcedureStep::Done(Err(refusal)),
        }
    }
}

/// Converts the refusal of the last attempt into a timeout.
fn timed_out(refusal: AcquireRefusal) -> AcquireRefusal {
    match refusal {
        AcquireRefusal::Held(blocker) => AcquireRefusal::TimedOut(blocker),
        AcquireRefusal::LostRace { to: Some(blocker) } => AcquireRefusal::TimedOut(blocker),
        other => other,
    }
}
