//! A Tenure process of the model: the shipped procedures and the state of their requests.

use tenure_store::HolderBlock;
use tenure_store::internal::LockTerms;
use tenure_store::internal::Now;
use tenure_store::internal::Observations;
use tenure_store::internal::{
    Acquire, AcquireParams, HoldProcedure, HoldStatus, OpResult, Procedure, ProcedureStep, StoreOp,
    WaitBehavior,
};

use crate::support::LockMode;

/// The state of the process between two requests.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Io {
    /// Created and perhaps under way. Requests that are sent together take effect one by one, in
    /// any order; each is here with its result, once it was applied.
    Sent(Vec<(StoreOp, Option<OpResult>)>),
    /// Applied; the process pauses before it reads the result.
    Answered { answer: OpResult, ticked: bool },
    /// The process pauses before it sends its next request.
    Unsent { ticked: bool },
    /// The process has ended.
    Over,
}

/// Which part of the past of a process can still influence it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// How long ago events were, as far as rules compare.
    Normal,
    /// Also the distances between the times in an unread result.
    Unread,
    /// The lease has ended, so its dates do not matter.
    Lapsed,
    /// It will not hold again and only cleans up: only the owner of each version matters.
    Leaving { lapsed: bool },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Acquiring(Acquire),
    Holding(HoldProcedure),
    Ended,
}

/// The holder name of a process.
pub(crate) fn holder(slot: u8) -> String {
    format!("host (pid {slot})")
}

/// A process that acquires the lock once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tenure {
    terms: LockTerms,
    stage: Stage,
    io: Io,
    released: bool,
}

impl Tenure {
    pub(crate) fn new(slot: u8, mode: LockMode, terms: LockTerms) -> Tenure {
        let request = AcquireParams {
            mode,
            operation: "model".into(),
            holder: holder(slot),
            block: HolderBlock::default(),
            wait: WaitBehavior::No,
            seed: u128::from(slot),
        };
        let acquire = Acquire::new(terms.clone(), request, Observations::default());
        // It starts when it is resumed for the first time.
        Tenure {
            terms,
            stage: Stage::Acquiring(acquire),
            io: Io::Unsent { ticked: true },
            released: false,
        }
    }

    pub(crate) fn io(&self) -> &Io {
        &self.io
    }

    /// Returns `true` while it relies on the lock. A paused process relies on it until its lease
    /// ends.
    pub(crate) fn works(&self, now: Now) -> bool {
        match &self.stage {
            Stage::Holding(hold) => {
                !self.released
                    && *hold.status() == HoldStatus::Held
                    && now.boot < hold.valid_until()
            }
            Stage::Acquiring(_) | Stage::Ended => false,
        }
    }

    /// Returns `true` if its owner may release: it is idle and not released yet.
    pub(crate) fn may_release(&self) -> bool {
        self.rests() && !self.released
    }

    /// Returns `true` if its owner may revive a lapsed lock.
    pub(crate) fn may_revive(&self, now: Now) -> bool {
        let Stage::Holding(hold) = &self.stage else {
            return false;
        };
        let lapsed =
            now.boot >= hold.valid_until() && !matches!(hold.status(), HoldStatus::Lost(_));
        self.rests() && lapsed && !self.released
    }

    /// Returns `true` if it holds or held the lock and is idle.
    pub(crate) fn rests(&self) -> bool {
        matches!(
            (&self.stage, &self.io),
            (Stage::Holding(_), Io::Sent(ops)) if matches!(ops[..], [(StoreOp::WaitUntil(_), None)])
        )
    }

    pub(crate) fn release(&mut self, now: Now) {
        let Stage::Holding(hold) = &mut self.stage else {
            unreachable!("only a holder releases")
        };
        hold.release();
        self.released = true;
        self.take(OpResult::Waited, now).go_on(now);
    }

    pub(crate) fn revive(&mut self, now: Now) {
        let Stage::Holding(hold) = &mut self.stage else {
            unreachable!("only a holder revives")
        };
        hold.tick(now);
        hold.revive();
        self.take(OpResult::Waited, now).go_on(now);
    }

    /// Stores the result of one request. Returns the results of all when this was the last one.
    pub(crate) fn give(&mut self, leaf: u8, answer: OpResult) -> Option<OpResult> {
        let Io::Sent(ops) = &mut self.io else {
            unreachable!("only a request that was sent is answered")
        };
        ops[usize::from(leaf)].1 = Some(answer);
        let all: Option<Vec<OpResult>> = ops.iter().map(|(_, answer)| answer.clone()).collect();
        all.map(OpResult::batch)
    }

    /// Stores the result, which stays unread.
    pub(crate) fn keep(&mut self, answer: OpResult) {
        self.io = Io::Answered {
            answer,
            ticked: false,
        };
    }

    /// Reads the result.
    pub(crate) fn take(&mut self, answer: OpResult, now: Now) -> &mut Tenure {
        self.io = Io::Unsent { ticked: false };
        match &mut self.stage {
            Stage::Acquiring(acquire) => match acquire.answer(answer, now) {
                ProcedureStep::Going => {}
                ProcedureStep::Done(Ok(acquired)) => {
                    self.stage = Stage::Holding(HoldProcedure::new(self.terms.clone(), acquired));
                }
                ProcedureStep::Done(Err(_)) => self.stage = Stage::Ended,
            },
            Stage::Holding(hold) => {
                match hold.answer(answer, now) {
                    ProcedureStep::Going => {
                        // Notices are for users only and would enlarge the state.
                        hold.take_notices();
                    }
                    ProcedureStep::Done(_) => self.stage = Stage::Ended,
                }
            }
            Stage::Ended => unreachable!("a process that ended gets no answer"),
        }
        if self.stage == Stage::Ended {
            self.io = Io::Over;
            self.released = false;
        }
        self
    }

    /// Returns `true` if it holds or held the lock.
    pub(crate) fn holds(&self) -> bool {
        matches!(self.stage, Stage::Holding(_))
    }

    /// Returns which part of its past still matters.
    pub(crate) fn memory(&self) -> Memory {
        match (&self.stage, &self.io) {
            (_, Io::Answered { .. }) => Memory::Unread,
            (_, Io::Sent(ops)) if ops.iter().any(|(_, answer)| has_dates(answer.as_ref())) => {
                Memory::Unread
            }
            (Stage::Holding(hold), _) => match (hold.status(), self.released) {
                (HoldStatus::Held, false) => Memory::Normal,
                (HoldStatus::Lapsed { .. }, false) => Memory::Lapsed,
                (HoldStatus::Lapsed { .. }, true) => Memory::Leaving { lapsed: true },
                (HoldStatus::Lost(_), _) | (HoldStatus::Held, true) => {
                    Memory::Leaving { lapsed: false }
                }
            },
            (Stage::Acquiring(_) | Stage::Ended, _) => Memory::Normal,
        }
    }

    /// Returns `true` if it paused between two requests while time advanced.
    pub(crate) fn stood(&self) -> bool {
        matches!(
            self.io,
            Io::Answered { ticked: true, .. } | Io::Unsent { ticked: true }
        )
    }

    /// Sends the next request.
    pub(crate) fn go_on(&mut self, now: Now) {
        let op = match &mut self.stage {
            Stage::Acquiring(acquire) => acquire.next(now),
            Stage::Holding(hold) => hold.next(now),
            Stage::Ended => {
                self.io = Io::Over;
                return;
            }
        };
        self.io = Io::Sent(op.into_parts().into_iter().map(|op| (op, None)).collect());
    }

    /// Returns its fencing number while it holds.
    pub(crate) fn fence(&self) -> Option<u64> {
        match &self.stage {
            Stage::Holding(hold) => hold.fence(),
            Stage::Acquiring(_) | Stage::Ended => None,
        }
    }

    /// Continues after a pause.
    pub(crate) fn resume(&mut self, now: Now) {
        match std::mem::replace(&mut self.io, Io::Over) {
            Io::Answered { answer, .. } => self.take(answer, now).go_on(now),
            Io::Unsent { .. } => self.go_on(now),
            Io::Sent(_) | Io::Over => unreachable!("only who stands can wake up"),
        }
    }

    pub(crate) fn tick(&mut self) {
        match &mut self.io {
            Io::Answered { ticked, .. } | Io::Unsent { ticked } => *ticked = true,
            Io::Sent(_) | Io::Over => {}
        }
    }
}

/// Returns `true` if the result contains times.
fn has_dates(answer: Option<&OpResult>) -> bool {
    match answer {
        Some(OpResult::Found(object)) => object.modified.is_some(),
        Some(OpResult::Written(version)) => version
            .e_tag
            .as_ref()
            .is_some_and(|tag| !tag.starts_with('f')),
        _ => false,
    }
}
