//! Injected faults, and which request each affects.

use std::time::Duration;

use tokio::sync::watch;

/// Kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FaultKind {
    Put,
    Get,
    Head,
    Delete,
    BulkDelete,
    List,
}

/// The fault of a request.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// Applied; the connection is closed without a response.
    LoseAnswer,
    /// Not applied; the connection is closed.
    LoseRequest,
    /// Applied, but answered with this status.
    StatusAfterApplying(u16),
    /// Not applied; answered with this status.
    Refuse(u16),
    /// Not applied; answered by a proxy in front of the store: this status and a page of its own.
    Proxy(u16),
    /// Applied; the status and the headers arrive, and the connection is cut in the body.
    CutBody,
    /// Delayed, then applied and answered.
    Delay(Duration),
    /// Applied, then answered after a delay.
    DelayAnswer(Duration),
    /// Delayed until a later request has been applied.
    Reorder,
    /// The connection is closed at once; applied when the gate opens.
    ApplyLater(Gate),
    /// Applied as if it had no condition.
    IgnoreCondition,
}

/// Which requests a fault affects: by kind and part of the key, after a number of skipped requests,
/// a number of times.
#[derive(Clone, Debug)]
pub(crate) struct FaultPlan {
    kind: Option<FaultKind>,
    key_part: String,
    skip: u32,
    times: u32,
    fault: Fault,
}

impl FaultPlan {
    /// Plans the fault for the next request of this kind.
    pub(crate) fn on(kind: FaultKind, fault: Fault) -> FaultPlan {
        FaultPlan {
            kind: Some(kind),
            key_part: String::new(),
            skip: 0,
            times: 1,
            fault,
        }
    }

    /// Plans the fault for the next request of any kind.
    pub(crate) fn on_any(fault: Fault) -> FaultPlan {
        FaultPlan {
            kind: None,
            key_part: String::new(),
            skip: 0,
            times: 1,
            fault,
        }
    }

    /// Only for keys that contain `part`.
    pub(crate) fn key(mut self, part: &str) -> FaultPlan {
        self.key_part = part.to_owned();
        self
    }

    /// Skips this many requests first.
    pub(crate) fn skip(mut self, requests: u32) -> FaultPlan {
        self.skip = requests;
        self
    }

    /// Affects this many requests.
    pub(crate) fn times(mut self, requests: u32) -> FaultPlan {
        self.times = requests;
        self
    }

    /// Affects all requests.
    pub(crate) fn always(self) -> FaultPlan {
        self.times(u32::MAX)
    }

    fn meets(&self, kind: FaultKind, key: &str) -> bool {
        self.kind.is_none_or(|wanted| wanted == kind) && key.contains(&self.key_part)
    }
}

/// Returns the planned fault of this request, if any, and counts it.
pub(super) fn take(plans: &mut [FaultPlan], kind: FaultKind, key: &str) -> Option<Fault> {
    for plan in plans.iter_mut().filter(|plan| plan.meets(kind, key)) {
        if plan.skip > 0 {
            plan.skip -= 1;
        } else if plan.times > 0 {
            plan.times -= 1;
            return Some(plan.fault.clone());
        }
    }
    None
}

/// A gate that opens once and stays open.
#[derive(Clone, Debug)]
pub(crate) struct Gate(watch::Sender<bool>);

impl Gate {
    /// Creates a closed gate.
    pub(crate) fn closed() -> Gate {
        Gate(watch::channel(false).0)
    }

    /// Opens the gate.
    pub(crate) fn open(&self) {
        self.0.send_replace(true);
    }

    /// Waits until the gate is open.
    pub(crate) async fn passed(&self) {
        // `self` keeps the sender alive, so waiting cannot fail.
        let _ = self.0.subscribe().wait_for(|open| *open).await;
    }
}

/// The part of a fault before the request is applied.
pub(super) enum Before {
    Nothing,
    Wait(Duration),
    BeOvertaken,
    ForgetCondition,
    Refuse(u16),
    Proxy(u16),
    Cut,
}

/// The part of a fault when and after the request is applied.
pub(super) enum After {
    Answer,
    Wait(Duration),
    Status(u16),
    Cut,
    CutBody,
    CutFirst(Gate),
}

impl Fault {
    pub(super) fn split(self) -> (Before, After) {
        match self {
            Fault::LoseAnswer => (Before::Nothing, After::Cut),
            Fault::LoseRequest => (Before::Cut, After::Cut),
            Fault::StatusAfterApplying(status) => (Before::Nothing, After::Status(status)),
            Fault::Refuse(status) => (Before::Refuse(status), After::Answer),
            Fault::Proxy(status) => (Before::Proxy(status), After::Answer),
            Fault::CutBody => (Before::Nothing, After::CutBody),
            Fault::Delay(time) => (Before::Wait(time), After::Answer),
            Fault::DelayAnswer(time) => (Before::Nothing, After::Wait(time)),
            Fault::Reorder => (Before::BeOvertaken, After::Answer),
            Fault::ApplyLater(gate) => (Before::Nothing, After::CutFirst(gate)),
            Fault::IgnoreCondition => (Before::ForgetCondition, After::Answer),
        }
    }
}
