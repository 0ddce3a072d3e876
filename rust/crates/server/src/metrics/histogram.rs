//! A histogram with fixed buckets. The atomics are relaxed: a reader may see a value in its bucket before it
//! is in the sum.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// More buckets than any histogram here has bounds. The last bucket has no bound.
pub(crate) const BUCKETS_MAX: usize = 18;

/// Upper bounds of times, in milliseconds: from a request in memory to a client's timeout.
pub(crate) const TIME_BOUNDS_MS: [f64; 17] = [
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 2500.0, 5000.0,
    10000.0,
];

const TIME_BOUNDS_NS: [u64; 17] = [
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
];

pub(crate) const SIZE_BOUNDS: [u64; 11] = [
    64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304, 16_777_216, 67_108_864,
];

/// A bucket includes its bound, as in Prometheus.
#[derive(Default)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BUCKETS_MAX],
    sum: AtomicU64,
}

/// The contents of a histogram.
#[derive(Debug, Clone, PartialEq)]
pub struct HistogramValues {
    /// For each bound the number of values up to it, and at the end the number of all values.
    pub cumulative: Vec<u64>,
    /// The sum of the values, in the unit of the bounds.
    pub sum: f64,
}

impl HistogramValues {
    /// Adds the contents of another histogram with the same bounds.
    pub(super) fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.cumulative.iter_mut().zip(&other.cumulative) {
            *mine += theirs;
        }
        self.sum += other.sum;
    }
}

impl Histogram {
    pub(crate) fn record_time(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.record(nanoseconds, &TIME_BOUNDS_NS);
    }

    pub(crate) fn record_size(&self, bytes: u64) {
        self.record(bytes, &SIZE_BOUNDS);
    }

    fn record(&self, value: u64, bounds: &[u64]) {
        let bucket = bounds.partition_point(|bound| *bound < value);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// The times, with `zeros` more of zero.
    pub(crate) fn times(&self, zeros: u64) -> HistogramValues {
        self.read(TIME_BOUNDS_MS.len(), zeros, 1e-6)
    }

    pub(crate) fn sizes(&self) -> HistogramValues {
        self.read(SIZE_BOUNDS.len(), 0, 1.0)
    }

    fn read(&self, bounds: usize, zeros: u64, unit: f64) -> HistogramValues {
        let mut total = zeros;
        let add = |bucket: &AtomicU64| {
            total += bucket.load(Ordering::Relaxed);
            total
        };
        let cumulative = self.buckets[..=bounds].iter().map(add).collect();
        HistogramValues {
            cumulative,
            sum: self.sum.load(Ordering::Relaxed) as f64 * unit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // If this failed, dashboards would show wrong quantiles.
    #[test]
    fn a_value_is_in_the_bucket_of_its_upper_bound() {
        let times = Histogram::default();
        for microseconds in [0, 50, 51, 100, 10_000_000, 10_000_001] {
            times.record_time(Duration::from_micros(microseconds));
        }
        let values = times.times(3);
        assert_eq!(values.cumulative.len(), TIME_BOUNDS_MS.len() + 1);
        assert_eq!(&values.cumulative[..3], [5, 7, 7]);
        assert_eq!(&values.cumulative[15..], [7, 8, 9]);
        assert!((values.sum - 20_000.202).abs() < 1e-6, "{}", values.sum);
        for (milliseconds, nanoseconds) in TIME_BOUNDS_MS.iter().zip(TIME_BOUNDS_NS) {
            assert!((milliseconds * 1e6 - nanoseconds as f64).abs() < 0.5);
        }
        let sizes = Histogram::default();
        sizes.record_size(64);
        sizes.record_size(u64::from(u32::MAX));
        let values = sizes.sizes();
        assert_eq!(values.cumulative[..2], [1, 1]);
        assert_eq!(values.cumulative[SIZE_BOUNDS.len()], 2);
    }
}
