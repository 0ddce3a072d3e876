//! A log's part in its compaction: what a cleaner may see of it, and the swap (`LocalLog.replaceSegments`).
//!
//! The swap replaces segments by the one that was made from them:
//!
//! 1. The new files are whole and on disk as `.cleaned`. A crash: the loader removes them.
//! 2. They are renamed to `.swap`, one by one. A crash: while any is still `.cleaned` the loader removes both.
//! 3. That is brought to disk. From here on a crash ends in the new segment: the loader finishes the steps below.
//! 4. The old files become `.deleted`, oldest first, so that what is left of the old segments after a crash is the end
//!    of them: a tombstone never goes before what it deletes.
//! 5. `.swap` is taken off the new files, and that is brought to disk.
//! 6. Readers get the new list of segments. Who has the old one reads on from the old files, which are open.
//!
//! All of it under the writer lock, after a look that the old segments are still the log's. An error in steps 2 to 6
//! takes the log offline, as any failed write; opening it anew finishes or undoes the swap.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Log, Writer};
use crate::cleaner::gate::Cleaning;
use crate::cleaner::output::{CLEANED_FILES, Output, cleaned_file};
use crate::cleaner::plan::{Plan, View};
use crate::cleaner::{
    CleanError, CleanerConfig, CleanerStats, CleaningPaused, LastRecord, Run, Throttle, clean,
};
use crate::config::LogConfig;
use crate::disk;
use crate::error::{Result, StorageError};
use crate::files::{self, DELETED_SUFFIX, SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX, SWAP_SUFFIX, segment_file};
use crate::loader;
use crate::segment::{Access, Segment};

impl Log {
    /// Compacts the log now, in this thread, whatever its dirty ratio: everything before the active segment, the oldest
    /// open transaction and `min.compaction.lag.ms`. [`Log::roll`] first to have the newest records compacted too.
    /// Waits for a cleaner that is at it. `cleanup.policy` is not asked.
    ///
    /// Errors: the disk's; damage found on the way; [`StorageError::Closed`].
    pub fn compact_now(&self, now_ms: i64) -> Result<CleanerStats> {
        self.compact_with(&CleanerConfig::default(), now_ms)
    }

    /// [`Log::compact_now`] with other buffers.
    pub fn compact_with(&self, config: &CleanerConfig, now_ms: i64) -> Result<CleanerStats> {
        self.compact_until(&AtomicBool::new(false), config, now_ms)
    }

    /// [`Log::compact_with`] that ends early, with what was done by then, once `stop` is set; [`Log::pause_cleaning`] after
    /// that ends what runs.
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
            let running = self.cleaning.begin();
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
                // It was paused, or retention took a segment: look again, after the pause.
                Err(CleanError::Aborted) => continue,
                Err(CleanError::Storage(error)) => return Err(error),
            };
            self.cleaning.set_first_dirty(stats.clean_until_offset);
            total.add(&stats);
        }
    }

    /// Ends a compaction of this log that runs, and lets none begin until the answer is dropped.
    pub fn pause_cleaning(&self) -> CleaningPaused<'_> {
        self.cleaning.pause()
    }

    /// Why a cleaner leaves this log alone, if compacting it failed.
    pub fn uncleanable(&self) -> Option<&str> {
        self.cleaning.uncleanable()
    }

    /// Up to where the log was compacted, if it was.
    pub fn first_dirty_offset(&self) -> Option<i64> {
        self.cleaning.first_dirty()
    }

    pub(crate) fn cleaning(&self) -> &Cleaning {
        &self.cleaning
    }

    /// What a cleaning at `now_ms` would do.
    pub(crate) fn plan_cleaning(&self, now_ms: i64) -> Result<Plan> {
        let view = {
            // Appends move segments and offsets together under this lock.
            let _writer = self.writer.lock();
            View {
                segments: self.segments(),
                log_start: self.log_start_offset(),
                log_end: self.log_end_offset(),
                last_stable: self.last_stable_offset(),
            }
        };
        Plan::new(view, &self.config(), self.cleaning.first_dirty(), now_ms)
    }

    /// Each active producer's last batch.
    pub(crate) fn last_records(&self) -> HashMap<i64, LastRecord> {
        let writer = self.writer.lock();
        let producers = writer.producers.sorted();
        let last = producers.into_iter().map(|(id, entry)| {
            let last = LastRecord {
                offset: entry.batches.back().map(|batch| batch.last_offset),
                epoch: entry.epoch,
            };
            (id, last)
        });
        last.collect()
    }

    /// Puts what `output` wrote into the place of `old`; false when these are not the log's segments any more.
    pub(crate) fn replace_segments(
        &self,
        old: &[Arc<Segment>],
        output: &mut Output,
        now_ms: i64,
    ) -> Result<bool> {
        let mut writer = self.writer.lock();
        self.check_writable()?;
        let segments = self.segments();
        let Some(from) = segments.iter().position(|s| Arc::ptr_eq(s, &old[0])) else {
            return Ok(false);
        };
        let to = from + old.len();
        let same = segments
            .get(from..to)
            .is_some_and(|found| found.iter().zip(old).all(|(one, other)| Arc::ptr_eq(one, other)));
        // What follows is there: the active segment is never cleaned.
        let (true, Some(next)) = (same, segments.get(to)) else {
            return Ok(false);
        };
        for segment in old {
            segment.retire();
        }
        let config = self.config();
        let new = self
            .swap_files(&mut writer, &config, old, output, now_ms)
            .map_err(|e| self.fail(e))?;
        new.set_next_offset(next.base_offset);
        new.directory_synced.store(true, Ordering::Release);
        let mut list = segments[..from].to_vec();
        list.push(Arc::new(new));
        list.extend_from_slice(&segments[to..]);
        *self.segments.write() = Arc::new(list);
        Ok(true)
    }

    fn swap_files(
        &self,
        writer: &mut Writer,
        config: &LogConfig,
        old: &[Arc<Segment>],
        output: &mut Output,
        now_ms: i64,
    ) -> Result<Segment> {
        let base = output.base_offset;
        let swap = |suffix: &str| segment_file(&self.dir, base, &format!("{suffix}{SWAP_SUFFIX}"));
        output.was_swapped();
        for suffix in CLEANED_FILES {
            rename_if_exists(&cleaned_file(&self.dir, base, suffix), &swap(suffix))?;
        }
        files::sync_dir(&self.dir)?;
        let mut deleted = Vec::new();
        for segment in old {
            for suffix in SEGMENT_SUFFIXES {
                if suffix == SNAPSHOT_SUFFIX && segment.base_offset == base {
                    // The producers' state at this offset is that of the new segment too.
                    continue;
                }
                let from = segment_file(&self.dir, segment.base_offset, suffix);
                let suffix = format!("{suffix}{DELETED_SUFFIX}");
                let to = segment_file(&self.dir, segment.base_offset, &suffix);
                if rename_if_exists(&from, &to)? {
                    deleted.push(to);
                }
            }
        }
        for suffix in CLEANED_FILES {
            rename_if_exists(&swap(suffix), &segment_file(&self.dir, base, suffix))?;
        }
        files::sync_dir(&self.dir)?;
        let due = now_ms.saturating_add(config.file_delete_delay_ms);
        writer.deletions.push((due, deleted));
        Segment::open(&self.dir, base, loader::settings(config), Access::Owned, now_ms)
    }
}

/// Renames a file; false when it is not there.
fn rename_if_exists(from: &std::path::Path, to: &std::path::Path) -> Result<bool> {
    match disk::rename(from, to) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(StorageError::io("rename", from)(error)),
    }
}
