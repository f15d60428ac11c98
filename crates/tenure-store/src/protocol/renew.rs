//! Refresh: rewrites our record with a later expiry if it is still ours (P31 (refresh the lease)).
//!
//! The lease counts from the *sending* of a successful write (P32 (lease limit at 80 percent)). A
//! write of unknown outcome does not count as success. If it took effect, the next write is
//! refused, reads back our own record and continues with its version.

use super::retry::Retried;
use super::{
    ConditionFailure, OpBody, OpFailure, OpResult, OwnRecord, Procedure, ProcedureStep, StoreOp,
    ours, unexpected,
};
use crate::lock_terms::{ConditionLevel, LockTerms};
use crate::staleness::Object;
use crate::time::{Now, after, stamp};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RefreshRecord {
    terms: LockTerms,
    /// Our record as last known. Even a failed refresh updates its version.
    own: OwnRecord,
    tries: u8,
    doing: RenewState,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum RenewState {
    /// Level 0: read whether it is still ours.
    Before(Retried),
    Sending(Option<OwnRecord>),
    /// The write was refused: read which record is there.
    ReadingBack(Retried),
    /// Level 0: read whether our write is still there.
    After(OwnRecord, Retried),
}

/// The result of a refresh.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum RefreshResult {
    /// The lease is extended.
    Ours(OwnRecord),
    /// The record is not ours any more. Contains the object that replaced it, if any.
    Lost(Option<Object>),
    /// The outcome is unknown. Contains our record as last known.
    Failed(OwnRecord, OpFailure),
}

impl RefreshRecord {
    pub(super) fn new(terms: LockTerms, own: OwnRecord) -> RefreshRecord {
        let doing = match terms.level {
            ConditionLevel::Nothing => {
                RenewState::Before(Retried::new(StoreOp::Read(own.key.clone()), 0))
            }
            ConditionLevel::Writes | ConditionLevel::Deletes => RenewState::Sending(None),
        };
        RefreshRecord {
            terms,
            own,
            tries: 3,
            doing,
        }
    }

    fn draft(&self, now: Now) -> OwnRecord {
        let mut draft = self.own.clone();
        draft.record.expires_at = stamp(after(now.wall, self.terms.ttl));
        draft.sent = now.boot;
        draft
    }

    fn failed(&self, failure: OpFailure) -> ProcedureStep<RefreshResult> {
        ProcedureStep::Done(RefreshResult::Failed(self.own.clone(), failure))
    }

    fn read(&self) -> Retried {
        Retried::new(StoreOp::Read(self.own.key.clone()), 0)
    }

    fn sent(&mut self, draft: OwnRecord, answer: OpResult) -> ProcedureStep<RefreshResult> {
        match answer {
            OpResult::Written(version) => {
                let renewed = OwnRecord { version, ..draft };
                match self.terms.level {
                    ConditionLevel::Nothing => {
                        self.doing = RenewState::After(renewed, self.read());
                        ProcedureStep::Going
                    }
                    ConditionLevel::Writes | ConditionLevel::Deletes => {
                        ProcedureStep::Done(RefreshResult::Ours(renewed))
                    }
                }
            }
            OpResult::Refused(ConditionFailure::Condition | ConditionFailure::Contention)
            | OpResult::Absent => {
                self.doing = RenewState::ReadingBack(self.read());
                ProcedureStep::Going
            }
            other => self.failed(unexpected(other)),
        }
    }

    /// Checks the result of a read of our own key. `Err` ends the refresh.
    fn check(&mut self, answer: OpResult) -> Result<(), ProcedureStep<RefreshResult>> {
        match answer {
            OpResult::Found(object) => match ours(&object, &self.own.record.identity()) {
                Some(version) => {
                    self.own.version = version;
                    Ok(())
                }
                None => Err(ProcedureStep::Done(RefreshResult::Lost(Some(object)))),
            },
            OpResult::Absent => Err(ProcedureStep::Done(RefreshResult::Lost(None))),
            other => Err(self.failed(unexpected(other))),
        }
    }
}

impl Procedure for RefreshRecord {
    type End = RefreshResult;

    fn next(&mut self, now: Now) -> StoreOp {
        let draft = self.draft(now);
        match &mut self.doing {
            RenewState::Before(ask) | RenewState::ReadingBack(ask) | RenewState::After(_, ask) => {
                ask.next(now)
            }
            RenewState::Sending(sending) => {
                let key = draft.key.clone();
                let body = OpBody::Record(draft.record.clone());
                let version = draft.version.clone();
                *sending = Some(draft);
                match self.terms.level {
                    ConditionLevel::Nothing => StoreOp::Put(key, body),
                    ConditionLevel::Writes | ConditionLevel::Deletes => {
                        StoreOp::Renew(key, body, version)
                    }
                }
            }
        }
    }

    fn answer(&mut self, answer: OpResult, now: Now) -> ProcedureStep<RefreshResult> {
        match self.doing.clone() {
            RenewState::Sending(Some(draft)) => self.sent(draft, answer),
            RenewState::Sending(None) => self.failed(unexpected(answer)),
            RenewState::Before(mut ask) | RenewState::ReadingBack(mut ask) => {
                let found = match ask.answer(answer, now) {
                    ProcedureStep::Going => return ProcedureStep::Going,
                    ProcedureStep::Done(Ok(found)) => found,
                    ProcedureStep::Done(Err(failure)) => return self.failed(failure),
                };
                if let Err(end) = self.check(found) {
                    return end;
                }
                if self.tries == 0 {
                    return self.failed(OpFailure::passing("the store refuses our own version"));
                }
                self.tries -= 1;
                self.doing = RenewState::Sending(None);
                ProcedureStep::Going
            }
            RenewState::After(renewed, mut ask) => {
                let found = match ask.answer(answer, now) {
                    ProcedureStep::Going => return ProcedureStep::Going,
                    ProcedureStep::Done(Ok(found)) => found,
                    ProcedureStep::Done(Err(failure)) => return self.failed(failure),
                };
                match self.check(found) {
                    Ok(()) => {
                        let version = self.own.version.clone();
                        ProcedureStep::Done(RefreshResult::Ours(OwnRecord { version, ..renewed }))
                    }
                    Err(end) => end,
                }
            }
        }
    }
}
