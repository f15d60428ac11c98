//! One refresh: our record again, with a later date, if it is still ours (P31).
//!
//! Success counts from the moment its write was *sent* (P32). A write of unknown outcome counts
//! as no success; if it landed, the next one is refused, finds its own record, and goes on from
//! there.

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
    /// Our record as we last knew it; its version is kept up to date even by a failed refresh.
    own: OwnRecord,
    tries: u8,
    doing: RenewState,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum RenewState {
    /// Level 0: is it still ours?
    Before(Retried),
    Sending(Option<OwnRecord>),
    /// Refused: by whom?
    ReadingBack(Retried),
    /// Level 0: did ours stay?
    After(OwnRecord, Retried),
}

/// How a refresh can end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum RefreshResult {
    /// It is ours for another lease.
    Ours(OwnRecord),
    /// It is not ours any more; this is there instead, if anything.
    Lost(Option<Object>),
    /// Nothing is known. What is known of our record comes with it.
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

    /// What a read of our own key showed: still ours, or the end.
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
