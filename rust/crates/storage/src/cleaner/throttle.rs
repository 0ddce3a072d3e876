//! The rate at which all cleaner threads together read and write (`log.cleaner.io.max.bytes.per.second`).
//!
//! Each call delays the next by the time that its bytes need at the rate. A call that comes too early waits;
//! a stop wakes it. All cleaner threads share one throttle.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Aborted;
use crate::log::cleaning::gate::Stop;

/// The most unused time that counts later.
const BURST: Duration = Duration::from_millis(300);
/// The longest delay of a call.
const WAIT_MAX: Duration = Duration::from_secs(3600);

#[derive(Debug)]
pub(crate) struct Throttle {
    bytes_per_second: f64,
    /// The earliest time of the next call.
    next: Mutex<Option<Instant>>,
}

impl Throttle {
    /// `f64::MAX`, Kafka's default, is no limit.
    pub(crate) fn new(bytes_per_second: f64) -> Self {
        Self {
            bytes_per_second,
            next: Mutex::new(None),
        }
    }

    /// Waits until so many bytes may be read or written.
    pub(crate) fn take(&self, bytes: u64, stop: &Stop) -> Result<(), Aborted> {
        if stop.is_set() {
            return Err(Aborted);
        }
        if self.bytes_per_second >= f64::MAX {
            return Ok(());
        }
        let now = Instant::now();
        let due = self.reserve(bytes, now);
        if due > now && stop.wait_until(due) {
            return Err(Aborted);
        }
        Ok(())
    }

    /// When `bytes` may be used by a call at `now`.
    fn reserve(&self, bytes: u64, now: Instant) -> Instant {
        let needed = Duration::try_from_secs_f64(bytes as f64 / self.bytes_per_second)
            .unwrap_or(WAIT_MAX)
            .min(WAIT_MAX);
        let mut next = self.next.lock();
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        let due = next.map_or(now, |next| next.max(earliest)) + needed;
        *next = Some(due);
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Broken if it failed: compaction would take all of the disk's bandwidth, or stand still.
    #[test]
    fn bytes_are_spread_over_time() {
        let throttle = Throttle::new(1000.0);
        let now = Instant::now();
        for second in 1..=5 {
            assert_eq!(throttle.reserve(1000, now), now + Duration::from_secs(second));
        }
        // An idle hour allows no more than a burst.
        let later = now + Duration::from_secs(3600);
        assert_eq!(
            throttle.reserve(1000, later),
            later - BURST + Duration::from_secs(1)
        );
        let slow = Throttle::new(f64::MIN_POSITIVE);
        assert_eq!(slow.reserve(u64::MAX, now), now + WAIT_MAX);
    }

    // Broken if it failed: stopping a server would wait for a throttled cleaner.
    #[test]
    fn a_stop_ends_the_wait() {
        let throttle = Throttle::new(1.0);
        let stop = Stop::default();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| throttle.take(1 << 40, &stop));
            stop.set();
            assert_eq!(waiting.join().unwrap(), Err(Aborted));
        });
        assert_eq!(Throttle::new(f64::MAX).take(1, &stop), Err(Aborted));
    }
}
