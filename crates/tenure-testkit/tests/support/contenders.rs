//! Many processes, one lock, and a controller that kills and stops them at random.
//!
//! Every worker that enters the critical section checks whether the previous one still runs, and
//! counts in a plain file (see `actor/section.rs`). This module evaluates the files that they
//! leave.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use tenure_testkit::{Rng, eventually};

use super::actor::Actor;

/// Without progress for this long, a worker waits that should not.
const STALL: Duration = Duration::from_secs(20);

/// What the controller does to the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KillPlan {
    /// SIGKILL and SIGSTOP: half of them for the worker inside, the others for any worker: waiters,
    /// reclaimers.
    KillAndStop,
    /// Nothing.
    None,
}

/// Workers of one or several kinds on one lock.
pub(crate) struct Contenders {
    temp: tempfile::TempDir,
    kinds: Vec<String>,
    workers: Vec<Actor>,
    killed: BTreeSet<u32>,
    seed: u64,
    rng: Rng,
}

/// The evaluated files.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Evidence {
    /// Finished sections: those that the workers counted, and those that killed workers could not
    /// count.
    pub(crate) finished: u64,
    /// Number of sections that each kind of worker counted.
    pub(crate) by_kind: BTreeMap<String, u64>,
    /// Value of the counter.
    pub(crate) counter: u64,
    /// Pids of workers that another worker found inside.
    pub(crate) doubles: Vec<u32>,
    /// Pids of workers that detected the loss of their lock.
    pub(crate) noticed: BTreeSet<u32>,
    /// Pids of killed workers.
    pub(crate) killed: BTreeSet<u32>,
    /// All other reports.
    pub(crate) complaints: Vec<String>,
}

impl Contenders {
    /// Starts one worker of each kind in the list.
    pub(crate) fn start(kinds: &[&str]) -> Contenders {
        let temp = tempfile::tempdir().unwrap();
        let seed = seed();
        let workers = kinds
            .iter()
            .map(|who| Actor::spawn(&["work", who], temp.path()))
            .collect();
        Contenders {
            kinds: kinds.iter().map(|&who| who.to_owned()).collect(),
            workers,
            temp,
            killed: BTreeSet::new(),
            seed,
            rng: Rng::new(seed),
        }
    }

    fn dir(&self) -> &Path {
        self.temp.path()
    }

    /// Lets them work until `is_enough` accepts the number of sections, then stops them without a
    /// kill.
    pub(crate) fn run(&mut self, blows: KillPlan, mut is_enough: impl FnMut(u64) -> bool) {
        let mut stopped: BTreeMap<usize, Instant> = BTreeMap::new();
        let mut progress = (0, Instant::now());
        loop {
            let sections = number(&self.dir().join("counter"));
            if is_enough(sections) {
                break;
            }
            if sections > progress.0 {
                progress = (sections, Instant::now());
            }
            assert!(
                progress.1.elapsed() < STALL,
                "no worker gets in any more\n{}",
                self.scene()
            );
            if blows == KillPlan::KillAndStop {
                self.strike(&mut stopped);
            }
            stopped.retain(|&worker, until| {
                let goes_on = *until <= Instant::now();
                if goes_on {
                    self.workers[worker].signal(Signal::CONT);
                }
                !goes_on
            });
            thread::sleep(Duration::from_micros(self.rng.below(40_000)));
        }
        for worker in &self.workers {
            worker.signal(Signal::CONT);
        }
        fs::write(self.dir().join("stop"), "").unwrap();
        let workers = &mut self.workers;
        eventually("all workers come to their end", || {
            workers.iter_mut().all(Actor::has_ended)
        });
    }

    fn strike(&mut self, stopped: &mut BTreeMap<usize, Instant>) {
        let inside = numbers(&self.dir().join("inside")).first().copied();
        let holder = self
            .workers
            .iter()
            .position(|worker| Some(u64::from(worker.pid())) == inside);
        let victim = match holder {
            Some(holder) if self.rng.below(2) == 0 => holder,
            _ => usize::try_from(self.rng.below(self.workers.len() as u64)).unwrap(),
        };
        if self.rng.below(3) == 0 {
            stopped.remove(&victim);
            let fresh = Actor::spawn(&["work", &self.kinds[victim]], self.dir());
            let dead = std::mem::replace(&mut self.workers[victim], fresh);
            self.killed.insert(dead.pid());
            dead.kill();
        } else {
            self.workers[victim].signal(Signal::STOP);
            let time = Duration::from_micros(self.rng.below(8_000));
            stopped.insert(victim, Instant::now() + time);
        }
    }

    /// Reads the files of the workers.
    pub(crate) fn evidence(self) -> Evidence {
        let counter = number(&self.dir().join("counter"));
        let mut evidence = Evidence {
            counter,
            killed: self.killed.clone(),
            ..Evidence::default()
        };
        let report = fs::read_to_string(self.dir().join("report")).unwrap_or_default();
        for line in report.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["recovered"] => evidence.finished += 1,
                ["double", pid] => evidence.doubles.push(pid.parse().unwrap()),
                ["noticed", pid] => drop(evidence.noticed.insert(pid.parse().unwrap())),
                _ => evidence.complaints.push(line.to_owned()),
            }
        }
        for entry in fs::read_dir(self.dir()).unwrap().flatten() {
            if entry.file_name().to_string_lossy().starts_with("tally.") {
                let tally = fs::read_to_string(entry.path()).unwrap();
                let words: Vec<&str> = tally.split_whitespace().collect();
                // The worker was killed between creating its tally and writing it. If its section
                // was finished, the next worker counted it.
                let [count, _, who] = words[..] else {
                    assert!(words.is_empty(), "{tally:?}");
                    continue;
                };
                let count: u64 = count.parse().unwrap();
                evidence.finished += count;
                *evidence.by_kind.entry(who.to_owned()).or_default() += count;
            }
        }
        evidence
    }

    /// The state for the error message of a stall.
    fn scene(&self) -> String {
        let mut text = format!("seed {}\n", self.seed);
        for entry in fs::read_dir(self.dir()).unwrap().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.starts_with("tally.") {
                let content = fs::read(entry.path()).unwrap_or_default();
                text += &format!("{name}: {}\n", String::from_utf8_lossy(&content).trim());
            }
        }
        for worker in &self.workers {
            let pid = worker.pid();
            let wchan = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            text += &format!("{wchan} {}\n", stat.get(..60).unwrap_or(&stat));
        }
        text + &fs::read_to_string("/proc/locks").unwrap_or_default()
    }
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

/// The seed of the interventions: `TENURE_TORTURE_SEED`, or a new one for each run.
fn seed() -> u64 {
    match std::env::var("TENURE_TORTURE_SEED") {
        Ok(seed) => seed.parse().expect("a number"),
        Err(_) => u64::from(std::process::id()),
    }
}
