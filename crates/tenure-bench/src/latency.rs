//! Latency histogram with logarithmic buckets: 32 per power of two, so a percentile is exact to 3
//! %.

use std::time::Duration;

/// Buckets per power of two.
const FINE: u64 = 32;
/// Covers up to 2^40 ns (18 minutes). Longer times count in the last bucket.
const BUCKETS: usize = (40 - 4) * FINE as usize;

/// A histogram of durations.
#[derive(Clone)]
pub struct Latencies {
    counts: Vec<u64>,
    total: u64,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies {
            counts: vec![0; BUCKETS],
            total: 0,
        }
    }
}

impl Latencies {
    /// Adds a duration.
    pub fn add(&mut self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(nanos)] += 1;
        self.total += 1;
    }

    /// Adds all durations of another histogram.
    pub fn merge(&mut self, other: &Latencies) {
        for (ours, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *ours += theirs;
        }
        self.total += other.total;
    }

    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.total
    }

    /// Returns the percentile in per mille: the duration that `part` of 1000 samples did not
    /// exceed.
    pub fn per_mille(&self, part: u64) -> Duration {
        let rank = (self.total * part).div_ceil(1000).max(1);
        let mut seen = 0;
        for (at, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_nanos(upper(at as u64));
            }
        }
        Duration::ZERO
    }
}

fn bucket(nanos: u64) -> usize {
    if nanos < FINE {
        return nanos as usize;
    }
    let power = u64::from(nanos.ilog2());
    // The five bits after the leading one select the bucket within the power of two.
    let fine = (nanos >> (power - 5)) & (FINE - 1);
    (((power - 4) * FINE + fine) as usize).min(BUCKETS - 1)
}

/// Returns the upper end of a bucket.
fn upper(bucket: u64) -> u64 {
    if bucket < FINE {
        return bucket;
    }
    let (power, fine) = (bucket / FINE + 4, bucket % FINE);
    (FINE + fine + 1) << (power - 5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_close() {
        let mut latencies = Latencies::default();
        for micros in 1..=1000 {
            latencies.add(Duration::from_micros(micros));
        }
        for (part, micros) in [(500, 500.0), (990, 990.0), (1000, 1000.0), (1, 1.0)] {
            let found = latencies.per_mille(part).as_secs_f64() * 1e6;
            assert!((found / micros - 1.0).abs() < 0.04, "{part}: {found}");
        }
        assert_eq!(latencies.count(), 1000);
    }

    #[test]
    fn two_halves_are_a_whole() {
        let (mut all, mut odd, mut even) = <(Latencies, Latencies, Latencies)>::default();
        for micros in 1..=1000 {
            let took = Duration::from_micros(micros * micros);
            all.add(took);
            if micros % 2 == 0 { &mut even } else { &mut odd }.add(took);
        }
        odd.merge(&even);
        assert_eq!((odd.counts, odd.total), (all.counts, all.total));
    }

    #[test]
    fn every_number_is_below_its_bucket_s_end() {
        for shift in 0..63 {
            for near in [0, 1, 3] {
                let nanos = (1u64 << shift) + near;
                let at = bucket(nanos);
                assert!(at == BUCKETS - 1 || upper(at as u64) >= nanos, "{nanos}");
            }
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }
}
