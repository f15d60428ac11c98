//! Encoding of outcomes (replies to other nodes) and of events (also in snapshots).

use super::command::fields;
use super::{DecodeError, Encode, Reader, Writer};
use crate::event::{Event, EventKind};
use crate::outcome::{
    AcquireOutcome, Blocker, BreakOutcome, Conflict, FreezeReport, Outcome, Queued, Refusal,
    Renewed, Withdrawn,
};
use crate::policy::Missing;

fields!(Queued {
    conflict: one,
    fence: option,
    waiter: one,
    position: one
});
fields!(Conflict {
    reason: one,
    path: one,
    blocker: option
});
fields!(Blocker {
    owner: one,
    path: one,
    mode: one,
    fence: option,
    held_ms: one,
    holder: option
});
fields!(Renewed {
    asked: one,
    born: one
});
fields!(FreezeReport {
    live: option,
    highest: option
});
fields!(Event {
    sequence: one,
    id: one,
    owner: one,
    namespace: option,
    kind: one
});

impl Encode for EventKind {
    fn put(&self, out: &mut Writer) {
        match self {
            EventKind::Killed => out.byte(1),
            EventKind::Revoke => out.byte(2),
            EventKind::Grant { fence } => {
                out.byte(3);
                out.option(fence.as_ref());
            }
        }
    }
    fn take(input: &mut Reader<'_>) -> Result<EventKind, DecodeError> {
        match input.byte()? {
            1 => Ok(EventKind::Killed),
            2 => Ok(EventKind::Revoke),
            3 => Ok(EventKind::Grant {
                fence: input.option()?,
            }),
            found => Err(DecodeError::Tag { of: "event", found }),
        }
    }
}

impl Encode for Refusal {
    fn put(&self, out: &mut Writer) {
        match self {
            Refusal::Outdated { version } => {
                out.byte(0);
                out.put(version);
            }
            Refusal::Frozen { change } => {
                out.byte(1);
                out.put(change);
            }
            Refusal::KeyReused => out.byte(2),
            Refusal::AnswersFull => out.byte(3),
            Refusal::QueueFull => out.byte(4),
            Refusal::FencesUsedUp => out.byte(5),
            Refusal::Moved { version } => {
                out.byte(6);
                out.put(version);
            }
        }
    }
    fn take(input: &mut Reader<'_>) -> Result<Refusal, DecodeError> {
        Ok(match input.byte()? {
            0 => Refusal::Outdated {
                version: input.take()?,
            },
            1 => Refusal::Frozen {
                change: input.take()?,
            },
            2 => Refusal::KeyReused,
            3 => Refusal::AnswersFull,
            4 => Refusal::QueueFull,
            5 => Refusal::FencesUsedUp,
            6 => Refusal::Moved {
                version: input.take()?,
            },
            found => {
                return Err(DecodeError::Tag {
                    of: "refusal",
                    found,
                });
            }
        })
    }
}

impl Encode for AcquireOutcome {
    fn put(&self, out: &mut Writer) {
        match self {
            AcquireOutcome::Granted { fence } => {
                out.byte(0);
                out.option(fence.as_ref());
            }
            AcquireOutcome::Conflict(conflict) => {
                out.byte(1);
                out.put(conflict);
            }
            AcquireOutcome::Lost { path, missing } => {
                out.byte(2);
                out.option(path.as_ref());
                out.put(missing);
            }
            AcquireOutcome::Queued(queued) => {
                out.byte(3);
                out.put(queued);
            }
            AcquireOutcome::Refused(refusal) => {
                out.byte(4);
                out.put(refusal);
            }
        }
    }
    fn take(input: &mut Reader<'_>) -> Result<AcquireOutcome, DecodeError> {
        Ok(match input.byte()? {
            0 => AcquireOutcome::Granted {
                fence: input.option()?,
            },
            1 => AcquireOutcome::Conflict(input.take()?),
            2 => AcquireOutcome::Lost {
                path: input.option()?,
                missing: input.take()?,
            },
            3 => AcquireOutcome::Queued(input.take()?),
            4 => AcquireOutcome::Refused(input.take()?),
            found => {
                return Err(DecodeError::Tag {
                    of: "acquire outcome",
                    found,
                });
            }
        })
    }
}

impl Encode for BreakOutcome {
    fn put(&self, out: &mut Writer) {
        match self {
            BreakOutcome::Broken => out.byte(0),
            BreakOutcome::NotThatHold(blocker) => {
                out.byte(1);
                out.option(blocker.as_ref());
            }
            BreakOutcome::Refused(refusal) => {
                out.byte(2);
                out.put(refusal);
            }
        }
    }
    fn take(input: &mut Reader<'_>) -> Result<BreakOutcome, DecodeError> {
        Ok(match input.byte()? {
            0 => BreakOutcome::Broken,
            1 => BreakOutcome::NotThatHold(input.option()?),
            2 => BreakOutcome::Refused(input.take()?),
            found => {
                return Err(DecodeError::Tag {
                    of: "break outcome",
                    found,
                });
            }
        })
    }
}

impl Encode for Withdrawn {
    fn put(&self, out: &mut Writer) {
        match self {
            Withdrawn::Withdrawn => out.byte(0),
            Withdrawn::Granted { fence } => {
                out.byte(1);
                out.option(fence.as_ref());
            }
            Withdrawn::Gone => out.byte(2),
        }
    }
    fn take(input: &mut Reader<'_>) -> Result<Withdrawn, DecodeError> {
        Ok(match input.byte()? {
            0 => Withdrawn::Withdrawn,
            1 => Withdrawn::Granted {
                fence: input.option()?,
            },
            2 => Withdrawn::Gone,
            found => {
                return Err(DecodeError::Tag {
                    of: "withdrawal",
                    found,
                });
            }
        })
    }
}

impl Encode for Outcome {
    fn put(&self, out: &mut Writer) {
        match self {
            Outcome::Acquire(outcome) => {
                out.byte(1);
                out.put(outcome);
            }
            Outcome::Release(Ok(())) => out.byte(2),
            Outcome::Release(Err(refusal)) => {
                out.byte(3);
                out.put(refusal);
            }
            Outcome::Touched(count) => {
                out.byte(4);
                out.put(count);
            }
            Outcome::Renew(Ok(renewed)) => {
                out.byte(5);
                out.put(renewed);
            }
            Outcome::Renew(Err(missing)) => {
                out.byte(6);
                out.put(missing);
            }
            Outcome::Expired(ended) => {
                out.byte(7);
                out.put(ended);
            }
            Outcome::Break(outcome) => {
                out.byte(8);
                out.put(outcome);
            }
            Outcome::Withdraw(outcome) => {
                out.byte(9);
                out.put(outcome);
            }
            Outcome::Frozen(report) => {
                out.byte(10);
                out.put(report);
            }
            Outcome::Done => out.byte(11),
        }
    }
    fn take(input: &mut Reader<'_>) -> Result<Outcome, DecodeError> {
        Ok(match input.byte()? {
            1 => Outcome::Acquire(input.take()?),
            2 => Outcome::Release(Ok(())),
            3 => Outcome::Release(Err(input.take()?)),
            4 => Outcome::Touched(input.take()?),
            5 => Outcome::Renew(Ok(input.take()?)),
            6 => Outcome::Renew(Err(input.take::<Missing>()?)),
            7 => Outcome::Expired(input.take()?),
            8 => Outcome::Break(input.take()?),
            9 => Outcome::Withdraw(input.take()?),
            10 => Outcome::Frozen(input.take()?),
            11 => Outcome::Done,
            found => {
                return Err(DecodeError::Tag {
                    of: "outcome",
                    found,
                });
            }
        })
    }
}
