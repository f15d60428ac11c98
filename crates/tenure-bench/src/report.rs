//! What a run found, as a line for people and as JSON.

use std::fmt;

use serde::Serialize;

use crate::scenario::{LoadPlan, Measured};

/// The figures of one run.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    /// Which scenario.
    pub scenario: &'static str,
    /// Against what, over what.
    pub target: String,
    /// Requests in flight.
    pub in_flight: u32,
    /// Over so many connections.
    pub connections: u32,
    /// What was counted, per second.
    pub rate: f64,
    /// What was counted.
    pub unit: &'static str,
    /// Half of the requests took no longer, in microseconds.
    pub p50_us: f64,
    /// All but one in a hundred.
    pub p99_us: f64,
    /// Grants out of order; there must be none.
    pub overtakes: u64,
    /// How many requests the latencies are of.
    pub samples: u64,
    /// How long was measured.
    pub seconds: f64,
}

impl BenchReport {
    /// What was measured by a plan.
    pub fn new(plan: &LoadPlan, target: &str, measured: &Measured) -> BenchReport {
        let seconds = measured.elapsed.as_secs_f64();
        BenchReport {
            scenario: plan.scenario.name(),
            target: target.to_owned(),
            in_flight: plan.in_flight,
            connections: plan.connections,
            rate: measured.units as f64 / seconds.max(f64::EPSILON),
            unit: plan.scenario.unit(),
            p50_us: measured.latencies.per_mille(500).as_secs_f64() * 1e6,
            p99_us: measured.latencies.per_mille(990).as_secs_f64() * 1e6,
            overtakes: measured.overtakes,
            samples: measured.latencies.count(),
            seconds,
        }
    }
}

impl fmt::Display for BenchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:12} {:12} {:5} in flight {:10.0} {:10}  p50 {:8.0} µs  p99 {:8.0} µs",
            self.scenario,
            self.target,
            self.in_flight,
            self.rate,
            self.unit,
            self.p50_us,
            self.p99_us
        )?;
        if self.overtakes > 0 {
            write!(f, "  {} OVERTAKES", self.overtakes)?;
        }
        Ok(())
    }
}
