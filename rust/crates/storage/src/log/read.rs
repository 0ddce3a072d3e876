//! Reading a log by offset. By time it is [`super::time_search`]'s.
//!
//! Runs in readers' threads without the writer lock. Nothing at or above the `upper_bound` given, or above the log's
//! end as it was when the call began, is returned. Damage found on the way takes the log offline: it is reported and
//! never served.

use std::sync::Arc;

use super::Log;
use crate::error::{Result, StorageError};
use crate::index::transactions::{AbortedTxn, TxnIndex};
use crate::log::replay::find_aborted;
use crate::segment::{Access, Segment};
use crate::slice::LogSlice;

impl Log {
    /// The bytes from the batch with `offset` on: at most `max_bytes`, from one segment, of batches that end before
    /// `upper_bound` (exclusive: high watermark, last stable offset or log end). With `min_one` the first batch is whole
    /// even if larger than `max_bytes`; without, a first batch that does not fit gives an empty slice. So does an
    /// offset at which there is nothing yet.
    ///
    /// Errors: [`StorageError::OffsetOutOfRange`] before the log's start and after its end.
    pub fn read(&self, offset: i64, max_bytes: u64, upper_bound: i64, min_one: bool) -> Result<LogSlice> {
        self.check_open()?;
        self.undisturbed(|| self.find(offset, max_bytes, upper_bound, min_one))
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
            // Its segment went between the two looks.
            return Err(out_of_range());
        };
        if offset < upper_bound {
            // A compacted segment may have lost its last offsets; what follows is in the next.
            for segment in &segments[index..] {
                let found = segment.read(offset, max_bytes, upper_bound, min_one)?;
                if let Some(slice) = found {
                    return Ok(slice);
                }
            }
        }
        Ok(segments[index].empty_slice(offset))
    }

    /// Whether [`Log::read`] finds the index of the segment with `offset` open. Otherwise it opens that, and reads the segment if it was
    /// lost.
    pub fn has_index_at_hand(&self, offset: i64) -> bool {
        let segments = self.segments();
        let after = segments.partition_point(|segment| segment.base_offset <= offset);
        segments[after.saturating_sub(1)].has_open_indexes()
    }

    /// True when records from `offset` on are in an older segment than `end` is: a read from there stops before `end`,
    /// however much it may take.
    pub fn is_behind_segment_of(&self, offset: i64, end: i64) -> bool {
        let segments = self.segments();
        let number = |offset| segments.partition_point(|segment| segment.base_offset <= offset);
        offset < end && number(offset) < number(end)
    }

    /// How many bytes the batches have from that with `offset` on, in all segments; all batches for an offset before the log's
    /// start, 0 for one after its end.
    ///
    /// Errors: damage found on the way, the disk's.
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
        self.undisturbed(count).map_err(|e| self.damaged(e))
    }

    /// Where segments begin that were last written at or before `until_ms`, at most `count`, the newest first; before them the
    /// log's end, as if it were written at `now_ms`. Both in milliseconds since the epoch. (`UnifiedLog.legacyFetchOffsetsBefore`)
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

    /// The aborted transactions that a reader of the records from `from` up to `upper_bound` may meet, in the order of
    /// their markers (`UnifiedLog.collectAbortedTransactions`).
    ///
    /// Errors: [`StorageError::OffsetOutOfRange`] before the log's start.
    pub fn aborted_transactions(&self, from: i64, upper_bound: i64) -> Result<Vec<AbortedTxn>> {
        self.check_open()?;
        self.undisturbed(|| self.find_aborted(from, upper_bound))
            .map_err(|e| self.damaged(e))
    }

    /// [`Log::aborted_transactions`] that a reader of `slice`, which a read at `offset` gave, may meet.
    pub fn aborted_in(&self, offset: i64, slice: &LogSlice) -> Result<Vec<AbortedTxn>> {
        self.check_open()?;
        self.undisturbed(|| {
            let upper_bound = self.end_of(&self.segments(), slice)?;
            self.find_aborted(offset, upper_bound)
        })
        .map_err(|e| self.damaged(e))
    }

    /// Whether [`Log::aborted_in`] finds all it looks at in memory. Otherwise it opens indexes, and reads batches for those that
    /// were lost.
    pub fn has_aborted_at_hand(&self, offset: i64, slice: &LogSlice) -> bool {
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

    /// An offset behind all batches of a slice, as near as the index knows.
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
        // Looked at before the segments: what is forgotten here stands in the index of one of those.
        let newest = self.foreign_aborted()?;
        let segments = self.segments();
        let after = segments.partition_point(|segment| segment.base_offset <= from);
        let mut found = Vec::new();
        let first = after.saturating_sub(1);
        for number in first..segments.len() {
            // Before a file is opened, or batches are read for one that may have been lost.
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
        // Looked at last: the files of a segment that was deleted meanwhile may have been gone.
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

    /// The transaction index of segment `number`, built anew if it may have been lost.
    pub(crate) fn txn_index(&self, segments: &[Arc<Segment>], number: usize) -> Result<Arc<TxnIndex>> {
        let segment = &segments[number];
        if self.may_lack_aborted(segments, number)? {
            let found = find_aborted(&self.dir, segments, number)?;
            // Whoever truncates the log has this lock, and whoever deletes segments.
            let _writer = self.writer.lock();
            let is_there = self.segments().iter().any(|one| Arc::ptr_eq(one, segment));
            if is_there && self.may_lack_aborted(segments, number)? {
                segment.replace_aborted(&found)?;
            }
        }
        segment.txn_index()
    }

    /// [`Segment::may_lack_aborted`]. The loader has looked at the index of a log's own active segment.
    fn may_lack_aborted(&self, segments: &[Arc<Segment>], number: usize) -> Result<bool> {
        let is_newest = number + 1 == segments.len();
        match self.access {
            Access::Owned if is_newest => Ok(false),
            Access::Owned => segments[number].may_lack_aborted(false),
            Access::Foreign => segments[number].may_lack_aborted(is_newest),
        }
    }

    /// Takes the log offline if `error` says that what is on disk is damaged.
    pub(super) fn damaged(&self, error: StorageError) -> StorageError {
        if matches!(error, StorageError::Corrupt { .. }) {
            self.fail(error)
        } else {
            error
        }
    }
}
