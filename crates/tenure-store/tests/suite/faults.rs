//! Fault table × each request of acquire, refresh and release (P25 failed reads are not absence,
//! P29 unknown write outcome, P31 refresh the lease, P35 repository release).
//!
//! One fault affects the n-th request of a lock's life, for every n. A single fault must not lose
//! the lock, and no failure may leave a record that is not refreshed.

use std::time::Duration;

use jiff::SignedDuration;
use tenure_store::internal::{HoldStatus, Released};
use tenure_store::{AcquireRefusal, LossCause};
use tenure_store::{ConditionLevel, LockSettings};

use crate::support::LockMode;
use crate::support::s3_server::{Fault, FaultKind, FaultPlan, Gate};
use crate::support::virtual_time::{Process, Time};

fn faults() -> Vec<Fault> {
    vec![
        Fault::LoseAnswer,
        Fault::LoseRequest,
        Fault::StatusAfterApplying(500),
        Fault::StatusAfterApplying(503),
        Fault::Refuse(500),
        Fault::Refuse(503),
        Fault::Refuse(429),
        Fault::Refuse(409),
        Fault::Refuse(412),
        Fault::Proxy(404),
        Fault::Proxy(502),
        Fault::CutBody,
        Fault::IgnoreCondition,
        Fault::Delay(Duration::from_millis(20)),
        Fault::DelayAnswer(Duration::from_millis(20)),
    ]
}

/// The locks in the repository.
fn locks(time: &Time) -> Vec<String> {
    let mut keys = time.server.keys("index/lock.exclusive");
    keys.extend(time.server.keys("index/lock.shared/"));
    keys
}

/// Runs acquire, refresh and release with the planned faults. Returns the number of requests.
async fn liveness(
    time: &Time,
    level: ConditionLevel,
    mode: LockMode,
    plan: Option<FaultPlan>,
) -> usize {
    let case = format!("{level:?}, {mode:?}, {plan:?}");
    let settings = LockSettings::default();
    time.begin_again(SignedDuration::ZERO);
    let mut process = Process::new(time, 7, SignedDuration::ZERO, &settings).at(level, &settings);
    if let Some(plan) = plan {
        time.server.plan(plan);
    }
    let acquired = process.acquire(mode).await;
    if acquired.is_err() {
        assert_eq!(locks(time), [""; 0], "{case}: refused, and left behind");
    }
    let mut hold = process.keeping(acquired.unwrap_or_else(|why| panic!("{case}: {why:?}")));
    assert_eq!(locks(time).len(), 1, "{case}: held without a record");
    process.keep(&mut hold, Duration::from_secs(40)).await;
    assert_eq!(*hold.status(), HoldStatus::Held, "{case}");
    let sent = hold.valid_until().0 - Duration::from_secs(48 + 1007);
    assert!(
        sent >= Duration::from_secs(30),
        "{case}: not refreshed, last at {sent:?}"
    );
    assert_eq!(process.release(hold).await, Released::Done, "{case}");
    assert_eq!(locks(time), [""; 0], "{case}: released, and left behind");
    time.server.take_seen().len()
}

/// P29, P31: one fault of any kind at any request.
#[tokio::test]
async fn one_fault_never_costs_the_lock_nor_leaves_a_record() {
    let time = Time::begin(SignedDuration::ZERO);
    let mut lives = 0;
    for level in [
        ConditionLevel::Deletes,
        ConditionLevel::Writes,
        ConditionLevel::Nothing,
    ] {
        for mode in [LockMode::Exclusive, LockMode::Shared] {
            let requests = liveness(&time, level, mode, None).await;
            for fault in faults() {
                for nth in 0..requests {
                    let plan = FaultPlan::on_any(fault.clone()).skip(nth as u32);
                    liveness(&time, level, mode, Some(plan)).await;
                    lives += 1;
                }
            }
        }
    }
    println!("{lives} lives with one fault each");
    assert!(
        lives > 600,
        "acquire, refresh and release are more requests than that"
    );
}

/// P25: reads and lists that keep failing never count as free.
#[tokio::test]
async fn a_store_that_cannot_be_read_is_not_free() {
    for (kind, key) in [
        (FaultKind::Get, "lock.exclusive"),
        (FaultKind::List, "lock.shared"),
    ] {
        for fault in [
            Fault::Refuse(500),
            Fault::Refuse(403),
            Fault::LoseAnswer,
            Fault::Proxy(404),
            Fault::CutBody,
        ] {
            let time = Time::begin(SignedDuration::ZERO);
            let mut process =
                Process::new(&time, 7, SignedDuration::ZERO, &LockSettings::default());
            time.server
                .plan(FaultPlan::on(kind, fault.clone()).key(key).always());
            let end = process.acquire(LockMode::Exclusive).await;
            assert!(
                matches!(end, Err(AcquireRefusal::Store(_))),
                "{kind:?} {fault:?}: {end:?}"
            );
            assert_eq!(locks(&time), [""; 0]);
        }
    }
}

/// P29: after our record is written, reads fail. The record is removed.
#[tokio::test]
async fn a_failure_after_the_write_removes_the_record() {
    for mode in [LockMode::Exclusive, LockMode::Shared] {
        let time = Time::begin(SignedDuration::ZERO);
        let mut process = Process::new(&time, 7, SignedDuration::ZERO, &LockSettings::default());
        time.server.plan(
            FaultPlan::on(FaultKind::List, Fault::Refuse(500))
                .skip(1)
                .always(),
        );
        time.server.plan(
            FaultPlan::on(FaultKind::Get, Fault::Refuse(500))
                .key("lock.exclusive")
                .skip(1)
                .always(),
        );
        let end = process.acquire(mode).await;
        assert!(
            matches!(end, Err(AcquireRefusal::Store(_))),
            "{mode:?}: {end:?}"
        );
        assert_eq!(locks(&time), [""; 0], "{mode:?}");
    }
}

/// P29: if it cannot be removed, the error names its key.
#[tokio::test]
async fn a_record_that_cannot_be_removed_is_confessed() {
    let time = Time::begin(SignedDuration::ZERO);
    let mut process = Process::new(&time, 7, SignedDuration::ZERO, &LockSettings::default());
    time.server.plan(
        FaultPlan::on(FaultKind::List, Fault::Refuse(500))
            .skip(1)
            .always(),
    );
    time.server
        .plan(FaultPlan::on(FaultKind::Delete, Fault::Refuse(500)).always());
    let end = process.acquire(LockMode::Exclusive).await;
    assert!(
        matches!(end, Err(AcquireRefusal::LeftBehind { .. })),
        "{end:?}"
    );
    assert_eq!(locks(&time), ["index/lock.exclusive"]);
}

/// P29: a create that was cut off and takes effect after its retry does no harm.
#[tokio::test]
async fn a_write_that_comes_late_is_refused_by_its_own_twin() {
    let time = Time::begin(SignedDuration::ZERO);
    let mut process = Process::new(&time, 7, SignedDuration::ZERO, &LockSettings::default());
    let gate = Gate::closed();
    time.server
        .plan(FaultPlan::on(FaultKind::Put, Fault::ApplyLater(gate.clone())).key("lock.exclusive"));
    let mut hold = process.hold(LockMode::Exclusive).await;
    let applied = time.server.take_seen().len();
    gate.open();
    while time.server.take_seen().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    process.keep(&mut hold, Duration::from_secs(40)).await;
    assert_eq!(*hold.status(), HoldStatus::Held, "after {applied} requests");
    assert_eq!(process.release(hold).await, Released::Done);
    assert_eq!(locks(&time), [""; 0]);
}

/// P25, P31 (refresh the lease): a proxy answers 404 for some seconds, as it does while it reloads.
/// A holder keeps its lock and refreshes it afterwards; the lock stays held for other clients.
#[tokio::test]
async fn a_bare_404_of_a_proxy_is_neither_a_loss_nor_a_free_lock() {
    for mode in [LockMode::Exclusive, LockMode::Shared] {
        let time = Time::begin(SignedDuration::ZERO);
        let settings = LockSettings::default();
        let mut process = Process::new(&time, 7, SignedDuration::ZERO, &settings);
        let mut hold = process.hold(mode).await;
        process.keep(&mut hold, Duration::from_secs(28)).await;
        time.server
            .plan(FaultPlan::on_any(Fault::Proxy(404)).always());
        // The refresh at 30 s and its repetitions fail.
        process.keep(&mut hold, Duration::from_secs(33)).await;
        assert_eq!(*hold.status(), HoldStatus::Held, "{mode:?}");
        let mut other = Process::new(&time, 8, SignedDuration::ZERO, &settings);
        let end = other.acquire(LockMode::Exclusive).await;
        assert!(matches!(end, Err(AcquireRefusal::Store(_))), "{end:?}");
        time.server.heal();
        process
            .keep(&mut hold, time.passed() + Duration::from_secs(5))
            .await;
        assert_eq!(*hold.status(), HoldStatus::Held, "{mode:?}");
        assert!(!other.gets(LockMode::Exclusive).await, "{mode:?}");
        assert_eq!(process.release(hold).await, Released::Done);
    }
}

/// K34 (detect a lost lock): the store says once that our record does not exist. A holder looks a
/// second time before it counts the lock as lost.
#[tokio::test]
async fn one_absent_answer_is_not_a_loss() {
    for (kind, skip) in [(FaultKind::Put, 0), (FaultKind::Get, 0)] {
        let time = Time::begin(SignedDuration::ZERO);
        let settings = LockSettings::default();
        let mut process = Process::new(&time, 7, SignedDuration::ZERO, &settings);
        let mut hold = process.hold(LockMode::Exclusive).await;
        process.keep(&mut hold, Duration::from_secs(2)).await;
        let absent = |kind| {
            FaultPlan::on(kind, Fault::Refuse(404))
                .key("lock.exclusive")
                .skip(skip)
        };
        time.server.plan(absent(kind));
        if kind == FaultKind::Put {
            // The refused refresh reads its record back.
            time.server.plan(absent(FaultKind::Get).skip(1));
        }
        process.keep(&mut hold, Duration::from_secs(40)).await;
        assert_eq!(*hold.status(), HoldStatus::Held, "{kind:?}");
        assert_eq!(process.release(hold).await, Released::Done, "{kind:?}");
    }
}

/// K34: a record that is gone is a loss, within seconds and long before the lease ends.
#[tokio::test]
async fn a_record_that_stays_absent_is_a_loss() {
    let time = Time::begin(SignedDuration::ZERO);
    let settings = LockSettings::default();
    let mut process = Process::new(&time, 7, SignedDuration::ZERO, &settings);
    let mut hold = process.hold(LockMode::Exclusive).await;
    process.keep(&mut hold, Duration::from_secs(2)).await;
    time.server.clear();
    process.keep(&mut hold, Duration::from_secs(20)).await;
    assert_eq!(*hold.status(), HoldStatus::Lost(LossCause::Removed));
}
