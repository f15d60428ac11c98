//! Removing one object without hitting its successor (P29, P35, P37).
//!
//! By version where the store can (level 2); otherwise read, compare, delete. An unclear answer is
//! followed by a look, so that a removal ends with knowledge, or with a failure that says so.
//!
//! A delete without a condition is safe only while nobody may take the lock over. So where writes
//! have conditions and deletes have none (level 1), an exclusive record whose lease is used up is
//! renewed first: the renewal is refused if it is another's by now, and gives the delete a lease to
//! arrive in. A shared record needs none of this, its key is nobody else's.

use std::time::Duration;

use super::renew::{RefreshRecord, RefreshResult};
use super::retry::Retried;
use super::{
    ConditionFailure, OpFailure, OpFailureKind, OpResult, OwnRecord, Procedure, ProcedureStep,
    StoreOp, ours, unexpected,
};
use crate::key::ObjectKey;
use crate::lock_terms::{ConditionLevel, LockTerms};
use crate::record::AcquisitionId;
use crate::staleness::{Object, Version};
use crate::time::Now;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RemoveObject {
    terms: LockTerms,
    key: ObjectKey,
    which: RemovalTarget,
    /// Level 1: our exclusive record, whose lease keeps others away until it is deleted.
    leased: Option<Box<OwnRecord>>,
    /// A delete was sent and its answer lost: absence may be our own doing.
    unclear: bool,
    how: DeleteMethod,
    retries: u8,
    doing: RemoveState,
}

/// What may be removed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum RemovalTarget {
    /// Our own record, whichever version of it.
    Own(AcquisitionId),
    /// Exactly this version of somebody's.
    Exactly(Version),
    /// Whatever is there.
    Anything,
}

/// How the store is asked to delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum DeleteMethod {
    /// By version, as far as the store can.
    Gently,
    /// By name: in a directory the holder itself stands guard over its file (K24), and whoever
    /// breaks a live lock means just that.
    ByName,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum RemoveState {
    Reading(Retried),
    /// Our lease is used up, and somebody may be about to take over.
    Renewing(RefreshRecord),
    Deleting(Version),
    Pausing(Retried),
}

/// How a removal can end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Removed {
    /// It is gone, by our hand.
    Gone,
    /// It was not there.
    Absent,
    /// Something else is there; it was left alone.
    Other(Box<Object>),
    /// It may still be there.
    Failed(OpFailure),
}

impl RemoveObject {
    /// Removes our own record. Where its version is not known, the outcome of its write is not
    /// known either, and it is looked for first.
    pub(super) fn own(terms: LockTerms, own: &OwnRecord) -> RemoveObject {
        let version = (own.version != Version::default()).then(|| own.version.clone());
        let which = RemovalTarget::Own(own.record.identity());
        let leased = (terms.level == ConditionLevel::Writes && own.key == ObjectKey::Exclusive)
            .then(|| Box::new(own.clone()));
        RemoveObject {
            leased,
            ..RemoveObject::new(terms, own.key.clone(), which, version)
        }
    }

    /// Removes somebody's object, if it is still the one that was seen.
    pub(super) fn exactly(terms: LockTerms, key: ObjectKey, version: Version) -> RemoveObject {
        RemoveObject::new(
            terms,
            key,
            RemovalTarget::Exactly(version.clone()),
            Some(version),
        )
    }

    /// Removes what is at `key`.
    pub(super) fn anything(terms: LockTerms, key: ObjectKey, version: Version) -> RemoveObject {
        RemoveObject::new(terms, key, RemovalTarget::Anything, Some(version))
    }

    fn new(
        terms: LockTerms,
        key: ObjectKey,
        which: RemovalTarget,
        version: Option<Version>,
    ) -> RemoveObject {
        let doing = match version {
            Some(version) if terms.level == ConditionLevel::Deletes => {
                RemoveState::Deleting(version)
            }
            Some(_) | None => {
                RemoveState::Reading(Retried::new(StoreOp::Read(key.clone()), terms.retries))
            }
        };
        // A record that nobody refreshes is worth more patience than a question (P29).
        let retries = terms.retries.saturating_mul(2);
        RemoveObject {
            terms,
            key,
            which,
            leased: None,
            unclear: false,
            how: DeleteMethod::Gently,
            retries,
            doing,
        }
    }

    /// The object's key.
    pub(super) fn key(&self) -> &ObjectKey {
        &self.key
    }

    fn read(&mut self) -> ProcedureStep<Removed> {
        self.doing = RemoveState::Reading(Retried::new(
            StoreOp::Read(self.key.clone()),
            self.terms.retries,
        ));
        ProcedureStep::Going
    }

    fn look(&mut self, object: Object) -> ProcedureStep<Removed> {
        let version = match &self.which {
            RemovalTarget::Own(identity) => ours(&object, identity),
            RemovalTarget::Exactly(version) => {
                (object.version == *version).then(|| version.clone())
            }
            RemovalTarget::Anything => Some(object.version.clone()),
        };
        match version {
            None => ProcedureStep::Done(Removed::Other(Box::new(object))),
            Some(version) => {
                self.doing = RemoveState::Deleting(version);
                ProcedureStep::Going
            }
        }
    }

    /// Whether the lease that guards a delete of this version is used up (P32).
    fn overdue(&self, version: &Version, now: Now) -> Option<OwnRecord> {
        let own = self.leased.as_deref()?;
        let is_over = now.boot >= own.sent + self.terms.reliance();
        is_over.then(|| OwnRecord {
            version: version.clone(),
            ..own.clone()
        })
    }

    fn renewed(&mut self, end: RefreshResult, now: Now) -> ProcedureStep<Removed> {
        match end {
            RefreshResult::Ours(own) if now.boot >= own.sent + self.terms.reliance() => self.again(
                OpFailure::passing("the store took longer than the lease"),
                now,
            ),
            RefreshResult::Ours(own) => {
                self.doing = RemoveState::Deleting(own.version.clone());
                self.leased = Some(Box::new(own));
                ProcedureStep::Going
            }
            RefreshResult::Lost(Some(object)) => {
                ProcedureStep::Done(Removed::Other(Box::new(object)))
            }
            RefreshResult::Lost(None) => self.absent(),
            RefreshResult::Failed(_, failure) => self.again(failure, now),
        }
    }

    fn again(&mut self, failure: OpFailure, now: Now) -> ProcedureStep<Removed> {
        self.unclear = true;
        // Our own record is worth another try whatever the failure: nobody else removes it.
        let hopeless =
            failure.kind != OpFailureKind::Passing && !matches!(self.which, RemovalTarget::Own(_));
        if self.retries == 0 || hopeless {
            return ProcedureStep::Done(Removed::Failed(failure));
        }
        self.retries -= 1;
        let until = now.boot + Duration::from_millis(500);
        self.doing = RemoveState::Pausing(Retried::new(StoreOp::WaitUntil(until), 0));
        ProcedureStep::Going
    }

    fn absent(&self) -> ProcedureStep<Removed> {
        ProcedureStep::Done(if self.unclear {
            Removed::Gone
        } else {
            Removed::Absent
        })
    }
}

impl Procedure for RemoveObject {
    type End = Removed;

    fn next(&mut self, now: Now) -> StoreOp {
        if let RemoveState::Deleting(version) = &self.doing
            && let Some(own) = self.overdue(version, now)
        {
            self.doing = RemoveState::Renewing(RefreshRecord::new(self.terms.clone(), own));
        }
        match &mut self.doing {
            RemoveState::Reading(ask) | RemoveState::Pausing(ask) => ask.next(now),
            RemoveState::Renewing(renew) => renew.next(now),
            RemoveState::Deleting(version) => match (self.terms.level, self.how) {
                (ConditionLevel::Deletes, DeleteMethod::Gently) => {
                    StoreOp::DeleteVersion(self.key.clone(), version.clone())
                }
                (ConditionLevel::Deletes, DeleteMethod::ByName)
                | (ConditionLevel::Nothing | ConditionLevel::Writes, _) => {
                    StoreOp::Delete(self.key.clone())
                }
            },
        }
    }

    fn answer(&mut self, answer: OpResult, now: Now) -> ProcedureStep<Removed> {
        match &mut self.doing {
            RemoveState::Pausing(_) => self.read(),
            RemoveState::Renewing(renew) => match renew.answer(answer, now) {
                ProcedureStep::Going => ProcedureStep::Going,
                ProcedureStep::Done(end) => self.renewed(end, now),
            },
            RemoveState::Reading(ask) => match ask.answer(answer, now) {
                ProcedureStep::Going => ProcedureStep::Going,
                ProcedureStep::Done(Ok(OpResult::Found(object))) => self.look(object),
                ProcedureStep::Done(Ok(OpResult::Absent)) => self.absent(),
                ProcedureStep::Done(Ok(other)) => {
                    ProcedureStep::Done(Removed::Failed(unexpected(other)))
                }
                ProcedureStep::Done(Err(failure)) => self.again(failure, now),
            },
            RemoveState::Deleting(_) => match answer {
                OpResult::Deleted => ProcedureStep::Done(Removed::Gone),
                OpResult::Absent => self.absent(),
                // Another version than we knew. It may be ours all the same: an answer got lost.
                OpResult::Refused(ConditionFailure::Condition) if self.retries > 0 => {
                    self.retries -= 1;
                    self.read()
                }
                OpResult::Refused(ConditionFailure::Contention)
                    if self.which == RemovalTarget::Anything =>
                {
                    self.how = DeleteMethod::ByName;
                    ProcedureStep::Going
                }
                other => self.again(unexpected(other), now),
            },
        }
    }
}
