//! Truncating a segment.
//!
//! The caller has the log's writer lock. The indexes are replaced by new files with the remaining entries:
//! readers may have mapped the old ones, and access to a mapping past its file's end is SIGBUS. A crash
//! leaves index files that recovery rebuilds.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Indexes, Largest, Segment};
use crate::error::{Result, StorageError};
use crate::files::disk;

impl Segment {
    /// Cuts the segment to its first `size` bytes, which end before `next_offset`, flushes it, and prepares
    /// it for appends.
    pub(crate) fn truncate(&self, size: u64, next_offset: i64) -> Result<()> {
        let old = self.indexes()?;
        let transactions = self.txn_index()?;
        let mut slot = self.indexes.write();
        disk::set_len(&self.file, self.path(), size)
            .and_then(|()| disk::sync(&self.file, self.path()))
            .map_err(StorageError::io("truncate", self.path()))?;
        transactions.truncate_to(next_offset)?;
        let kept = Indexes::create(&self.dir, self.base_offset, self.index_capacity(size))?;
        old.copy_to(&kept, next_offset, size)?;
        let indexed = kept.offset.last().map_or(0, |last| last.position);
        {
            let mut tail = self.tail.lock();
            tail.size = size;
            tail.next_offset = next_offset;
            tail.largest = if size == 0 {
                Largest::None
            } else {
                Largest::Unknown
            };
            tail.first_timestamp = tail.first_timestamp.filter(|_| size > 0);
            tail.bytes_since_index = size - indexed;
        }
        *slot = Some(Arc::new(kept));
        self.unsynced_indexes.store(true, Ordering::Release);
        self.sealed.store(false, Ordering::Release);
        drop(slot);
        // Appends compare with the largest timestamp.
        self.largest().map(|_| ())
    }
}
