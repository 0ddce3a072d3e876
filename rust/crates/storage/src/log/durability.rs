//! Flushing and closing.
//!
//! An fsync runs without the writer lock, so it holds up no append; one runs at a time. The recovery point moves only after
//! everything before it is on disk.

use std::sync::atomic::Ordering;

use super::Log;
use crate::error::Result;
use crate::files;
use crate::segment::{Access, Segment};

impl Log {
    /// Brings everything appended so far to disk. When this returns, a power loss costs none of it.
    ///
    /// Errors: an fsync that failed, after which the log is offline.
    pub fn flush(&self) -> Result<()> {
        self.check_writable()?;
        let active = self.active();
        let end = active.next_offset();
        self.flush_through(&active)
            .map_err(|e| self.fail_unless_out_of_files(e))?;
        self.recovery_point.fetch_max(end, Ordering::AcqRel);
        if let Some(mut writer) = self.writer.try_lock()
            && self.log_end_offset() == end
        {
            // An append that came in between has its own count to go by.
            writer.unflushed = 0;
            writer.unflushed_since_ms = None;
        }
        Ok(())
    }

    /// Fsyncs all segments up to and including `last` that have bytes after the recovery point.
    pub(super) fn flush_through(&self, last: &Segment) -> Result<()> {
        let _one_at_a_time = self.flushing.lock();
        let flushed = self.recovery_point();
        let segments = self.segments();
        let mut new_entries = Vec::new();
        for segment in segments
            .iter()
            .filter(|s| s.base_offset <= last.base_offset)
        {
            if segment.next_offset() <= flushed && segment.base_offset != last.base_offset {
                continue;
            }
            segment.flush()?;
            if !segment.directory_synced.load(Ordering::Acquire) {
                new_entries.push(segment);
            }
        }
        if new_entries.is_empty() {
            return Ok(());
        }
        files::sync_dir(&self.dir)?;
        // Not before: for want of a descriptor the directory is not synced now, but the next time.
        for segment in new_entries {
            segment.directory_synced.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Flushes, gives the files their final size, writes the producers' snapshot. Appends and reads after this fail;
    /// slices taken before stay readable. Closing again does nothing.
    ///
    /// Errors: when something could not be brought to disk, or could not before: the shutdown is not clean then.
    pub fn close(&self) -> Result<()> {
        let mut writer = self.writer.lock();
        if self.closed.swap(true, Ordering::AcqRel) || self.access == Access::Foreign {
            return Ok(());
        }
        self.check_online()?;
        let closed = (|| {
            let active = self.active();
            active.seal()?;
            if self.recovery_point() < self.log_end_offset() {
                self.flush_through(&active)?;
            }
            self.recovery_point
                .fetch_max(self.log_end_offset(), Ordering::AcqRel);
            self.snapshot_producers(&mut writer, true)?;
            self.remove_deleted(&mut writer, i64::MAX);
            self.epochs.write().save()
        })();
        closed.map_err(|e| self.fail(e))
    }

    /// Ends all use without bringing anything to disk: the directory is about to be deleted.
    pub(crate) fn abandon(&self) {
        let _writer = self.writer.lock();
        self.closed.store(true, Ordering::Release);
    }
}
