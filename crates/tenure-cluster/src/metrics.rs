//! Metrics of a running node: a histogram of sync times and a status report.
//!
//! Counters are relaxed atomics. Writers pay a few nanoseconds; readers add up the buckets.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure_node::Status;

/// Upper bounds of the histogram buckets in microseconds (inclusive). One more bucket holds longer
/// times.
pub const BOUNDS_US: [u64; 14] = [
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000,
    5_000_000, 30_000_000,
];

/// Histogram of durations.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
}

/// Values of a histogram at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistogramSnapshot {
    /// Number of durations in each bucket, not cumulative.
    pub buckets: [u64; BOUNDS_US.len() + 1],
    /// Sum of all durations in microseconds.
    pub sum_us: u64,
}

impl HistogramSnapshot {
    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

impl Histogram {
    /// Records a duration.
    pub fn record(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS_US.partition_point(|bound| *bound < us);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    /// Returns the current values.
    pub fn read(&self) -> HistogramSnapshot {
        HistogramSnapshot {
            buckets: std::array::from_fn(|at| self.buckets[at].load(Ordering::Relaxed)),
            sum_us: self.sum_us.load(Ordering::Relaxed),
        }
    }
}

/// Size and sync times of the log, published by the log thread. Readers must not block on that
/// thread, because it may hang with its disk.
#[derive(Debug, Default)]
pub(crate) struct LogGauges {
    pub(crate) files: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// Duration of syncs.
    pub(crate) syncs: Histogram,
}

/// Metrics of a node at one moment.
#[derive(Clone, Debug)]
pub struct NodeMetrics {
    /// Status of the node and its replicas.
    pub status: Status,
    /// Number of log files in use.
    pub log_files: u64,
    /// Size of these files in bytes.
    pub log_bytes: u64,
    /// Duration of syncs since the start.
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
