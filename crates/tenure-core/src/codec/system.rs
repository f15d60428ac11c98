//! Encoding of the system machine's commands, outcomes and answers.

use super::command::fields;
use super::value::tags;
use super::{DecodeError, Encode, Reader, Writer};
use crate::system::{
    ChangeBegun, ChangeDecided, ChangeEnd, Edge, KeyClaim, KeyWork, ReleasePlan, ReleasePlanEffect,
    RepeatedKey, SystemAnswer, SystemCall, SystemCommand, SystemOutcome,
};

tags!(SystemCall as "call" {
    Renew = 0, ReleaseAll = 1, ForceRelease = 2, SetWaitEdge = 3, ClearWaitEdge = 4,
    IncrFencingToken = 5, SetNamespacePolicy = 6, DeleteNamespacePolicy = 7, Release = 8,
});

fields!(Edge {
    blocker: one,
    why: option
});
fields!(KeyClaim {
    call: one,
    key: one,
    fingerprint: one
});

tags!(ReleasePlanEffect as "effect of a plan" { None = 0, ClearEdge = 1, Kill = 2 });
fields!(ReleasePlan {
    selection: one,
    groups: list
});

impl Encode for KeyWork {
    fn put(&self, out: &mut Writer) {
        match self {
            KeyWork::Plan(plan) => {
                out.byte(1);
                out.put(plan);
            }
            KeyWork::Change(change) => {
                out.byte(2);
                out.put(change);
            }
        }
    }
    fn take(input: &mut Reader<'_>) -> Result<KeyWork, DecodeError> {
        Ok(match input.byte()? {
            1 => KeyWork::Plan(input.take()?),
            2 => KeyWork::Change(input.take()?),
            found => return Err(DecodeError::Tag { of: "work", found }),
        })
    }
}

impl Encode for ChangeEnd {
    fn put(&self, out: &mut Writer) {
        match self {
            ChangeEnd::Made => out.byte(1),
            ChangeEnd::Refused { live } => {
                out.byte(2);
                out.put(live);
            }
        }
    }
    fn take(input: &mut Reader<'_>) -> Result<ChangeEnd, DecodeError> {
        Ok(match input.byte()? {
            1 => ChangeEnd::Made,
            2 => ChangeEnd::Refused {
                live: input.take()?,
            },
            found => {
                return Err(DecodeError::Tag {
                    of: "end of a change",
                    found,
                });
            }
        })
    }
}

impl Encode for u128 {
    fn put(&self, out: &mut Writer) {
        out.number((self >> 64) as u64);
        out.number(*self as u64);
    }
    fn take(input: &mut Reader<'_>) -> Result<u128, DecodeError> {
        Ok((u128::from(input.number()?) << 64) | u128::from(input.number()?))
    }
}

impl Encode for SystemAnswer {
    fn put(&self, out: &mut Writer) {
        match self {
            SystemAnswer::Done => out.byte(0),
            SystemAnswer::Renewed { leases, asked } => {
                out.byte(1);
                out.list(leases);
                out.put(asked);
            }
            SystemAnswer::Number(fence) => {
                out.byte(2);
                out.put(fence);
            }
        }
    }
    fn take(input: &mut Reader<'_>) -> Result<SystemAnswer, DecodeError> {
        Ok(match input.byte()? {
            0 => SystemAnswer::Done,
            1 => SystemAnswer::Renewed {
                leases: input.list()?,
                asked: input.take()?,
            },
            2 => SystemAnswer::Number(input.take()?),
            found => {
                return Err(DecodeError::Tag {
                    of: "answer",
                    found,
                });
            }
        })
    }
}

impl Encode for SystemCommand {
    fn put(&self, out: &mut Writer) {
        match self {
            SystemCommand::Begin {
                namespace,
                to,
                claim,
            } => {
                out.byte(1);
                out.put(namespace);
                out.option(to.as_ref());
                out.option(claim.as_ref());
            }
            SystemCommand::Decide { change, report } => {
                out.byte(2);
                out.put(change);
                out.put(report);
            }
            SystemCommand::Finish { change } => {
                out.byte(3);
                out.put(change);
            }
            SystemCommand::SetEdge {
                owner,
                edge,
                ttl,
                claim,
            } => {
                out.byte(4);
                out.put(owner);
                out.put(edge);
                out.put(ttl);
                out.option(claim.as_ref());
            }
            SystemCommand::ClearEdge { owner, claim } => {
                out.byte(5);
                out.put(owner);
                out.option(claim.as_ref());
            }
            SystemCommand::Increment { above, claim } => {
                out.byte(6);
                out.option(above.as_ref());
                out.option(claim.as_ref());
            }
            SystemCommand::Claim(claim) => {
                out.byte(7);
                out.put(claim);
            }
            SystemCommand::Complete {
                claim,
                answer,
                plan: None,
            } => {
                out.byte(8);
                out.put(claim);
                out.option(answer.as_ref());
            }
            SystemCommand::Complete {
                claim,
                answer,
                plan: Some(plan),
            } => {
                out.byte(15);
                out.put(claim);
                out.option(answer.as_ref());
                out.put(plan);
            }
            SystemCommand::Kill { owner, claim } => {
                out.byte(9);
                out.put(owner);
                out.option(claim.as_ref());
            }
            SystemCommand::Ask { owner } => {
                out.byte(10);
                out.put(owner);
            }
            SystemCommand::Tick => out.byte(11),
            SystemCommand::Lift { by } => {
                out.byte(12);
                out.put(by);
            }
            SystemCommand::Rules { number } => {
                out.byte(13);
                out.put(number);
            }
            SystemCommand::Plan {
                claim,
                owner,
                plan,
                effect,
            } => {
                out.byte(14);
                out.put(claim);
                out.put(owner);
                out.put(plan);
                out.put(effect);
            }
        }
    }
    fn take(input: &mut Reader<'_>) -> Result<SystemCommand, DecodeError> {
        Ok(match input.byte()? {
            1 => SystemCommand::Begin {
                namespace: input.take()?,
                to: input.option()?,
                claim: input.option()?,
            },
            2 => SystemCommand::Decide {
                change: input.take()?,
                report: input.take()?,
            },
            3 => SystemCommand::Finish {
                change: input.take()?,
            },
            4 => SystemCommand::SetEdge {
                owner: input.take()?,
                edge: input.take()?,
                ttl: input.take()?,
                claim: input.option()?,
            },
            5 => SystemCommand::ClearEdge {
                owner: input.take()?,
                claim: input.option()?,
            },
            6 => SystemCommand::Increment {
                above: input.option()?,
                claim: input.option()?,
            },
            7 => SystemCommand::Claim(input.take()?),
            8 => SystemCommand::Complete {
                claim: input.take()?,
                answer: input.option()?,
                plan: None,
            },
            9 => SystemCommand::Kill {
                owner: input.take()?,
                claim: input.option()?,
            },
            10 => SystemCommand::Ask {
                owner: input.take()?,
            },
            11 => SystemCommand::Tick,
            12 => SystemCommand::Lift { by: input.take()? },
            13 => SystemCommand::Rules {
                number: input.take()?,
            },
            // Since rules 2.
            14 => SystemCommand::Plan {
                claim: input.take()?,
                owner: input.take()?,
                plan: input.take()?,
                effect: input.take()?,
            },
            15 => SystemCommand::Complete {
                claim: input.take()?,
                answer: input.option()?,
                plan: Some(input.take()?),
            },
            found => {
                return Err(DecodeError::Tag {
                    of: "system command",
                    found,
                });
            }
        })
    }
}

impl Encode for ChangeBegun {
    fn put(&self, out: &mut Writer) {
        match self {
            ChangeBegun::Unchanged => out.byte(0),
            ChangeBegun::Committed { version } => {
                out.byte(1);
                out.put(version);
            }
            ChangeBegun::Started { change } => {
                out.byte(2);
                out.put(change);
            }
            ChangeBegun::Busy { change } => {
                out.byte(3);
                out.put(change);
            }
        }
    }
    fn take(input: &mut Reader<'_>) -> Result<ChangeBegun, DecodeError> {
        Ok(match input.byte()? {
            0 => ChangeBegun::Unchanged,
            1 => ChangeBegun::Committed {
                version: input.take()?,
            },
            2 => ChangeBegun::Started {
                change: input.take()?,
            },
            3 => ChangeBegun::Busy {
                change: input.take()?,
            },
            found => {
                return Err(DecodeError::Tag {
                    of: "beginning of a change",
                    found,
                });
            }
        })
    }
}

impl Encode for ChangeDecided {
    fn put(&self, out: &mut Writer) {
        match self {
            ChangeDecided::Committed { version } => {
                out.byte(0);
                out.put(version);
            }
            ChangeDecided::Refused { live } => {
                out.byte(1);
                out.put(live);
            }
            ChangeDecided::Unknown => out.byte(2),
        }
    }
    fn take(input: &mut Reader<'_>) -> Result<ChangeDecided, DecodeError> {
        Ok(match input.byte()? {
            0 => ChangeDecided::Committed {
                version: input.take()?,
            },
            1 => ChangeDecided::Refused {
                live: input.take()?,
            },
            2 => ChangeDecided::Unknown,
            found => {
                return Err(DecodeError::Tag {
                    of: "decision",
                    found,
                });
            }
        })
    }
}

impl Encode for RepeatedKey {
    fn put(&self, out: &mut Writer) {
        match self {
            RepeatedKey::Answered(answer) => {
                out.byte(0);
                out.put(answer);
            }
            RepeatedKey::Open => out.byte(1),
            RepeatedKey::KeyReused => out.byte(2),
            RepeatedKey::Full => out.byte(3),
        }
    }
    fn take(input: &mut Reader<'_>) -> Result<RepeatedKey, DecodeError> {
        Ok(match input.byte()? {
            0 => RepeatedKey::Answered(input.take()?),
            1 => RepeatedKey::Open,
            2 => RepeatedKey::KeyReused,
            3 => RepeatedKey::Full,
            found => {
                return Err(DecodeError::Tag {
                    of: "repeat",
                    found,
                });
            }
        })
    }
}

impl Encode for SystemOutcome {
    fn put(&self, out: &mut Writer) {
        match self {
            SystemOutcome::Begun(begun) => {
                out.byte(1);
                out.put(begun);
            }
            SystemOutcome::Decided(decided) => {
                out.byte(2);
                out.put(decided);
            }
            SystemOutcome::Number(fence) => {
                out.byte(3);
                out.put(fence);
            }
            SystemOutcome::Fresh => out.byte(4),
            SystemOutcome::Repeated(repeated) => {
                out.byte(5);
                out.put(repeated);
            }
            SystemOutcome::NumbersUsedUp => out.byte(6),
            SystemOutcome::Done => out.byte(7),
            SystemOutcome::Planned(plan) => {
                out.byte(8);
                out.put(plan);
            }
        }
    }
    fn take(input: &mut Reader<'_>) -> Result<SystemOutcome, DecodeError> {
        Ok(match input.byte()? {
            1 => SystemOutcome::Begun(input.take()?),
            2 => SystemOutcome::Decided(input.take()?),
            3 => SystemOutcome::Number(input.take()?),
            4 => SystemOutcome::Fresh,
            5 => SystemOutcome::Repeated(input.take()?),
            6 => SystemOutcome::NumbersUsedUp,
            7 => SystemOutcome::Done,
            8 => SystemOutcome::Planned(input.take()?),
            found => {
                return Err(DecodeError::Tag {
                    of: "system outcome",
                    found,
                });
            }
        })
    }
}

impl Encode for crate::namespace_table::NamespaceTable {
    fn put(&self, out: &mut Writer) {
        crate::system::put_table(out, self);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        crate::system::take_table(input)
    }
}
