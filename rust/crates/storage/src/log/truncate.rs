//! Truncation: a follower cuts off the records that its leader does not have (`UnifiedLog.truncateTo`).
//!
//! Runs under the writer lock and the flush lock. Readers take neither. A reader that ran beside a truncation
//! discards its result and repeats ([`Log::between_truncations`]). A slice that was returned before may read
//! short, or have bytes that were appended since. Only slices above the high watermark can, and those go to
//! followers, which check what they receive.
//!
//! A crash: every step leaves a whole log. Snapshots that include truncated batches are removed first, then
//! segments from the last on, each flushed before the next. Then the last segment is cut and flushed before
//! anything is appended. A crash in between leaves a longer log. The caller must lower the recovery point and
//! the log start in the checkpoints before, as [`crate::LogDir::truncate_to`] does; otherwise recovery would
//! take a torn tail below them for damage.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Log, Writer};
use crate::clock::system_now_ms;
use crate::error::{Result, StorageError};
use crate::files::{self, SNAPSHOT_SUFFIX, segment_file};
use crate::log::loader;
use crate::log::replay::producers_at;
use crate::producers::ProducerState;
use crate::producers::snapshot;
use crate::segment::Segment;
use crate::segment::scan::StoredBatch;

/// Where a follower must truncate its log, by its leader's answer about an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TruncationPoint {
    pub offset: i64,
    /// The logs are equal up to `offset`. Otherwise the follower asks the leader again, for the latest epoch
    /// after the truncation.
    pub complete: bool,
}

/// Odd while a truncation runs.
#[derive(Debug, Default)]
pub(super) struct Truncations(AtomicU64);

impl Truncations {
    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn begin(&self) -> Running<'_> {
        self.0.fetch_add(1, Ordering::AcqRel);
        Running(self)
    }
}

struct Running<'a>(&'a Truncations);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::AcqRel);
    }
}

impl Log {
    /// The result of `look` at a moment without a truncation.
    pub(super) fn between_truncations<T>(&self, look: impl Fn() -> Result<T>) -> Result<T> {
        loop {
            let before = self.truncations.count();
            if before % 2 == 1 {
                // A truncation holds this lock to its end.
                drop(self.writer.lock());
                continue;
            }
            let found = look();
            if self.truncations.count() == before {
                return found;
            }
        }
    }

    /// Cuts off every batch with an offset at or after `offset`. Returns the new log end, which is below
    /// `offset` when that is inside a batch. When the log ends before `offset`, only the epochs are
    /// truncated.
    ///
    /// Errors: the disk's, after which the log is offline; [`StorageError::OffsetOutOfRange`] for a negative
    /// offset.
    pub fn truncate_to(&self, offset: i64) -> Result<i64> {
        // The cleaner may be reading segments that will be removed.
        let paused = self.pause_cleaning();
        let mut writer = self.writer.lock();
        self.check_truncation(offset)?;
        let cut = self.with_mark_lowered(
            || Ok(self.certain_if_truncated(offset)),
            || {
                self.truncate_locked(&mut writer, offset)
                    .and_then(|()| self.roll_after_gap(&mut writer))
            },
        );
        cut.map_err(|e| self.fail(e))?;
        paused.truncated_to(self.log_end_offset());
        Ok(self.log_end_offset())
    }

    /// The lowest log end at any step of a truncation to `offset`. In a compacted gap the truncated log ends
    /// earlier until its end is moved.
    fn certain_if_truncated(&self, offset: i64) -> i64 {
        let segments = self.segments();
        let after = segments.partition_point(|segment| segment.base_offset <= offset);
        let last = after.checked_sub(1).map(|index| &segments[index]);
        last.map_or(0, |last| last.base_offset.min(offset))
    }

    /// The log end after a truncation to `offset`: batches are removed whole.
    pub(crate) fn end_if_truncated(&self, offset: i64) -> Result<i64> {
        self.between_truncations(|| {
            let segments = self.segments();
            let after = segments.partition_point(|segment| segment.base_offset <= offset);
            let Some(last) = after.checked_sub(1).map(|index| &segments[index]) else {
                return Ok(offset);
            };
            let cut = last.locate(offset, last.size())?;
            Ok(cut.map_or(offset, |batch| batch.base_offset.min(offset)))
        })
    }

    /// Removes all records. The log continues at `offset` and begins at `log_start`, or at `offset`.
    ///
    /// Errors: as [`Log::truncate_to`].
    pub fn truncate_fully_and_start_at(&self, offset: i64, log_start: Option<i64>) -> Result<()> {
        let paused = self.pause_cleaning();
        let mut writer = self.writer.lock();
        self.check_truncation(offset)?;
        let cut = self.with_mark_lowered(
            || Ok(0),
            || self.replace_all(&mut writer, offset, log_start.unwrap_or(offset)),
        );
        cut.map_err(|e| self.fail(e))?;
        paused.truncated_to(self.log_start_offset());
        Ok(())
    }

    /// Where to truncate when the leader answers that `leader_epoch` is its largest epoch at or below the one
    /// it was asked for, and that this epoch ends at `leader_end`
    /// (`AbstractFetcherThread.getOffsetTruncationState`, KIP-279).
    pub fn truncation_point(&self, leader_epoch: i32, leader_end: i64) -> TruncationPoint {
        let log_end = self.log_end_offset();
        match self.epoch_end_offset(leader_epoch) {
            Some((epoch, end)) if epoch != leader_epoch => TruncationPoint {
                offset: end.min(log_end),
                complete: false,
            },
            Some((_, end)) => TruncationPoint {
                offset: end.min(leader_end).min(log_end),
                complete: true,
            },
            None => TruncationPoint {
                offset: leader_end.min(log_end),
                complete: true,
            },
        }
    }

    /// Whether the log can be truncated to `offset`. Checked before anything is changed.
    pub(crate) fn check_truncation(&self, offset: i64) -> Result<()> {
        self.check_writable()?;
        if offset >= 0 {
            return Ok(());
        }
        Err(StorageError::OffsetOutOfRange {
            requested: offset,
            log_start: self.log_start_offset(),
            log_end: self.log_end_offset(),
        })
    }

    fn truncate_locked(&self, writer: &mut Writer, offset: i64) -> Result<()> {
        if offset >= self.log_end_offset() {
            // A leader that wrote nothing may have left an epoch here that the new leader's log does not
            // have.
            return self.forget_epochs_unless_full(self.log_end_offset());
        }
        let segments = self.segments();
        let Some(last) = segments
            .partition_point(|segment| segment.base_offset <= offset)
            .checked_sub(1)
        else {
            return self.replace_all(writer, offset, offset);
        };
        let active = &segments[last];
        let cut = active.locate(offset, active.size())?;
        let end = cut.as_ref().map_or(offset, |batch| batch.base_offset.min(offset));

        let _flushing = self.flushing.lock();
        let _running = self.truncations.begin();
        writer.active = None;
        self.lower_end(end);
        self.remove_snapshots_after(end)?;
        *self.segments.write() = Arc::new(segments[..=last].to_vec());
        self.remove_from_the_end(writer, &segments[last + 1..])?;
        let size = cut.map_or_else(|| active.size(), |batch: StoredBatch| batch.position);
        active.truncate(size, end)?;
        // After the records: a crash leaves epochs of records that are still there, and the opening cuts the
        // epochs to the log end.
        self.forget_epochs_unless_full(end)?;
        let producers = producers_at(&self.dir, &segments[..=last], end)?;
        self.restart_producers(writer, producers)
    }

    /// After a hole in the offsets only a segment's file name says where the next batch begins. If that batch
    /// were torn, it would seem to be below the recovery point, which is damage.
    fn roll_after_gap(&self, writer: &mut Writer) -> Result<()> {
        let end = self.log_end_offset();
        if self.active().end_of_batches()? < end {
            self.roll_locked(writer, &self.config(), end, system_now_ms())?;
        }
        Ok(())
    }

    fn replace_all(&self, writer: &mut Writer, offset: i64, log_start: i64) -> Result<()> {
        let _flushing = self.flushing.lock();
        let _running = self.truncations.begin();
        writer.active = None;
        let removed = self.segments();
        self.lower_end(offset);
        self.remove_snapshots_after(-1)?;
        self.remove_from_the_end(writer, &removed)?;
        self.forget_epochs(0)?;
        let settings = loader::settings(&self.config());
        let next = Segment::create(&self.dir, offset, settings, system_now_ms())?;
        files::sync_dir(&self.dir)?;
        *self.segments.write() = Arc::new(vec![Arc::new(next)]);
        self.restart_at(log_start, offset);
        self.restart_producers(writer, ProducerState::default())
    }

    /// Removes the epochs that begin at or after `end`.
    pub(super) fn forget_epochs(&self, end: i64) -> Result<()> {
        self.epochs.change(|epochs| {
            epochs.truncate_from_end(end);
            epochs.save()
        })
    }

    /// [`Log::forget_epochs`] that needs no space: on a full disk the file keeps the epochs until the next
    /// append, which saves them first.
    fn forget_epochs_unless_full(&self, end: i64) -> Result<()> {
        match self.forget_epochs(end) {
            Err(error) if error.is_disk_full() => Ok(()),
            saved => saved,
        }
    }

    /// Otherwise a snapshot would be believed once the log has grown past it again.
    fn remove_snapshots_after(&self, end: i64) -> Result<()> {
        let mut removed = false;
        for offset in snapshot::list(&self.dir)?.into_iter().rev() {
            if offset > end {
                let path = segment_file(&self.dir, offset, SNAPSHOT_SUFFIX);
                removed |= files::remove_if_exists(&path)?;
            }
        }
        if removed {
            files::sync_dir(&self.dir)
        } else {
            Ok(())
        }
    }

    fn remove_from_the_end(&self, writer: &mut Writer, removed: &[Arc<Segment>]) -> Result<()> {
        let delay_ms = self.config().file_delete_delay_ms;
        let due_ms = system_now_ms().saturating_add(delay_ms);
        for segment in removed.iter().rev() {
            let mut files = Vec::new();
            self.rename_deleted(segment, &mut files)?;
            writer.deletions.push((due_ms, files));
            files::sync_dir(&self.dir)?;
        }
        Ok(())
    }

    fn restart_producers(&self, writer: &mut Writer, mut producers: ProducerState) -> Result<()> {
        producers.remove_expired(system_now_ms(), self.config().producer_id_expiration_ms);
        let latest = snapshot::list(&self.dir)?.last().copied();
        writer.snapshot_offset = latest.unwrap_or(0);
        self.forget_transactions(producers.first_undecided_offset());
        writer.producers = producers;
        writer.sync_end = writer.sync_end.min(self.log_end_offset());
        Ok(())
    }
}
