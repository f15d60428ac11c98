//! Regular simulator run: at least 20 virtual hours over 200 seeds, with all kinds of faults and
//! without a violation. Every seed runs twice and must give the same trace.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use tenure_sim::{Counts, FaultProfile, Options, fault_kinds, run_all};

const SEEDS: u64 = 200;

/// Results of many runs.
#[derive(Default)]
struct Seen {
    total: Counts,
    traces: BTreeMap<(Option<FaultProfile>, u64), u64>,
    sizes: BTreeMap<usize, u64>,
    objections: Vec<String>,
}

/// Runs seeds in their own fault profile, or in the given one.
fn run_each(seen: &mut Seen, fault_profile: Option<FaultProfile>, seeds: Vec<u64>) {
    let options = Options {
        fault_profile,
        ..Options::default()
    };
    run_with(seen, options, seeds);
}

fn run_with(seen: &mut Seen, options: Options, seeds: Vec<u64>) {
    let fault_profile = options.fault_profile;
    run_all(seeds.into_iter(), 2, options, |report| {
        seen.total.add(&report.counts);
        seen.traces
            .insert((fault_profile, report.seed), report.trace);
        *seen.sizes.entry(report.nodes).or_default() += 1;
        if let Some(violation) = report.violation {
            let what = format!("seed {} {fault_profile:?}: {violation}", report.seed);
            seen.objections.push(what);
        }
        ControlFlow::Continue(())
    });
}

/// Returns the seeds of `seeds.txt`, which once found a bug, by fault profile.
fn kept() -> BTreeMap<FaultProfile, Vec<u64>> {
    let mut kept: BTreeMap<FaultProfile, Vec<u64>> = BTreeMap::new();
    let lines = include_str!("../seeds.txt").lines();
    for line in lines.filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let seed = words.next().unwrap().parse().unwrap();
        let fault_profile = FaultProfile::called(words.next().unwrap()).unwrap();
        kept.entry(fault_profile).or_default().push(seed);
    }
    kept
}

fn run_everything() -> Seen {
    let mut seen = Seen::default();
    run_each(&mut seen, None, (1..=SEEDS).collect());
    for (fault_profile, seeds) in kept() {
        run_each(&mut seen, Some(fault_profile), seeds);
    }
    assert!(seen.objections.is_empty(), "{:#?}", seen.objections);
    seen
}

/// All promises of the design, under all faults at once.
#[test]
fn two_hundred_seeds_run_twice_the_same_without_a_violation() {
    let Seen {
        total,
        traces,
        sizes,
        ..
    } = run_everything();
    assert!(
        total.hours() >= 20.0,
        "only {} virtual hours",
        total.hours()
    );
    assert_eq!(sizes.keys().copied().collect::<Vec<_>>(), [1, 3, 5]);
    // Otherwise the checkers of liveness see too little.
    assert!(total.operator_waits * 50 <= SEEDS, "{total:?}");
    let missing: Vec<&str> = fault_kinds()
        .filter(|kind| !total.faults.contains_key(kind))
        .collect();
    assert!(missing.is_empty(), "{missing:?} did not strike");
    for checker in [
        "assertions",
        "belief",
        "committed",
        "converge",
        "deadlocks",
        "durable",
        "events",
        "exclusion",
        "fences",
        "fifo",
        "leader",
        "lease time",
        "leases",
        "linearizable",
        "memory",
        "model",
        "once",
        "one leader",
        "outcome",
        "one vote",
        "owners",
        "quorum",
        "restore",
        "rising",
        "same entry",
        "state",
        "watch",
    ] {
        // Only some fault profiles create deadlocks.
        let enough = if checker == "deadlocks" { 500 } else { 1000 };
        assert!(
            total
                .judged
                .get(checker)
                .is_some_and(|count| *count > enough),
            "{checker} saw little"
        );
    }
    assert_eq!(traces, run_everything().traces, "a seed is a run");
}

/// The profiles that few seeds select, with a short fault phase each.
#[test]
fn the_rare_fault_profiles_run_without_a_violation() {
    let mut seen = Seen::default();
    for fault_profile in [
        FaultProfile::Combo,
        FaultProfile::Tiny,
        FaultProfile::Late,
        FaultProfile::Crowd,
        FaultProfile::Moves,
        FaultProfile::Repeats,
        FaultProfile::Lone,
        FaultProfile::Edge,
        FaultProfile::Rot,
        FaultProfile::Starved,
    ] {
        let options = Options {
            fault_profile: Some(fault_profile),
            fault_seconds: 60,
            ..Options::default()
        };
        run_with(&mut seen, options, (1..=6).collect());
    }
    assert!(seen.objections.is_empty(), "{:#?}", seen.objections);
    for fault in ["combo", "cut logs", "death in the middle"] {
        let count = seen.total.faults.get(fault).copied().unwrap_or(0);
        assert!(count > 20, "{fault} struck {count} times");
    }
}
