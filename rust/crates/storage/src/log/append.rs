//! Appending, and rolling when a segment is full.
//!
//! What is sent is checked before the writer lock is taken; under it, offsets are given, producers checked, and the bytes
//! written in one piece. Whatever fails after that is the disk's fault and takes the log offline.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use logcore_records::{BatchHeader, TimestampType};

use super::{Log, STABLE, Writer};
use crate::config::LogConfig;
use crate::error::{Result, StorageError};
use crate::loader;
use crate::producer_snapshot;
use crate::producer_state::{Duplicate, Staged};
use crate::segment::Segment;
use crate::slice::Appended;
use crate::validator;

impl Log {
    /// Appends whole v2 batches, with one write. Offsets, leader epoch and, where the topic says so, the broker's time
    /// are set in `batches` itself.
    ///
    /// Batches that an idempotent producer sends again are not written again: when all are such, the answer is
    /// `duplicate` with their first offsets; when only the first few are (a retry after a crash that cut the rest),
    /// the rest is written.
    ///
    /// Errors: see [`StorageError`]; unless it is a storage failure nothing was written and the log is as before.
    /// After an error `batches` may have been changed only if it is a storage failure.
    pub fn append_as_leader(
        &self,
        batches: &mut [u8],
        leader_epoch: i32,
        now_ms: i64,
    ) -> Result<Appended> {
        self.check_writable()?;
        let config = self.config();
        let mut headers = validator::check(batches, &config, now_ms)?;
        let log_append_time =
            (config.timestamp_type == TimestampType::LogAppendTime).then_some(now_ms);

        let mut writer = self.writer.lock();
        self.check_writable()?;
        if let Some(current) = self
            .latest_epoch()
            .filter(|current| leader_epoch < *current)
        {
            return Err(StorageError::FencedLeaderEpoch {
                found: leader_epoch,
                current,
            });
        }
        let repeated: Vec<Duplicate> = headers
            .iter()
            .map_while(|header| writer.producers.duplicate_of(header))
            .collect();
        if let (Some(first), Some(last)) = (repeated.first(), repeated.last())
            && repeated.len() == headers.len()
        {
            return Ok(Appended {
                first_offset: first.first_offset,
                last_offset: last.last_offset,
                log_append_time: log_append_time.map_or(-1, |_| last.timestamp),
                log_start_offset: self.log_start_offset(),
                duplicate: true,
                batches: Vec::new(),
            });
        }
        let skipped: usize = headers
            .drain(..repeated.len())
            .map(|header| header.size())
            .sum();
        let first_written = self.write(
            &mut writer,
            &config,
            &mut batches[skipped..],
            &mut headers,
            leader_epoch,
            now_ms,
        )?;
        Ok(Appended {
            first_offset: repeated
                .first()
                .map_or(first_written, |first| first.first_offset),
            last_offset: self.log_end_offset() - 1,
            log_append_time: log_append_time.unwrap_or(-1),
            log_start_offset: self.log_start_offset(),
            duplicate: false,
            batches: headers,
        })
    }

    /// Places, writes and publishes batches that were checked; returns the first offset.
    fn write(
        &self,
        writer: &mut Writer,
        config: &LogConfig,
        bytes: &mut [u8],
        headers: &mut [BatchHeader],
        leader_epoch: i32,
        now_ms: i64,
    ) -> Result<i64> {
        let size = bytes.len() as u64;
        if size > config.segment_bytes {
            return Err(StorageError::AppendTooLarge {
                size,
                limit: config.segment_bytes,
            });
        }
        let first_offset = self.log_end_offset();
        let log_append_time =
            (config.timestamp_type == TimestampType::LogAppendTime).then_some(now_ms);
        let end = validator::assign(headers, first_offset, leader_epoch, log_append_time);
        let mut staged = Staged::default();
        for header in headers.iter() {
            writer.producers.stage(&mut staged, header)?;
        }

        // From here on nothing is refused: what fails is the disk.
        let newest = headers
            .iter()
            .map(|header| header.max_timestamp)
            .max()
            .unwrap_or(-1);
        let active = self
            .active_for(writer, config, size, newest, end - 1, now_ms)
            .map_err(|e| self.fail_unless_out_of_files(e))?;
        self.assign_epoch(leader_epoch, first_offset)
            .map_err(|e| self.fail(e))?;
        let placed = validator::place(bytes, headers, log_append_time.is_some());
        let tail = active.append(bytes, &placed).map_err(|e| self.fail(e))?;
        writer.unflushed += end - first_offset;
        writer.unflushed_since_ms.get_or_insert(now_ms);
        if writer.unflushed >= config.flush_messages {
            self.flush_through(&active).map_err(|e| self.fail(e))?;
            writer.unflushed = 0;
            writer.unflushed_since_ms = None;
        }
        active.publish(tail);
        writer.producers.commit(staged);
        let undecided = writer.producers.first_undecided_offset();
        self.first_undecided
            .store(undecided.unwrap_or(STABLE), Ordering::Release);
        self.log_end.store(end, Ordering::Release);
        self.high_watermark.store(end, Ordering::Release);
        if writer.unflushed == 0 {
            self.recovery_point.fetch_max(end, Ordering::AcqRel);
        }
        Ok(first_offset)
    }

    fn assign_epoch(&self, epoch: i32, offset: i64) -> Result<()> {
        if self.latest_epoch() == Some(epoch) {
            return Ok(());
        }
        let mut epochs = self.epochs.write();
        epochs.assign(epoch, offset);
        epochs.save()
    }

    /// The segment that takes the next `size` bytes: the active one, or a new one when that is full or old.
    fn active_for(
        &self,
        writer: &mut Writer,
        config: &LogConfig,
        size: u64,
        newest: i64,
        last_offset: i64,
        now_ms: i64,
    ) -> Result<Arc<Segment>> {
        let active = self.active();
        let filled = active.size();
        if filled == 0 && active.can_hold(last_offset) {
            return Ok(active);
        }
        let full = filled + size > config.segment_bytes
            || !active.can_hold(last_offset)
            || active.indexes()?.is_full()
            || active.age_ms(now_ms, newest)? > config.segment_ms;
        if full {
            self.roll_locked(writer, config, now_ms)
        } else {
            Ok(active)
        }
    }

    /// Ends the active segment and begins a new one, unless the active one is empty.
    pub fn roll(&self, now_ms: i64) -> Result<()> {
        let mut writer = self.writer.lock();
        self.check_writable()?;
        let config = self.config();
        self.roll_locked(&mut writer, &config, now_ms)
            .map(|_| ())
            .map_err(|e| self.fail_unless_out_of_files(e))
    }

    pub(super) fn roll_locked(
        &self,
        writer: &mut Writer,
        config: &LogConfig,
        now_ms: i64,
    ) -> Result<Arc<Segment>> {
        let active = self.active();
        let base = self.log_end_offset();
        if active.base_offset == base {
            return Ok(active);
        }
        self.snapshot_producers(writer, false)?;
        active.seal()?;
        if config.flush_on_roll {
            self.flush_through(&active)?;
            self.recovery_point.fetch_max(base, Ordering::AcqRel);
        }
        let next = Arc::new(Segment::create(
            &self.dir,
            base,
            loader::settings(config),
            now_ms,
        )?);
        let mut segments = self.segments.write();
        let mut list = segments.to_vec();
        list.push(next.clone());
        *segments = Arc::new(list);
        Ok(next)
    }

    /// Writes the producers' state at the log's end, once per offset.
    pub(super) fn snapshot_producers(&self, writer: &mut Writer, sync: bool) -> Result<()> {
        let end = self.log_end_offset();
        if end > writer.snapshot_offset {
            producer_snapshot::write(&self.dir, end, &writer.producers, sync)?;
            writer.snapshot_offset = end;
        }
        Ok(())
    }
}
