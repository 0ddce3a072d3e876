//! The transaction index of a segment. It is opened when first used, because most segments have none.
//!
//! The holder of the log's writer lock appends and truncates; readers collect. A damaged index is an error
//! here. The loader rebuilds it before there are readers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Access, Segment};
use crate::error::{Result, StorageError};
use crate::files::{SNAPSHOT_SUFFIX, TXN_INDEX_SUFFIX, segment_file};
use crate::index::transactions::{AbortedTxn, TxnIndex};
use crate::producers::snapshot;

impl Segment {
    /// The index, opened if it was not.
    ///
    /// Errors: [`StorageError::Corrupt`], also when its entries cannot belong to this segment.
    pub(crate) fn txn_index(&self) -> Result<Arc<TxnIndex>> {
        if let Some(index) = &*self.transactions.read() {
            return Ok(index.clone());
        }
        let mut slot = self.transactions.write();
        if let Some(index) = &*slot {
            return Ok(index.clone());
        }
        let path = segment_file(&self.dir, self.base_offset, TXN_INDEX_SUFFIX);
        let index = match self.access {
            Access::Owned => TxnIndex::open(&path)?,
            Access::Foreign => TxnIndex::copy(&path)?,
        };
        let first = index.entries().first().map(|entry| entry.last_offset);
        if let Some(first) = first.filter(|first| *first < self.base_offset) {
            return Err(StorageError::Corrupt {
                path,
                position: 0,
                reason: format!(
                    "offset {first} is before the segment's first, {}",
                    self.base_offset
                ),
            });
        }
        let index = Arc::new(index);
        *slot = Some(index.clone());
        Ok(index)
    }

    /// Whether the index was opened, or found to have no file.
    pub(crate) fn has_open_txn_index(&self) -> bool {
        self.transactions.read().is_some()
    }

    /// Starts the index again without entries.
    pub(crate) fn reset_txn_index(&self) -> Result<Arc<TxnIndex>> {
        let path = segment_file(&self.dir, self.base_offset, TXN_INDEX_SUFFIX);
        let index = Arc::new(TxnIndex::create(&path)?);
        *self.transactions.write() = Some(index.clone());
        Ok(index)
    }

    /// Whether the index of a segment may have been lost before the opening: there is no file, it was not
    /// looked up yet, and the producers at the segment's end have ended transactions, which may have been
    /// aborted here. Without a snapshot of those producers it may be lost, too, unless another process fills
    /// the segment now (`is_followed`), whose batches are read anyway.
    pub(crate) fn may_lack_aborted(&self, is_followed: bool) -> Result<bool> {
        if self.has_open_txn_index() {
            return Ok(false);
        }
        if segment_file(&self.dir, self.base_offset, TXN_INDEX_SUFFIX).exists() {
            return Ok(false);
        }
        let end = self.next_offset();
        Ok(match snapshot::find_latest(&self.dir, end)? {
            Some((offset, state)) if offset == end => state.has_ended_transactions(),
            Some(_) | None => !is_followed,
        })
    }

    /// Whether no transaction that began below `offset` was open when the segment began. Then none of them
    /// ends in this segment or later. `offset` is not above the segment's first.
    pub(crate) fn ends_none_begun_before(&self, offset: i64) -> bool {
        if self.undecided_before.get().is_none() {
            let path = segment_file(&self.dir, self.base_offset, SNAPSHOT_SUFFIX);
            if let Ok(Some(state)) = snapshot::read(&path) {
                let _is_the_same = self.undecided_before.set(state.first_undecided_offset());
            }
        }
        self.is_known_to_end_none_begun_before(offset)
    }

    /// [`Segment::ends_none_begun_before`] from what was looked up already.
    pub(crate) fn is_known_to_end_none_begun_before(&self, offset: i64) -> bool {
        let undecided = self.undecided_before.get();
        undecided.is_some_and(|first| first.is_none_or(|first| first >= offset))
    }

    /// Replaces the entries. The index of a foreign segment is kept in memory.
    pub(crate) fn replace_aborted(&self, found: &[AbortedTxn]) -> Result<()> {
        let index = match self.access {
            Access::Owned => self.reset_txn_index()?,
            Access::Foreign => {
                let path = segment_file(&self.dir, self.base_offset, TXN_INDEX_SUFFIX);
                let index = TxnIndex::kept(&path, found);
                *self.transactions.write() = Some(Arc::new(index));
                return Ok(());
            }
        };
        found.iter().try_for_each(|entry| index.append_or_keep(*entry))
    }

    /// Allocates space for so many aborted transactions before their markers are written, so that a full disk
    /// refuses both.
    pub(crate) fn reserve_aborted(&self, count: usize) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        self.txn_index()?.reserve(count)
    }

    /// Adds transactions whose abort markers were appended.
    pub(crate) fn append_aborted(&self, aborted: &[AbortedTxn]) -> Result<()> {
        if aborted.is_empty() {
            return Ok(());
        }
        let index = self.txn_index()?;
        let is_first = index.is_empty();
        aborted.iter().try_for_each(|entry| index.append(*entry))?;
        if is_first {
            // The file is new, and the next flush must flush its name.
            self.directory_synced.store(false, Ordering::Release);
        }
        Ok(())
    }

    pub(crate) fn flush_txn_index(&self) -> Result<()> {
        let opened = self.transactions.read().clone();
        match opened {
            Some(index) if !index.is_empty() => index.flush(),
            Some(_) | None => Ok(()),
        }
    }
}
