//! Stands in for the crate of this name, which openraft counts the sizes of its batches with.
//!
//! The first histogram of that crate computes the bounds of every possible width of buckets: 26 MB, of which
//! 2 KB are used. We read none of these figures. A histogram here takes half a KiB. The interface is the part
//! that openraft uses; `[patch.crates-io]` in the workspace's Cargo.toml puts this crate in place.

use std::fmt;
use std::marker::PhantomData;

/// One for zero, and one for each number of bits that a value may have.
const BUCKETS: usize = u64::BITS as usize + 1;

/// Counts values by their powers of two. `T` is data of a period in the other crate, and unused here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram<T = ()> {
    counts: [u64; BUCKETS],
    period: PhantomData<T>,
}

impl<T> Histogram<T> {
    #[must_use]
    pub fn new() -> Self {
        Self {
            counts: [0; BUCKETS],
            period: PhantomData,
        }
    }

    /// Counts `value` once.
    pub fn record(&mut self, value: u64) {
        self.record_n(value, 1);
    }

    /// Counts `value` several times.
    pub fn record_n(&mut self, value: u64, times: u64) {
        self.counts[(u64::BITS - value.leading_zeros()) as usize] += times;
    }

    /// The number of values.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The largest power of two that is not above the value at this share, 0 to 1. 0 without values.
    #[must_use]
    pub fn percentile(&self, share: f64) -> u64 {
        let rank = ((self.total() as f64 * share).ceil() as u64).max(1);
        let mut until = 0;
        for (bits, count) in self.counts.iter().enumerate() {
            until += count;
            if until >= rank {
                return if bits == 0 { 0 } else { 1 << (bits - 1) };
            }
        }
        0
    }

    /// The percentiles that openraft shows.
    #[must_use]
    pub fn percentile_stats(&self) -> PercentileStats {
        PercentileStats {
            samples: self.total(),
            p0_1: self.percentile(0.001),
            p1: self.percentile(0.01),
            p5: self.percentile(0.05),
            p10: self.percentile(0.1),
            p50: self.percentile(0.5),
            p90: self.percentile(0.9),
            p99: self.percentile(0.99),
            p99_9: self.percentile(0.999),
        }
    }
}

impl<T> Default for Histogram<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Some percentiles of `samples` values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PercentileStats {
    pub samples: u64,
    pub p0_1: u64,
    pub p1: u64,
    pub p5: u64,
    pub p10: u64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p99_9: u64,
}

impl fmt::Display for PercentileStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} samples: p50 {}, p90 {}, p99 {}, p99.9 {}",
            self.samples, self.p50, self.p90, self.p99, self.p99_9
        )
    }
}

/// Histograms with their names, a line each.
#[derive(Debug, Clone, Default)]
pub struct AsciiChart {
    lines: Vec<(String, PercentileStats)>,
}

impl AsciiChart {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn add(mut self, name: &str, histogram: Histogram) -> Self {
        self.lines.push((name.to_owned(), histogram.percentile_stats()));
        self
    }
}

impl fmt::Display for AsciiChart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, stats) in &self.lines {
            writeln!(f, "{name}: {stats}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this failed, openraft's own metrics would be wrong.
    #[test]
    fn percentiles_are_powers_of_two() {
        let mut histogram = Histogram::<()>::new();
        assert_eq!(histogram.percentile(0.5), 0);
        for value in [0, 1, 1000, u64::MAX] {
            histogram.record(value);
        }
        histogram.record_n(5, 6);
        assert_eq!(histogram.total(), 10);
        let stats = histogram.percentile_stats();
        assert_eq!((stats.p10, stats.p50, stats.p90), (0, 4, 512));
        assert_eq!(stats.p99, 1 << 63);
        assert_eq!(histogram.percentile(0.2), 1);
    }
}
