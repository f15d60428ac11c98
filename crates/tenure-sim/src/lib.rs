//! A whole Tenure cluster in one thread: real nodes on virtual time, with faults and judges.
//!
//! ```text
//!   seed ──▶ Plan ──▶ World: seats, network, clients, faults ──facts──▶ judges ──▶ Report
//! ```
//!
//! A run is a seed: the same one gives the same run, to the last byte, which a hash over everything
//! that happened shows. Faults, load and judges do not know each other. After the storm everything
//! is healed, and the cluster has to make progress, let go of the dead, and agree.

mod breach;
mod calm;
mod check;
mod counts;
mod faults;
mod journal;
mod load;
pub mod museum;
mod network;
mod operator;
mod plan;
mod pulse;
mod random;
mod seat;
mod time;
mod trace;
mod weather;
mod world;

pub use breach::Breach;
pub use check::Violation;
pub use counts::Counts;
pub use trace::Printing;
pub use weather::Weather;

use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError, mpsc};

use plan::Plan;
use random::Random;
use time::SECOND;
use trace::Trace;
use world::World;

/// How a run is to be made.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long faults strike, in virtual seconds.
    pub storm_seconds: u64,
    /// Whether every change is printed.
    pub printing: Printing,
    /// The contract that is broken, for the museum.
    pub breach: Option<Breach>,
    /// The weather, if it is not to be the seed's own.
    pub weather: Option<Weather>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            storm_seconds: 300,
            printing: Printing::Off,
            breach: None,
            weather: None,
        }
    }
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Which run.
    pub seed: u64,
    /// How many nodes it had.
    pub nodes: usize,
    /// A hash over everything that happened.
    pub trace: u64,
    /// What it was made of.
    pub counts: Counts,
    /// What a judge objected to.
    pub violation: Option<Violation>,
}

/// Runs a seed to its end, or to the first objection. A panic is one, too.
pub fn run(seed: u64, options: Options) -> Report {
    std::panic::catch_unwind(|| run_once(seed, options)).unwrap_or_else(|panic| {
        let what = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_default();
        let violation = Violation {
            judge: "panic",
            at: 0,
            what,
        };
        Report {
            seed,
            nodes: 0,
            trace: 0,
            counts: Counts::default(),
            violation: Some(violation),
        }
    })
}

/// Runs many seeds on so many threads; each report goes to `see` as it comes, until that says stop.
pub fn run_all(
    seeds: impl Iterator<Item = u64> + Send,
    threads: usize,
    options: Options,
    mut see: impl FnMut(Report) -> ControlFlow<()>,
) {
    let seeds = Mutex::new(seeds);
    let next = || seeds.lock().unwrap_or_else(PoisonError::into_inner).next();
    let (sender, receiver) = mpsc::sync_channel(threads);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                while let Some(seed) = next() {
                    if sender.send(run(seed, options)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        while let Ok(report) = receiver.recv() {
            if see(report).is_break() {
                break;
            }
        }
        drop(receiver);
    });
}

fn run_once(seed: u64, options: Options) -> Report {
    let mut random = Random::new(seed);
    let weather = options.weather.unwrap_or_else(|| Weather::of(seed));
    let storm = options.storm_seconds * SECOND;
    let plan = Plan::of(&mut random, weather, storm, options.breach);
    let nodes = plan.nodes;
    let mut world = World::new(plan, random, Trace::new(options.printing));
    let violation = world.live().err();
    if violation.is_some() {
        world.show();
    }
    let mut counts = std::mem::take(&mut world.counts);
    counts.virtual_ms = world.now / 1000;
    counts.judged = std::mem::take(&mut world.judges.judged);
    Report {
        seed,
        nodes,
        trace: world.trace.digest(),
        counts,
        violation,
    }
}
