//! The log's part in compaction: what a cleaner sees of it, and the swap of segments
//! (`LocalLog.replaceSegments`).
//!
//! The swap replaces segments by the cleaned one that was made from them:
//!
//! 1. The new files are whole and on disk as `.cleaned`. After a crash the loader removes them.
//! 2. They are renamed to `.swap`, one by one. After a crash, while any is still `.cleaned`, the loader
//!    removes both.
//! 3. The directory is flushed. From here on a crash ends in the new segment: the loader finishes the next
//!    steps.
//! 4. The old files become `.deleted`, the oldest first. So a crash keeps the end of the old segments, and no
//!    tombstone goes before the records that it deletes.
//! 5. `.swap` is removed from the new names, and the directory is flushed.
//! 6. Readers get the new list of segments. Readers with the old list read on from the old files, which are
//!    open.
//!
//! All steps run under the writer lock, after a check that the old segments are still the log's. An error in
//! steps 2 to 6 takes the log offline, as any failed write does. The next opening finishes or undoes the
//! swap.

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

/// The last batch of an active producer, and its epoch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastRecord {
    pub(crate) offset: Option<i64>,
    pub(crate) epoch: i16,
}

impl Log {
    /// Stops a running compaction of this log, and lets none begin until the result is dropped.
    pub fn pause_cleaning(&self) -> CleaningPaused<'_> {
        self.cleaning.pause()
    }

    /// Why the cleaner does not compact this log any more.
    pub fn uncleanable(&self) -> Option<&str> {
        self.cleaning.uncleanable()
    }

    /// The offset up to which the log was compacted.
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

    /// The last batch of each active producer.
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

    /// Replaces `old` by the cleaned segment at `base`; false when `old` are not the log's segments any more.
    /// `starts` is called before the first file is renamed.
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
        // There is a next segment, because the active one is never cleaned.
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
                    // The producers' state at this offset is also that of the new segment.
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

/// Renames a file; false when it does not exist.
fn rename_if_exists(from: &std::path::Path, to: &std::path::Path) -> Result<bool> {
    match disk::rename(from, to) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(StorageError::io("rename", from)(error)),
    }
}
