//! Many processes, one lock, and a controller that kills and stops them at random.
//!
//! Every worker that enters the critical section looks whether the one before still runs, and counts in
//! a plain file (see `actor/section.rs`). At the end the counter must equal the sections that were
//! finished, and nobody may have met anybody.
//!
//! `TENURE_TORTURE_SECONDS` makes each protocol run for that long instead, `TENURE_TORTURE_SEED` repeats
//! the order of interventions (not the scheduling).

#![allow(clippy::unwrap_used, reason = "in a test a panic is the message")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use common::actor::Actor;
use common::eventually;
use rustix::process::Signal;

const WORKERS: usize = 16;
/// Sections per protocol; 20,000 and more over all of them.
const SECTIONS: u64 = 7_000;
/// Without progress for this long, somebody waits who should not.
const STALL: Duration = Duration::from_secs(20);

/// One protocol at a time: two tortures at once would measure the scheduler.
static ALONE: Mutex<()> = Mutex::new(());

/// K10, K22–K27, S15–S22: nobody is inside with anybody, whatever is killed or stopped.
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
    let _alone = ALONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path();
    let mut dice = Dice::new();
    let spawn = || Actor::spawn(&["work", who], dir);
    let mut workers: Vec<Actor> = (0..WORKERS).map(|_| spawn()).collect();
    let mut stopped: BTreeMap<usize, Instant> = BTreeMap::new();
    let (mut kills, mut stops, mut hits) = (0_u32, 0_u32, 0_u32);
    let began = Instant::now();
    let mut progress = (0, began);
    loop {
        let sections = number(&dir.join("counter"));
        if is_enough(sections, began) {
            break;
        }
        if sections > progress.0 {
            progress = (sections, Instant::now());
        }
        assert!(
            progress.1.elapsed() < STALL,
            "{who}: nobody got in for {STALL:?} after {sections} sections, seed {}\n{}",
            dice.seed,
            scene(dir, &workers),
        );
        // Half of the blows go to whoever is inside, the others to anybody: waiters, judges, reclaimers.
        let inside = numbers(&dir.join("inside")).first().copied();
        let holder = workers
            .iter()
            .position(|worker| Some(u64::from(worker.pid())) == inside);
        let victim = match holder {
            Some(holder) if dice.throw(2) == 0 => holder,
            _ => usize::try_from(dice.throw(WORKERS as u64)).unwrap(),
        };
        hits += u32::from(Some(victim) == holder);
        match dice.throw(3) {
            0 => {
                stopped.remove(&victim);
                std::mem::replace(&mut workers[victim], spawn()).kill();
                kills += 1;
            }
            _ => {
                workers[victim].signal(Signal::STOP);
                let time = Duration::from_micros(dice.throw(8_000));
                stopped.insert(victim, Instant::now() + time);
                stops += 1;
            }
        }
        stopped.retain(|&worker, until| {
            let goes_on = *until <= Instant::now();
            if goes_on {
                workers[worker].signal(Signal::CONT);
            }
            !goes_on
        });
        thread::sleep(Duration::from_micros(dice.throw(40_000)));
    }
    for worker in &workers {
        worker.signal(Signal::CONT);
    }
    fs::write(dir.join("stop"), "").unwrap();
    eventually("all workers come to their end", || {
        workers.iter_mut().all(Actor::has_ended)
    });
    drop(workers);
    let took = began.elapsed();
    let finished = judge(dir, who, dice.seed);
    println!(
        "{who}: {finished} sections in {took:.1?}, {kills} killed, {stops} stopped, {hits} of them inside"
    );
}

fn is_enough(sections: u64, began: Instant) -> bool {
    match std::env::var("TENURE_TORTURE_SECONDS") {
        Ok(seconds) => began.elapsed().as_secs() >= seconds.parse().expect("a number of seconds"),
        Err(_) => sections >= SECTIONS,
    }
}

/// The counter equals the finished sections, and nobody had anything to report.
fn judge(dir: &Path, who: &str, seed: u64) -> u64 {
    let report = fs::read_to_string(dir.join("report")).unwrap_or_default();
    let (recovered, bad): (Vec<&str>, Vec<&str>) =
        report.lines().partition(|line| *line == "recovered");
    assert!(bad.is_empty(), "{who}, seed {seed}: {bad:?}");
    let tallies: u64 = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.file_name()
                .unwrap()
                .to_string_lossy()
                .starts_with("tally.")
        })
        .map(|path| number(&path))
        .sum();
    let finished = tallies + recovered.len() as u64;
    assert_eq!(
        number(&dir.join("counter")),
        finished,
        "{who}, seed {seed}: sections were lost"
    );
    finished
}

/// What can be seen when nothing moves.
fn scene(dir: &Path, workers: &[Actor]) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("tally.") {
            let content = fs::read(entry.path()).unwrap_or_default();
            text += &format!("{name}: {}\n", String::from_utf8_lossy(&content).trim());
        }
    }
    for worker in workers {
        let pid = worker.pid();
        let wchan = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        text += &format!("{pid}: {wchan} {}\n", stat.get(..40).unwrap_or(&stat));
    }
    text + &fs::read_to_string("/proc/locks").unwrap_or_default()
}

fn number(path: &Path) -> u64 {
    numbers(path).first().copied().unwrap_or(0)
}

fn numbers(path: &Path) -> Vec<u64> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect()
}

/// A small generator whose seed can be given.
struct Dice {
    seed: u64,
    state: u64,
}

impl Dice {
    fn new() -> Dice {
        let seed = match std::env::var("TENURE_TORTURE_SEED") {
            Ok(seed) => seed.parse().expect("a number"),
            Err(_) => u64::from(std::process::id()),
        };
        Dice { seed, state: seed }
    }

    fn throw(&mut self, sides: u64) -> u64 {
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695);
        (self.state >> 33) % sides
    }
}

/// K42, S22: how long it takes a waiter to have the lock of a killed holder. Measured and printed; that it
/// happens by an event is what the rules' own tests show.
#[test]
fn takeover_is_measured() {
    let _alone = ALONE
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    for who in ["sidecar", "exclusive", "upload"] {
        let temp = tempfile::tempdir().unwrap();
        let mut holder = Actor::spawn(&["hold", who], temp.path());
        holder.says("held");
        let mut times: Vec<Duration> = (0..20)
            .map(|_| {
                let waiter = Actor::spawn(&["hold", who], temp.path());
                eventually("the waiter waits", || common::is_waiting(waiter.pid()));
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
