//! The ordinary run: at least 20 virtual hours over at least 200 seeds, all kinds of faults, no
//! violation, and every seed twice with the same trace.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use tenure_sim::{Counts, Options, run_all};

const SEEDS: u64 = 200;
const FAULT_KINDS: usize = 25;

fn run_each(seeds: Vec<u64>) -> (Counts, BTreeMap<u64, u64>, BTreeMap<usize, u64>) {
    let (mut total, mut traces, mut sizes) = (Counts::default(), BTreeMap::new(), BTreeMap::new());
    let mut objections = Vec::new();
    run_all(seeds.into_iter(), 2, Options::default(), |report| {
        total.add(&report.counts);
        traces.insert(report.seed, report.trace);
        *sizes.entry(report.nodes).or_default() += 1;
        if let Some(violation) = report.violation {
            objections.push(format!("seed {}: {violation}", report.seed));
        }
        ControlFlow::Continue(())
    });
    assert!(objections.is_empty(), "{objections:#?}");
    (total, traces, sizes)
}

fn kept() -> Vec<u64> {
    let lines = include_str!("../seeds.txt").lines();
    lines
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_whitespace().next().unwrap().parse().unwrap())
        .collect()
}

/// Promises 1 to 4 of the design, under everything at once.
#[test]
fn two_hundred_seeds_weather_the_storm_twice_alike() {
    let mut seeds: Vec<u64> = (1..=SEEDS).chain(kept()).collect();
    seeds.sort_unstable();
    seeds.dedup();
    let (total, traces, sizes) = run_each(seeds.clone());
    assert!(
        total.hours() >= 20.0,
        "only {} virtual hours",
        total.hours()
    );
    assert_eq!(sizes.keys().copied().collect::<Vec<_>>(), [3, 5]);
    assert_eq!(total.faults.len(), FAULT_KINDS, "{:?}", total.faults);
    for judge in [
        "converge",
        "durable",
        "events",
        "exclusion",
        "fences",
        "fifo",
        "leases",
        "linearizable",
        "owners",
        "watch",
    ] {
        assert!(
            total.judged.get(judge).is_some_and(|count| *count > 1_000),
            "{judge} saw little"
        );
    }
    let (_, again, _) = run_each(seeds);
    assert_eq!(traces, again, "a seed is a run");
}
