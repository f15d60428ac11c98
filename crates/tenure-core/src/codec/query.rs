//! Encoding of the results of queries, which nodes send to each other.

use crate::deadlock::WaitPosition;
use crate::namespace_table::AffectedGroups;
use crate::query::{
    Child, ChildPage, DumpCursor, DumpPage, Explanation, FenceCheck, HeldLock, HistoryEvent,
    HistoryPage, HoldView, Inspection, PresentHold, SurveyPage, WaitPage, WaiterView, WaitingOwner,
    WaitsFor,
};
use crate::{record, record_enum};

record_enum! { FenceCheck as "fence check" {
    0 => Valid, 1 => StaleOwner, 2(current) => StaleFence { current },
} }
record_enum! { AffectedGroups as "groups of a change" { 0 => OwnGroup, 1 => AllGroups } }

record! { Inspection { writer, readers, permit_holders, fence, waiters } }
record! { Explanation { namespace, algorithm, conflict, blockers, ahead, position } }
record! { WaiterView { waiter, owner, path, mode, waited_ms, holder } }
record! { HeldLock { owner, namespace, path, mode, fence } }
record! { DumpPage { locks, next } }
record! { DumpCursor(claim) }
record! { HoldView { lock, held_ms, left_ms, holder, permits } }
record! { SurveyPage { holds, waiters, next } }
record! { WaitPosition { namespace, waiter } }
record! { WaitsFor { place, owners } }
record! { PresentHold { namespace, hold, lease_left_ms } }
record! { Child { name, holds, waiters, is_branch, is_minimum, holders } }
record! { ChildPage { children, until } }
record! { WaitingOwner { waiter, paths, blockers } }
record! { WaitPage { waits, count } }
record! { HistoryEvent { wall, kind, path, owner, mode, fence, holder } }
record! { HistoryPage { events, complete_since, is_cut } }
