//! How busy the network threads are (`NetworkProcessorAvgIdlePercent`).
//!
//! tokio counts each thread's busy time. The share is of the time since the last reading, so that it is
//! current, and of a second at least, so that two readers do not disturb each other.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::runtime::RuntimeMetrics;

const WINDOW_MIN: Duration = Duration::from_secs(1);

struct Sample {
    at: Instant,
    busy: Duration,
    idle: f64,
}

pub(crate) struct Idle {
    sample: Mutex<Sample>,
}

impl Idle {
    pub(crate) fn new() -> Self {
        let sample = Sample {
            at: Instant::now(),
            busy: Duration::ZERO,
            idle: 1.0,
        };
        Self {
            sample: Mutex::new(sample),
        }
    }

    /// From 0 to 1, although Kafka's name says percent.
    pub(crate) fn share(&self, runtime: &RuntimeMetrics) -> f64 {
        self.share_at(Instant::now(), Self::busy(runtime), runtime.num_workers())
    }

    pub(crate) fn busy(runtime: &RuntimeMetrics) -> Duration {
        let workers = 0..runtime.num_workers();
        workers
            .map(|worker| runtime.worker_total_busy_duration(worker))
            .sum()
    }

    fn share_at(&self, now: Instant, busy: Duration, threads: usize) -> f64 {
        let mut sample = self.sample.lock();
        let passed = now.saturating_duration_since(sample.at);
        if passed >= WINDOW_MIN {
            let worked = busy.saturating_sub(sample.busy).as_secs_f64();
            let idle = 1.0 - worked / (passed.as_secs_f64() * threads as f64);
            *sample = Sample {
                at: now,
                busy,
                idle: idle.clamp(0.0, 1.0),
            };
        }
        sample.idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // If this failed, a broker at its limit would look idle, or two dashboards would disagree.
    #[test]
    fn idle_time_is_measured_since_the_last_reading() {
        let idle = Idle::new();
        let start = Instant::now();
        let seconds = Duration::from_secs_f64;
        let share = |at, busy| idle.share_at(start + seconds(at), seconds(busy), 2);
        assert!((share(0.5, 1.0) - 1.0).abs() < 1e-9);
        assert!((share(10.0, 5.0) - 0.75).abs() < 1e-3);
        assert!((share(10.5, 6.0) - 0.75).abs() < 1e-3);
        assert!(share(20.0, 25.0) < 1e-3);
        assert!((share(30.0, 25.0) - 1.0).abs() < 1e-3);
    }
}
