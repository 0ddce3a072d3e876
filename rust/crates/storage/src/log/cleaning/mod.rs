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
use std::sync::atomic::Ordering;

pub(crate) mod gate;
pub(crate) mod plan;

use super::{Log, Writer};
use crate::config::LogConfig;
use crate::error::{Result, StorageError};
use crate::files::disk;
use crate::files::{
    self, CLEANED_FILES, DELETED_SUFFIX, SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX, SWAP_SUFFIX, cleaned_file,
    segment_file,
};
use crate::log::loader;
use crate::segment::{Access, Segment};
use gate::{Cleaning, CleaningPaused};
use plan::{Plan, View};

/// An active producer's last batch of records, and its epoch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastRecord {
    pub(crate) offset: Option<i64>,
    pub(crate) epoch: i16,
}

impl Log {
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

    /// Replaces `old` by the cleaned segment at `base`; false when `old` are not the log's segments any more. `starts` is called
    /// before the first file is renamed.
    pub(crate) fn replace_segments(
        &self,
        old: &[Arc<Segment>],
        base: i64,
        starts: impl FnOnce(),
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
        starts();
        let new = self
            .swap_files(&mut writer, &config, old, base, now_ms)
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
        base: i64,
        now_ms: i64,
    ) -> Result<Segment> {
        let swap = |suffix: &str| segment_file(&self.dir, base, &format!("{suffix}{SWAP_SUFFIX}"));
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
