//! Compacting one log in the caller's thread.

use std::sync::atomic::{AtomicBool, Ordering};

use super::pass::{CleanerStats, Run, clean};
use super::throttle::Throttle;
use super::{CleanError, CleanerConfig};
use crate::error::Result;
use crate::log::Log;

impl Log {
    /// Compacts the log now in this thread, whatever its dirty ratio and `cleanup.policy`: everything before
    /// the active segment, the oldest open transaction and `min.compaction.lag.ms`. Call [`Log::roll`] first
    /// to include the newest records. Waits for a running cleaning.
    ///
    /// Errors: the disk's; damage; [`StorageError::Closed`].
    pub fn compact_now(&self, now_ms: i64) -> Result<CleanerStats> {
        self.compact_with(&CleanerConfig::default(), now_ms)
    }

    /// [`Log::compact_now`] with other buffers.
    pub fn compact_with(&self, config: &CleanerConfig, now_ms: i64) -> Result<CleanerStats> {
        self.compact_until(&AtomicBool::new(false), config, now_ms)
    }

    /// [`Log::compact_with`] that ends early once `stop` is set. Call [`Log::pause_cleaning`] after that to
    /// stop the running pass.
    pub fn compact_until(
        &self,
        stop: &AtomicBool,
        config: &CleanerConfig,
        now_ms: i64,
    ) -> Result<CleanerStats> {
        config.check()?;
        self.check_writable()?;
        let throttle = Throttle::new(config.io_max_bytes_per_second);
        let mut total = CleanerStats::default();
        loop {
            let running = self.cleaning().begin();
            self.check_writable()?;
            let plan = self.plan_cleaning(now_ms)?;
            if plan.cleanable_bytes == 0 || stop.load(Ordering::Acquire) {
                if total == CleanerStats::default() {
                    total.first_dirty_offset = plan.first_dirty;
                    total.clean_until_offset = plan.first_dirty;
                }
                return Ok(total);
            }
            let run = Run::new(config, &throttle, &running.stop, now_ms);
            let stats = match clean(self, &plan, run) {
                Ok(stats) => stats,
                // Cleaning was paused, or retention removed a segment.
                Err(CleanError::Aborted) => continue,
                Err(CleanError::Storage(error)) => return Err(error),
            };
            self.cleaning().set_first_dirty(stats.clean_until_offset);
            total.add(&stats);
        }
    }
}
