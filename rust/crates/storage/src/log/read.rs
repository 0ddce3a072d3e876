//! Reading a log by offset. [`super::time_search`] reads by timestamp.
//!
//! Runs in readers' threads without the writer lock. Returns nothing at or above `upper_bound`, or above the
//! log end at the start of the call. Damage takes the log offline and is never served.

use std::sync::Arc;

use super::Log;
use crate::error::{Result, StorageError};
use crate::index::transactions::{AbortedTxn, TxnIndex};
use crate::log::replay::find_aborted;
use crate::segment::{Access, Segment};
use crate::slice::LogSlice;

impl Log {
    /// The bytes from the batch with `offset` on: at most `max_bytes`, from one segment, of batches that end
    /// before `upper_bound` (the high watermark, last stable offset or log end). With `min_one` the first
    /// batch is whole even if it is larger than `max_bytes`. Without, a first batch that does not fit gives
    /// an empty slice, as does an offset without a record yet.
    ///
    /// Errors: [`StorageError::OffsetOutOfRange`] below the log start and above the log end.
    pub fn read(&self, offset: i64, max_bytes: u64, upper_bound: i64, min_one: bool) -> Result<LogSlice> {
        self.check_open()?;
        self.between_truncations(|| self.find(offset, max_bytes, upper_bound, min_one))
            .map_err(|e| self.damaged(e))
    }

    fn find(&self, offset: i64, max_bytes: u64, upper_bound: i64, min_one: bool) -> Result<LogSlice> {
        let (log_start, log_end) = (self.log_start_offset(), self.log_end_offset());
        let out_of_range = || StorageError::OffsetOutOfRange {
            requested: offset,
            log_start,
            log_end,
        };
        if offset < log_start || offset > log_end {
            return Err(out_of_range());
        }
        let upper_bound = upper_bound.min(log_end);
        let segments = self.segments();
        let after = segments.partition_point(|segment| segment.base_offset <= offset);
        let Some(index) = after.checked_sub(1) else {
            // Its segment was deleted since the check above.
            return Err(out_of_range());
        };
        if offset < upper_bound {
            // A compacted segment may have lost its last offsets; the next segment continues.
            for segment in &segments[index..] {
                let found = segment.read(offset, max_bytes, upper_bound, min_one)?;
                if let Some(slice) = found {
                    return Ok(slice);
                }
            }
        }
        Ok(segments[index].empty_slice(offset))
    }

    /// Whether [`Log::read`] finds the index of the segment with `offset` open. Otherwise it opens the index,
    /// and reads the segment if the index was lost.
    pub fn has_open_index(&self, offset: i64) -> bool {
        let segments = self.segments();
        let after = segments.partition_point(|segment| segment.base_offset <= offset);
        segments[after.saturating_sub(1)].has_open_indexes()
    }

    /// True when `offset` is in an older segment than `end`: a read from there stops before `end`, whatever
    /// its size.
    pub fn is_in_older_segment(&self, offset: i64, end: i64) -> bool {
        let segments = self.segments();
        let number = |offset| segments.partition_point(|segment| segment.base_offset <= offset);
        offset < end && number(offset) < number(end)
    }

    /// The bytes of all batches from the one with `offset` on; of all batches for an offset below the log
    /// start, 0 above the log end.
    ///
    /// Errors: damage; the disk's.
    pub(crate) fn bytes_from(&self, offset: i64) -> Result<u64> {
        self.check_open()?;
        let count = || {
            let offset = offset.max(self.log_start_offset());
            let segments = self.segments();
            let after = segments.partition_point(|segment| segment.base_offset <= offset);
            let (before, whole) = segments.split_at(after);
            let cut = match before.last() {
                Some(segment) => segment.read(offset, u64::MAX, i64::MAX, true)?,
                None => None,
            };
            let whole = whole.iter().map(|segment| segment.size()).sum::<u64>();
            Ok(whole + cut.map_or(0, |slice| slice.len))
        };
        self.between_truncations(count).map_err(|e| self.damaged(e))
    }

    /// The base offsets of at most `count` segments that were last written at or before `until_ms`, the
    /// newest first, after the log end as if it were written at `now_ms`. Both in milliseconds since the
    /// epoch (`UnifiedLog.legacyFetchOffsetsBefore`).
    pub fn segment_starts(&self, until_ms: i64, now_ms: i64, count: usize) -> Result<Vec<i64>> {
        self.check_open()?;
        let (log_start, log_end) = (self.log_start_offset(), self.log_end_offset());
        let segments = self.segments();
        let mut times = Vec::with_capacity(segments.len() + 1);
        for segment in segments.iter() {
            times.push((segment.base_offset.max(log_start), segment.modified_ms()?));
        }
        if segments.last().is_some_and(|last| last.size() > 0) {
            times.push((log_end, now_ms));
        }
        let found = times.iter().rev();
        let found = found.skip_while(|(_, time)| *time > until_ms);
        let mut starts: Vec<i64> = found.take(count).map(|(offset, _)| *offset).collect();
        starts.sort_unstable_by(|a, b| b.cmp(a));
        Ok(starts)
    }

    /// The aborted transactions that a reader of the records in `[from, upper_bound)` may meet, in the order
    /// of their markers (`UnifiedLog.collectAbortedTransactions`).
    ///
    /// Errors: [`StorageError::OffsetOutOfRange`] below the log start.
    pub fn aborted_transactions(&self, from: i64, upper_bound: i64) -> Result<Vec<AbortedTxn>> {
        self.check_open()?;
        self.between_truncations(|| self.find_aborted(from, upper_bound))
            .map_err(|e| self.damaged(e))
    }

    /// [`Log::aborted_transactions`] for a reader of `slice`, which a read at `offset` returned.
    pub fn aborted_in(&self, offset: i64, slice: &LogSlice) -> Result<Vec<AbortedTxn>> {
        self.check_open()?;
        self.between_truncations(|| {
            let upper_bound = self.end_of(&self.segments(), slice)?;
            self.find_aborted(offset, upper_bound)
        })
        .map_err(|e| self.damaged(e))
    }

    /// Whether [`Log::aborted_in`] needs only memory. Otherwise it opens indexes, and reads batches for lost
    /// ones.
    pub fn has_aborted_in_memory(&self, offset: i64, slice: &LogSlice) -> bool {
        let segments = self.segments();
        let Ok(upper_bound) = self.end_of(&segments, slice) else {
            return false;
        };
        let after = segments.partition_point(|segment| segment.base_offset <= offset);
        let mut read = segments[after.saturating_sub(1)..].iter();
        let not_open = read.find(|segment| !segment.has_open_txn_index());
        not_open.is_none_or(|segment| {
            segment.base_offset >= upper_bound && segment.is_known_to_end_none_begun_before(upper_bound)
        })
    }

    /// An offset after all batches of a slice, as close as the index tells.
    fn end_of(&self, segments: &[Arc<Segment>], slice: &LogSlice) -> Result<i64> {
        let after = segments.partition_point(|s| s.base_offset <= slice.base_offset);
        let end = slice.position + slice.len;
        let within = match after.checked_sub(1) {
            Some(index) => segments[index].indexes()?.offset.upper_bound(end),
            None => None,
        };
        let next = segments.get(after).map(|next| next.base_offset);
        Ok(within.or(next).unwrap_or_else(|| self.log_end_offset()))
    }

    fn find_aborted(&self, from: i64, upper_bound: i64) -> Result<Vec<AbortedTxn>> {
        // Before the segments: entries that are dropped from this list are in a segment's index.
        let newest = self.foreign_aborted()?;
        let segments = self.segments();
        let after = segments.partition_point(|segment| segment.base_offset <= from);
        let mut found = Vec::new();
        let first = after.saturating_sub(1);
        for number in first..segments.len() {
            // Checked before a file is opened, or batches are read for a lost index.
            if segments[number].base_offset >= upper_bound
                && !segments[number].has_open_txn_index()
                && segments[number].ends_none_begun_before(upper_bound)
            {
                break;
            }
            let index = self.txn_index(&segments, number)?;
            if index.collect(from, upper_bound, &mut found) {
                break;
            }
        }
        for aborted in newest {
            let wanted = aborted.last_offset >= from && aborted.first_offset < upper_bound;
            if wanted && !found.contains(&aborted) {
                found.push(aborted);
            }
        }
        // Checked last: the files of a segment that was deleted meanwhile may have been missing.
        let log_start = self.log_start_offset();
        if from < log_start {
            return Err(StorageError::OffsetOutOfRange {
                requested: from,
                log_start,
                log_end: self.log_end_offset(),
            });
        }
        Ok(found)
    }

    /// The transaction index of segment `number`, rebuilt if it may have been lost.
    pub(crate) fn txn_index(&self, segments: &[Arc<Segment>], number: usize) -> Result<Arc<TxnIndex>> {
        let segment = &segments[number];
        if self.may_lack_aborted(segments, number)? {
            let found = find_aborted(&self.dir, segments, number)?;
            // Truncations and deletions of segments hold this lock.
            let _writer = self.writer.lock();
            let is_there = self.segments().iter().any(|one| Arc::ptr_eq(one, segment));
            if is_there && self.may_lack_aborted(segments, number)? {
                segment.replace_aborted(&found)?;
            }
        }
        segment.txn_index()
    }

    /// [`Segment::may_lack_aborted`]. The loader has checked the index of a log's own active segment.
    fn may_lack_aborted(&self, segments: &[Arc<Segment>], number: usize) -> Result<bool> {
        let is_newest = number + 1 == segments.len();
        match self.access {
            Access::Owned if is_newest => Ok(false),
            Access::Owned => segments[number].may_lack_aborted(false),
            Access::Foreign => segments[number].may_lack_aborted(is_newest),
        }
    }

    /// Takes the log offline if `error` is damage on disk.
    pub(super) fn damaged(&self, error: StorageError) -> StorageError {
        if matches!(error, StorageError::Corrupt { .. }) {
            self.fail(error)
        } else {
            error
        }
    }
}
