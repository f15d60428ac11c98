//! Power loss at every write, sync and name change of a recorded run, one after the other.
//!
//! After each crash the log must hold exactly the first `k` batches of the run, for some `k`
//! between the last batch that a sync had confirmed and the last one appended: no confirmed batch
//! is lost, torn or out of order, and there is nothing else. Then the lost batches are appended
//! again and the power fails once more, also at every step of the recovery itself.
//!
//! "§2" in the tests of this crate refers to the rules of the durable log, which
//! docs/formats/log.md states and argues.

#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod common;

use common::{
    Model, Rng, Stopped, TINY, Workload, append, check_snapshots, lose_all, names, retire,
};
use tenure_log::{BatchNumber, Log, SimDisk, open};

/// The progress of a run before the power failed.
#[derive(Debug, Default)]
struct Run {
    /// The models after 0, 1, 2, … batches, up to the one that was being appended.
    models: Vec<Model>,
    confirmed: BatchNumber,
}

/// Opens the log, checks it against `from`, and appends until it has `batches` batches.
fn run(disk: &SimDisk, from: &Model, batches: u64, load: &Workload) -> Run {
    let mut run = Run {
        models: vec![from.clone()],
        confirmed: BatchNumber(from.batches),
    };
    let Ok(opened) = open(disk.clone(), TINY) else {
        return run;
    };
    assert_eq!(Model::of(&opened.recovered), *from);
    let _ = go_on(opened.log, &opened.snapshots, batches, load, &mut run);
    run
}

fn go_on(
    mut log: tenure_log::FileLog<SimDisk>,
    snapshots: &tenure_log::Snapshots<SimDisk>,
    batches: u64,
    load: &Workload,
    run: &mut Run,
) -> Result<(), Stopped> {
    let mut model = run.models.last().expect("there is a first model").clone();
    let mut unretired = Vec::new();
    while model.batches < batches {
        let ops = model.next_ops(load);
        model.apply(&ops);
        run.models.push(model.clone());
        append(&mut log, snapshots, &ops)?;
        unretired.extend(ops);
        // Sync only sometimes, so that several batches are unsynced at once. Sometimes append a
        // batch between the two halves of a sync, which must not cover it.
        if model.batches.is_multiple_of(3) {
            let ticket = log.begin_sync()?;
            if model.batches.is_multiple_of(2) && model.batches < batches {
                let ops = model.next_ops(load);
                model.apply(&ops);
                run.models.push(model.clone());
                append(&mut log, snapshots, &ops)?;
                unretired.extend(ops);
            }
            run.confirmed = log.finish_sync(ticket)?;
            if run.confirmed.0 == model.batches {
                retire(snapshots, &model, &unretired)?;
                unretired.clear();
            }
        }
        // Confirm the end as an idle log does, in the middle of a file.
        if model.batches.is_multiple_of(7) {
            log.confirm_end()?;
            run.confirmed = BatchNumber(model.batches);
        }
        if let Some(job) = log.spare_wanted() {
            log.spare_done(job.run());
        }
    }
    log.close()?;
    run.confirmed = BatchNumber(model.batches);
    Ok(())
}

/// Opens the log after a crash and returns the model of the batches that survived.
fn judge(disk: &SimDisk, run: &Run, story: &str) -> Model {
    let opened = open(disk.clone(), TINY).unwrap_or_else(|error| panic!("{story}: {error}"));
    let found = Model::of(&opened.recovered);
    let expected = run
        .models
        .iter()
        .find(|model| model.batches == found.batches);
    assert_eq!(
        Some(&found),
        expected,
        "{story}: the first {} batches",
        found.batches
    );
    assert!(
        found.batches >= run.confirmed.0,
        "{story}: batch {} was confirmed, {} are there",
        run.confirmed.0,
        found.batches
    );
    check_snapshots(&opened);
    let snapshots = found
        .groups
        .values()
        .filter(|held| held.snapshot().is_some())
        .count();
    assert_eq!(
        names(disk, "snapshot").len(),
        snapshots,
        "{story}: leftovers are cleared away"
    );
    found
}

/// The possible outcomes of the unsynced writes of one crash.
fn outcomes(seed: u64) -> Vec<(String, Box<dyn FnMut() -> bool>)> {
    let mut outcomes: Vec<(String, Box<dyn FnMut() -> bool>)> = vec![
        ("nothing survived".into(), Box::new(|| false)),
        ("everything survived".into(), Box::new(|| true)),
    ];
    for first in [1, 2, 3] {
        let (mut kept, mut lost) = (0, 0);
        outcomes.push((
            format!("only the first {first} sectors survived"),
            Box::new(move || {
                kept += 1;
                kept <= first
            }),
        ));
        outcomes.push((
            format!("only the first {first} sectors were lost"),
            Box::new(move || {
                lost += 1;
                lost > first
            }),
        ));
    }
    for round in 0..3 {
        let mut rng = Rng::new(seed * 31 + round);
        outcomes.push((format!("dice {round}"), Box::new(move || rng.below(2) == 0)));
    }
    outcomes
}

fn crash_everywhere(sector: usize, load: &Workload, batches: u64) {
    let fresh = SimDisk::with_sector(load.seed, sector);
    let recorded = fresh.copy();
    let whole = run(&recorded, &Model::default(), batches, load);
    assert_eq!(whole.confirmed, BatchNumber(batches));
    let steps = recorded.operations();
    let files = names(&recorded, "log");
    assert!(
        files[0].as_str() > "log-00000000000000000003",
        "files were freed: {files:?}"
    );

    let mut second_crashes = 0;
    for step in 1..=steps {
        let stopped = fresh.copy();
        stopped.power_ends_at(step);
        let run_to_crash = run(&stopped, &Model::default(), batches, load);
        for (outcome, mut keep) in outcomes(step) {
            let story = format!("power failed at step {step} of {steps}, {outcome}");
            let disk = stopped.copy().crash(&mut keep);

            // A crash during recovery does not change the content.
            let untouched = disk.copy();
            let probe = disk.copy();
            open(probe.clone(), TINY).unwrap_or_else(|error| panic!("{story}: {error}"));
            let found = judge(&disk, &run_to_crash, &story);
            for again in untouched.operations() + 1..=probe.operations() {
                let second = untouched.copy();
                second.power_ends_at(again);
                assert!(
                    open(second.clone(), TINY).is_err(),
                    "{story}: power ends at {again}"
                );
                let mut rng = Rng::new(again);
                let third = second.crash(&mut || rng.below(2) == 0);
                assert_eq!(
                    judge(&third, &run_to_crash, &story),
                    found,
                    "{story}, then again"
                );
                second_crashes += 1;
            }

            // Continue through another rotation. The next crash affects only the new batches.
            let disk = lose_all(&disk);
            let next = run(&disk, &found, found.batches + 9, load);
            assert_eq!(next.confirmed.0, found.batches + 9, "{story}");
            judge(
                &lose_all(&disk),
                &next,
                &format!("{story}, then nine more batches"),
            );
        }
    }
    assert!(
        second_crashes > steps,
        "recovery has steps of its own to crash in"
    );
}

/// R152: confirmed batches survive a power loss. §2: atomic batches, rotation, reuse, freeing,
/// snapshots and file names survive a crash at every step, with the sectors of a real disk.
#[test]
fn power_may_fail_at_every_step() {
    let load = Workload {
        seed: 1,
        groups: 3,
        payload: 700,
    };
    crash_everywhere(SimDisk::SECTOR, &load, 45);
}

/// The same with writes that tear at any 64 bytes: the format does not depend on sectors.
#[test]
fn power_may_fail_at_every_step_on_a_disk_with_small_sectors() {
    let load = Workload {
        seed: 7,
        groups: 3,
        payload: 700,
    };
    crash_everywhere(64, &load, 45);
}

/// Many short incarnations: each ends with a power loss that keeps random sectors, and the next
/// continues.
#[test]
fn a_hundred_lives_in_a_row() {
    for seed in 0..20 {
        let load = Workload {
            seed,
            groups: 5,
            payload: 500,
        };
        let mut rng = Rng::new(seed);
        let mut disk = SimDisk::new(seed);
        let mut model = Model::default();
        for incarnation in 0..100 {
            disk.power_ends_at(disk.operations() + 1 + rng.below(80));
            let run = run(&disk, &model, model.batches + 30, &load);
            disk = disk.crash(&mut || rng.below(3) > 0);
            let probe = disk.copy();
            model = judge(&probe, &run, &format!("seed {seed}, life {incarnation}"));
        }
        assert!(
            model.batches > 100,
            "seed {seed} came as far as {}",
            model.batches
        );
    }
}

/// §2: a process that dies without a power loss leaves its unsynced batches in the page cache. What
/// recovery returns is durable nevertheless.
#[test]
fn what_recovery_returns_is_durable() {
    let load = Workload {
        seed: 3,
        groups: 2,
        payload: 100,
    };
    let disk = SimDisk::new(3);
    let opened = open(disk.clone(), TINY).unwrap();
    let mut log = opened.log;
    let mut model = Model::default();
    for _ in 0..4 {
        let ops = model.next_ops(&load);
        append(&mut log, &opened.snapshots, &ops).unwrap();
        model.apply(&ops);
    }
    let disk = disk.kill();
    let recovered = open(disk.clone(), TINY).unwrap().recovered;
    assert_eq!(Model::of(&recovered), model);
    let disk = lose_all(&disk);
    assert_eq!(Model::of(&open(disk, TINY).unwrap().recovered), model);
}
