//! The driver: the steps on a real store, by real clocks. Everything that decides is in
//! [`steps`](crate::steps); this only does, waits and reports.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::clocks::{now, sleep_until};
use crate::steps::{
    Acquire, Acquired, Answer, Blocker, Failure, Hold, Notice, Op, Progress, Refusal, Released,
    Status, Steps,
};
use crate::store::Store;
use crate::time::Boot;

/// Longer than any request may take; what has no answer by then counts as failed.
const PATIENCE: Duration = Duration::from_secs(15);

/// Something worth telling while a lock is wanted or held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Somebody is in the way, and we wait.
    Waiting(Box<Blocker>),
    /// Something happened to the lock that is held.
    Held(Notice),
}

/// Where events go.
pub type Listener = Arc<dyn Fn(&Event) + Send + Sync>;

/// Drives a procedure to its end.
pub(crate) async fn drive<S: Steps>(store: &dyn Store, mut steps: S) -> S::End {
    loop {
        let answer = match steps.next(now()) {
            Op::WaitUntil(until) => {
                sleep_until(until).await;
                Answer::Waited
            }
            op => perform(store, op).await,
        };
        if let Progress::Done(end) = steps.answer(answer, now()) {
            return end;
        }
    }
}

async fn perform(store: &dyn Store, op: Op) -> Answer {
    match tokio::time::timeout(PATIENCE, store.perform(op)).await {
        Ok(answer) => answer,
        Err(_) => Answer::Failed(Failure::passing("the store gave no answer in time")),
    }
}

/// Drives an acquire. `cancelled` ends it early, with nothing left behind; at `deadline` a waiter
/// stops waiting.
pub(crate) async fn acquire(
    store: &dyn Store,
    mut steps: Acquire,
    cancelled: oneshot::Receiver<()>,
    deadline: Option<Instant>,
    listener: Option<Listener>,
) -> Result<Acquired, Refusal> {
    let mut cancelled = cancelled;
    let mut is_cancelled = false;
    let mut deadline = deadline;
    loop {
        let answer = match steps.next(now()) {
            Op::WaitUntil(until) => {
                if let (Some(listener), Some(blocker)) = (&listener, steps.blocker()) {
                    listener(&Event::Waiting(Box::new(blocker.clone())));
                }
                tokio::select! {
                    () = sleep_until(until) => Answer::Waited,
                    _ = &mut cancelled, if !is_cancelled => {
                        is_cancelled = true;
                        steps.cancel();
                        continue;
                    }
                    () = at(deadline), if deadline.is_some() => {
                        deadline = None;
                        let pausing = steps.blocker().is_some();
                        steps.stop_waiting();
                        if !pausing {
                            continue;
                        }
                        Answer::Waited
                    }
                }
            }
            op => perform(store, op).await,
        };
        if let Progress::Done(end) = steps.answer(answer, now()) {
            return end;
        }
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

/// What a holder is told to do. Each order has a place for its answer.
pub(crate) enum Order {
    Release(oneshot::Sender<Released>),
    Check(oneshot::Sender<Checked>),
    Revive(oneshot::Sender<Revived>),
    /// Leave the record where it is: another process goes on (C13).
    Leave(oneshot::Sender<()>),
}

/// Answer to a check.
pub(crate) type Checked = Result<(), Failure>;
/// Answer to a revival.
pub(crate) type Revived = Result<(), Failure>;

/// What everybody may know about a lock that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) status: Status,
    pub(crate) valid_until: Boot,
    pub(crate) fence: Option<u64>,
}

impl State {
    pub(crate) fn of(hold: &Hold) -> State {
        State {
            status: hold.status().clone(),
            valid_until: hold.valid_until(),
            fence: hold.fence(),
        }
    }
}

/// Keeps a lock until it is released, or until nobody has its handle any more.
pub(crate) async fn keep(
    store: Arc<dyn Store>,
    mut hold: Hold,
    mut orders: mpsc::UnboundedReceiver<Order>,
    state: watch::Sender<State>,
    listener: Option<Listener>,
) {
    let mut waiting = Waiting::default();
    loop {
        let op = hold.next(now());
        publish(&hold, &state);
        waiting.answer(&[], &hold);
        let answer = match op {
            Op::WaitUntil(until) => tokio::select! {
                () = sleep_until(until) => Answer::Waited,
                order = orders.recv(), if !waiting.over => {
                    waiting.take(order, &mut hold);
                    if waiting.left.is_some() {
                        return waiting.answer_left();
                    }
                    // Not an answer: what is waited for may have nothing to do with the order.
                    continue;
                }
            },
            op => {
                let mut work = pin!(perform(store.as_ref(), op));
                loop {
                    // Also while a request hangs: the lease lapses by the clock (P32).
                    let lapse = match hold.status() {
                        Status::Held => hold.valid_until(),
                        Status::Lapsed { .. } | Status::Lost(_) => Boot::NEVER,
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
        if waiting.left.is_some() {
            return waiting.answer_left();
        }
        let progress = hold.answer(answer, now());
        publish(&hold, &state);
        let notices = hold.take_notices();
        waiting.answer(&notices, &hold);
        for notice in notices {
            if let Some(listener) = &listener {
                listener(&Event::Held(notice));
            }
        }
        if let Progress::Done(end) = progress {
            waiting.answer_end(&end);
            return;
        }
    }
}

fn publish(hold: &Hold, state: &watch::Sender<State>) {
    let fresh = State::of(hold);
    state.send_if_modified(|old| {
        let is_news = *old != fresh;
        *old = fresh.clone();
        is_news
    });
}

/// Those who gave an order and wait for its answer.
#[derive(Default)]
struct Waiting {
    releases: Vec<oneshot::Sender<Released>>,
    checks: Vec<oneshot::Sender<Checked>>,
    revivals: Vec<oneshot::Sender<Revived>>,
    left: Option<oneshot::Sender<()>>,
    /// No more orders: the handle is gone, or gave its last one.
    over: bool,
}

impl Waiting {
    fn take(&mut self, order: Option<Order>, hold: &mut Hold) {
        match order {
            // The handle was dropped: that is a release nobody waits for.
            None => {
                self.over = true;
                hold.release();
            }
            Some(Order::Release(answer)) => {
                self.over = true;
                self.releases.push(answer);
                hold.release();
            }
            Some(Order::Check(answer)) => {
                self.checks.push(answer);
                hold.check();
            }
            Some(Order::Revive(answer)) => {
                self.revivals.push(answer);
                hold.revive();
            }
            Some(Order::Leave(answer)) => {
                self.over = true;
                self.left = Some(answer);
            }
        }
    }

    fn answer(&mut self, notices: &[Notice], hold: &Hold) {
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
            Status::Held => tell(&mut self.revivals, &Ok(())),
            // The status says it all; whoever asked looks there.
            Status::Lapsed { .. } => self.checks.clear(),
            Status::Lost(_) => {
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
        // Whoever does not wait any more does not want to know.
        let _ = answer.send(value.clone());
    }
}
