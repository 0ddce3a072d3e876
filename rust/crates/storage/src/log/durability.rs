//! Flushing and closing.
//!
//! An fsync runs without the writer lock, so it blocks no append. One runs at a time. All appends that wait
//! meanwhile are served by the next fsync. The recovery point moves once everything below it is on disk.
//!
//! Of the active segment only the `.log` file is flushed: recovery rebuilds its indexes. They are flushed
//! when it is sealed.

use std::sync::atomic::Ordering;

use super::append::Written;
use super::{Log, Writer, maintain};
use crate::error::{Result, StorageError};
use crate::files;
use crate::files::flushed_mark::FlushedMark;
use crate::leader_epochs::LeaderEpochs;
use crate::producers::ProducerState;
use crate::producers::snapshot;
use crate::segment::{Access, Segment};

impl Log {
    /// Flushes everything that was appended so far. After this a power loss loses none of it.
    ///
    /// Errors: a failed fsync, after which the log is offline.
    pub fn flush(&self) -> Result<()> {
        self.check_writable()?;
        self.complete_now()?;
        let active = self.active();
        let end = active.next_offset();
        self.flush_through(&active, end)?;
        if let Some(mut writer) = self.writer.try_lock()
            && self.log_end_offset() == end
        {
            // Appends since then count from 0.
            writer.unflushed = 0;
            writer.unflushed_since_ms = None;
        }
        Ok(())
    }

    /// Writes what did not fit on a full disk when the log was opened. It is done before anything is appended
    /// and before the recovery point moves over it.
    pub(super) fn complete(&self, writer: &mut Writer) -> Result<()> {
        if !self.incomplete.load(Ordering::Acquire) {
            return Ok(());
        }
        self.write_missing(writer).map_err(|e| self.fail_unless_full(e))?;
        self.incomplete.store(false, Ordering::Release);
        Ok(())
    }

    /// [`Log::complete`] without the writer lock.
    pub(super) fn complete_now(&self) -> Result<()> {
        if self.incomplete.load(Ordering::Acquire) {
            self.complete(&mut self.writer.lock())
        } else {
            Ok(())
        }
    }

    #[cold]
    fn write_missing(&self, writer: &mut Writer) -> Result<()> {
        self.epochs.change(LeaderEpochs::save)?;
        writer.active = None;
        let segments = self.segments();
        for (number, segment) in segments.iter().enumerate() {
            segment.complete(number + 1 == segments.len())?;
        }
        self.snapshot_producers(writer, self.log_end_offset(), false)
    }

    /// Flushes all segments up to `last` that have bytes after the recovery point, and then moves it to `end`
    /// at least. A failure takes the log offline before another thread can try.
    pub(super) fn flush_through(&self, last: &Segment, end: i64) -> Result<()> {
        let _one_at_a_time = self.flushing.lock();
        self.check_online()?;
        let end = end.min(self.log_end_offset());
        self.sync_through(last)
            .map_err(|e| self.fail_unless_out_of_files(e))?;
        self.flushed_to(end);
        Ok(())
    }

    /// From here on every flush notes in the directory up to where the log is on disk. Damage below that
    /// offset stops the next start; a torn tail above it is cut. For a log without a broker whose caller
    /// acknowledges what it flushed.
    ///
    /// Errors: the disk's.
    pub(crate) fn note_flushes(&self) -> Result<()> {
        // No truncation runs between reading the recovery point and noting it.
        let _writer = self.writer.lock();
        if !self.is_noting_flushes() {
            let mark = FlushedMark::create(&self.dir, self.recovery_point())?;
            let _ = self.flushed_mark.set(mark);
        }
        Ok(())
    }

    pub(crate) fn is_noting_flushes(&self) -> bool {
        self.flushed_mark.get().is_some()
    }

    fn flushed_to(&self, end: i64) {
        self.recovery_point.fetch_max(end, Ordering::AcqRel);
        if let Some(mark) = self.flushed_mark.get() {
            mark.note(|| self.recovery_point());
        }
    }

    /// Lowers the mark, then runs `cut`, which truncates the log to `end`.
    pub(super) fn with_mark_lowered<T>(
        &self,
        end: impl FnOnce() -> Result<i64>,
        cut: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let Some(mark) = self.flushed_mark.get() else {
            return cut();
        };
        mark.lower(end()?, self.recovery_point())?;
        let done = cut();
        mark.rise();
        if done.is_ok() {
            mark.note(|| self.recovery_point());
        }
        done
    }

    /// Waits until an append is on disk. With `lead` the high watermark may then follow.
    ///
    /// Errors: a failed fsync; [`StorageError::Truncated`] when the log was truncated meanwhile.
    pub(super) fn sync_to(&self, written: &Written, lead: bool) -> Result<()> {
        let _one_at_a_time = self.flushing.lock();
        if self.truncations.count() != written.truncations {
            return Err(StorageError::Truncated { dir: self.dir() });
        }
        if self.recovery_point() < written.until {
            self.check_online()?;
            // Read first: this fsync may or may not include later appends.
            let end = self.log_end_offset();
            self.sync_through(&self.active())
                .map_err(|e| self.fail_unless_out_of_files(e))?;
            self.flushed_to(end);
        }
        if lead {
            self.follow_end(written.end);
        }
        Ok(())
    }

    /// Flushes the first epoch and the directory, once.
    pub(super) fn sync_first_epoch(&self) -> Result<()> {
        if self.epochs.read().is_unsynced() {
            self.epochs.change(LeaderEpochs::sync)?;
        }
        Ok(())
    }

    fn sync_through(&self, last: &Segment) -> Result<()> {
        self.sync_first_epoch()?;
        let flushed = self.recovery_point();
        let segments = self.segments();
        let mut new_entries = Vec::new();
        for segment in segments.iter().filter(|s| s.base_offset <= last.base_offset) {
            if segment.next_offset() <= flushed && segment.base_offset != last.base_offset {
                continue;
            }
            segment.flush()?;
            if !segment.directory_synced.load(Ordering::Acquire) {
                // Once the earlier segments are deleted, only this snapshot has their producers.
                snapshot::sync(&self.dir, segment.base_offset)?;
                new_entries.push(segment);
            }
        }
        if new_entries.is_empty() {
            return Ok(());
        }
        files::sync_dir(&self.dir)?;
        // The first time, the directory's own entry may be new, too.
        files::sync_parent(&self.dir)?;
        // Only now: if the directory could not be synced, it is tried again next time.
        for segment in new_entries {
            segment.directory_synced.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Flushes, trims the files and writes the producers' snapshot. Later appends and reads fail; slices that
    /// were returned before stay readable. Closing again does nothing.
    ///
    /// Errors: something could not be flushed, now or earlier; then the shutdown is not clean.
    pub fn close(&self) -> Result<()> {
        // Before the writer lock: a running compaction may wait for that lock.
        let _no_compaction = self.cleaning.pause();
        let mut writer = self.writer.lock();
        if self.closed.swap(true, Ordering::AcqRel) || self.access == Access::Foreign {
            return Ok(());
        }
        self.check_online()?;
        let closed = (|| {
            self.complete(&mut writer)?;
            let active = self.active();
            active.seal()?;
            let end = self.log_end_offset();
            if self.recovery_point() < end || active.has_unsynced_indexes() {
                self.flush_through(&active, end)?;
            }
            self.snapshot_producers(&mut writer, end, true)?;
            maintain::remove(&maintain::take_due(&mut writer, i64::MAX));
            self.epochs.change(LeaderEpochs::save)
        })();
        closed.map_err(|e| self.fail(e))
    }

    /// Ends all use without a flush, because the directory will be deleted.
    pub(crate) fn abandon(&self) {
        let _no_compaction = self.cleaning.pause();
        let _writer = self.writer.lock();
        self.gone.store(true, Ordering::Release);
        self.closed.store(true, Ordering::Release);
    }

    /// True before and during the last step of a move. An append may then wait for fsyncs on two disks.
    pub fn is_about_to_move(&self) -> bool {
        self.about_to_move.load(Ordering::Acquire)
    }

    pub(crate) fn set_about_to_move(&self, is_so: bool) {
        self.about_to_move.store(is_so, Ordering::Release);
    }

    /// Stops appends while `work` puts another log into the place of this one, and ends all use of this log
    /// when it succeeds. Appends that wait for the disk are then acknowledged, because `work` flushed them to
    /// the other disk. If `work` fails or returns `None`, this log goes on. `work` gets the producers' state.
    ///
    /// The caller has paused compaction.
    pub(crate) fn hand_over<T>(
        &self,
        work: impl FnOnce(&ProducerState) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let writer = self.writer.lock();
        self.check_writable()?;
        let Some(done) = work(&writer.producers)? else {
            return Ok(None);
        };
        self.gone.store(true, Ordering::Release);
        let _flushing = self.flushing.lock();
        self.recovery_point
            .fetch_max(self.log_end_offset(), Ordering::AcqRel);
        self.closed.store(true, Ordering::Release);
        Ok(Some(done))
    }

    /// Takes over the producers' state of the log that this one is a copy of.
    pub(crate) fn set_producers(&self, producers: ProducerState) {
        let mut writer = self.writer.lock();
        if writer.producers != producers {
            writer.producers = producers;
            // A snapshot at the log end has the state from before.
            writer.snapshot_offset = -1;
        }
    }

    /// The producers' state, for another log. The caller does not use this log any more.
    pub(crate) fn take_producers(&self) -> ProducerState {
        std::mem::take(&mut self.writer.lock().producers)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}
