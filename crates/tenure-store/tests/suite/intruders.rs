//! P33: a conflicting lock appears while one is held. On the test server and its clock.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tenure_store::internal::{HoldProcedure, HoldStatus};
use tenure_store::{LockSettings, OnConflict};
use tenure_store::{LossCause, Notice};

use crate::support::LockMode;
use crate::support::virtual_time::{Process, Time};

const EXCLUSIVE: &str = "index/lock.exclusive";
const SHARED: &str = "index/lock.shared/2026-03-07T09:00:00.482913Z";

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn process<'a>(time: &'a Time, on_conflict: OnConflict) -> Process<'a> {
    let settings = LockSettings {
        on_conflict,
        ..LockSettings::default()
    };
    Process::new(time, 1, SignedDuration::ZERO, &settings)
}

/// Writes a lock of an original that is valid for another minute.
fn plant(time: &Time, process: &Process<'_>, key: &str) {
    let now: Timestamp = process.now().wall;
    let until = now + secs(60);
    let record = format!(
        r#"{{"operation":"x","holder":"atlas-3 (pid 1)","acquired_at":"{now}","expires_at":"{until}"}}"#
    );
    time.server.plant(key, record, Duration::ZERO);
}

fn lost_to_an_intruder(hold: &HoldProcedure) -> bool {
    matches!(hold.status(), HoldStatus::Lost(LossCause::Intruder(_)))
}

/// An exclusive holder gives up when the second check, 10 s later, finds the same shared lock.
#[tokio::test]
async fn an_exclusive_holder_stops_at_the_second_look() {
    let time = Time::begin(SignedDuration::ZERO);
    let mut process = process(&time, OnConflict::Warn);
    let mut hold = process.hold(LockMode::Exclusive).await;
    plant(&time, &process, SHARED);
    let taken = process.now().boot;
    process.keep(&mut hold, time.passed() + secs(23)).await;
    assert_eq!(*hold.status(), HoldStatus::Held, "one look is not enough");
    process.keep(&mut hold, time.passed() + secs(5)).await;
    assert!(lost_to_an_intruder(&hold), "{:?}", hold.status());
    let noticed = process.now().boot.since(taken);
    assert!(noticed <= secs(30), "noticed after {noticed:?}");
}

/// A conflicting lock that disappears before the second check does not count.
#[tokio::test]
async fn an_intruder_that_withdraws_is_none() {
    let time = Time::begin(SignedDuration::ZERO);
    let mut process = process(&time, OnConflict::Warn);
    let mut hold = process.hold(LockMode::Shared).await;
    plant(&time, &process, EXCLUSIVE);
    process.keep(&mut hold, time.passed() + secs(20)).await;
    assert_eq!(*hold.status(), HoldStatus::Held);
    // It is released and another one appears: two short-lived locks are not one that stays.
    time.pass(secs(1));
    plant(&time, &process, EXCLUSIVE);
    process.keep(&mut hold, time.passed() + secs(6)).await;
    assert_eq!(*hold.status(), HoldStatus::Held);
    assert!(
        !hold
            .take_notices()
            .iter()
            .any(|notice| matches!(notice, Notice::Intruder(_))),
        "no process stayed"
    );
}

/// A shared holder warns, and stops only in strict mode.
#[tokio::test]
async fn a_shared_holder_warns_or_stops() {
    for on_conflict in [OnConflict::Warn, OnConflict::Stop] {
        let time = Time::begin(SignedDuration::ZERO);
        let mut process = process(&time, on_conflict);
        let mut hold = process.hold(LockMode::Shared).await;
        plant(&time, &process, EXCLUSIVE);
        process.keep(&mut hold, time.passed() + secs(28)).await;
        let warned = hold
            .take_notices()
            .iter()
            .any(|notice| matches!(notice, Notice::Intruder(_)));
        match on_conflict {
            OnConflict::Warn => assert!(warned && *hold.status() == HoldStatus::Held),
            OnConflict::Stop => assert!(lost_to_an_intruder(&hold), "{:?}", hold.status()),
        }
    }
}

/// An exclusive holder whose record was replaced loses the lock at the next conflict check.
#[tokio::test]
async fn an_exclusive_holder_that_was_overwritten_stops_at_the_first_look() {
    let time = Time::begin(SignedDuration::ZERO);
    let mut process = process(&time, OnConflict::Warn);
    let mut hold = process.hold(LockMode::Exclusive).await;
    process.keep(&mut hold, time.passed() + secs(2)).await;
    plant(&time, &process, EXCLUSIVE);
    process.keep(&mut hold, time.passed() + secs(15)).await;
    let status = hold.status();
    assert!(
        matches!(status, HoldStatus::Lost(LossCause::Overwritten(_))),
        "{status:?}"
    );
}
