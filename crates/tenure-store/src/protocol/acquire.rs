//! Acquiring: look, write, look again, settle, take a number (P28–P30), and wait if told to (P19).
//!
//! ```text
//!   ┌─────────────────────────── pause ◀── held, and waiting ─┐
//!   ▼                                                         │
//! look ──▶ survey (exclusive) ──▶ write ──▶ confirm ──▶ fence ──▶ sweep ──▶ Acquired
//!   ▲                               │          └──────────┴── failed ─▶ withdraw ─▶ Refusal
//!   └────────── taken, 5 times ─────┘
//! ```
//!
//! From the first sending of `write` on, no way out of here leaves our record behind: every
//! failure goes through `withdraw` (P29), and so does [`Acquire::cancel`].

use super::confirm::{Confirm, Confirmed};
use super::fence::{FenceError, TakeFence};
use super::list::ListLocks;
use super::remove::{RemoveObject, Removed};
use super::retry::Retried;
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

/// What somebody wants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AcquireParams {
    /// Shared or exclusive.
    pub mode: LockMode,
    /// The record's `operation`.
    pub operation: String,
    /// The record's `holder`.
    pub holder: String,
    /// Who we are (K6). Token, `ttl` and fence are filled in here.
    pub block: HolderBlock,
    /// Whether to wait while it is held.
    pub wait: WaitBehavior,
    /// From the system's source of randomness; tells acquisitions apart and spreads waits.
    pub seed: u128,
}

/// What to do while somebody else holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitBehavior {
    /// Refuse at once, as the originals do.
    No,
    /// Look again every two seconds (P19) until [`Acquire::stop_waiting`].
    Yes,
}

/// A lock that was taken. [`Hold::new`](super::HoldProcedure::new) keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Acquired {
    /// Shared or exclusive.
    pub mode: LockMode,
    /// Our record.
    pub own: OwnRecord,
    /// The fencing number (P38).
    pub fence: Option<u64>,
    /// What was seen of others.
    pub observations: Observations,
}

/// Why a lock was not taken. Nothing of ours is left in the store, unless it says so.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AcquireRefusal {
    /// Somebody has it. An unreadable object counts as somebody (P24).
    Held(Box<BlockingObject>),
    /// Somebody else was faster; `to` where he is known.
    LostRace {
        /// Who.
        to: Option<Box<BlockingObject>>,
    },
    /// The time to wait was over and somebody still had it.
    TimedOut(Box<BlockingObject>),
    /// The store failed (P25).
    Store(OpFailure),
    /// The store failed, and then failed to remove our record: it stands until it lapses.
    LeftBehind {
        /// What failed first.
        cause: Box<AcquireRefusal>,
        /// Where the record is.
        key: ObjectKey,
        /// Why it could not be removed.
        failure: OpFailure,
    },
    /// The fencing counter is damaged or at its end.
    Fence,
    /// The store took so long that the lease was used up before the lock was held, or, without
    /// conditional writes, that what was seen was too old to be written over.
    TooSlow,
    /// The caller lost interest.
    Cancelled,
}

/// Takes a lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Acquire {
    terms: LockTerms,
    request: AcquireParams,
    rng: Rng,
    observations: Observations,
    round: u8,
    stage: AcquireStage,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum AcquireStage {
    /// P28.1, P30.1.
    Looking(Retried),
    /// P28.2. Where no condition guards the write: when the exclusive key was looked at.
    Listing(ListLocks, WriteExpectation, Option<BootTime>),
    /// P28.3, P30.2.
    Writing(WriteRecord),
    /// P28.4 and 5, P30.3 and 4.
    Confirming(Confirm),
    /// P38.
    Fencing(TakeFence, OwnRecord, Vec<BlockingObject>),
    /// P28.6: what was stale goes.
    Sweeping(RemoveObject, Vec<(ObjectKey, Version)>, Acquired),
    /// P29: what we wrote goes.
    Withdrawing(RemoveObject, AcquireRefusal),
    /// P19.
    Pausing(Retried, AcquireRefusal),
    /// Cancelled before anything was written.
    Over(AcquireRefusal),
}

type AcquireEnd = Result<Acquired, AcquireRefusal>;

impl Acquire {
    /// Begins to take a lock. `observations` is what this process saw of the store before.
    pub fn new(terms: LockTerms, request: AcquireParams, observations: Observations) -> Acquire {
        let rng = Rng::new(request.seed);
        let stage = AcquireStage::look(&terms);
        Acquire {
            terms,
            request,
            rng,
            observations,
            round: 0,
            stage,
        }
    }

    /// Who is in the way, while it pauses.
    pub fn blocker(&self) -> Option<&BlockingObject> {
        match &self.stage {
            AcquireStage::Pausing(_, AcquireRefusal::Held(blocker)) => Some(blocker),
            AcquireStage::Pausing(_, AcquireRefusal::LostRace { to: Some(blocker) }) => {
                Some(blocker)
            }
            _ => None,
        }
    }

    /// The deadline is here: what is under way is finished, but nothing is begun again. A pause
    /// may be answered at once.
    pub fn stop_waiting(&mut self) {
        self.request.wait = WaitBehavior::No;
    }

    /// Nobody wants the lock any more. Keep driving: it ends with [`AcquireRefusal::Cancelled`] and
    /// nothing left behind. Give the answer to the operation under way first, if there is one (a
    /// wait has no answer worth waiting for); that may end it with a lock, to be released then.
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

    /// Ends an attempt of which nothing is left in the store.
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

    /// Ends an attempt that may have left our record.
    fn withdraw(&mut self, own: &OwnRecord, refusal: AcquireRefusal) -> ProcedureStep<AcquireEnd> {
        let stage = self.withdrawing(own, refusal);
        self.go(stage)
    }

    fn withdrawing(&self, own: &OwnRecord, refusal: AcquireRefusal) -> AcquireStage {
        AcquireStage::Withdrawing(RemoveObject::own(self.terms.clone(), own), refusal)
    }

    /// P28.1, P30.1: what is at the exclusive key decides how to go on.
    fn looked(&mut self, found: Option<Object>, asked: Now, now: Now) -> ProcedureStep<AcquireEnd> {
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
        match self.request.mode {
            LockMode::Exclusive => {
                let listing = ListLocks::shared(self.terms.clone(), self.observations.clone());
                let looked = (self.terms.level == ConditionLevel::Nothing).then_some(asked.boot);
                self.go(AcquireStage::Listing(listing, expect, looked))
            }
            // A shared lock has a key of its own; what is stale elsewhere stays.
            LockMode::Shared => self.write(WriteExpectation::Nothing),
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
        looked: Option<BootTime>,
        now: Now,
    ) -> ProcedureStep<AcquireEnd> {
        if let Some(blocker) = view.blocking().next() {
            return self.refuse(AcquireRefusal::Held(Box::new(blocker.clone())), now);
        }
        // Without conditions nothing but haste keeps us from overwriting somebody who came since
        // we looked: he waits for writes that are no later than `settle` after their look.
        if looked.is_some_and(|at| now.boot.since(at) >= self.terms.settle) {
            if self.round == LockTerms::ROUNDS {
                return self.refuse(AcquireRefusal::TooSlow, now);
            }
            self.round += 1;
            return self.go(AcquireStage::look(&self.terms));
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
                // A copy: a waiter that has to begin again goes on watching what it watched.
                let observations = self.observations.clone();
                let mode = self.request.mode;
                let confirm = Confirm::new(self.terms.clone(), mode, own, observations, now);
                self.go(AcquireStage::Confirming(confirm))
            }
            WriteResult::Taken(found) => {
                if self.round == LockTerms::ROUNDS {
                    let to = self.other(found, now);
                    return self.refuse(AcquireRefusal::LostRace { to }, now);
                }
                self.round += 1;
                self.go(AcquireStage::look(&self.terms))
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

    /// Who is at the exclusive key instead of us.
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
            Confirmed::Held(own, observations, stale) => {
                self.observations = observations;
                let fence = TakeFence::new(self.terms.clone(), self.request.mode);
                self.go(AcquireStage::Fencing(fence, own, stale))
            }
            Confirmed::Conflict(blocker) => {
                self.withdraw(&own, AcquireRefusal::LostRace { to: Some(blocker) })
            }
            // Somebody else's record is there, or none: nothing of ours is left to remove.
            Confirmed::Overtaken(found) => {
                let to = self.other(found, now);
                self.refuse(AcquireRefusal::LostRace { to }, now)
            }
            Confirmed::Failed(failure) => self.withdraw(&own, AcquireRefusal::Store(failure)),
        }
    }

    fn fenced(
        &mut self,
        mut own: OwnRecord,
        stale: Vec<BlockingObject>,
        end: Result<Option<u64>, FenceError>,
        now: Now,
    ) -> ProcedureStep<AcquireEnd> {
        let fence = match end {
            Ok(fence) => fence,
            Err(FenceError::Failed(failure)) => {
                return self.withdraw(&own, AcquireRefusal::Store(failure));
            }
            Err(FenceError::Malformed | FenceError::Used) => {
                return self.withdraw(&own, AcquireRefusal::Fence);
            }
        };
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
        // By version or not at all: its holder may bring it back (P34) between a look and a plain
        // delete, and would hold without a record.
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

    /// The last gate: a lock whose lease is used up on arrival was never held (P32).
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

impl AcquireStage {
    fn look(terms: &LockTerms) -> AcquireStage {
        AcquireStage::Looking(Retried::new(
            StoreOp::Read(ObjectKey::Exclusive),
            terms.retries,
        ))
    }
}

impl Procedure for Acquire {
    type End = AcquireEnd;

    fn next(&mut self, now: Now) -> StoreOp {
        match &mut self.stage {
            AcquireStage::Looking(ask) | AcquireStage::Pausing(ask, _) => ask.next(now),
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
            AcquireStage::Looking(mut ask) => match ask.answer(answer, now) {
                ProcedureStep::Going => self.go(AcquireStage::Looking(ask)),
                ProcedureStep::Done(Ok(OpResult::Found(object))) => {
                    self.looked(Some(object), ask.asked(now), now)
                }
                ProcedureStep::Done(Ok(OpResult::Absent)) => self.looked(None, ask.asked(now), now),
                ProcedureStep::Done(Ok(other)) => {
                    self.refuse(AcquireRefusal::Store(unexpected(other)), now)
                }
                ProcedureStep::Done(Err(failure)) => {
                    self.refuse(AcquireRefusal::Store(failure), now)
                }
            },
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
                ProcedureStep::Done(end) => self.fenced(own, stale, end, now),
            },
            AcquireStage::Sweeping(mut remove, dead, acquired) => {
                match remove.answer(answer, now) {
                    ProcedureStep::Going => self.go(AcquireStage::Sweeping(remove, dead, acquired)),
                    // Whatever came of it: a stale object is passed over anyway.
                    ProcedureStep::Done(_) => self.sweep(dead, acquired, now),
                }
            }
            AcquireStage::Withdrawing(mut remove, refusal) => match remove.answer(answer, now) {
                ProcedureStep::Going => self.go(AcquireStage::Withdrawing(remove, refusal)),
                ProcedureStep::Done(end) => self.withdrew(remove.key().clone(), refusal, end, now),
            },
            AcquireStage::Pausing(_, refusal) => {
                if self.request.wait == WaitBehavior::No {
                    return ProcedureStep::Done(Err(timed_out(refusal)));
                }
                self.round = 0;
                self.go(AcquireStage::look(&self.terms))
            }
            AcquireStage::Over(refusal) => ProcedureStep::Done(Err(refusal)),
        }
    }
}

/// What a waiter is told whose time is over.
fn timed_out(refusal: AcquireRefusal) -> AcquireRefusal {
    match refusal {
        AcquireRefusal::Held(blocker) => AcquireRefusal::TimedOut(blocker),
        AcquireRefusal::LostRace { to: Some(blocker) } => AcquireRefusal::TimedOut(blocker),
        other => other,
    }
}
