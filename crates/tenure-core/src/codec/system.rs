//! Encoding of the system machine's commands, outcomes and answers.

use super::{DecodeError, Encode, Reader, Writer};
use crate::namespace_table::NamespaceTable;
use crate::system::{
    AfterChange, ChangeBegun, ChangeDecided, ChangeEnd, ChangeView, Edge, KeyClaim, KeyWork,
    ReleasePlan, ReleasePlanEffect, RepeatedKey, SystemAnswer, SystemCall, SystemCommand,
    SystemOutcome,
};
use crate::{record, record_enum};

record_enum! { SystemCall as "call" {
    0 => Renew, 1 => ReleaseAll, 2 => ForceRelease, 3 => SetWaitEdge, 4 => ClearWaitEdge,
    5 => IncrFencingToken, 6 => SetNamespacePolicy, 7 => DeleteNamespacePolicy, 8 => Release,
} }
record_enum! { ReleasePlanEffect as "effect of a plan" { 0 => None, 1 => ClearEdge, 2 => Kill } }

record! { Edge { blocker, why } }
record! { KeyClaim { call, key, fingerprint } }
record! { ReleasePlan { selection, groups } }
record! { ChangeView { change, region, reach, command, then } }

record_enum! { KeyWork as "work" { 1(plan) => Plan(plan), 2(change) => Change(change) } }
record_enum! { ChangeEnd as "end of a change" { 1 => Made, 2(live) => Refused { live } } }
record_enum! { SystemAnswer as "answer" {
    0 => Done,
    1(leases, asked) => Renewed { leases, asked },
    2(fence) => Number(fence),
} }
record_enum! { SystemCommand as "system command" {
    1(namespace, to, claim) => Begin { namespace, to, claim },
    2(change, report) => Decide { change, report },
    3(change) => Finish { change },
    4(owner, edge, ttl, claim) => SetEdge { owner, edge, ttl, claim },
    5(owner, claim) => ClearEdge { owner, claim },
    6(above, claim) => Increment { above, claim },
    7(claim) => Claim(claim),
    8(claim, answer) => Complete { claim, answer, plan: None },
    9(owner, claim) => Kill { owner, claim },
    10(owner) => Ask { owner },
    11 => Tick,
    12(by) => Lift { by },
    13(number) => Rules { number },
    // Since rules 2.
    14(claim, owner, plan, effect) => Plan { claim, owner, plan, effect },
    15(claim, answer, plan) => Complete { claim, answer, plan: Some(plan) },
    20(command) => Auth(command),
} }
record_enum! { ChangeBegun as "beginning of a change" {
    0 => Unchanged,
    1(version) => Committed { version },
    2(change) => Started { change },
    3(change) => Busy { change },
    // Since rules 2.
    4 => Full,
} }
record_enum! { ChangeDecided as "decision" {
    0(version) => Committed { version },
    1(live) => Refused { live },
    2 => Unknown,
} }
record_enum! { AfterChange as "step of a change" {
    0 => Decide,
    1(version) => Finish { version },
    2(live) => FinishRefused { live },
} }
record_enum! { RepeatedKey as "repeat" {
    0(answer) => Answered(answer), 1 => Open, 2 => KeyReused, 3 => Full,
} }
record_enum! { SystemOutcome as "system outcome" {
    1(begun) => Begun(begun),
    2(decided) => Decided(decided),
    3(fence) => Number(fence),
    4 => Fresh,
    5(repeated) => Repeated(repeated),
    6 => NumbersUsedUp,
    7 => Done,
    8(plan) => Planned(plan),
    20(version) => Auth(Ok(version)),
    21(refusal) => Auth(Err(refusal)),
} }

impl Encode for NamespaceTable {
    fn put(&self, out: &mut Writer) {
        crate::system::put_table(out, self);
    }
    fn take(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        crate::system::take_table(input)
    }
}
