//! A rate over the last seconds, as Kafka's quotas measure it. Source: `Rate`, `SampledStat`, `QuotaUtils`.

use std::collections::VecDeque;

use crate::config::Window;

#[derive(Debug, Clone, Copy)]
struct Sample {
    start_ms: u64,
    last_event_ms: u64,
    sum: f64,
}

/// A rate over a window (`Rate` over a `WindowedSum`).
#[derive(Debug, Default)]
pub(crate) struct Rate(VecDeque<Sample>);

impl Rate {
    /// Adds an amount. A negative amount takes back one that was added just before.
    pub(crate) fn record(&mut self, window: Window, amount: f64, now_ms: u64) {
        let is_current = |sample: &&mut Sample| now_ms.saturating_sub(sample.start_ms) < window.length_ms();
        if let Some(sample) = self.0.back_mut().filter(is_current) {
            sample.sum += amount;
            sample.last_event_ms = now_ms;
            return;
        }
        // There is one sample more than in the window, because the oldest may overlap it.
        if self.0.len() > window.samples {
            self.0.pop_front();
        }
        self.0.push_back(Sample {
            start_ms: now_ms,
            last_event_ms: now_ms,
            sum: amount,
        });
    }

    /// The milliseconds without use that bring the rate down to `bound` a second. 0 if the rate is not above
    /// it.
    pub(crate) fn throttle_ms(&mut self, window: Window, bound: f64, now_ms: u64) -> u64 {
        self.forget(window, now_ms);
        let measured_ms = self.measured_ms(window, now_ms) as f64;
        let sum: f64 = self.0.iter().map(|sample| sample.sum).sum();
        let rate = sum / (measured_ms / 1000.0);
        if rate <= bound {
            return 0;
        }
        // Saturates: a bound of zero gives an endless wait.
        ((rate - bound) / bound * measured_ms).round() as u64
    }

    /// The milliseconds without use until the rate is at most `bound` a second, 0 if it is. Unlike
    /// [`Self::throttle_ms`] it counts the time that has passed, or one sample's (`SimpleRate`). No longer
    /// than the window, after which all is forgotten.
    pub(crate) fn simple_wait_ms(&mut self, window: Window, bound: f64, now_ms: u64) -> u64 {
        self.forget(window, now_ms);
        let Some(oldest) = self.0.front() else {
            return 0;
        };
        let elapsed_ms = now_ms.saturating_sub(oldest.start_ms);
        let measured_ms = elapsed_ms.max(window.length_ms()) as f64;
        let sum: f64 = self.0.iter().map(|sample| sample.sum).sum();
        if sum <= bound * measured_ms / 1000.0 {
            return 0;
        }
        // Saturates: a bound of zero gives an endless wait.
        let needed_ms = (sum / bound * 1000.0).ceil() as u64;
        needed_ms
            .saturating_sub(elapsed_ms)
            .clamp(1, window.whole_ms().max(1))
    }

    pub(crate) fn is_forgotten(&mut self, window: Window, now_ms: u64) -> bool {
        self.forget(window, now_ms);
        self.0.is_empty()
    }

    fn forget(&mut self, window: Window, now_ms: u64) {
        let is_over = |sample: &Sample| now_ms.saturating_sub(sample.last_event_ms) >= window.whole_ms();
        while self.0.front().is_some_and(is_over) {
            self.0.pop_front();
        }
    }

    /// The measured time. All samples except the last count as whole, even samples that do not exist yet. So
    /// the rate of a client's first second is not overestimated.
    fn measured_ms(&self, window: Window, now_ms: u64) -> u64 {
        let oldest = self.0.front().map_or(now_ms, |oldest| oldest.start_ms);
        // Another thread may have recorded with a later time.
        let elapsed = now_ms.saturating_sub(oldest);
        let whole = elapsed / window.length_ms();
        let missing = (window.samples as u64 - 1).saturating_sub(whole);
        (elapsed + missing * window.length_ms()).max(1)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const WINDOW: Window = Window {
        samples: 11,
        length: Duration::from_secs(1),
    };

    // If this failed, clients would be throttled for longer or shorter than by Apache Kafka. The figures are
    // from its `ClientQuotaManagerTest`.
    #[test]
    fn waits_are_as_long_as_kafkas() {
        let mut rate = Rate::default();
        for second in 0..10 {
            rate.record(WINDOW, 400.0, second * 1000);
            assert_eq!(rate.throttle_ms(WINDOW, 500.0, second * 1000), 0);
        }
        // 4000 so far; half a second later 2300 more are 6300 in 10.5 s, which is 600 a second, of which 500
        // are allowed.
        rate.record(WINDOW, 0.0, 10_000);
        rate.record(WINDOW, 2300.0, 10_500);
        assert_eq!(rate.throttle_ms(WINDOW, 500.0, 10_500), 2100);
        for second in 11..23 {
            rate.record(WINDOW, 400.0, second * 1000);
        }
        assert_eq!(rate.throttle_ms(WINDOW, 500.0, 22_000), 0);
    }

    // If this failed, the first large request of a client would count as if it had lasted a moment, or an
    // amount that was taken back would still count.
    #[test]
    fn a_first_request_counts_over_the_whole_window() {
        let mut rate = Rate::default();
        rate.record(WINDOW, 1000.0, 5);
        assert_eq!(rate.throttle_ms(WINDOW, 100.0, 5), 0);
        rate.record(WINDOW, 500.0, 5);
        assert_eq!(rate.throttle_ms(WINDOW, 100.0, 5), 5000);
        rate.record(WINDOW, -500.0, 5);
        assert_eq!(rate.throttle_ms(WINDOW, 100.0, 5), 0);
        assert!(rate.throttle_ms(WINDOW, 0.0, 5) > 1 << 40);
        assert!(!rate.is_forgotten(WINDOW, 11_004));
        assert!(rate.is_forgotten(WINDOW, 11_005));
    }
}
