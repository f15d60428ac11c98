//! Performance targets, and whether a run meets them.

use serde_json::json;
use tenure_bench::Scenario;

use super::table::{Row, rate};

/// Minimum ratio between the rates of two targets.
struct SpeedTarget {
    scenario: Scenario,
    in_flight: u32,
    target: &'static str,
    against: &'static str,
    ratio: f64,
}

const fn aim(
    scenario: Scenario,
    in_flight: u32,
    target: &'static str,
    against: &'static str,
    ratio: f64,
) -> SpeedTarget {
    SpeedTarget {
        scenario,
        in_flight,
        target,
        against,
        ratio,
    }
}

const AIMS: [SpeedTarget; 12] = [
    aim(Scenario::UniqueLock, 64, "unary", "echo", 0.75),
    aim(Scenario::UniqueLock, 64, "session", "redis", 1.5),
    aim(Scenario::UniqueLock, 64, "session", "redis-lib", 1.5),
    aim(Scenario::UniqueLock, 256, "unary", "echo", 0.75),
    aim(Scenario::UniqueLock, 256, "session", "redis", 1.5),
    aim(Scenario::UniqueLock, 256, "session", "redis-lib", 1.5),
    aim(Scenario::Renew, 256, "unary", "echo", 0.85),
    aim(Scenario::Renew, 256, "session", "redis", 2.0),
    aim(Scenario::Renew, 256, "session", "redis-lib", 2.0),
    aim(Scenario::FenceCheck, 256, "unary", "echo", 0.85),
    aim(Scenario::FenceCheck, 256, "session", "redis", 0.8),
    aim(Scenario::FenceCheck, 256, "session", "redis-lib", 1.0),
];

/// Minimum handoffs per second of a session, for any number of waiters.
pub(super) const HANDOFFS: f64 = 2_000.0;
/// Maximum cost of many held locks: number of locks, kind of cost, limit.
pub(super) const HELD: [(u64, MemoryCost, f64); 4] = [
    (100_000, MemoryCost::Memory, 60.0),
    (100_000, MemoryCost::Disk, 30.0),
    (1_000_000, MemoryCost::Memory, 350.0),
    (1_000_000, MemoryCost::Restart, 3.0),
];

/// Kind of cost.
#[derive(Clone, Copy)]
pub(super) enum MemoryCost {
    Memory,
    Disk,
    Restart,
}

impl MemoryCost {
    pub(super) fn unit(self) -> &'static str {
        match self {
            MemoryCost::Memory => "MB of memory",
            MemoryCost::Disk => "MB of disk",
            MemoryCost::Restart => "seconds to restart",
        }
    }
}

/// Maximum CPU usage when idle, in per cent of one core.
pub(super) const IDLE: f64 = 0.5;
/// Maximum change after the load, in per cent.
pub(super) const WEAR: f64 = 10.0;

/// A target and the measured value.
pub(super) struct TargetResult {
    what: String,
    found: f64,
    wanted: f64,
    met: bool,
}

/// The targets checked so far.
#[derive(Default)]
pub(super) struct TargetResults(Vec<TargetResult>);

impl TargetResults {
    /// Checks a value with a minimum.
    pub(super) fn at_least(&mut self, what: impl Into<String>, found: f64, wanted: f64) {
        self.add(what.into(), found, wanted, found >= wanted);
    }

    /// Checks a value with a maximum.
    pub(super) fn at_most(&mut self, what: impl Into<String>, found: f64, wanted: f64) {
        self.add(what.into(), found, wanted, found <= wanted);
    }

    fn add(&mut self, what: String, found: f64, wanted: f64, met: bool) {
        self.0.push(TargetResult {
            what,
            found,
            wanted,
            met,
        });
    }

    /// Checks the targets of one row of the speed table.
    pub(super) fn assess(&mut self, scenario: Scenario, in_flight: u32, rows: &[Row]) {
        for aim in &AIMS {
            if aim.scenario != scenario || aim.in_flight != in_flight {
                continue;
            }
            if let (Some(ours), Some(theirs)) = (rate(rows, aim.target), rate(rows, aim.against)) {
                let what = format!(
                    "{} {in_flight}: {} ÷ {}",
                    scenario.name(),
                    aim.target,
                    aim.against
                );
                self.at_least(what, ours / theirs, aim.ratio);
            }
        }
    }

    /// Prints all results, as text or as JSON.
    pub(super) fn print(&self, as_json: bool) {
        if !as_json && !self.0.is_empty() {
            println!("\naims");
        }
        for verdict in &self.0 {
            let TargetResult {
                what,
                found,
                wanted,
                met,
            } = verdict;
            if as_json {
                println!(
                    "{}",
                    json!({"part": "aim", "what": what, "found": found, "aim": wanted, "met": met})
                );
            } else {
                let met = if *met { "met" } else { "missed" };
                println!("  {what:44} {found:>10.2} (aim {wanted:.2}) {met}");
            }
        }
    }
}
