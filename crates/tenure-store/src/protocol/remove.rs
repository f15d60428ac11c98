//! Removal of one object without removing its successor (P29 (unknown write outcome), P35
//! (repository release), P37 (break repository locks)).
//!
//! At level 2 the delete is conditional, except when a user breaks a live lock in a directory.
//! Otherwise: read, compare, delete. After an unclear response the object is read again, so that a
//! removal ends with a known outcome or with a failure.
//!
//! An unconditional delete is safe only while no other client may take the lock over. So at level 1
//! (conditional writes, unconditional deletes), an exclusive record whose lease is used up is
//! renewed first: the renewal is refused if another client has replaced the record, and otherwise
//! gives the delete a lease in which to arrive. A shared record does not need this, because no
//! other client uses its key.

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
    /// Level 1: our exclusive record, whose lease keeps other clients away until it is deleted.
    leased: Option<Box<OwnRecord>>,
    /// A delete may have been sent whose response was lost: if the object is absent, we may have
    /// removed it.
    unclear: bool,
    how: DeleteMethod,
    retries: u8,
    doing: RemoveState,
}

/// Which object may be removed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum RemovalTarget {
    /// Our own record, in any version.
    Own(AcquisitionId),
    /// Exactly this version of another client's object.
    Exactly(Version),
    /// Any object at the key.
    Anything,
}

/// How the delete is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum DeleteMethod {
    /// By version, if the store supports it.
    Gently,
    /// By name. Needed in a directory, where the `flock` of a live holder refuses a removal by
    /// version (K24 (lock before removal)), and intended when a user breaks a live lock.
    ByName,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum RemoveState {
    Reading(Retried),
    /// Our lease is used up, so another client may take over: renew before the delete.
    Renewing(RefreshRecord),
    Deleting(Version),
    Pausing(Retried),
}

/// The result of a removal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Removed {
    /// We removed it.
    Gone,
    /// It did not exist.
    Absent,
    /// Another object is there; it was kept.
    Other(Box<Object>),
    /// It may still exist.
    Failed(OpFailure),
}

impl RemoveObject {
    /// Removes our own record. If its version is unknown, so is the outcome of its write, and the
    /// record is read first.
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

    /// Removes an object of another client if it still has this version.
    pub(super) fn exactly(terms: LockTerms, key: ObjectKey, version: Version) -> RemoveObject {
        RemoveObject::new(
            terms,
            key,
            RemovalTarget::Exactly(version.clone()),
            Some(version),
        )
    }

    /// Removes any object at `key`.
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
        // Twice the retries of a read: a record that remains blocks other clients until it expires
        // (P29 (unknown write outcome)).
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

    /// The key of the object.
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

    /// Returns our record, to be renewed, if the lease that protects the delete is used up (P32
    /// (lease limit at 80 percent)).
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
        // Retry the removal of our own record after any failure: no other client removes it.
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
                // Another version than expected. It may still be ours, if the response to a write
                // was lost.
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
