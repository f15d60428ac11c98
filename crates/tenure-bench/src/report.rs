//! Report of a run, as text and as JSON.

use std::fmt;

use serde::Serialize;

use crate::scenario::{LoadPlan, Measured};

/// The figures of one run.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    /// The scenario.
    pub scenario: &'static str,
    /// Server and protocol.
    pub target: String,
    /// Requests in flight.
    pub in_flight: u32,
    /// Number of connections.
    pub connections: u32,
    /// Units per second.
    pub rate: f64,
    /// The unit of `rate`.
    pub unit: &'static str,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the latency in microseconds.
    pub p99_us: f64,
    /// Grants out of order; must be 0.
    pub overtakes: u64,
    /// Number of requests in the latency histogram.
    pub samples: u64,
    /// Measured time.
    pub seconds: f64,
}

impl BenchReport {
    /// Makes the report of a measurement.
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
