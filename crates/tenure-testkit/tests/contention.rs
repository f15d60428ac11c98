//! Contention tests: Tenure and stand-ins of the originals on one lock, and tools against server
//! cycles.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the message")]
#![allow(
    clippy::print_stdout,
    reason = "figures that are measured, not asserted"
)]

mod support;

use std::collections::BTreeSet;

use support::contenders::{Contenders, Evidence, KillPlan};

fn run(kinds: &[&str], blows: KillPlan, sections: u64) -> Evidence {
    let mut contenders = Contenders::start(kinds);
    contenders.run(blows, |done| done >= sections);
    let evidence = contenders.evidence();
    for &kind in kinds {
        assert!(
            evidence.by_kind.contains_key(kind),
            "{kind} never got in: {evidence:?}"
        );
    }
    println!("{:?}", evidence.by_kind);
    evidence
}

/// U4–U6, U10 (acquire an upload lock), U14: without a crash no process deletes a lock by name, and
/// both kinds exclude each other.
#[test]
fn uploads_of_tenure_and_the_original_exclude_each_other() {
    let kinds = [
        "upload",
        "original-upload",
        "upload",
        "original-upload",
        "upload",
    ];
    let evidence = run(&kinds, KillPlan::None, 2_000);
    assert!(evidence.doubles.is_empty(), "{evidence:?}");
    assert_eq!(evidence.noticed, BTreeSet::new());
    assert!(evidence.complaints.is_empty(), "{evidence:?}");
    assert_eq!(evidence.counter, evidence.finished);
}

/// K26 (rename, compare, then unlink), K34: after a crash the original deletes by name the lock
/// that it found dead, even if it is a live lock by then. That cannot be prevented, but every
/// Tenure holder that loses its lock this way detects it. Tenure itself never does this: every
/// holder that another one finds inside is a Tenure holder that lost its lock.
#[test]
fn uploads_robbed_by_the_original_are_noticed() {
    let kinds = [
        "upload",
        "upload",
        "upload",
        "original-upload",
        "upload",
        "upload",
    ];
    let evidence = run(&kinds, KillPlan::KillAndStop, 2_000);
    let unnoticed: Vec<_> = evidence
        .doubles
        .iter()
        .filter(|pid| !evidence.noticed.contains(pid) && !evidence.killed.contains(pid))
        .collect();
    assert!(
        unnoticed.is_empty(),
        "not noticed: {unnoticed:?} in {evidence:?}"
    );
    assert!(evidence.complaints.is_empty(), "{evidence:?}");
    println!(
        "{} sections, {} robbed by the original, {} noticed",
        evidence.finished,
        evidence.doubles.len(),
        evidence.noticed.len()
    );
}

/// X10 (ask once per cycle), X15 (exclusion between tools), X20: with the gate, tools and server
/// cycles never work at the same time, also when they are killed and stopped.
#[test]
fn tools_and_cycles_exclude_each_other() {
    let kinds = [
        "exclusive-alone",
        "server",
        "exclusive-alone",
        "exclusive-alone",
    ];
    let evidence = run(&kinds, KillPlan::KillAndStop, 1_500);
    assert!(evidence.doubles.is_empty(), "{evidence:?}");
    assert_eq!(evidence.noticed, BTreeSet::new());
    assert!(evidence.complaints.is_empty(), "{evidence:?}");
    assert_eq!(evidence.counter, evidence.finished);
}
