//! Encoding of commands. One command is one item of a log entry.

use crate::command::{
    Acquire, AcquireWithin, AskRelease, BreakLock, ChangePolicy, ClearPolicy, Command, Domain,
    Expire, Freeze, Hold, Region, Release, ReleaseAll, ReleaseCause, RenewLease, Request,
    RequestKind, Route, Selection, Thaw, WaitMode, Whole, Withdraw,
};
use crate::limits::{Quota, QuotaValues};
use crate::{record, record_enum};

record_enum! { RequestKind as "lock state" { 0 => New, 1 => Held } }
record_enum! { WaitMode as "way of waiting" { 0 => Queue, 1 => QueueAndAsk, 2 => No } }
record_enum! { ReleaseCause as "cause of a release" { 0 => Owner, 1 => Killed } }
record_enum! { ClearPolicy as "clearing" { 1 => Waiters, 2 => All } }
record_enum! { Selection as "selection" { 0 => All, 1(domains) => Only(domains) } }
record_enum! { Domain as "domain" { 0(name) => Namespace(name), 1(name) => Handler(name) } }

record! { Route { namespace, algorithm, version } }
record! { Request { path, mode, state, permits } }
record! { Hold { path, mode } }
record! { Acquire {
    route, owner, ttl, queue_ttl, requests, releases, fence, key, wait, holder
} }
record! { QuotaValues { paths, waiting, owners } }
record! { Quota { own, total } }
record! { AcquireWithin { acquire, quota } }
record! { Whole { fingerprint, asked } }
record! { RenewLease { namespace, owner, ttl } }
record! { Expire { namespace, owner, epoch } }
record! { AskRelease { owner } }
record! { BreakLock { route, path, owner, fence } }
record! { Withdraw { namespace, owner, waiter } }
record! { Region { root, except } }
record! { Freeze { change, settled, region } }
record! { ChangePolicy { change, settled, version, region, algorithm, clear, floor } }
record! { Thaw { change } }

record_enum! { Command as "command" {
    1(acquire) => Acquire(acquire),
    2(route, owner, holds, key) => Release(Release { route, owner, holds, key, whole: None }),
    3(owner, selection, cause) => ReleaseAll(ReleaseAll { owner, selection, cause, until: None }),
    4(renew) => Renew(renew),
    5(expire) => Expire(expire),
    6 => Tick,
    7(ask) => Ask(ask),
    8(hold) => Break(hold),
    9(withdraw) => Withdraw(withdraw),
    10(freeze) => Freeze(freeze),
    11(change) => Change(change),
    12(thaw) => Thaw(thaw),
    13(by) => Lift { by },
    14(number) => Rules { number },
    // Since rules 2.
    15(whole, route, owner, holds, key) => Release(Release {
        route, owner, holds, key, whole: Some(whole),
    }),
    17(within) => AcquireWithin(within),
    16(until, owner, selection, cause) => ReleaseAll(ReleaseAll {
        owner, selection, cause, until: Some(until),
    }),
} }
