//! What may go wrong, and which request it hits.

use std::time::Duration;

use tokio::sync::watch;

/// The verbs, as a test names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FaultKind {
    Put,
    Get,
    Head,
    Delete,
    BulkDelete,
    List,
}

/// What happens to a request.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// Applied; the connection closes instead of an answer.
    LoseAnswer,
    /// Not applied; the connection closes.
    LoseRequest,
    /// Applied, then answered with this status all the same.
    StatusAfterApplying(u16),
    /// Not applied, answered with this status.
    Refuse(u16),
    /// Waits, then is applied and answered.
    Delay(Duration),
    /// Is applied, waits, then is answered.
    DelayAnswer(Duration),
    /// Waits until a later request has been applied.
    Reorder,
    /// The connection closes at once; applied when the gate opens.
    ApplyLater(Gate),
    /// Applied as if it had no condition: a liar for this one request.
    IgnoreCondition,
}

/// Which requests a fault hits: those of a kind whose key contains a text, after some were let
/// through, for a number of times.
#[derive(Clone, Debug)]
pub(crate) struct FaultPlan {
    kind: Option<FaultKind>,
    key_part: String,
    skip: u32,
    times: u32,
    fault: Fault,
}

impl FaultPlan {
    /// The fault, for the next request of this kind.
    pub(crate) fn on(kind: FaultKind, fault: Fault) -> FaultPlan {
        FaultPlan {
            kind: Some(kind),
            key_part: String::new(),
            skip: 0,
            times: 1,
            fault,
        }
    }

    /// The fault, for the next request whatever it is.
    pub(crate) fn on_any(fault: Fault) -> FaultPlan {
        FaultPlan {
            kind: None,
            key_part: String::new(),
            skip: 0,
            times: 1,
            fault,
        }
    }

    /// Only where the key contains this.
    pub(crate) fn key(mut self, part: &str) -> FaultPlan {
        self.key_part = part.to_owned();
        self
    }

    /// Lets this many through first.
    pub(crate) fn skip(mut self, requests: u32) -> FaultPlan {
        self.skip = requests;
        self
    }

    /// Hits this many.
    pub(crate) fn times(mut self, requests: u32) -> FaultPlan {
        self.times = requests;
        self
    }

    /// Hits all of them.
    pub(crate) fn always(self) -> FaultPlan {
        self.times(u32::MAX)
    }

    fn meets(&self, kind: FaultKind, key: &str) -> bool {
        self.kind.is_none_or(|wanted| wanted == kind) && key.contains(&self.key_part)
    }
}

/// The fault for this request, if a plan has one; counts it off.
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

/// A gate that opens once, for everybody.
#[derive(Clone, Debug)]
pub(crate) struct Gate(watch::Sender<bool>);

impl Gate {
    /// A closed gate.
    pub(crate) fn closed() -> Gate {
        Gate(watch::channel(false).0)
    }

    /// Opens it.
    pub(crate) fn open(&self) {
        self.0.send_replace(true);
    }

    /// Returns when it is open.
    pub(crate) async fn passed(&self) {
        // `self` keeps the sender alive: waiting cannot fail.
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
    Cut,
}

/// The part of a fault around and after that.
pub(super) enum After {
    Answer,
    Wait(Duration),
    Status(u16),
    Cut,
    CutFirst(Gate),
}

impl Fault {
    pub(super) fn split(self) -> (Before, After) {
        match self {
            Fault::LoseAnswer => (Before::Nothing, After::Cut),
            Fault::LoseRequest => (Before::Cut, After::Cut),
            Fault::StatusAfterApplying(status) => (Before::Nothing, After::Status(status)),
            Fault::Refuse(status) => (Before::Refuse(status), After::Answer),
            Fault::Delay(time) => (Before::Wait(time), After::Answer),
            Fault::DelayAnswer(time) => (Before::Nothing, After::Wait(time)),
            Fault::Reorder => (Before::BeOvertaken, After::Answer),
            Fault::ApplyLater(gate) => (Before::Nothing, After::CutFirst(gate)),
            Fault::IgnoreCondition => (Before::ForgetCondition, After::Answer),
        }
    }
}
