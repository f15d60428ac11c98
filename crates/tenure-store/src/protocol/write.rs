//! First write of our record, with detection of its outcome (P29 (unknown write outcome), step 3 of
//! P28 (acquire the exclusive lock), step 2 of P30 (acquire a shared lock)).
//!
//! ```text
//! send ──written──▶ ours
//!   ├──refused──▶ read it back ──our record──▶ ours, ──anything else──▶ taken
//!   └──unknown──▶ read it back ──our record──▶ ours, ──as before──▶ send again, ──other──▶ taken
//! ```
//!
//! The record is stamped once, before the first sending, and is repeated unchanged. So each copy
//! that takes effect is the same acquisition, and the lease counts from the first sending.

use super::retry::Retried;
use super::{
    ConditionFailure, OpBody, OpFailure, OpResult, Procedure, ProcedureStep, StoreOp, ours,
    unexpected,
};
use crate::key::ObjectKey;
use crate::lock_terms::{ConditionLevel, LockTerms};
use crate::record::LockRecord;
use crate::staleness::{Object, Version};
use crate::time::{BootTime, Now, after, stamp};

/// Our record in the store, as last known.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OwnRecord {
    /// The key of the object.
    pub key: ObjectKey,
    /// The record.
    pub record: LockRecord,
    /// The stored version. The default version means that it is unknown.
    pub version: Version,
    /// When the last successful write was sent: the lease counts from here (P32 (lease limit at 80
    /// percent)).
    pub sent: BootTime,
}

/// What the write expects at the key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum WriteExpectation {
    Nothing,
    Stale(Version),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct WriteRecord {
    terms: LockTerms,
    expect: WriteExpectation,
    draft: RecordDraft,
    retries: u8,
    doing: WriteState,
}

/// The record to write. Its dates, and the key of a shared lock, are set when it is sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RecordDraft {
    pub(super) key: KeyPlan,
    pub(super) record: LockRecord,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum KeyPlan {
    Exclusive,
    Shared { suffix: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum WriteState {
    /// Nothing was sent yet.
    Drafted,
    Sending(SentRecord),
    Pausing(SentRecord, Retried),
    Reading(SentRecord, Retried, ReadBackReason),
}

/// The record as sent; its version is not known yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SentRecord {
    key: ObjectKey,
    record: LockRecord,
    sent: BootTime,
}

/// Why the key is read back.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ReadBackReason {
    Refused,
    Unknown(OpFailure),
}

/// The result of the first write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum WriteResult {
    /// The record is stored and ours.
    Ours(OwnRecord),
    /// Refused. Contains the object that is at the key, if any.
    Taken(Option<Object>),
    /// After an unknown outcome, the record of another client is there (P29).
    Overtaken(Object),
    /// Whether the record is stored is unknown: it must be removed.
    Unknown(OwnRecord, OpFailure),
    /// The record is certainly not stored.
    Failed(OpFailure),
}

impl WriteRecord {
    pub(super) fn new(
        terms: LockTerms,
        expect: WriteExpectation,
        draft: RecordDraft,
    ) -> WriteRecord {
        let retries = terms.retries;
        WriteRecord {
            terms,
            expect,
            draft,
            retries,
            doing: WriteState::Drafted,
        }
    }

    /// Returns the record that may be stored because of us, if one was sent.
    pub(super) fn own(&self) -> Option<OwnRecord> {
        match &self.doing {
            WriteState::Drafted => None,
            WriteState::Sending(sent)
            | WriteState::Pausing(sent, _)
            | WriteState::Reading(sent, _, _) => Some(sent.own(Version::default())),
        }
    }

    fn send(&self, now: Now) -> SentRecord {
        let mut record = self.draft.record.clone();
        record.acquired_at = stamp(now.wall);
        record.expires_at = stamp(after(now.wall, self.terms.ttl));
        let key = match self.draft.key {
            KeyPlan::Exclusive => ObjectKey::Exclusive,
            KeyPlan::Shared { suffix } => ObjectKey::shared(&record.acquired_at, suffix),
        };
        SentRecord {
            key,
            record,
            sent: now.boot,
        }
    }

    fn op(&self, sent: &SentRecord) -> StoreOp {
        let body = OpBody::Record(sent.record.clone());
        match (self.terms.level, &self.expect) {
            (ConditionLevel::Nothing, _) => StoreOp::Put(sent.key.clone(), body),
            (_, WriteExpectation::Nothing) => StoreOp::Create(sent.key.clone(), body),
            (_, WriteExpectation::Stale(version)) => {
                StoreOp::Replace(sent.key.clone(), body, version.clone())
            }
        }
    }

    fn read_back(&mut self, sent: SentRecord, why: ReadBackReason) -> ProcedureStep<WriteResult> {
        let ask = Retried::new(StoreOp::Read(sent.key.clone()), self.terms.retries);
        self.doing = WriteState::Reading(sent, ask, why);
        ProcedureStep::Going
    }

    /// Our record is not there, and the key is as it was before the write.
    fn send_again(
        &mut self,
        sent: SentRecord,
        failure: OpFailure,
        now: Now,
    ) -> ProcedureStep<WriteResult> {
        if self.retries == 0 || failure.kind != super::OpFailureKind::Passing {
            // The write may still be under way: the cleanup reads the key again.
            return ProcedureStep::Done(WriteResult::Unknown(
                sent.own(Version::default()),
                failure,
            ));
        }
        self.retries -= 1;
        let pause = now.boot + std::time::Duration::from_millis(200);
        self.doing = WriteState::Pausing(sent, Retried::new(StoreOp::WaitUntil(pause), 0));
        ProcedureStep::Going
    }

    fn as_before(&self, found: &OpResult) -> bool {
        match (&self.expect, found) {
            (WriteExpectation::Nothing, OpResult::Absent) => true,
            (WriteExpectation::Stale(version), OpResult::Found(object)) => {
                object.version == *version
            }
            // At level 0 a stale object may disappear: the write does not depend on it.
            (WriteExpectation::Stale(_), OpResult::Absent) => {
                self.terms.level == ConditionLevel::Nothing
            }
            _ => false,
        }
    }
}

impl SentRecord {
    fn own(&self, version: Version) -> OwnRecord {
        OwnRecord {
            key: self.key.clone(),
            record: self.record.clone(),
            version,
            sent: self.sent,
        }
    }
}

impl Procedure for WriteRecord {
    type End = WriteResult;

    fn next(&mut self, now: Now) -> StoreOp {
        match &mut self.doing {
            WriteState::Drafted => {
                let sent = self.send(now);
                let op = self.op(&sent);
                self.doing = WriteState::Sending(sent);
                op
            }
            WriteState::Sending(sent) => {
                let sent = sent.clone();
                self.op(&sent)
            }
            WriteState::Pausing(_, ask) | WriteState::Reading(_, ask, _) => ask.next(now),
        }
    }

    fn answer(&mut self, answer: OpResult, now: Now) -> ProcedureStep<WriteResult> {
        match std::mem::replace(&mut self.doing, WriteState::Drafted) {
            WriteState::Drafted => ProcedureStep::Done(WriteResult::Failed(unexpected(answer))),
            WriteState::Sending(sent) => match answer {
                OpResult::Written(version) => {
                    ProcedureStep::Done(WriteResult::Ours(sent.own(version)))
                }
                // Read back before giving up: if a repeated write is refused, the record at the key
                // may be our own from the first sending.
                OpResult::Refused(ConditionFailure::Condition | ConditionFailure::Contention) => {
                    self.read_back(sent, ReadBackReason::Refused)
                }
                OpResult::Refused(ConditionFailure::NotSupported) => {
                    ProcedureStep::Done(WriteResult::Failed(unexpected(answer)))
                }
                other => self.read_back(sent, ReadBackReason::Unknown(unexpected(other))),
            },
            WriteState::Pausing(sent, _) => {
                self.doing = WriteState::Sending(sent);
                ProcedureStep::Going
            }
            WriteState::Reading(sent, mut ask, why) => {
                let found = match ask.answer(answer, now) {
                    ProcedureStep::Going => {
                        self.doing = WriteState::Reading(sent, ask, why);
                        return ProcedureStep::Going;
                    }
                    ProcedureStep::Done(Ok(found)) => found,
                    ProcedureStep::Done(Err(failure)) => {
                        let own = sent.own(Version::default());
                        return ProcedureStep::Done(WriteResult::Unknown(own, failure));
                    }
                };
                // The token proves that the record is ours, whichever of the copies took effect.
                if let OpResult::Found(object) = &found
                    && let Some(version) = ours(object, &sent.record.identity())
                {
                    return ProcedureStep::Done(WriteResult::Ours(sent.own(version)));
                }
                match (why, found) {
                    // The write had no effect so far, and the key is as expected: repeat it.
                    (ReadBackReason::Unknown(failure), found) if self.as_before(&found) => {
                        self.send_again(sent, failure, now)
                    }
                    (ReadBackReason::Unknown(_), OpResult::Found(object)) => {
                        ProcedureStep::Done(WriteResult::Overtaken(object))
                    }
                    (ReadBackReason::Unknown(_) | ReadBackReason::Refused, OpResult::Absent) => {
                        ProcedureStep::Done(WriteResult::Taken(None))
                    }
                    (ReadBackReason::Refused, OpResult::Found(object)) => {
                        ProcedureStep::Done(WriteResult::Taken(Some(object)))
                    }
                    (_, other) => {
                        let own = sent.own(Version::default());
                        ProcedureStep::Done(WriteResult::Unknown(own, unexpected(other)))
                    }
                }
            }
        }
    }
}
