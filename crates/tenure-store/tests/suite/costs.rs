//! Counts the requests of a lock and compares them with `docs/reference/store-costs.md`.

use std::time::Duration;

use jiff::SignedDuration;
use tenure_store::internal::Probe;
use tenure_store::{LockSettings, OtherClients};

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

/// Measures how long acquire, refresh and release take if a round of requests takes `round_trip`,
/// and counts the rounds. Time is virtual, so this is a count and not a race against a clock.
async fn rounds(
    time: &Time,
    mode: LockMode,
    company: OtherClients,
    round_trip: Duration,
) -> [(usize, Duration); 3] {
    time.begin_again(SignedDuration::ZERO);
    let settings = LockSettings {
        company,
        ..LockSettings::default()
    };
    time.set_round_trip(round_trip);
    let mut process = Process::new(time, 3, SignedDuration::ZERO, &settings);
    let start = time.passed();
    let acquired = process.acquire(mode).await.expect("no other process");
    let acquire = (time.set_round_trip(round_trip), time.passed() - start);
    let mut hold = process.keeping(acquired);
    let start = time.passed();
    // The first refresh is due at once.
    process.keep(&mut hold, start).await;
    let refresh = (time.set_round_trip(round_trip), time.passed() - start);
    let start = time.passed();
    process.release(hold).await;
    let release = (time.set_round_trip(Duration::ZERO), time.passed() - start);
    [acquire, refresh, release]
}

fn document() -> String {
    std::fs::read_to_string(DOC).expect("the document is there")
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
        document().contains(&counted),
        "{DOC} says something else than was counted:\n{counted}"
    );
}

/// P28 (acquire the exclusive lock): the rounds of requests one after the other, and what they take
/// at several latencies.
#[tokio::test]
async fn the_document_tells_how_long_a_lock_takes() {
    let time = Time::begin(SignedDuration::ZERO);
    let (mut lines, mut requests) = (Vec::new(), Vec::new());
    for (name, mode, company) in [
        (
            "exclusive, only Tenure",
            LockMode::Exclusive,
            OtherClients::TenureOnly,
        ),
        (
            "shared, only Tenure",
            LockMode::Shared,
            OtherClients::TenureOnly,
        ),
        ("exclusive", LockMode::Exclusive, OtherClients::Originals),
        ("shared", LockMode::Shared, OtherClients::Originals),
    ] {
        let mut cells = Vec::new();
        let mut counted = 0;
        for latency in [10, 60, 500] {
            let latency = Duration::from_millis(latency);
            let [acquire, refresh, release] = rounds(&time, mode, company, latency).await;
            requests.push((name, time.server.take_seen().len() - 2));
            counted = acquire.0;
            assert_eq!((refresh.0, release.0), (1, 1), "{name}");
            cells.push(format!("{:.2} s", acquire.1.as_secs_f64()));
        }
        let settle = match company {
            OtherClients::TenureOnly => counted.to_string(),
            OtherClients::Originals => format!("{} + 1 within the settle time", counted - 1),
        };
        lines.push(format!("| {name} | {settle} | {} |", cells.join(" | ")));
    }
    // The refresh and the release are not counted.
    let of = |wanted: &str| requests.iter().find(|(name, _)| *name == wanted);
    let of = |wanted| of(wanted).expect("it was counted").1;
    let (exclusive, shared) = (of("exclusive, only Tenure"), of("shared, only Tenure"));
    let sentence = format!("`--tenure-only` takes {exclusive} requests, a shared one {shared}.");
    assert!(document().contains(&sentence), "{DOC}: {sentence}");
    let counted = lines.join("\n");
    println!("{counted}");
    assert!(
        document().contains(&counted),
        "{DOC} says something else than was counted:\n{counted}"
    );
}
