//! Benchmark table of one scenario: throughput, latency and server cost of all compared systems.

use serde_json::{Value, json};
use tenure_bench::BenchReport;

/// The result of one target.
pub(crate) struct Row {
    pub(crate) report: BenchReport,
    /// CPU time of the server per unit, in microseconds.
    pub(crate) cpu_us: f64,
    /// Bytes that the server wrote per unit.
    pub(crate) written: f64,
}

impl Row {
    pub(crate) fn json(&self) -> Value {
        let mut value = serde_json::to_value(&self.report).unwrap_or_default();
        value["part"] = json!("speed");
        value["server_cpu_us"] = json!(self.cpu_us);
        value["written_bytes"] = json!(self.written);
        value
    }
}

/// Returns the rate of a target, if it was measured.
pub(super) fn rate(rows: &[Row], target: &str) -> Option<f64> {
    let row = rows.iter().find(|row| row.report.target == target)?;
    Some(row.report.rate)
}

/// Prints the table of a scenario.
pub(crate) fn speed(rows: &[Row]) {
    let Some(first) = rows.first() else { return };
    println!(
        "\n{}, {} in flight",
        first.report.scenario, first.report.in_flight
    );
    println!(
        "  {:10} {:>10} {:10} {:>9} {:>9} {:>9} {:>9} {:>8} {:>8} {:>11}",
        "target",
        "rate",
        "",
        "p50 µs",
        "p99 µs",
        "cpu µs",
        "bytes",
        "/ echo",
        "/ redis",
        "/ redis-lib"
    );
    let [echo, redis, library] = ["echo", "redis", "redis-lib"].map(|name| rate(rows, name));
    for row in rows {
        let report = &row.report;
        let against = |other: Option<f64>| {
            other.map_or_else(String::new, |other| format!("{:.2}", report.rate / other))
        };
        println!(
            "  {:10} {:>10.0} {:10} {:>9.0} {:>9.0} {:>9.1} {:>9.0} {:>8} {:>8} {:>11}{}",
            report.target,
            report.rate,
            report.unit,
            report.p50_us,
            report.p99_us,
            row.cpu_us,
            row.written,
            against(echo),
            against(redis),
            against(library),
            if report.overtakes > 0 {
                format!("  {} out of order", report.overtakes)
            } else {
                String::new()
            }
        );
    }
}
