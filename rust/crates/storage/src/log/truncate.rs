//! Cutting a log's end off, as a follower does that has records its leader has not (`UnifiedLog.truncateTo`).
//!
//! Runs under the writer lock and the flush lock. Readers take neither: what one found while a truncation ran is thrown
//! away and looked for again ([`Log::undisturbed`]). A slice handed out before may then read short, or hold what was
//! appended since; only slices above the high watermark can, and those go to followers, who check what they are sent.
//!
//! A crash: the order is such that the log is always whole. Snapshots that know what is going away are removed first,
//! then segments from the last on, each on disk before the next, then the last one is cut and that is brought to disk
//! before anything is appended. A crash in between leaves a longer log. What the directory's checkpoints say of the
//! recovery point and the log's start must have been lowered before, which [`crate::LogDir::truncate_to`] does: recovery
//! would take a torn tail below them for damage.

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

/// Where a follower has to cut its log, by what its leader says of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TruncationPoint {
    pub offset: i64,
    /// Nothing more has to be asked: up to `offset` the logs are the same. Otherwise the leader is asked again, for the
    /// latest epoch after the cut.
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
    /// What `look` finds at a moment at which no truncation runs.
    pub(super) fn undisturbed<T>(&self, look: impl Fn() -> Result<T>) -> Result<T> {
        loop {
            let before = self.truncations.count();
            if before % 2 == 1 {
                // Whoever truncates holds it to the end.
                drop(self.writer.lock());
                continue;
            }
            let found = look();
            if self.truncations.count() == before {
                return found;
            }
        }
    }

    /// Cuts off every batch with an offset at or after `offset`; returns where the log ends then, which is before
    /// `offset` when that is inside of a batch. Only the epochs are cut when the log ends before.
    ///
    /// Errors: the disk's, after which the log is offline; [`StorageError::OffsetOutOfRange`] for a negative offset.
    pub fn truncate_to(&self, offset: i64) -> Result<i64> {
        // What is being compacted may be about to go.
        let paused = self.pause_cleaning();
        let mut writer = self.writer.lock();
        self.check_truncation(offset)?;
        let cut = self.with_mark_lowered(
            || Ok(self.certain_if_truncated(offset)),
            || {
                self.truncate_locked(&mut writer, offset)
                    .and_then(|()| self.roll_behind_hole(&mut writer))
            },
        );
        cut.map_err(|e| self.fail(e))?;
        paused.truncated_to(self.log_end_offset());
        Ok(self.log_end_offset())
    }

    /// What is certainly left while the log is cut at `offset`, at every step of that: behind a compaction a cut log ends before,
    /// until it goes on there.
    fn certain_if_truncated(&self, offset: i64) -> i64 {
        let segments = self.segments();
        let after = segments.partition_point(|segment| segment.base_offset <= offset);
        let last = after.checked_sub(1).map(|index| &segments[index]);
        last.map_or(0, |last| last.base_offset.min(offset))
    }

    /// Where the log would end if it were cut at `offset`: batches go whole.
    pub(crate) fn end_if_truncated(&self, offset: i64) -> Result<i64> {
        self.undisturbed(|| {
            let segments = self.segments();
            let after = segments.partition_point(|segment| segment.base_offset <= offset);
            let Some(last) = after.checked_sub(1).map(|index| &segments[index]) else {
                return Ok(offset);
            };
            let cut = last.locate(offset, last.size())?;
            Ok(cut.map_or(offset, |batch| batch.base_offset.min(offset)))
        })
    }

    /// Removes everything; the log goes on at `offset` and begins at `log_start`, or there.
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

    /// Where to cut the log when the leader says that `leader_epoch` is its largest epoch not after the one it was asked
    /// for, and that its records end before `leader_end` (`AbstractFetcherThread.getOffsetTruncationState`, KIP-279).
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

    /// Whether the log can be cut at `offset`: to be known before anything is changed for it.
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
            // A leader that wrote nothing may have left an epoch here that another leader's log does not know.
            return self.forget_epochs(self.log_end_offset());
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
        // After the records: those that a crash leaves keep their epochs, and opening cuts the epochs to the log's end.
        self.forget_epochs(end)?;
        let producers = producers_at(&self.dir, &segments[..=last], end)?;
        self.restart_producers(writer, producers)
    }

    /// Behind a hole only a file's name tells where what comes next begins: torn there, it would seem to be of before the
    /// recovery point, which is damage.
    fn roll_behind_hole(&self, writer: &mut Writer) -> Result<()> {
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

    /// Forgets the epochs that begin at or after `end`.
    pub(super) fn forget_epochs(&self, end: i64) -> Result<()> {
        self.epochs.change(|epochs| {
            epochs.truncate_from_end(end);
            epochs.save()
        })
    }

    /// A snapshot that stayed would be believed once the log has grown past it again.
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
