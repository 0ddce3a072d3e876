//! Opening and repairing a segment: loading indexes, rebuilding them, recovery after a crash.
//!
//! Runs in the thread that opens the log, and in a reader's thread when an index turns out to be missing or
//! wrong. A rebuild replaces the index files, so existing mappings stay valid. A crash leaves an index that
//! is not sane, which is rebuilt again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Access, Indexes, Largest, Placed, Segment, Tail};
use crate::error::{Result, StorageError};
use crate::files::disk;
use crate::index::sparse::OffsetIndex;
use crate::index::sparse::TimeIndex;
use crate::index::transactions::AbortedTxn;
use crate::segment::scan::{Next, Scanner, StoredBatch};

/// Where a file stops being whole.
#[derive(Debug)]
pub(crate) struct Torn {
    /// The record at this offset, or one after it, is damaged.
    pub(crate) offset: i64,
    pub(crate) reason: String,
}

impl Torn {
    fn at(tail: &Tail, reason: String) -> Self {
        let offset = tail.next_offset;
        Self { offset, reason }
    }

    /// A whole batch that does not follow those before it. If a gap passed over its offset, the batch after
    /// the gap is wrong, because no checksum covers a base offset. Otherwise the batch itself is torn, inside
    /// its base offset.
    fn out_of_order(tail: &Tail, gap: i64, batch: &StoredBatch) -> Self {
        let (offset, last) = (batch.base_offset, tail.next_offset - 1);
        let reason = format!("offset {offset} follows offset {last}");
        if offset > gap {
            Self { offset: gap, reason }
        } else {
            Self::at(tail, reason)
        }
    }
}

impl Segment {
    /// The indexes on disk; `None` when they do not fit the segment.
    pub(super) fn load_indexes(&self) -> Result<Option<Indexes>> {
        let (offset, time) = self.index_paths();
        let base = self.base_offset;
        let indexes = match self.access {
            Access::Owned => Indexes {
                offset: OffsetIndex::open_sealed(&offset, base)?,
                time: TimeIndex::open_sealed(&time, base)?,
            },
            Access::Foreign => Indexes {
                offset: OffsetIndex::copy(&offset, base)?,
                time: TimeIndex::copy(&time, base)?,
            },
        };
        let tail = self.tail();
        // The end of the last segment is not known yet. The batch itself is checked later.
        let next_offset = if tail.next_offset > base {
            tail.next_offset
        } else {
            i64::MAX
        };
        let sane = indexes.offset.is_sane(next_offset, tail.size) && indexes.time.is_sane(next_offset);
        Ok(sane.then_some(indexes))
    }

    /// Rebuilds both index files from the `.log` file of a sealed segment.
    pub(super) fn build_indexes(&self) -> Result<Indexes> {
        let size = self.size();
        let mut indexes = self.new_indexes(size)?;
        let mut tail = Tail {
            size: 0,
            next_offset: self.base_offset,
            largest: Largest::None,
            first_timestamp: None,
            bytes_since_index: 0,
        };
        let mut scan = Scanner::all_headers(&self.file, 0, size);
        loop {
            match scan.next().map_err(StorageError::io("read", self.path()))? {
                Next::Batch(batch) => {
                    self.add_to(&mut indexes, &mut tail, Placed::from(&batch), size)?;
                }
                Next::End => break,
                Next::Torn(reason) => return Err(self.corrupt(scan.position(), reason)),
            }
        }
        if let Largest::At(largest) = tail.largest {
            match indexes.time.append(largest) {
                Err(error) if error.is_disk_full() => {
                    let unsaved = self.unsaved_indexes(size)?;
                    indexes.copy_to(&unsaved, i64::MAX, u64::MAX)?;
                    unsaved.time.append(largest)?;
                    indexes = unsaved;
                }
                appended => appended?,
            }
        }
        indexes.trim()?;
        Ok(indexes)
    }

    /// Bytes that are enough for the indexes of a segment of `size` bytes, whatever the setting was when it
    /// was written.
    pub(super) fn index_capacity(&self, size: u64) -> u32 {
        let entries = size / u64::from(self.settings.interval_bytes.max(1)) + 2;
        let needed = (entries * TimeIndex::ENTRY_SIZE).min(i32::MAX as u64) as u32;
        needed.max(self.settings.max_bytes)
    }

    /// Prepares the last segment of a cleanly closed log for appends.
    pub(crate) fn reopen_active(&self) -> Result<()> {
        // Appends compare with it, and this checks or rebuilds the indexes.
        self.largest()?;
        let (offset, time) = self.index_paths();
        let max_bytes = self.settings.max_bytes;
        let indexes = Indexes {
            offset: OffsetIndex::open_active(&offset, self.base_offset, max_bytes)?,
            time: TimeIndex::open_active(&time, self.base_offset, max_bytes)?,
        };
        let mut tail = self.tail.lock();
        // As after an entry: the exact position of the last one does not matter.
        tail.bytes_since_index = indexes
            .offset
            .last()
            .map_or(tail.size, |last| tail.size - last.position.min(tail.size));
        *self.indexes.write() = Some(Arc::new(indexes));
        self.sealed.store(false, Ordering::Release);
        Ok(())
    }

    /// Reads the whole file, checks every batch, rebuilds both indexes, and publishes what is whole. Offsets
    /// must rise. Leader epochs must not go back after a batch whose epoch `is_certain`: such a tail is from
    /// before a truncation. `on_batch` gets each batch that is kept and its bytes, and returns the
    /// transaction that the batch aborts, for the rebuilt transaction index. Returns where and why the tail
    /// is not whole; the file is not cut yet.
    pub(crate) fn recover(
        &self,
        is_certain: impl Fn(&StoredBatch) -> bool,
        mut on_batch: impl FnMut(&StoredBatch, &[u8]) -> Option<AbortedTxn>,
    ) -> Result<Option<Torn>> {
        let size = self.file_size()?;
        let transactions = self.reset_txn_index()?;
        let mut indexes = self.new_indexes(size)?;
        let mut tail = Tail {
            size: 0,
            next_offset: self.base_offset,
            largest: Largest::None,
            first_timestamp: None,
            bytes_since_index: 0,
        };
        let (mut gap, mut epoch) = (i64::MAX, -1);
        let mut scan = Scanner::checked(&self.file, 0, size);
        let torn = loop {
            match scan.next().map_err(StorageError::io("read", self.path()))? {
                Next::Batch(batch) if batch.base_offset < tail.next_offset => {
                    break Some(Torn::out_of_order(&tail, gap, &batch));
                }
                Next::Batch(batch) if !self.can_hold(batch.last_offset) => {
                    let reason = format!("offset {} is too far from the base", batch.last_offset);
                    break Some(Torn::at(&tail, reason));
                }
                // An unknown epoch is -1.
                Next::Batch(batch) if (0..epoch).contains(&batch.leader_epoch) => {
                    let reason = format!("epoch {} follows epoch {epoch}", batch.leader_epoch);
                    break Some(Torn::at(&tail, reason));
                }
                Next::Batch(batch) => {
                    if batch.leader_epoch > epoch && is_certain(&batch) {
                        epoch = batch.leader_epoch;
                    }
                    if batch.base_offset > tail.next_offset {
                        gap = tail.next_offset;
                    }
                    self.add_to(&mut indexes, &mut tail, Placed::from(&batch), size)?;
                    let bytes = scan
                        .bytes(&batch)
                        .map_err(StorageError::io("read", self.path()))?;
                    if let Some(aborted) = on_batch(&batch, bytes) {
                        transactions.append_or_keep(aborted)?;
                    }
                }
                Next::End => break None,
                Next::Torn(reason) => break Some(Torn::at(&tail, reason)),
            }
        };
        self.publish(tail);
        self.unsynced_indexes.store(true, Ordering::Release);
        *self.indexes.write() = Some(Arc::new(indexes));
        self.sealed.store(false, Ordering::Release);
        Ok(torn)
    }

    /// Cuts the file to what is published and flushes it.
    pub(crate) fn truncate_to_published(&self) -> Result<()> {
        disk::set_len(&self.file, self.path(), self.size())
            .and_then(|()| disk::sync(&self.file, self.path()))
            .map_err(StorageError::io("truncate", self.path()))
    }

    /// Finds the end of the last segment from the last index entry on. With `check`, batches are verified and
    /// the first that is not whole is the end, because another process may be writing it. Without, it is
    /// corruption.
    pub(crate) fn find_end(&self, check: bool) -> Result<()> {
        let size = self.file_size()?;
        {
            let mut tail = self.tail.lock();
            tail.size = tail.size.max(size);
        }
        let mut hint = self.indexes()?.offset.last().map_or(0, |last| last.position);
        loop {
            let mut scan = if check {
                Scanner::checked(&self.file, hint, size)
            } else {
                Scanner::headers(&self.file, hint, size)
            };
            let (mut next_offset, mut end) = (None, hint);
            let torn = loop {
                match scan.next().map_err(StorageError::io("read", self.path()))? {
                    Next::Batch(batch) if batch.base_offset < next_offset.unwrap_or(self.base_offset) => {
                        let offset = batch.base_offset;
                        break Some(format!("offset {offset} is less than those before"));
                    }
                    Next::Batch(batch) if !self.can_hold(batch.last_offset) => {
                        break Some(format!("offset {} is too far from the base", batch.last_offset));
                    }
                    Next::Batch(batch) => {
                        next_offset = Some(batch.last_offset + 1);
                        end = batch.end();
                    }
                    Next::End => break None,
                    Next::Torn(reason) => break Some(reason),
                }
            };
            if hint > 0 && (next_offset.is_none() || (torn.is_some() && !check)) {
                // The index led to no batch: start at the beginning.
                hint = 0;
                continue;
            }
            if let (Some(reason), false) = (torn, check) {
                return Err(self.corrupt(end, reason));
            }
            let mut tail = self.tail.lock();
            tail.size = end;
            tail.next_offset = next_offset.unwrap_or(self.base_offset);
            tail.largest = Largest::Unknown;
            drop(tail);
            if self.access == Access::Foreign {
                // Its owner writes on, so batches after the last index entry must be read.
                self.sealed.store(false, Ordering::Release);
            }
            return Ok(());
        }
    }
}
