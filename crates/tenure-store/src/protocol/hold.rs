//! Hold: refreshes, conflict checks, lapse, revival and release of a lock (P31–P36).
//!
//! ```text
//!                  revive: write, then check conflicts
//!                ┌──────────────────────────────────────┐
//!                ▼                                      │
//!  Acquired ──▶ Held ──80 % of ttl without refresh──▶ Lapsed ──revive impossible──▶ Lost
//!                └──record not ours, or an intruder stays──────────────────────────▶ Lost
//! ```
//!
//! A release works in every state. Revival is P34 (revive a lapsed lease). An *intruder* is a
//! conflicting lock that appears while this one is held; a shared holder may be set to report it
//! only. A record that the store reports as absent is read a second time before it counts as lost.
//!
//! # How to drive it
//!
//! Like every other procedure, with three additions:
//!
//! - Commands ([`HoldProcedure::release`], [`HoldProcedure::revive`], [`HoldProcedure::check`]) may
//!   be given at any time. A release takes effect at the next call of [`Procedure::next`]; the
//!   others wait until the current action has ended. A wait may be abandoned without an answer by
//!   calling `next` again.
//! - [`HoldProcedure::tick`] may be called at any time. Call it at [`HoldProcedure::valid_until`],
//!   even while an operation is under way: a lease lapses by the clock, not by an answer.
//! - After each call, [`HoldProcedure::status`] and [`HoldProcedure::take_notices`] report changes.
//!
//! It ends only after `release`. After the lock is lost, it requests only waits until then.

use super::list::ListLocks;
use super::remove::{RemoveObject, Removed};
use super::renew::{RefreshRecord, RefreshResult};
use super::retry::Retried;
use super::revive::{Revive, Revived};
use super::{
    Acquired, BlockingObject, OpFailure, OpResult, OwnRecord, Procedure, ProcedureStep, StoreOp,
    ours, unexpected,
};
use crate::key::ObjectKey;
use crate::lock_terms::{ConditionLevel, LockMode, LockTerms, OnConflict};
use crate::staleness::{Object, Observations, judge};
use crate::time::{BootTime, Now};

/// A held lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HoldProcedure {
    terms: LockTerms,
    mode: LockMode,
    own: OwnRecord,
    fence: Option<u64>,
    observations: Observations,
    status: HoldStatus,
    doing: HoldState,
    refresh_at: BootTime,
    check_at: BootTime,
    /// Intruders of the last check. They count if the next check finds them again (P33 (check for
    /// conflicts while holding)).
    suspects: Vec<BlockingObject>,
    orders: HoldCommands,
    notices: Vec<Notice>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
struct HoldCommands {
    release: bool,
    revive: bool,
    check: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum HoldState {
    Resting,
    Renewing(RefreshRecord),
    WatchingOwn(Retried),
    WatchingExclusive(Retried),
    WatchingShared(ListLocks),
    Asserting(Retried),
    /// The store said that our record does not exist: waits, then reads it a second time.
    Missing(Retried),
    MissingAgain(Retried),
    Reviving(Revive),
    /// Revival failed permanently: removes our record, then the lock is lost for this cause.
    GivingUp(RemoveObject, LossCause),
    Releasing(RemoveObject),
}

/// Whether the lock is held.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HoldStatus {
    /// Held, until [`HoldProcedure::valid_until`].
    Held,
    /// Not held any more; the lock can be revived (P34 (revive a lapsed lease)). The work must have
    /// stopped.
    Lapsed {
        /// When the lease was used up.
        since: BootTime,
    },
    /// Lost permanently.
    Lost(LossCause),
}

/// The reason why a lock was lost.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LossCause {
    /// Another client removed our record.
    Removed,
    /// Another record replaced ours.
    Overwritten(Box<BlockingObject>),
    /// A conflicting lock appeared and stayed (P33).
    Intruder(Box<BlockingObject>),
    /// The lease lapsed, and the store has no conditional writes to revive it (P34).
    Expired,
}

/// An event while holding.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Notice {
    /// The lease was extended.
    Refreshed,
    /// A refresh failed; it will be repeated.
    RefreshFailed(OpFailure),
    /// A conflicting lock appeared and stayed (P33), and the shared holder is set to warn.
    Intruder(Box<BlockingObject>),
    /// Answer to [`HoldProcedure::check`]: the store shows our record.
    StillOurs,
    /// Answer to [`HoldProcedure::check`]: the store could not be read.
    CheckFailed(OpFailure),
    /// Answer to [`HoldProcedure::revive`]: held again. The fencing number is a new one if another
    /// client has taken one in between.
    Revived,
    /// Answer to [`HoldProcedure::revive`]: not revived; it may be tried again.
    NotRevived(OpFailure),
}

/// The result of a release.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Released {
    /// Our record is removed.
    Done,
    /// Our record was gone or replaced without being noticed: the work may have overlapped with
    /// another holder's.
    Compromised(LossCause),
    /// The lock was lost before; there was no record of ours to remove.
    WasLost(LossCause),
    /// The record could not be removed; it stays until it expires.
    Failed(OpFailure),
}

impl HoldProcedure {
    /// Holds an acquired lock.
    pub fn new(terms: LockTerms, acquired: Acquired) -> HoldProcedure {
        let Acquired {
            mode,
            own,
            fence,
            observations,
        } = acquired;
        let sent = own.sent;
        // With a fencing number, the first refresh is due at once, to write it into the record (K39
        // (fencing number per acquisition)).
        let refresh_at = match fence {
            Some(_) => sent,
            None => sent + terms.refresh,
        };
        HoldProcedure {
            check_at: sent + terms.refresh / 2,
            refresh_at,
            terms,
            mode,
            own,
            fence,
            observations,
            status: HoldStatus::Held,
            doing: HoldState::Resting,
            suspects: Vec::new(),
            orders: HoldCommands::default(),
            notices: Vec::new(),
        }
    }

    /// Takes over a lock that another process acquired. Its remaining lease is not relied on: the
    /// lock counts as lapsed until it is revived.
    pub fn adopted(terms: LockTerms, acquired: Acquired, now: Now) -> HoldProcedure {
        let status = HoldStatus::Lapsed { since: now.boot };
        HoldProcedure {
            status,
            ..HoldProcedure::new(terms, acquired)
        }
    }

    /// Returns the status of the lock. Call [`HoldProcedure::tick`] first.
    pub fn status(&self) -> &HoldStatus {
        &self.status
    }

    /// Returns the time until which the work may continue without a newer refresh (P32 (lease limit
    /// at 80 percent)).
    pub fn valid_until(&self) -> BootTime {
        self.own.sent + self.terms.reliance()
    }

    /// Returns the newest fencing number.
    pub fn fence(&self) -> Option<u64> {
        self.fence
    }

    /// Returns our record.
    pub fn own(&self) -> &OwnRecord {
        &self.own
    }

    /// Returns the events since the last call.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Requests a release (P35 (repository release)).
    pub fn release(&mut self) {
        self.orders.release = true;
    }

    /// Requests a revival (P34). Has no effect if the lock is not lapsed.
    pub fn revive(&mut self) {
        self.orders.revive = true;
    }

    /// Requests a read that checks whether the record is ours (K34 (detect a lost lock)).
    pub fn check(&mut self) {
        self.orders.check = true;
    }

    /// Lets the lease lapse if its time has come (P32, K35 (lease time)).
    pub fn tick(&mut self, now: Now) {
        if self.status == HoldStatus::Held && now.boot >= self.valid_until() {
            self.status = HoldStatus::Lapsed {
                since: self.valid_until(),
            };
        }
    }

    fn rest(&mut self) -> ProcedureStep<Released> {
        self.doing = HoldState::Resting;
        ProcedureStep::Going
    }

    fn go(&mut self, doing: HoldState) -> ProcedureStep<Released> {
        self.doing = doing;
        ProcedureStep::Going
    }

    fn read(&self, key: ObjectKey) -> Retried {
        Retried::new(StoreOp::Read(key), 0)
    }

    fn remove(&self) -> RemoveObject {
        RemoveObject::own(self.terms.clone(), &self.own)
    }

    /// Chooses the next action, the most urgent first. `None` means to wait.
    fn choose(&mut self, now: Now) -> Option<HoldState> {
        match self.status {
            HoldStatus::Lost(_) => None,
            HoldStatus::Lapsed { .. } => {
                if !std::mem::take(&mut self.orders.revive) {
                    return None;
                }
                if self.terms.level == ConditionLevel::Nothing {
                    self.status = HoldStatus::Lost(LossCause::Expired);
                    return None;
                }
                let observations = self.observations.clone();
                let (terms, own) = (self.terms.clone(), self.own.clone());
                Some(HoldState::Reviving(Revive::new(
                    terms,
                    self.mode,
                    own,
                    self.fence,
                    observations,
                )))
            }
            HoldStatus::Held => {
                self.orders.revive = false;
                if std::mem::take(&mut self.orders.check) {
                    Some(HoldState::Asserting(self.read(self.own.key.clone())))
                } else if self.refresh_at <= now.boot {
                    Some(HoldState::Renewing(RefreshRecord::new(
                        self.terms.clone(),
                        self.own.clone(),
                    )))
                } else if self.check_at <= now.boot {
                    Some(self.watch())
                } else {
                    None
                }
            }
        }
    }

    fn watch(&self) -> HoldState {
        match self.mode {
            LockMode::Shared => HoldState::WatchingExclusive(self.read(ObjectKey::Exclusive)),
            LockMode::Exclusive => HoldState::WatchingOwn(self.read(ObjectKey::Exclusive)),
        }
    }

    fn wake_at(&self) -> BootTime {
        match self.status {
            HoldStatus::Held => self.refresh_at.min(self.check_at).min(self.valid_until()),
            HoldStatus::Lapsed { .. } | HoldStatus::Lost(_) => BootTime::NEVER,
        }
    }

    fn lose(&mut self, cause: LossCause) -> ProcedureStep<Released> {
        self.status = HoldStatus::Lost(cause);
        self.rest()
    }

    /// Describes what replaced our record.
    fn usurped(&self, found: Option<Object>, now: Now) -> LossCause {
        match found {
            None => LossCause::Removed,
            Some(object) => {
                let key = self.own.key.clone();
                let verdict = judge(&key, &object, Default::default(), now, self.terms.skew);
                LossCause::Overwritten(Box::new(BlockingObject {
                    key,
                    object,
                    verdict,
                }))
            }
        }
    }

    fn renewed(&mut self, end: RefreshResult, now: Now) -> ProcedureStep<Released> {
        match end {
            RefreshResult::Ours(own) => {
                self.refresh_at = own.sent + self.terms.refresh;
                self.check_at = if self.suspects.is_empty() {
                    own.sent + self.terms.refresh / 2
                } else {
                    self.check_at
                };
                // A refresh that was answered after the lease had lapsed does not revive the lock:
                // `tick` has already set the status.
                self.own = own;
                self.notices.push(Notice::Refreshed);
                self.rest()
            }
            RefreshResult::Lost(None) => self.missing(now),
            RefreshResult::Lost(found) => {
                let cause = self.usurped(found, now);
                self.lose(cause)
            }
            RefreshResult::Failed(own, failure) => {
                self.own = own;
                self.refresh_at = now.boot + LockTerms::REFRESH_RETRY;
                self.notices.push(Notice::RefreshFailed(failure));
                self.rest()
            }
        }
    }

    /// Handles the result of a conflict check. An intruder counts only if the previous check saw it
    /// too (P33).
    fn watched(&mut self, intruders: Vec<BlockingObject>, now: Now) -> ProcedureStep<Released> {
        let stays = |intruder: &&BlockingObject| {
            self.suspects
                .iter()
                .any(|suspect| suspect.is_same(intruder))
        };
        let settled = intruders.iter().find(stays).cloned().map(Box::new);
        self.check_at = match (&settled, intruders.is_empty()) {
            (None, false) => now.boot + LockTerms::SECOND_LOOK,
            (Some(_), _) | (None, true) => self.next_look(now),
        };
        self.suspects = intruders;
        match (settled, self.mode, self.terms.on_conflict) {
            (None, _, _) => self.rest(),
            (Some(intruder), LockMode::Exclusive, _)
            | (Some(intruder), LockMode::Shared, OnConflict::Stop) => {
                self.lose(LossCause::Intruder(intruder))
            }
            (Some(intruder), LockMode::Shared, OnConflict::Warn) => {
                self.suspects.clear();
                self.notices.push(Notice::Intruder(intruder));
                self.rest()
            }
        }
    }

    /// Half way between the next refresh and the one after it.
    fn next_look(&self, now: Now) -> BootTime {
        self.refresh_at.max(now.boot) + self.terms.refresh / 2
    }

    /// A failed check proves nothing: an unreachable store is covered by the lapse of the lease.
    fn unwatched(&mut self, now: Now) -> ProcedureStep<Released> {
        self.check_at = self.next_look(now);
        self.rest()
    }

    fn watched_own(&mut self, answer: OpResult, now: Now) -> ProcedureStep<Released> {
        match answer {
            OpResult::Found(object) => match ours(&object, &self.own.record.identity()) {
                Some(version) => {
                    self.own.version = version;
                    let listing = ListLocks::shared(self.no_retries(), self.observations.clone());
                    self.go(HoldState::WatchingShared(listing))
                }
                None => {
                    let cause = self.usurped(Some(object), now);
                    self.lose(cause)
                }
            },
            OpResult::Absent => self.missing(now),
            _ => self.unwatched(now),
        }
    }

    /// One absent answer is not a loss: a wrong one, from a server behind the store's address that
    /// is not the store, would stop the work. The lease is valid meanwhile.
    fn missing(&mut self, now: Now) -> ProcedureStep<Released> {
        let until = now.boot + LockTerms::ABSENCE_RETRY;
        self.go(HoldState::Missing(Retried::new(
            StoreOp::WaitUntil(until),
            0,
        )))
    }

    fn looked_again(&mut self, answer: OpResult, now: Now) -> ProcedureStep<Released> {
        match answer {
            OpResult::Found(object) => match ours(&object, &self.own.record.identity()) {
                Some(version) => {
                    self.own.version = version;
                    self.refresh_at = now.boot;
                    self.notices.push(Notice::StillOurs);
                    self.rest()
                }
                None => {
                    let cause = self.usurped(Some(object), now);
                    self.lose(cause)
                }
            },
            OpResult::Absent => self.lose(LossCause::Removed),
            other => {
                self.refresh_at = now.boot + LockTerms::REFRESH_RETRY;
                self.notices.push(Notice::CheckFailed(unexpected(other)));
                self.rest()
            }
        }
    }

    fn watched_exclusive(
        &mut self,
        answer: OpResult,
        asked: Now,
        now: Now,
    ) -> ProcedureStep<Released> {
        match answer {
            OpResult::Absent => {
                self.observations.forget(&ObjectKey::Exclusive);
                self.watched(Vec::new(), now)
            }
            OpResult::Found(object) => {
                let key = ObjectKey::Exclusive;
                let watched = self
                    .observations
                    .note(&key, &object.version, asked.boot, now.boot);
                let verdict = judge(&key, &object, watched, asked, self.terms.skew);
                let blocker = BlockingObject {
                    key,
                    object,
                    verdict,
                };
                let intruders = if blocker.verdict.blocks() {
                    vec![blocker]
                } else {
                    Vec::new()
                };
                self.watched(intruders, now)
            }
            _ => self.unwatched(now),
        }
    }

    fn no_retries(&self) -> LockTerms {
        LockTerms {
            retries: 0,
            ..self.terms.clone()
        }
    }

    fn asserted(&mut self, answer: OpResult, now: Now) -> ProcedureStep<Released> {
        match answer {
            OpResult::Found(object) => match ours(&object, &self.own.record.identity()) {
                Some(version) => {
                    self.own.version = version;
                    self.notices.push(Notice::StillOurs);
                    self.rest()
                }
                None => {
                    let cause = self.usurped(Some(object), now);
                    self.lose(cause)
                }
            },
            OpResult::Absent => self.missing(now),
            other => {
                self.notices.push(Notice::CheckFailed(unexpected(other)));
                self.rest()
            }
        }
    }

    fn revived(&mut self, own: OwnRecord, end: Revived, now: Now) -> ProcedureStep<Released> {
        self.own = own;
        match end {
            Revived::Held(fence, observations) => {
                self.observations = observations;
                self.held_again(fence, now)
            }
            Revived::Intruder(blocker) => {
                let remove = self.remove();
                self.go(HoldState::GivingUp(remove, LossCause::Intruder(blocker)))
            }
            Revived::Lost(found) => {
                let cause = self.usurped(found, now);
                self.lose(cause)
            }
            Revived::Failed(failure) => self.not_revived(failure),
        }
    }

    fn held_again(&mut self, fence: Option<u64>, now: Now) -> ProcedureStep<Released> {
        if let Some(block) = &mut self.own.record.tenure {
            block.fence = fence;
        }
        if now.boot >= self.valid_until() {
            return self.not_revived(OpFailure::passing("the store took longer than the lease"));
        }
        self.fence = fence;
        self.status = HoldStatus::Held;
        self.suspects.clear();
        self.refresh_at = now.boot;
        self.check_at = now.boot + self.terms.refresh / 2;
        self.notices.push(Notice::Revived);
        self.rest()
    }

    fn not_revived(&mut self, failure: OpFailure) -> ProcedureStep<Released> {
        self.notices.push(Notice::NotRevived(failure));
        self.rest()
    }

    fn released(&self, end: Removed, now: Now) -> Released {
        let lost = match &self.status {
            HoldStatus::Lost(cause) => Some(cause.clone()),
            HoldStatus::Held | HoldStatus::Lapsed { .. } => None,
        };
        match (end, lost) {
            (Removed::Failed(failure), _) => Released::Failed(failure),
            (Removed::Gone, _) => Released::Done,
            (Removed::Absent | Removed::Other(_), Some(cause)) => Released::WasLost(cause),
            (Removed::Absent, None) => Released::Compromised(LossCause::Removed),
            (Removed::Other(object), None) => {
                Released::Compromised(self.usurped(Some(*object), now))
            }
        }
    }
}

impl Procedure for HoldProcedure {
    type End = Released;

    fn next(&mut self, now: Now) -> StoreOp {
        self.tick(now);
        // No operation is under way here, so a release may abandon the current action.
        if std::mem::take(&mut self.orders.release) {
            self.doing = HoldState::Releasing(self.remove());
        } else if self.doing == HoldState::Resting
            && let Some(doing) = self.choose(now)
        {
            self.doing = doing;
        }
        match &mut self.doing {
            HoldState::Resting => StoreOp::WaitUntil(self.wake_at()),
            HoldState::Renewing(renew) => renew.next(now),
            HoldState::Reviving(revive) => revive.next(now),
            HoldState::WatchingOwn(ask)
            | HoldState::WatchingExclusive(ask)
            | HoldState::Missing(ask)
            | HoldState::MissingAgain(ask)
            | HoldState::Asserting(ask) => ask.next(now),
            HoldState::WatchingShared(listing) => listing.next(now),
            HoldState::GivingUp(remove, _) | HoldState::Releasing(remove) => remove.next(now),
        }
    }

    fn answer(&mut self, answer: OpResult, now: Now) -> ProcedureStep<Released> {
        self.tick(now);
        match self.doing.clone() {
            HoldState::Resting => ProcedureStep::Going,
            HoldState::Renewing(mut renew) => match renew.answer(answer, now) {
                ProcedureStep::Going => self.go(HoldState::Renewing(renew)),
                ProcedureStep::Done(end) => self.renewed(end, now),
            },
            HoldState::WatchingOwn(_) => self.watched_own(answer, now),
            HoldState::WatchingExclusive(ask) => {
                self.watched_exclusive(answer, ask.asked(now), now)
            }
            HoldState::WatchingShared(mut listing) => match listing.answer(answer, now) {
                ProcedureStep::Going => self.go(HoldState::WatchingShared(listing)),
                ProcedureStep::Done(Ok((view, observations))) => {
                    self.observations = observations;
                    self.watched(view.blocking().cloned().collect(), now)
                }
                ProcedureStep::Done(Err(_)) => self.unwatched(now),
            },
            HoldState::Asserting(_) => self.asserted(answer, now),
            HoldState::Missing(mut ask) => match ask.answer(answer, now) {
                ProcedureStep::Going => self.go(HoldState::Missing(ask)),
                ProcedureStep::Done(_) => {
                    let ask = self.read(self.own.key.clone());
                    self.go(HoldState::MissingAgain(ask))
                }
            },
            HoldState::MissingAgain(_) => self.looked_again(answer, now),
            HoldState::Reviving(mut revive) => match revive.answer(answer, now) {
                ProcedureStep::Going => self.go(HoldState::Reviving(revive)),
                ProcedureStep::Done(end) => self.revived(revive.own().clone(), end, now),
            },
            HoldState::GivingUp(mut remove, cause) => match remove.answer(answer, now) {
                ProcedureStep::Going => self.go(HoldState::GivingUp(remove, cause)),
                ProcedureStep::Done(_) => self.lose(cause),
            },
            HoldState::Releasing(mut remove) => match remove.answer(answer, now) {
                ProcedureStep::Going => self.go(HoldState::Releasing(remove)),
                ProcedureStep::Done(end) => ProcedureStep::Done(self.released(end, now)),
            },
        }
    }
}
