//! What can be measured of a running node: how long its syncs take, and a report of its state.
//!
//! Counters are plain atomics: whoever counts pays a few nanoseconds, whoever reads adds them up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_node::Status;

/// Upper ends of a histogram's buckets, in microseconds; what is above falls into one more.
pub const BOUNDS_US: [u64; 14] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000,
    5_000_000, 30_000_000,
];

/// Durations, counted by size.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
}

/// A histogram at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistogramSnapshot {
    /// How many fell into each bucket, not cumulative.
    pub buckets: [u64; BOUNDS_US.len() + 1],
    /// All of them together, in microseconds.
    pub sum_us: u64,
}

impl HistogramSnapshot {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

impl Histogram {
    /// Counts one.
    pub fn record(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_US.partition_point(|bound| *bound < us);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    /// What was counted so far.
    pub fn read(&self) -> HistogramSnapshot {
        HistogramSnapshot {
            buckets: std::array::from_fn(|at| self.buckets[at].load(Ordering::Relaxed)),
            sum_us: self.sum_us.load(Ordering::Relaxed),
        }
    }
}

/// What the log thread says about the log, for whoever cannot wait for it: it may hang with its disk.
#[derive(Debug, Default)]
pub(crate) struct LogGauges {
    pub(crate) files: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// How long its syncs took.
    pub(crate) syncs: Histogram,
}

/// A node at one moment, for operators.
#[derive(Clone, Debug)]
pub struct NodeMetrics {
    /// What the node says of itself.
    pub status: Status,
    /// Log files in use.
    pub log_files: u64,
    /// Their bytes.
    pub log_bytes: u64,
    /// How long the syncs of the log took since the start.
    pub syncs: HistogramSnapshot,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_fall_into_the_bucket_whose_end_they_do_not_pass() {
        let histogram = Histogram::default();
        histogram.record(Duration::from_micros(100));
        histogram.record(Duration::from_micros(101));
        histogram.record(Duration::from_secs(60));
        let read = histogram.read();
        assert_eq!((read.buckets[0], read.buckets[1]), (1, 1));
        assert_eq!(read.buckets[BOUNDS_US.len()], 1);
        assert_eq!((read.count(), read.sum_us), (3, 60_000_201));
    }
}
