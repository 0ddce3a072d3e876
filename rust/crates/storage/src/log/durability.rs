//! Flushing and closing.
//!
//! An fsync runs without the writer lock, so it holds up no append; one runs at a time. Appends that wait for one while another
//! runs are all served by the next: it covers whatever is in the log when it begins. The recovery point moves only after
//! everything before it is on disk.
//!
//! Of the active segment only the records are brought to disk: its indexes are built anew when it is not closed. Theirs follow
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
    /// Brings everything appended so far to disk. When this returns, a power loss costs none of it.
    ///
    /// Errors: an fsync that failed, after which the log is offline.
    pub fn flush(&self) -> Result<()> {
        self.check_writable()?;
        self.complete_now()?;
        let active = self.active();
        let end = active.next_offset();
        self.flush_through(&active, end)?;
        if let Some(mut writer) = self.writer.try_lock()
            && self.log_end_offset() == end
        {
            // An append that came in between has its own count to go by.
            writer.unflushed = 0;
            writer.unflushed_since_ms = None;
        }
        Ok(())
    }

    /// Writes what the full disk had no room for when the log was opened. Nothing is appended before, and no recovery point moves
    /// over it.
    pub(super) fn complete(&self, writer: &mut Writer) -> Result<()> {
        if !self.incomplete.load(Ordering::Acquire) {
            return Ok(());
        }
        self.write_missing(writer).map_err(|e| self.fail_unless_full(e))?;
        self.incomplete.store(false, Ordering::Release);
        Ok(())
    }

    /// [`Log::complete`] for who does not hold the writer lock.
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

    /// Fsyncs all segments up to and including `last` that have bytes after the recovery point, which then is at least
    /// `end`. A failure takes the log offline before anybody else can try.
    pub(super) fn flush_through(&self, last: &Segment, end: i64) -> Result<()> {
        let _one_at_a_time = self.flushing.lock();
        self.check_online()?;
        let end = end.min(self.log_end_offset());
        self.sync_through(last)
            .map_err(|e| self.fail_unless_out_of_files(e))?;
        self.flushed_to(end);
        Ok(())
    }

    /// Notes at every flush from here on, in the directory, up to where the log is on disk: what is damaged before is told from a
    /// torn tail, and stops the next start. For logs that are used by themselves and acknowledge what they flushed.
    ///
    /// Errors: the disk's.
    pub(crate) fn note_flushes(&self) -> Result<()> {
        // Nobody cuts the log between what is read here and what is noted.
        let _writer = self.writer.lock();
        if !self.is_noting_flushes() {
            let mark = FlushedMark::create(&self.dir, self.recovery_point())?;
            let _ = self.flushed_mark.set(mark);
        }
        Ok(())
    }

    /// Whether flushes are noted since [`Log::note_flushes`].
    pub(crate) fn is_noting_flushes(&self) -> bool {
        self.flushed_mark.get().is_some()
    }

    fn flushed_to(&self, end: i64) {
        self.recovery_point.fetch_max(end, Ordering::AcqRel);
        if let Some(mark) = self.flushed_mark.get() {
            mark.note(|| self.recovery_point());
        }
    }

    /// The log is about to be cut at `end`, and `cut` does so.
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

    /// Waits until as much is on disk as an append needs; with `lead` the high watermark may then follow.
    ///
    /// Errors: a failed fsync; [`StorageError::Truncated`] when the log was cut meanwhile.
    pub(super) fn sync_to(&self, written: &Written, lead: bool) -> Result<()> {
        let _one_at_a_time = self.flushing.lock();
        if self.truncations.count() != written.truncations {
            return Err(StorageError::Truncated { dir: self.dir() });
        }
        if self.recovery_point() < written.until {
            self.check_online()?;
            // Read first: what is appended from here on may or may not be covered.
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

    /// Brings the first epoch to disk, and the directory with it, if that was not done yet.
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
                // Once the segments before are deleted, their producers are in this snapshot only.
                snapshot::sync(&self.dir, segment.base_offset)?;
                new_entries.push(segment);
            }
        }
        if new_entries.is_empty() {
            return Ok(());
        }
        files::sync_dir(&self.dir)?;
        // The first time, the entry of the directory itself may be new as well.
        files::sync_parent(&self.dir)?;
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
        // Before the writer lock is taken: a compaction that runs may be waiting for that.
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

    /// Ends all use without bringing anything to disk: the directory is about to be deleted.
    pub(crate) fn abandon(&self) {
        let _no_compaction = self.cleaning.pause();
        let _writer = self.writer.lock();
        self.gone.store(true, Ordering::Release);
        self.closed.store(true, Ordering::Release);
    }

    /// True while the last step of a move is near or under way: an append may have to wait for the fsyncs of two disks. Whoever
    /// must not wait asks first.
    pub fn is_about_to_move(&self) -> bool {
        self.about_to_move.load(Ordering::Acquire)
    }

    pub(crate) fn set_about_to_move(&self, is_so: bool) {
        self.about_to_move.store(is_so, Ordering::Release);
    }

    /// Lets nobody append while `work` puts another log into this one's place, and ends all use once it did. Who waits for
    /// an append to be on disk is told that it is: `work` brought all of it to the other disk. If `work` fails, or finds that
    /// it is too early (`None`), this log goes on. `work` is given what this log knows of its producers.
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

    /// Takes over what another log knows of its producers, the one that this log is a copy of.
    pub(crate) fn set_producers(&self, producers: ProducerState) {
        let mut writer = self.writer.lock();
        if writer.producers != producers {
            writer.producers = producers;
            // A snapshot at the log's end is of what was known before.
            writer.snapshot_offset = -1;
        }
    }

    /// What is known of producers, for another log. The caller does not use this one any more.
    pub(crate) fn take_producers(&self) -> ProducerState {
        std::mem::take(&mut self.writer.lock().producers)
    }

    /// True when the log was closed, deleted, or moved.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}
