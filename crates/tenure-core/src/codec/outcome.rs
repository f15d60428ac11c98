//! Encoding of outcomes (replies to other nodes) and of events (also in snapshots).

use crate::event::{ChangeKind, Event, EventKind, LockChange};
use crate::limits::QuotaScope;
use crate::outcome::{
    AcquireOutcome, Blocker, BreakOutcome, Conflict, FreezeReport, Outcome, Queued, Refusal,
    Renewed, Withdrawn,
};
use crate::{record, record_enum};

record! { Queued { conflict, fence, waiter, position } }
record! { Conflict { reason, path, blocker } }
record! { Blocker { owner, path, mode, fence, held_ms, holder } }
record! { Renewed { asked, born } }
record! { FreezeReport { live, highest } }
record! { Event { sequence, id, owner, namespace, kind } }
record! { LockChange { namespace, kind, owner, path, mode, fence, holder } }

record_enum! { EventKind as "event" { 1 => Killed, 2 => Revoke, 3(fence) => Grant { fence } } }
record_enum! { ChangeKind as "change" {
    0 => Granted, 1 => Queued, 2 => Released, 3 => Expired, 4 => Killed, 5 => Dequeued, 6 => Asked,
    7(algorithm) => Policy { algorithm },
} }
record_enum! { QuotaScope as "scope of a quota" { 0 => Own, 1 => Total } }
record_enum! { Refusal as "refusal" {
    0(version) => Outdated { version },
    1(change) => Frozen { change },
    2 => KeyReused,
    3 => AnswersFull,
    4 => QueueFull,
    5 => FencesUsedUp,
    6(version) => Moved { version },
    // Since rules 2.
    7(scope, limit, value) => Quota { scope, limit, value },
} }
record_enum! { AcquireOutcome as "acquire outcome" {
    0(fence) => Granted { fence },
    1(conflict) => Conflict(conflict),
    2(path, missing) => Lost { path, missing },
    3(queued) => Queued(queued),
    4(refusal) => Refused(refusal),
} }
record_enum! { BreakOutcome as "break outcome" {
    0 => Broken,
    1(blocker) => NotThatHold(blocker),
    2(refusal) => Refused(refusal),
} }
record_enum! { Withdrawn as "withdrawal" { 0 => Withdrawn, 1(fence) => Granted { fence }, 2 => Gone } }
record_enum! { Outcome as "outcome" {
    1(outcome) => Acquire(outcome),
    2 => Release(Ok(())),
    3(refusal) => Release(Err(refusal)),
    4(count) => Touched(count),
    5(renewed) => Renew(Ok(renewed)),
    6(missing) => Renew(Err(missing)),
    7(ended) => Expired(ended),
    8(outcome) => Break(outcome),
    9(outcome) => Withdraw(outcome),
    10(report) => Frozen(report),
    11 => Done,
} }
