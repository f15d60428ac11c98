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
mod network;
mod operator;
mod plan;
mod random;
mod seat;
mod time;
mod trace;
mod world;

pub use breach::Breach;
pub use check::Violation;
pub use counts::Counts;
pub use trace::Printing;

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
}

impl Default for Options {
    fn default() -> Options {
        Options { storm_seconds: 300, printing: Printing::Off, breach: None }
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

/// Runs a seed to its end, or to the first objection.
pub fn run(seed: u64, options: Options) -> Report {
    let mut random = Random::new(seed);
    let plan = Plan::of(&mut random, options.storm_seconds * SECOND, options.breach);
    let nodes = plan.nodes;
    let mut world = World::new(plan, random, Trace::new(options.printing));
    let violation = world.live().err();
    if violation.is_some() {
        world.show();
    }
    let mut counts = std::mem::take(&mut world.counts);
    counts.virtual_ms = world.now / 1000;
    counts.judged = std::mem::take(&mut world.judges.judged);
    Report { seed, nodes, trace: world.trace.digest(), counts, violation }
}
