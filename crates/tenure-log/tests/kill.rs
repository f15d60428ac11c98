//! Repeated `kill -9` on a real disk.
//!
//! A child process appends batches and reports over a pipe which are durable. The parent kills it
//! at a random moment and opens the log. All confirmed batches must be there, and the content must
//! be exactly the first `k` batches of the workload, which both processes can compute. Then the
//! next child continues. Files are tiny, so that kills also hit rotations, snapshots and
//! recoveries.
//!
//! `TENURE_KILLS=5000 cargo test -p tenure-log --test kill` runs more than the default of 200.

#![allow(
    clippy::print_stdout,
    reason = "a test program with its own main reports by itself"
)]

mod common;

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use common::{Model, Rng, TINY, Workload, append, check_snapshots, retire};
use tenure_log::{Log, RealDisk, TruncationKind, open};

const CHILD: &str = "TENURE_LOG_KILL_CHILD";
const LOAD: Workload = Workload {
    seed: 99,
    groups: 4,
    payload: 400,
};
const TEST: &str = "what_was_confirmed_survives_kill_nine";

fn main() -> ExitCode {
    if let Some(directory) = std::env::var_os(CHILD) {
        return child(Path::new(&directory));
    }
    // Supports the test runner's arguments that tools depend on.
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| word == "--list") {
        println!("{TEST}: test");
        return ExitCode::SUCCESS;
    }
    let filters: Vec<_> = words.iter().filter(|word| !word.starts_with('-')).collect();
    if !filters.is_empty() && !filters.iter().any(|filter| TEST.contains(*filter)) {
        println!("test result: ok. 0 passed; 0 failed; 1 filtered out");
        return ExitCode::SUCCESS;
    }
    let kills = std::env::var("TENURE_KILLS").map_or(200, |text| text.parse().expect("a number"));
    let told = parent(kills);
    println!("test {TEST} ... ok ({told})");
    ExitCode::SUCCESS
}

/// Appends and confirms until it is killed.
fn child(directory: &Path) -> ExitCode {
    let mut pipe = std::io::stdout().lock();
    let opened = open(RealDisk::open(directory).expect("a directory"), TINY).expect("a log");
    let (mut log, snapshots) = (opened.log, opened.snapshots);
    let mut model = Model::of(&opened.recovered);
    loop {
        let ops = model.next_ops(&LOAD);
        model.apply(&ops);
        append(&mut log, &snapshots, &ops).expect("an append");
        // Some batches share a sync, as in production.
        if model.batches % 3 != 1 {
            let mark = log.sync().expect("a sync");
            pipe.write_all(&mark.0.to_le_bytes())
                .and_then(|()| pipe.flush())
                .expect("a pipe");
            retire(&snapshots, &model, &ops).expect("a removal");
        }
        if let Some(job) = log.spare_wanted() {
            log.spare_done(job.run());
        }
    }
}

/// R152: batches confirmed before a SIGKILL are there after a restart.
fn parent(kills: u64) -> String {
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("data");
    let mut rng = Rng::new(7);
    let mut model = Model::default();
    let (mut unconfirmed, mut confirmed_in_all, mut cuts) = (0, 0, 0);
    let started = Instant::now();
    for kill in 0..kills {
        let confirmed = one_child(&data, &mut rng).unwrap_or(model.batches);
        let opened = open(RealDisk::open(&data).expect("a directory"), TINY)
            .unwrap_or_else(|error| panic!("after kill {kill}: {error}"));
        let found = Model::of(&opened.recovered);
        if let Some(cut) = &opened.recovered.cut {
            assert_eq!(cut.kind, TruncationKind::Torn, "after kill {kill}: {cut:?}");
            cuts += 1;
        }
        assert!(
            found.batches >= confirmed,
            "after kill {kill}: batch {confirmed} was confirmed, {} are there",
            found.batches
        );
        confirmed_in_all += confirmed - model.batches.min(confirmed);
        unconfirmed += found.batches - confirmed;
        while model.batches < found.batches {
            let ops = model.next_ops(&LOAD);
            model.apply(&ops);
        }
        assert!(
            found == model,
            "after kill {kill}: other than the first {} batches",
            model.batches
        );
        check_snapshots(&opened);
    }
    assert!(confirmed_in_all > kills, "the children came to work");
    format!(
        "{kills} kills, {confirmed_in_all} batches confirmed and found, {unconfirmed} found that \
         were not confirmed, {cuts} writes cut short, {:.1} s",
        started.elapsed().as_secs_f64()
    )
}

/// Runs a child and kills it. Returns the last mark that it confirmed.
fn one_child(data: &Path, rng: &mut Rng) -> Option<u64> {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program)
        .env(CHILD, data)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child of this program");
    let mut pipe = child.stdout.take().expect("a pipe was asked for");
    let mut last = None;
    let mut read = |count: u64| {
        let mut mark = [0; 8];
        for _ in 0..count {
            if pipe.read_exact(&mut mark).is_err() {
                break;
            }
            last = Some(u64::from_le_bytes(mark));
        }
    };
    // One kill in eight hits the start. The others come a few confirmations later, at any point of
    // the following work.
    if rng.below(8) > 0 {
        read(1 + rng.below(20));
    }
    std::thread::sleep(Duration::from_micros(rng.below(2500)));
    child.kill().expect("a child that is still there");
    let status = child.wait().expect("a child to wait for");
    assert_eq!(
        status.code(),
        None,
        "it was killed and did not end by itself: {status}"
    );
    read(u64::MAX);
    last
}
