//! Ability probe: finds which conditional operations a store supports (P26 (levels of conditional
//! writes), P36 (stores with object versions)).
//!
//! A scratch object is created twice, replaced by its current and by an old version, and deleted by
//! an old and by its current version. In each pair one request must succeed and the other must be
//! refused. A store that accepts both ignores the condition, which is worse than an error.

use std::time::Duration;

use super::rng::Rng;
use super::{
    ConditionFailure, OpBody, OpFailure, OpFailureKind, OpResult, Procedure, ProcedureStep,
    StoreOp, unexpected,
};
use crate::key::ObjectKey;
use crate::lock_terms::ConditionLevel;
use crate::staleness::Version;
use crate::time::{BootTime, Now};

/// Probes the abilities of a store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Probe {
    rng: Rng,
    number: u64,
    retries: u8,
    phase: ProbePhase,
    pause: Option<BootTime>,
}

/// The abilities of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Abilities {
    /// Which conditional operations it supports.
    pub level: ConditionLevel,
    /// Whether deleting the newest version makes an older one visible (P36).
    pub resurfaces: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum ProbePhase {
    Create,
    CreateAgain {
        first: Version,
    },
    Replace {
        first: Version,
    },
    ReplaceOld {
        first: Version,
        second: Version,
    },
    DeleteOld {
        first: Version,
        second: Version,
    },
    DeleteNew {
        second: Version,
    },
    CleanUp(ConditionLevel),
    LookAfter(ConditionLevel),
    /// A response was lost: nothing can be concluded from this object any more.
    StartOver(OpFailure),
}

type ProbeEnd = Result<Abilities, OpFailure>;

impl Probe {
    /// Starts a probe. `seed` separates simultaneous probes.
    pub fn new(seed: u128, retries: u8) -> Probe {
        let mut rng = Rng::new(seed);
        let number = rng.number();
        Probe {
            rng,
            number,
            retries,
            phase: ProbePhase::Create,
            pause: None,
        }
    }

    fn key(&self) -> ObjectKey {
        ObjectKey::Probe(self.number)
    }

    fn go(&mut self, phase: ProbePhase) -> ProcedureStep<ProbeEnd> {
        self.phase = phase;
        ProcedureStep::Going
    }

    /// Repeats the same request after a pause.
    fn again(&mut self, failure: OpFailure, now: Now) -> ProcedureStep<ProbeEnd> {
        if self.retries == 0 || failure.kind != OpFailureKind::Passing {
            return ProcedureStep::Done(Err(failure));
        }
        self.retries -= 1;
        self.pause = Some(now.boot + Duration::from_millis(200));
        ProcedureStep::Going
    }

    /// Handles a response that says nothing about conditions.
    fn unclear(&mut self, answer: OpResult, now: Now) -> ProcedureStep<ProbeEnd> {
        match answer {
            OpResult::Refused(ConditionFailure::Contention) => self.again(unexpected(answer), now),
            other => self.go(ProbePhase::StartOver(unexpected(other))),
        }
    }

    fn start_over(&mut self, failure: OpFailure, now: Now) -> ProcedureStep<ProbeEnd> {
        self.number = self.rng.number();
        self.phase = ProbePhase::Create;
        self.again(failure, now)
    }

    fn decide(&mut self, phase: ProbePhase, answer: OpResult, now: Now) -> ProcedureStep<ProbeEnd> {
        use ConditionFailure::{Condition, NotSupported};
        use OpResult::{Absent, Deleted, Found, Refused, Written};
        match (phase, answer) {
            // Each pair of phases is one ability: the valid request must succeed, the invalid one
            // must be refused. An answer that contradicts this ends the probe at the level proved so
            // far; an unclear one repeats the request or starts the probe again.
            (ProbePhase::Create, Written(first)) => self.go(ProbePhase::CreateAgain { first }),
            (ProbePhase::Create, Refused(Condition | NotSupported)) => {
                self.go(ProbePhase::CleanUp(ConditionLevel::Nothing))
            }
            (ProbePhase::CreateAgain { first }, Refused(Condition)) => {
                self.go(ProbePhase::Replace { first })
            }
            (ProbePhase::CreateAgain { .. }, Written(_) | Refused(NotSupported)) => {
                self.go(ProbePhase::CleanUp(ConditionLevel::Nothing))
            }
            (ProbePhase::Replace { first }, Written(second)) => {
                self.go(ProbePhase::ReplaceOld { first, second })
            }
            (ProbePhase::Replace { .. }, Refused(Condition | NotSupported) | Absent) => {
                self.go(ProbePhase::CleanUp(ConditionLevel::Nothing))
            }
            (ProbePhase::ReplaceOld { first, second }, Refused(Condition)) => {
                self.go(ProbePhase::DeleteOld { first, second })
            }
            (ProbePhase::ReplaceOld { .. }, Written(_) | Refused(NotSupported) | Absent) => {
                self.go(ProbePhase::CleanUp(ConditionLevel::Nothing))
            }
            (ProbePhase::DeleteOld { second, .. }, Refused(Condition)) => {
                self.go(ProbePhase::DeleteNew { second })
            }
            (ProbePhase::DeleteOld { .. }, Deleted | Absent | Refused(NotSupported)) => {
                self.go(ProbePhase::CleanUp(ConditionLevel::Writes))
            }
            // The store includes the added condition in the signature and rejects the request as
            // forged.
            (
                ProbePhase::DeleteOld { .. } | ProbePhase::DeleteNew { .. },
                OpResult::Failed(failure),
            ) if failure.kind == OpFailureKind::Lasting => {
                self.go(ProbePhase::CleanUp(ConditionLevel::Writes))
            }
            (ProbePhase::DeleteNew { .. }, Deleted) => {
                self.go(ProbePhase::LookAfter(ConditionLevel::Deletes))
            }
            (ProbePhase::DeleteNew { .. }, Refused(Condition | NotSupported) | Absent) => {
                self.go(ProbePhase::CleanUp(ConditionLevel::Writes))
            }
            (ProbePhase::CleanUp(level), Deleted | Absent) => self.go(ProbePhase::LookAfter(level)),
            (ProbePhase::CleanUp(_), other) => self.again(unexpected(other), now),
            (ProbePhase::LookAfter(level), Absent) => ProcedureStep::Done(Ok(Abilities {
                level,
                resurfaces: false,
            })),
            (ProbePhase::LookAfter(level), Found(_)) => ProcedureStep::Done(Ok(Abilities {
                level,
                resurfaces: true,
            })),
            (ProbePhase::LookAfter(_), other) => self.again(unexpected(other), now),
            (ProbePhase::StartOver(failure), _) => self.start_over(failure, now),
            (_, other) => self.unclear(other, now),
        }
    }
}

impl Procedure for Probe {
    type End = ProbeEnd;

    fn next(&mut self, _now: Now) -> StoreOp {
        if let Some(until) = self.pause {
            return StoreOp::WaitUntil(until);
        }
        let key = self.key();
        match &self.phase {
            ProbePhase::Create => StoreOp::Create(key, OpBody::Probe(1)),
            ProbePhase::CreateAgain { .. } => StoreOp::Create(key, OpBody::Probe(2)),
            ProbePhase::Replace { first } => StoreOp::Replace(key, OpBody::Probe(3), first.clone()),
            ProbePhase::ReplaceOld { first, .. } => {
                StoreOp::Replace(key, OpBody::Probe(4), first.clone())
            }
            ProbePhase::DeleteOld { first, .. } => StoreOp::DeleteVersion(key, first.clone()),
            ProbePhase::DeleteNew { second } => StoreOp::DeleteVersion(key, second.clone()),
            ProbePhase::CleanUp(_) | ProbePhase::StartOver(_) => StoreOp::Delete(key),
            ProbePhase::LookAfter(_) => StoreOp::Read(key),
        }
    }

    fn answer(&mut self, answer: OpResult, now: Now) -> ProcedureStep<ProbeEnd> {
        if self.pause.take().is_some() {
            return ProcedureStep::Going;
        }
        self.decide(self.phase.clone(), answer, now)
    }
}
