//! Appending a leader's batches to a follower's log (`UnifiedLog.appendAsFollower`).
//!
//! The leader has assigned offsets, epochs and timestamps, and checked the producers. The follower checks
//! that the bytes are whole and continue its log. Offsets may have gaps, because the leader's log may be
//! compacted. Old message formats are stored as they are.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::append::{Incoming, Written, in_place};
use super::{Log, Writer};
use crate::clock::Now;
use crate::config::LogConfig;
use crate::error::{Result, StorageError};
use crate::log::replay::marker_of;
use crate::producers::{Origin, Staged};
use crate::segment::Placed;
use crate::segment::scan::StoredBatch;
use crate::slice::Appended;

/// The smallest length field of any format: a message v0.
const LENGTH_MIN: i32 = 14;

impl Log {
    /// Appends whole batches of a leader's log. Does not move the high watermark: [`Log::set_high_watermark`]
    /// does. An incomplete last batch is dropped; without a whole batch nothing is appended.
    ///
    /// Errors: [`StorageError::UnexpectedAppendOffset`] for batches that begin below this log's end (nothing
    /// was appended); [`StorageError::InvalidRecord`] for offsets or epochs that go back; damage; the disk's.
    pub fn append_as_follower(&self, batches: &[u8], now_ms: i64) -> Result<Appended> {
        self.check_writable()?;
        let config = self.config();
        let found = whole_batches(batches)?;
        let mut writer = self.writer.lock();
        self.check_writable()?;
        self.complete(&mut writer)?;
        let mut appended = Appended {
            first_offset: self.log_end_offset(),
            last_offset: self.log_end_offset() - 1,
            log_append_time: -1,
            log_start_offset: self.log_start_offset(),
            duplicate: false,
            bytes: 0,
        };
        let (Some(first), Some(last)) = (found.first(), found.last()) else {
            return Ok(appended);
        };
        self.check_follows(&found)?;
        appended.first_offset = first.base_offset;
        appended.last_offset = last.last_offset;
        let mut last_run: Option<Written> = None;
        for run in runs(&found, config.segment_bytes)? {
            let written = self
                .write_run(&mut writer, &config, batches, &found[run], now_ms)
                .inspect_err(|_| {
                    // Another leader may continue with an epoch below that of the refused batches.
                    let end = self.log_end_offset();
                    self.epochs.change(|epochs| epochs.truncate_from_end(end));
                })?;
            // It waits for the disk with the runs before it.
            last_run = Some(written);
        }
        if let Some(written) = last_run {
            self.acknowledge(writer, &written, false)?;
        }
        appended.bytes = last.end() - first.position;
        Ok(appended)
    }

    /// Moves the log end to `offset`, for a leader's log that has no batch below it any more: these offsets
    /// must not be used again.
    pub(crate) fn skip_to(&self, offset: i64, now_ms: i64) -> Result<()> {
        let mut writer = self.writer.lock();
        self.check_writable()?;
        if offset <= self.log_end_offset() {
            return Ok(());
        }
        let config = self.config();
        self.roll_locked(&mut writer, &config, offset, now_ms)
            .map_err(|e| self.fail_unless_full(e))?;
        self.log_end.store(offset, Ordering::Release);
        Ok(())
    }

    fn check_follows(&self, batches: &[StoredBatch]) -> Result<()> {
        let (mut end, mut epoch) = (self.log_end_offset(), self.latest_epoch().unwrap_or(-1));
        for batch in batches {
            let invalid = |reason| {
                Err(StorageError::InvalidRecord {
                    position: batch.position as usize,
                    reason,
                })
            };
            if batch.base_offset < end && batch.position == 0 {
                return Err(StorageError::UnexpectedAppendOffset {
                    first_offset: batch.base_offset,
                    last_offset: batches.last().map_or(end, |last| last.last_offset),
                    log_end: end,
                });
            }
            if batch.base_offset < end {
                return invalid(format!("offset {} follows {}", batch.base_offset, end - 1));
            }
            if batch.header.is_some() && batch.leader_epoch < epoch {
                return invalid(format!("epoch {} follows {epoch}", batch.leader_epoch));
            }
            epoch = batch.leader_epoch.max(epoch);
            end = batch.last_offset + 1;
        }
        Ok(())
    }

    /// Writes batches that fit into one segment.
    fn write_run(
        &self,
        writer: &mut Writer,
        config: &LogConfig,
        all: &[u8],
        batches: &[StoredBatch],
        now_ms: i64,
    ) -> Result<Written> {
        let (from, to) = match (batches.first(), batches.last()) {
            (Some(first), Some(last)) => (first.position as usize, last.end() as usize),
            _ => (0, 0),
        };
        let bytes = &all[from..to];
        let mut staged = Staged::default();
        for batch in batches {
            let Some(header) = &batch.header else {
                continue;
            };
            let marker = marker_of(header, &all[batch.position as usize..batch.end() as usize]);
            writer
                .producers
                .stage(&mut staged, header, marker, Origin::Replication)?;
        }
        let end = self.log_end_offset();
        let incoming = Incoming {
            size: bytes.len() as u64,
            max_timestamp: batches.iter().map(|b| b.max_timestamp).max().unwrap_or(-1),
            // Of an old entry only the last offset is known.
            first_offset: batches
                .first()
                .filter(|first| first.header.is_some())
                .map_or(end, |first| first.base_offset),
            last_offset: batches.last().map_or(end, |last| last.last_offset),
        };
        let now = Now::Ms(now_ms);
        self.roll_if_full(writer, config, &incoming, (now, in_place))
            .map_err(|e| self.fail_unless_full(e))?;
        for batch in batches {
            self.follow_epoch(batch).map_err(|e| self.fail_unless_full(e))?;
        }
        let placed = batches.iter().map(|batch| Placed {
            position: batch.position - from as u64,
            ..Placed::from(batch)
        });
        self.append_staged(writer, config, bytes, placed, staged, now)
    }

    fn follow_epoch(&self, batch: &StoredBatch) -> Result<()> {
        if batch.header.is_some() {
            return self.assign_epoch(batch.leader_epoch, batch.base_offset);
        }
        // Old formats have no epochs, so the known epochs could not be compared with later ones.
        self.forget_epochs(0)
    }
}

/// The whole batches, checked.
fn whole_batches(bytes: &[u8]) -> Result<Vec<StoredBatch>> {
    let mut found = Vec::new();
    let mut position = 0;
    let whole = crate::slice::whole_batches(bytes);
    while position < whole {
        let rest = &bytes[position..whole];
        let corrupt = |reason| StorageError::CorruptBatch { position, reason };
        let batch = StoredBatch::parse(rest, position as u64).map_err(corrupt)?;
        let size = usize::try_from(batch.size).unwrap_or(usize::MAX);
        let Some(own) = rest.get(..size) else {
            return Err(corrupt("the batch is longer than it says".to_owned()));
        };
        batch.verify(own).map_err(corrupt)?;
        position += size;
        found.push(batch);
    }
    // The front of a further batch, which has at least a header's length.
    let length = bytes[whole..].get(8..12).and_then(|l| l.first_chunk());
    match length.map(|length| i32::from_be_bytes(*length)) {
        Some(length) if length < LENGTH_MIN => Err(StorageError::CorruptBatch {
            position: whole,
            reason: format!("a batch cannot have a length of {length}"),
        }),
        Some(_) | None => Ok(found),
    }
}

/// Splits batches into runs that each fit into a segment, by bytes and by offsets.
fn runs(batches: &[StoredBatch], limit: u64) -> Result<Vec<Range<usize>>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let (mut filled, mut base) = (0, 0);
    for (number, batch) in batches.iter().enumerate() {
        if batch.size > limit {
            return Err(StorageError::AppendTooLarge {
                size: batch.size,
                limit,
            });
        }
        let fits = filled + batch.size <= limit && batch.last_offset - base <= i64::from(i32::MAX);
        match runs.last_mut() {
            Some(run) if fits => run.end = number + 1,
            _ => {
                runs.push(number..number + 1);
                (filled, base) = (0, batch.base_offset);
            }
        }
        filled += batch.size;
    }
    Ok(runs)
}
