//! Encoding of the results of queries, which nodes send to each other.

use crate::deadlock::WaitPosition;
use crate::namespace_table::AffectedGroups;
use crate::query::{
    DumpCursor, DumpPage, Explanation, FenceCheck, HeldLock, HoldView, Inspection, SurveyPage,
    WaiterView, WaitsFor,
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
