//! Torture test: 16 processes use one lock while a controller kills and stops them at random. No
//! two are inside at the same time, and no section is lost.
//!
//! `TENURE_TORTURE_SECONDS` sets the run time per protocol; `TENURE_TORTURE_SEED` repeats the order
//! of interventions (not the scheduling).

#![allow(clippy::unwrap_used, reason = "in a test a panic is the message")]
#![allow(
    clippy::print_stdout,
    reason = "figures that are measured, not asserted"
)]

mod support;

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use support::actor::Actor;
use support::contenders::{Contenders, KillPlan};
use tenure_testkit::{eventually, is_waiting};

const WORKERS: usize = 16;
/// Sections per protocol; above 20,000 over all of them.
const SECTIONS: u64 = 7_000;

/// Serializes the tests: two at the same time would measure the scheduler.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// K10 (prove life by flock), K22–K27, S15–S22.
#[test]
fn sidecar_locks_survive_kill_and_stop() {
    torture("sidecar");
}

/// K10, K22–K27, X13–X16.
#[test]
fn exclusive_locks_survive_kill_and_stop() {
    torture("exclusive");
}

/// K10, K22–K27, U10–U13.
#[test]
fn upload_locks_survive_kill_and_stop() {
    torture("upload");
}

fn torture(who: &str) {
    let _alone = alone();
    let mut contenders = Contenders::start(&[who; WORKERS]);
    let began = Instant::now();
    contenders.run(KillPlan::KillAndStop, |sections| {
        match std::env::var("TENURE_TORTURE_SECONDS") {
            Ok(seconds) => began.elapsed().as_secs() >= seconds.parse().expect("seconds"),
            Err(_) => sections >= SECTIONS,
        }
    });
    let took = began.elapsed();
    let evidence = contenders.evidence();
    assert!(evidence.doubles.is_empty(), "{who}: {evidence:?}");
    assert_eq!(evidence.noticed, BTreeSet::new(), "{who}: a lock was lost");
    assert!(evidence.complaints.is_empty(), "{who}: {evidence:?}");
    assert_eq!(
        evidence.counter, evidence.finished,
        "{who}: sections were lost"
    );
    println!(
        "{who}: {} sections in {took:.1?}, {} killed",
        evidence.finished,
        evidence.killed.len()
    );
}

/// K42 (watch and poll), S22: how long a waiter needs to get the lock of a killed holder. Measured
/// and printed; other tests show that an event wakes the waiter.
#[test]
fn takeover_is_measured() {
    let _alone = alone();
    for who in ["sidecar", "exclusive", "upload"] {
        let temp = tempfile::tempdir().unwrap();
        let mut holder = Actor::spawn(&["hold", who], temp.path());
        holder.says("held");
        let mut times: Vec<Duration> = (0..20)
            .map(|_| {
                let waiter = Actor::spawn(&["hold", who], temp.path());
                eventually("the waiter waits", || is_waiting(waiter.pid()));
                let killed = Instant::now();
                std::mem::replace(&mut holder, waiter).kill();
                holder.says("held");
                killed.elapsed()
            })
            .collect();
        times.sort();
        println!(
            "{who}: takeover from a killed holder: median {:.1?}, longest {:.1?} of {}",
            times[times.len() / 2],
            times[times.len() - 1],
            times.len()
        );
    }
}
