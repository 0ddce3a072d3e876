//! Retention and regular work (`UnifiedLog.deleteOldSegments`, `LogManager`).
//!
//! The server's housekeeping thread calls [`Log::maintain`]. A deleted segment is first removed from the
//! list, then its files are renamed to `.deleted`, and after `file.delete.delay.ms` they are removed. A crash
//! leaves `.deleted` files, which the loader removes.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Log, Writer};
use crate::config::LogConfig;
use crate::error::{Result, StorageError};
use crate::files::disk;
use crate::files::{self, DELETED_SUFFIX, SEGMENT_SUFFIXES, segment_file};
use crate::producers::snapshot;
use crate::segment::Segment;

/// Whether to apply retention (`log.retention.check.interval.ms`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    Due,
    NotDue,
}

impl Log {
    /// Flushes rolled segments and what `flush.ms` requires, applies retention, removes files that are due
    /// and idle producers. Writes what did not fit on a full disk when the log was opened.
    pub fn maintain(&self, now_ms: i64) -> Result<()> {
        self.maintain_with(now_ms, Retention::Due)
    }

    /// [`Log::maintain`], with or without retention.
    pub fn maintain_with(&self, now_ms: i64, retention: Retention) -> Result<()> {
        self.check_writable()?;
        match self.flush_due(now_ms) {
            // Retention may free space.
            Err(error) if error.is_disk_full() => self.check_writable()?,
            flushed => flushed?,
        }
        let deleted = match retention {
            Retention::Due => self.delete_old_segments(now_ms),
            Retention::NotDue => Ok(0),
        };
        // Also when a full disk kept retention from deleting: this frees space.
        let due = take_due(&mut self.writer.lock(), now_ms);
        remove(&due);
        deleted?;
        self.complete_now()
    }

    fn flush_due(&self, now_ms: i64) -> Result<()> {
        let config = self.config();
        self.flush_rolled()?;
        let flush_due = {
            let mut writer = self.writer.lock();
            // Counted from the first call, as Kafka's scheduler counts from its start.
            let checked = *writer.producers_checked_ms.get_or_insert(now_ms);
            if now_ms.saturating_sub(checked) >= config.producer_id_expiration_check_ms {
                writer.producers_checked_ms = Some(now_ms);
                writer
                    .producers
                    .remove_expired(now_ms, config.producer_id_expiration_ms);
            }
            writer
                .unflushed_since_ms
                .is_some_and(|since| now_ms.saturating_sub(since) >= config.flush_ms)
        };
        if flush_due {
            self.flush()?;
        }
        Ok(())
    }

    /// Flushes the segments before the active one, so that recovery after a crash begins at the active one.
    pub(crate) fn flush_rolled(&self) -> Result<()> {
        self.complete_now()?;
        let segments = self.segments();
        let Some((active, [.., last_rolled])) = segments.split_last() else {
            return Ok(());
        };
        if self.recovery_point() < active.base_offset {
            // The snapshot first: after the deletion of a segment, only later snapshots have its producers.
            snapshot::sync(&self.dir, active.base_offset)
                .and_then(|()| files::sync_dir(&self.dir))
                .map_err(|e| self.fail_unless_out_of_files(e))?;
            self.flush_through(last_rolled, active.base_offset)?;
        }
        Ok(())
    }

    /// Deletes the oldest segments as far as `retention.ms`, `retention.bytes` and the log start allow;
    /// returns their number.
    pub fn delete_old_segments(&self, now_ms: i64) -> Result<usize> {
        self.check_writable()?;
        match self.flush_rolled() {
            // Unwritten state of a log that was opened on a full disk must not keep the disk full.
            Err(error) if error.is_disk_full() => self.check_writable()?,
            flushed => flushed?,
        }
        let deleted = {
            let mut writer = self.writer.lock();
            self.check_writable()?;
            let config = self.config();
            match self.deletable(&config, now_ms)? {
                0 => return Ok(0),
                count => self
                    .delete_first(&mut writer, &config, count, now_ms)
                    .map_err(|e| self.fail_unless_full(e))?,
            }
        };
        // No checkpoint has a log start that is the first segment's. A power loss must not bring back earlier
        // segments.
        files::sync_dir(&self.dir).map_err(|e| self.fail(e))?;
        Ok(deleted)
    }

    /// The number of segments that may be deleted, from the oldest on.
    fn deletable(&self, config: &LogConfig, now_ms: i64) -> Result<usize> {
        let segments = self.segments();
        let high_watermark = self.high_watermark();
        let log_start = self.log_start_offset();
        let mut excess = match config.retention_bytes {
            limit @ 0.. if config.cleanup_delete => self.size_bytes() as i64 - limit,
            _ => 0,
        };
        let mut count = 0;
        for (number, segment) in segments.iter().enumerate() {
            let end = segments
                .get(number + 1)
                .map_or_else(|| self.log_end_offset(), |next| next.base_offset);
            let size = segment.size() as i64;
            let is_active = number + 1 == segments.len();
            if end > high_watermark || (is_active && size == 0) {
                break;
            }
            let breached = !is_active && end <= log_start;
            let oversized = size > 0 && excess >= size;
            let expired = config.cleanup_delete
                && config.retention_ms >= 0
                && now_ms.saturating_sub(newest_ms(segment)?) > config.retention_ms;
            if !(breached || oversized || expired) {
                break;
            }
            excess -= size;
            count += 1;
        }
        Ok(count)
    }

    /// Deletes the first `count` segments; returns their number. When all should go and a full disk has no
    /// space for a new one, the last stays until the others have freed space.
    fn delete_first(
        &self,
        writer: &mut Writer,
        config: &LogConfig,
        mut count: usize,
        now_ms: i64,
    ) -> Result<usize> {
        if count == self.segment_count() {
            match self.roll_locked(writer, config, self.log_end_offset(), now_ms) {
                Err(error) if error.is_disk_full() && count > 1 => count -= 1,
                rolled => {
                    // The log end and the producers must not be lost with the segments.
                    let next = rolled?;
                    snapshot::sync(&self.dir, next.base_offset)?;
                    files::sync_dir(&self.dir)?;
                }
            }
        }
        let removed: Vec<Arc<Segment>> = {
            let mut segments = self.segments.write();
            let (removed, kept) = segments.split_at(count);
            let removed = removed.to_vec();
            let new_start = kept.first().map_or(0, |first| first.base_offset);
            // The log start moves before the list shrinks, so that a reader finds a segment or an error,
            // never a wrong batch.
            self.log_start.fetch_max(new_start, Ordering::AcqRel);
            *segments = Arc::new(kept.to_vec());
            removed
        };
        self.forget_epochs_before(self.log_start_offset())?;
        let mut files = Vec::new();
        for segment in &removed {
            self.rename_deleted(segment, &mut files)?;
        }
        writer
            .deletions
            .push((now_ms.saturating_add(config.file_delete_delay_ms), files));
        Ok(count)
    }

    pub(super) fn rename_deleted(&self, segment: &Segment, files: &mut Vec<PathBuf>) -> Result<()> {
        for suffix in SEGMENT_SUFFIXES {
            let from = segment_file(&self.dir, segment.base_offset, suffix);
            let to = segment_file(
                &self.dir,
                segment.base_offset,
                &format!("{suffix}{DELETED_SUFFIX}"),
            );
            match disk::rename(&from, &to) {
                Ok(()) => files.push(to),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(StorageError::io("rename", &from)(error)),
            }
        }
        Ok(())
    }

    /// Moves the log start forward (DeleteRecords). The next [`Log::delete_old_segments`] deletes whole
    /// segments below it. Returns the log start.
    ///
    /// Errors: [`StorageError::OffsetOutOfRange`] above the high watermark.
    pub fn advance_log_start_offset(&self, offset: i64) -> Result<i64> {
        let _writer = self.writer.lock();
        self.check_writable()?;
        if offset > self.high_watermark() {
            return Err(StorageError::OffsetOutOfRange {
                requested: offset,
                log_start: self.log_start_offset(),
                log_end: self.high_watermark(),
            });
        }
        self.log_start.fetch_max(offset, Ordering::AcqRel);
        let start = self.log_start_offset();
        self.forget_epochs_before(start).map_err(|e| self.fail(e))?;
        Ok(start)
    }

    // On a full disk the file keeps some removed epochs until it is saved next. They do no harm.
    fn forget_epochs_before(&self, start: i64) -> Result<()> {
        self.epochs.change(|epochs| {
            epochs.truncate_from_start(start);
            match epochs.save() {
                Err(error) if error.is_disk_full() => Ok(()),
                saved => saved,
            }
        })
    }
}

/// Takes the files that are due for removal.
pub(super) fn take_due(writer: &mut Writer, now_ms: i64) -> Vec<PathBuf> {
    let is_due = |(due_ms, _): &mut (i64, _)| *due_ms <= now_ms;
    let due = writer.deletions.extract_if(.., is_due);
    due.flat_map(|(_, files)| files).collect()
}

/// Removes files. The next opening removes those that cannot be removed now.
pub(super) fn remove(files: &[PathBuf]) {
    for path in files {
        let _left_for_the_loader = disk::remove(path);
    }
}

/// The largest timestamp of a segment, or the time of its file's last write if no record has a timestamp.
fn newest_ms(segment: &Segment) -> Result<i64> {
    if let Some(largest) = segment.largest()? {
        return Ok(largest.timestamp);
    }
    segment.modified_ms()
}
