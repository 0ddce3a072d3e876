//! Finding batches in a segment by offset and by timestamp, and making slices.
//!
//! Runs in readers' threads beside the appending one. Everything is within the tail that was published when
//! the call began. An index entry is checked against the batch that it leads to.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use super::{Largest, Segment};
use crate::error::{Result, StorageError};
use crate::index::sparse::TimeEntry;
use crate::segment::scan::{Next, Scanner, StoredBatch};
use crate::slice::LogSlice;

impl Segment {
    pub(super) fn scan_headers(&self, position: u64, end: u64) -> Scanner<'_> {
        Scanner::headers(&self.file, position, end)
    }

    /// The first batch in the first `end` bytes that ends at or after `offset`.
    pub(crate) fn locate(&self, offset: i64, end: u64) -> Result<Option<StoredBatch>> {
        let hint = self.indexes()?.offset.lookup(offset, end);
        if hint.position == 0 {
            return self.scan_for(0, end, |batch| batch.last_offset >= offset);
        }
        let mut scan = self.scan_headers(hint.position, end);
        match scan.next().map_err(StorageError::io("read", self.path()))? {
            Next::Batch(first)
                if first.base_offset >= self.base_offset && first.last_offset <= hint.offset =>
            {
                if first.last_offset >= offset {
                    return Ok(Some(first));
                }
                match self.scan_on(scan, |batch| batch.last_offset >= offset) {
                    // The index led into the middle of a batch.
                    Err(StorageError::Corrupt { .. }) => self.locate_without_index(offset, end),
                    found => found,
                }
            }
            Next::Batch(_) | Next::Torn(_) | Next::End => self.locate_without_index(offset, end),
        }
    }

    fn locate_without_index(&self, offset: i64, end: u64) -> Result<Option<StoredBatch>> {
        self.distrust_indexes()?;
        self.scan_for(0, end, |batch| batch.last_offset >= offset)
    }

    /// The end of the last batch. It is below the segment's next offset if a gap follows.
    pub(crate) fn end_of_batches(&self) -> Result<i64> {
        let hint = self.indexes()?.offset.last();
        let last_from = |position| {
            let last = Cell::new(self.base_offset - 1);
            self.scan_for(position, self.size(), |batch| {
                last.set(batch.last_offset);
                false
            })
            .map(|_| last.get() + 1)
        };
        match last_from(hint.map_or(0, |hint| hint.position)) {
            Err(StorageError::Corrupt { .. }) if hint.is_some() => {
                self.distrust_indexes()?;
                last_from(0)
            }
            found => found,
        }
    }

    /// The first batch from `position` on that satisfies `wanted`. Published batches are whole, so another
    /// one is corruption.
    pub(crate) fn scan_for(
        &self,
        position: u64,
        end: u64,
        wanted: impl Fn(&StoredBatch) -> bool,
    ) -> Result<Option<StoredBatch>> {
        self.scan_on(self.scan_headers(position, end), wanted)
    }

    fn scan_on(
        &self,
        mut scan: Scanner<'_>,
        wanted: impl Fn(&StoredBatch) -> bool,
    ) -> Result<Option<StoredBatch>> {
        loop {
            match scan.next().map_err(StorageError::io("read", self.path()))? {
                Next::Batch(batch) if wanted(&batch) => return Ok(Some(batch)),
                Next::Batch(_) => {}
                Next::End => return Ok(None),
                Next::Torn(reason) => return Err(self.corrupt(scan.position(), reason)),
            }
        }
    }

    /// The slice from the batch with `offset` on: at most `max_bytes`, ending before `upper_bound`. With
    /// `min_one` the first batch is whole, whatever its size. `None`: no batch ends at or after `offset`.
    pub(crate) fn read(
        &self,
        offset: i64,
        max_bytes: u64,
        upper_bound: i64,
        min_one: bool,
    ) -> Result<Option<LogSlice>> {
        let tail = self.tail();
        let Some(first) = self.locate(offset, tail.size)? else {
            return Ok(None);
        };
        if first.last_offset >= tail.next_offset {
            // A reader would wait for the last record for ever.
            let reason = format!(
                "a batch says that it ends with offset {}, but the segment ends before {}",
                first.last_offset, tail.next_offset
            );
            return Err(self.corrupt(first.position, reason));
        }
        let end = if upper_bound >= tail.next_offset {
            tail.size
        } else {
            self.locate(upper_bound, tail.size)?
                .map_or(tail.size, |batch| batch.position)
        };
        let available = end.saturating_sub(first.position);
        if first.last_offset >= upper_bound || available < first.size {
            return Ok(Some(self.empty_slice(offset)));
        }
        let len = if max_bytes >= first.size {
            available.min(max_bytes)
        } else if min_one {
            first.size
        } else {
            return Ok(Some(self.empty_slice(offset)));
        };
        Ok(Some(LogSlice {
            file: self.file.clone(),
            position: first.position,
            len,
            base_offset: first.base_offset,
            first_batch_len: first.size,
            path: self.path.clone(),
        }))
    }

    /// An empty slice at `offset`.
    pub(crate) fn empty_slice(&self, offset: i64) -> LogSlice {
        LogSlice {
            file: self.file.clone(),
            position: self.size(),
            len: 0,
            base_offset: offset,
            first_batch_len: 0,
            path: self.path.clone(),
        }
    }

    /// All bytes of a batch.
    pub(crate) fn batch_bytes(&self, batch: &StoredBatch) -> Result<Vec<u8>> {
        let mut scan = Scanner::headers(&self.file, batch.position, batch.end());
        let bytes = scan.bytes(batch).map_err(StorageError::io("read", self.path()))?;
        if (bytes.len() as u64) < batch.size {
            return Err(self.corrupt(batch.position, "the file ends inside a batch".to_owned()));
        }
        Ok(bytes.to_vec())
    }

    /// The largest timestamp and the last offset of its batch; `None` when no record has a timestamp.
    pub(crate) fn largest(&self) -> Result<Option<TimeEntry>> {
        let tail = self.tail();
        match tail.largest {
            Largest::None => return Ok(None),
            Largest::At(entry) => return Ok(Some(entry)),
            Largest::Unknown => {}
        }
        let indexed = self.last_time_indexed(tail.size)?;
        if indexed.is_some() && self.sealed.load(Ordering::Acquire) {
            // The last entry of a sealed segment is for the whole segment.
            self.remember_largest(tail.size, indexed);
            return Ok(indexed);
        }
        let from = match indexed {
            Some(entry) => self.locate(entry.offset, tail.size)?.map_or(0, |b| b.position),
            None => 0,
        };
        let mut largest = indexed;
        let mut scan = Scanner::all_headers(&self.file, from, tail.size);
        loop {
            match scan.next().map_err(StorageError::io("read", self.path()))? {
                Next::Batch(batch) => {
                    if batch.max_timestamp > largest.map_or(-1, |l| l.timestamp) {
                        largest = Some(TimeEntry {
                            timestamp: batch.max_timestamp,
                            offset: batch.last_offset,
                        });
                    }
                }
                Next::End => break,
                Next::Torn(reason) => return Err(self.corrupt(scan.position(), reason)),
            }
        }
        self.remember_largest(tail.size, largest);
        Ok(largest)
    }

    /// The time index's last entry, if its batch has this timestamp. Otherwise that of a rebuilt index, or
    /// `None` where the index cannot be rebuilt. Retention uses this entry, and a lost page reads as an entry
    /// of zeros, which looks like a timestamp.
    fn last_time_indexed(&self, size: u64) -> Result<Option<TimeEntry>> {
        let Some(entry) = self.indexes()?.time.last() else {
            return Ok(None);
        };
        let named = self.locate(entry.offset, size)?;
        if named.is_some_and(|batch| batch.max_timestamp == entry.timestamp) {
            return Ok(Some(entry));
        }
        if self.distrust_indexes()? {
            Ok(self.indexes()?.time.last())
        } else {
            Ok(None)
        }
    }

    /// Keeps the result, unless the segment has grown since.
    fn remember_largest(&self, size: u64, largest: Option<TimeEntry>) {
        let mut current = self.tail.lock();
        if current.largest == Largest::Unknown && current.size == size {
            current.largest = largest.map_or(Largest::None, Largest::At);
        }
    }

    /// The first batch with a record at or after `timestamp` and an offset of at least `from_offset`.
    pub(crate) fn locate_time(&self, timestamp: i64, from_offset: i64) -> Result<Option<StoredBatch>> {
        let tail = self.tail();
        let end = tail.size;
        let wanted =
            |batch: &StoredBatch| batch.max_timestamp >= timestamp && batch.last_offset >= from_offset;
        let Some(entry) = self.indexes()?.time.lookup(timestamp, tail.next_offset) else {
            return self.scan_for(self.position_of(from_offset, end)?, end, wanted);
        };
        match self.locate(entry.offset, end)? {
            // The batch must have the entry's timestamp, or the index belongs to another file.
            Some(batch) if batch.max_timestamp == entry.timestamp => {
                let from = if entry.offset >= from_offset {
                    batch.position
                } else {
                    self.position_of(from_offset, end)?
                };
                self.scan_for(from, end, wanted)
            }
            Some(_) | None => {
                self.distrust_indexes()?;
                self.scan_for(self.position_of(from_offset, end)?, end, wanted)
            }
        }
    }

    /// The position of the first batch that ends at or after `offset`; `end` without one.
    fn position_of(&self, offset: i64, end: u64) -> Result<u64> {
        let found = self.locate(offset, end)?;
        Ok(found.map_or(end, |batch| batch.position))
    }
}
