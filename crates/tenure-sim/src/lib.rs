//! A whole Tenure cluster in one thread: real nodes on virtual time, with faults and checkers.
//!
//! ```text
//!   seed ──▶ Plan ──▶ World: node slots, network, clients, faults ──facts──▶ checkers ──▶ Report
//! ```
//!
//! A run is a seed: the same one gives the same run, to the last byte, which a hash over everything
//! that happened shows. Faults, load and checkers do not know each other. After the fault phase everything
//! is healed, and the cluster has to make progress, let go of the dead, and agree.

mod availability;
mod check;
mod contract_violation;
mod convergence;
mod counts;
mod fault_profile;
mod faults;
mod load;
mod network;
mod operator;
mod plan;
pub mod planted_bugs;
mod random;
mod sim_log;
mod sim_node;
mod simulator;
mod time;
mod trace;

pub use check::Violation;
pub use contract_violation::ContractViolation;
pub use counts::Counts;
pub use fault_profile::FaultProfile;
pub use trace::Printing;

use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError, mpsc};

use plan::RunPlan;
use random::SimRng;
use simulator::Simulator;
use time::SECOND;
use trace::Trace;

/// How a run is to be made.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long faults strike, in virtual seconds.
    pub fault_seconds: u64,
    /// Whether every change is printed.
    pub printing: Printing,
    /// The contract that is broken, for the list of planted bugs.
    pub contract_violation: Option<ContractViolation>,
    /// The fault profile, if it is not to be the seed's own.
    pub fault_profile: Option<FaultProfile>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            fault_seconds: 300,
            printing: Printing::Off,
            contract_violation: None,
            fault_profile: None,
        }
    }
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// Which run.
    pub seed: u64,
    /// How many nodes it had.
    pub nodes: usize,
    /// A hash over everything that happened.
    pub trace: u64,
    /// What it was made of.
    pub counts: Counts,
    /// What a checker objected to.
    pub violation: Option<Violation>,
}

/// Runs a seed to its end, or to the first objection. A panic is one, too.
pub fn run(seed: u64, options: Options) -> RunReport {
    std::panic::catch_unwind(|| run_once(seed, options)).unwrap_or_else(|panic| {
        let what = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_default();
        let violation = Violation {
            checker: "panic",
            at: 0,
            what,
        };
        RunReport {
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
    mut see: impl FnMut(RunReport) -> ControlFlow<()>,
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

fn run_once(seed: u64, options: Options) -> RunReport {
    let mut random = SimRng::new(seed);
    let fault_profile = options
        .fault_profile
        .unwrap_or_else(|| FaultProfile::of(seed));
    let fault_phase = options.fault_seconds * SECOND;
    let plan = RunPlan::of(
        &mut random,
        fault_profile,
        fault_phase,
        options.contract_violation,
    );
    let nodes = plan.nodes;
    let mut sim = Simulator::new(plan, random, Trace::new(options.printing));
    let violation = sim.live().err();
    if violation.is_some() {
        sim.show();
    }
    let mut counts = std::mem::take(&mut sim.counts);
    counts.virtual_ms = sim.now / 1000;
    counts.judged = std::mem::take(&mut sim.checkers.judged);
    RunReport {
        seed,
        nodes,
        trace: sim.trace.digest(),
        counts,
        violation,
    }
}
