//! Async driver: runs the procedures of [`protocol`](crate::protocol) on a real store with real
//! clocks.
//!
//! It performs operations, waits and reports. All decisions are made in the protocol.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::clocks::{now, sleep_until};
use crate::protocol::{
    Acquire, AcquireRefusal, Acquired, BlockingObject, HoldProcedure, HoldStatus, Notice,
    OpFailure, OpResult, Procedure, ProcedureStep, Released, StoreOp,
};
use crate::store::{BoxFuture, Store};
use crate::time::BootTime;

/// Timeout of one store operation; without an answer by then it counts as failed. Longer than the
/// request limit of the object store client (10 s), so that the client reports its own errors
/// first.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(15);

/// An event while a lock is being acquired or held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockEvent {
    /// Another lock blocks this request, and the request waits.
    Waiting(Box<BlockingObject>),
    /// A notice about the held lock.
    Held(Notice),
}

/// A callback that receives events. It runs on the runtime thread and must not block.
pub type EventListener = Arc<dyn Fn(&LockEvent) + Send + Sync>;

/// Drives a procedure to its end and returns the result.
pub(crate) async fn drive<S: Procedure>(store: &dyn Store, mut steps: S) -> S::End {
    loop {
        let answer = match steps.next(now()) {
            StoreOp::WaitUntil(until) => {
                sleep_until(until).await;
                OpResult::Waited
            }
            op => perform(store, op).await,
        };
        if let ProcedureStep::Done(end) = steps.answer(answer, now()) {
            return end;
        }
    }
}

async fn perform(store: &dyn Store, op: StoreOp) -> OpResult {
    match op {
        StoreOp::Batch(ops) => OpResult::Batch(perform_all(store, ops).await),
        op => perform_one(store, op).await,
    }
}

async fn perform_one(store: &dyn Store, op: StoreOp) -> OpResult {
    if let StoreOp::WaitUntil(until) = op {
        sleep_until(until).await;
        return OpResult::Waited;
    }
    match tokio::time::timeout(COMMAND_TIMEOUT, store.perform(op)).await {
        Ok(answer) => answer,
        Err(_) => OpResult::Failed(OpFailure::passing("the store gave no answer in time")),
    }
}

/// Performs all operations at the same time. The results are in the order of the operations.
fn perform_all(store: &dyn Store, mut ops: Vec<StoreOp>) -> BoxFuture<'_, Vec<OpResult>> {
    Box::pin(async move {
        let Some(last) = ops.pop() else {
            return Vec::new();
        };
        let (mut results, last) = tokio::join!(perform_all(store, ops), perform_one(store, last));
        results.push(last);
        results
    })
}

/// Drives an acquire to its end.
///
/// `cancelled` ends it early and removes a record that was already written. At `deadline` a waiting
/// acquire ends with a timeout.
pub(crate) async fn acquire(
    store: &dyn Store,
    mut steps: Acquire,
    cancelled: oneshot::Receiver<()>,
    deadline: Option<Instant>,
    listener: Option<EventListener>,
) -> Result<Acquired, AcquireRefusal> {
    let mut cancelled = cancelled;
    let mut is_cancelled = false;
    let mut deadline = deadline;
    loop {
        let answer = match steps.next(now()) {
            StoreOp::WaitUntil(until) => {
                if let (Some(listener), Some(blocker)) = (&listener, steps.blocker()) {
                    listener(&LockEvent::Waiting(Box::new(blocker.clone())));
                }
                tokio::select! {
                    () = sleep_until(until) => OpResult::Waited,
                    _ = &mut cancelled, if !is_cancelled => {
                        is_cancelled = true;
                        steps.cancel();
                        continue;
                    }
                    () = at(deadline), if deadline.is_some() => {
                        deadline = None;
                        // A pause between two attempts ends at once. Other waits, such as the
                        // settle time, run to their end: the attempt under way may still
                        // succeed.
                        let pausing = steps.blocker().is_some();
                        steps.stop_waiting();
                        if !pausing {
                            continue;
                        }
                        OpResult::Waited
                    }
                }
            }
            op => perform(store, op).await,
        };
        if let ProcedureStep::Done(end) = steps.answer(answer, now()) {
            return end;
        }
        // Cancel only between operations: while a write is under way, its outcome decides what must
        // be removed. Closing the channel (the caller's future was dropped) cancels too.
        if !is_cancelled && !matches!(cancelled.try_recv(), Err(TryRecvError::Empty)) {
            is_cancelled = true;
            steps.cancel();
        }
    }
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// A command to the task that holds the lock, with the sender of its answer.
pub(crate) enum HolderCommand {
    Release(oneshot::Sender<Released>),
    Check(oneshot::Sender<Checked>),
    Revive(oneshot::Sender<Revived>),
    /// Stop refreshing but keep the record, because another process takes the lock over (C13 (holds
    /// for scripts)).
    Leave(oneshot::Sender<()>),
}

/// The answer to a check.
pub(crate) type Checked = Result<(), OpFailure>;
/// The answer to a revival.
pub(crate) type Revived = Result<(), OpFailure>;

/// The public state of a held lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DriverState {
    pub(crate) status: HoldStatus,
    pub(crate) valid_until: BootTime,
    pub(crate) fence: Option<u64>,
}

impl DriverState {
    pub(crate) fn of(hold: &HoldProcedure) -> DriverState {
        DriverState {
            status: hold.status().clone(),
            valid_until: hold.valid_until(),
            fence: hold.fence(),
        }
    }
}

/// Holds a lock until it is released or its guard is dropped.
pub(crate) async fn keep(
    store: Arc<dyn Store>,
    mut hold: HoldProcedure,
    mut orders: mpsc::UnboundedReceiver<HolderCommand>,
    state: watch::Sender<DriverState>,
    listener: Option<EventListener>,
) {
    let mut waiting = CommandWaiters::default();
    loop {
        // `next` may change the status without an operation, for example when the lease lapses, so
        // publish it before the operation starts.
        let op = hold.next(now());
        publish(&hold, &state);
        waiting.answer(&[], &hold);
        let answer = match op {
            StoreOp::WaitUntil(until) => tokio::select! {
                () = sleep_until(until) => OpResult::Waited,
                order = orders.recv(), if !waiting.over => {
                    waiting.take(order, &mut hold);
                    if waiting.left.is_some() {
                        return waiting.answer_left();
                    }
                    // Do not pass `Waited` to `hold`: the interrupted wait may be unrelated to the
                    // command. The next call of `next` returns a new operation.
                    continue;
                }
            },
            op => {
                let mut work = pin!(perform(store.as_ref(), op));
                loop {
                    // The lease lapses by the clock, even while a request hangs (P32 (lease limit
                    // at 80 percent)).
                    let lapse = match hold.status() {
                        HoldStatus::Held => hold.valid_until(),
                        HoldStatus::Lapsed { .. } | HoldStatus::Lost(_) => BootTime::NEVER,
                    };
                    tokio::select! {
                        answer = &mut work => break answer,
                        () = sleep_until(lapse) => {
                            hold.tick(now());
                            publish(&hold, &state);
                        }
                        order = orders.recv(), if !waiting.over => {
                            waiting.take(order, &mut hold);
                        }
                    }
                }
            }
        };
        // `Leave`: end without passing the result. The record stays, and nothing refreshes it from
        // here.
        if waiting.left.is_some() {
            return waiting.answer_left();
        }
        let progress = hold.answer(answer, now());
        publish(&hold, &state);
        let notices = hold.take_notices();
        waiting.answer(&notices, &hold);
        for notice in notices {
            if let Some(listener) = &listener {
                listener(&LockEvent::Held(notice));
            }
        }
        if let ProcedureStep::Done(end) = progress {
            waiting.answer_end(&end);
            return;
        }
    }
}

fn publish(hold: &HoldProcedure, state: &watch::Sender<DriverState>) {
    let fresh = DriverState::of(hold);
    state.send_if_modified(|old| {
        let is_news = *old != fresh;
        *old = fresh.clone();
        is_news
    });
}

/// The callers that wait for the answers to their commands.
#[derive(Default)]
struct CommandWaiters {
    releases: Vec<oneshot::Sender<Released>>,
    checks: Vec<oneshot::Sender<Checked>>,
    revivals: Vec<oneshot::Sender<Revived>>,
    left: Option<oneshot::Sender<()>>,
    /// No more commands: the guard was dropped or sent its last one.
    over: bool,
}

impl CommandWaiters {
    fn take(&mut self, order: Option<HolderCommand>, hold: &mut HoldProcedure) {
        match order {
            // The guard was dropped: release without a caller to answer.
            None => {
                self.over = true;
                hold.release();
            }
            Some(HolderCommand::Release(answer)) => {
                self.over = true;
                self.releases.push(answer);
                hold.release();
            }
            Some(HolderCommand::Check(answer)) => {
                self.checks.push(answer);
                hold.check();
            }
            Some(HolderCommand::Revive(answer)) => {
                self.revivals.push(answer);
                hold.revive();
            }
            Some(HolderCommand::Leave(answer)) => {
                self.over = true;
                self.left = Some(answer);
            }
        }
    }

    fn answer(&mut self, notices: &[Notice], hold: &HoldProcedure) {
        for notice in notices {
            match notice {
                Notice::StillOurs => tell(&mut self.checks, &Ok(())),
                Notice::CheckFailed(failure) => tell(&mut self.checks, &Err(failure.clone())),
                Notice::Revived => tell(&mut self.revivals, &Ok(())),
                Notice::NotRevived(failure) => tell(&mut self.revivals, &Err(failure.clone())),
                Notice::Refreshed | Notice::RefreshFailed(_) | Notice::Intruder(_) => {}
            }
        }
        match hold.status() {
            // Held, again or still: nothing to revive.
            HoldStatus::Held => tell(&mut self.revivals, &Ok(())),
            // Dropping the senders answers the callers, which then read the loss from the status.
            HoldStatus::Lapsed { .. } => self.checks.clear(),
            HoldStatus::Lost(_) => {
                self.checks.clear();
                self.revivals.clear();
            }
        }
    }

    fn answer_end(&mut self, end: &Released) {
        for answer in self.releases.drain(..) {
            let _ = answer.send(end.clone());
        }
    }

    fn answer_left(&mut self) {
        if let Some(answer) = self.left.take() {
            let _ = answer.send(());
        }
    }
}

fn tell<T: Clone>(answers: &mut Vec<oneshot::Sender<T>>, value: &T) {
    for answer in answers.drain(..) {
        // The caller may have stopped waiting; then the answer is not needed.
        let _ = answer.send(value.clone());
    }
}
