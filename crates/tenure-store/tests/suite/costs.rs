//! Counts the requests of a lock and compares them with `docs/reference/store-costs.md`.

use std::time::Duration;

use jiff::SignedDuration;
use tenure_store::LockSettings;
use tenure_store::internal::Probe;

use crate::support::LockMode;
use crate::support::virtual_time::{Process, Time};

const DOC: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../docs/reference/store-costs.md"
);

/// Counts the requests of one lock without other clients, step by step.
async fn liveness(time: &Time, mode: LockMode) -> [usize; 5] {
    let count = || time.server.take_seen().len();
    time.begin_again(SignedDuration::ZERO);
    let mut process = Process::new(time, 3, SignedDuration::ZERO, &LockSettings::default());
    let acquired = process
        .acquire(mode)
        .await
        .expect("no other process is there");
    let acquire = count();
    let mut hold = process.keeping(acquired);
    process.keep(&mut hold, time.passed()).await;
    let number = count();
    process.keep(&mut hold, Duration::from_secs(25)).await;
    let look = count();
    process.keep(&mut hold, Duration::from_secs(35)).await;
    let refresh = count();
    process.release(hold).await;
    [acquire, number, look, refresh, count()]
}

#[tokio::test]
async fn the_document_tells_what_a_lock_costs() {
    let time = Time::begin(SignedDuration::ZERO);
    let exclusive = liveness(&time, LockMode::Exclusive).await;
    let shared = liveness(&time, LockMode::Shared).await;
    let process = Process::new(&time, 3, SignedDuration::ZERO, &LockSettings::default());
    time.server.take_seen();
    process
        .drive(Probe::new(1, 3))
        .await
        .expect("the server can be probed");
    let probe = time.server.take_seen().len();

    let doc = std::fs::read_to_string(DOC).expect("the document is there");
    let steps = [
        "acquire",
        "write the fencing number into the record",
        "look around at half time",
        "refresh",
        "release",
    ];
    let mut lines = vec![format!(
        "| probe the store, once per process | {probe} | {probe} |"
    )];
    for (step, (exclusive, shared)) in steps.iter().zip(exclusive.iter().zip(shared)) {
        lines.push(format!("| {step} | {exclusive} | {shared} |"));
    }
    let counted = lines.join("\n");
    println!("{counted}");
    assert!(
        doc.contains(&counted),
        "{DOC} says something else than was counted:\n{counted}"
    );
}
