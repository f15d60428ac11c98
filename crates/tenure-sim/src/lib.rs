//! Deterministic simulation testing of a Tenure cluster.
//!
//! Real nodes run in one thread on virtual time, with a simulated network, simulated disks and
//! simulated clients. Faults are injected; checkers verify the invariants.
//!
//! ```text
//!   seed ─▶ RunPlan ─▶ Simulator: nodes, network, clients, faults ─facts─▶ checkers ─▶ RunReport
//! ```
//!
//! The seed determines the run to the last byte; a hash over the whole trace proves it. Faults,
//! load and checkers do not know each other. A run has a fault phase and a convergence phase. In
//! the second all faults are healed, and the cluster must make progress, free the locks of dead
//! owners, and reach the same state on all replicas.

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
mod rare_events;
mod sim_log;
mod sim_node;
mod simulator;
mod time;
mod trace;

pub use check::Violation;
pub use contract_violation::ContractViolation;
pub use counts::Counts;
pub use fault_profile::FaultProfile;
pub use rare_events::{RareEvent, missing_in};
pub use trace::Printing;

use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError, mpsc};

use plan::RunPlan;
use random::SimRng;
use simulator::Simulator;
use time::SECOND;
use trace::Trace;

/// Settings of a run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Length of the fault phase, in virtual seconds.
    pub fault_seconds: u64,
    /// Whether every trace line is printed.
    pub printing: Printing,
    /// The contract that the driver or the clients break in this run, for the list of planted bugs.
    pub contract_violation: Option<ContractViolation>,
    /// The fault profile. Default: the one that the seed selects.
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

/// The result of a run.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// The seed.
    pub seed: u64,
    /// Number of nodes in the cluster. 0 if the run panicked.
    pub nodes: usize,
    /// Hash over the whole trace. Equal for two runs of one seed. 0 if the run panicked.
    pub trace: u64,
    /// Totals of the run.
    pub counts: Counts,
    /// The first violation that a checker reported, if any.
    pub violation: Option<Violation>,
}

/// Runs one seed until its end or until the first violation. A panic is reported as a violation of
/// the checker `panic`.
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

/// Runs seeds on `threads` threads. Each report is passed to `see` in order of completion; the runs
/// stop when `see` returns [`ControlFlow::Break`].
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
        // Senders in other threads now fail, which ends their loops.
        drop(receiver);
    });
}

/// Returns the names of all kinds of faults.
pub fn fault_kinds() -> impl Iterator<Item = &'static str> {
    faults::FaultKind::all().map(faults::FaultKind::name)
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
    let violation = sim.live().and_then(|()| sim.restore()).err();
    if violation.is_some() {
        sim.show();
    }
    let mut counts = std::mem::take(&mut sim.counts);
    counts.virtual_ms = sim.now / 1000;
    counts.judged = sim.checkers.judged();
    counts.rare = sim.checkers.rare.totals();
    RunReport {
        seed,
        nodes,
        trace: sim.trace.digest(),
        counts,
        violation,
    }
}
