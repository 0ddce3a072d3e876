//! Indexes of a segment that is opened on a full disk. They are built in memory, because a log with all its
//! records must be readable. Their files are written before the next append. A crash loses nothing: an index
//! without a file is rebuilt.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Indexes, Placed, Segment, Tail};
use crate::error::{Result, StorageError};
use crate::files::{self, remove_if_exists};

/// The smallest batch: a message v0 without a value.
const BATCH_SIZE_MIN: u64 = 26;

impl Segment {
    /// New index files for `size` bytes of records; in memory when the disk is full.
    pub(super) fn new_indexes(&self, size: u64) -> Result<Indexes> {
        match Indexes::create(&self.dir, self.base_offset, self.index_capacity(size)) {
            Err(error) if error.is_disk_full() => self.unsaved_indexes(size),
            created => created,
        }
    }

    /// [`Tail::add`] that continues in memory once the disk is full.
    pub(super) fn add_to(
        &self,
        indexes: &mut Indexes,
        tail: &mut Tail,
        batch: Placed,
        size: u64,
    ) -> Result<()> {
        let before = *tail;
        match tail.add(batch, self.settings, indexes) {
            Err(error) if error.is_disk_full() => {
                let unsaved = self.unsaved_indexes(size)?;
                indexes.copy_to(&unsaved, before.next_offset, before.size)?;
                (*indexes, *tail) = (unsaved, before);
                tail.add(batch, self.settings, indexes)
            }
            added => added,
        }
    }

    /// Moves opened indexes into memory, because the disk has no space for the rest of them.
    pub(crate) fn move_indexes_to_memory(&self) -> Result<()> {
        let old = self.indexes()?;
        let mut slot = self.indexes.write();
        let unsaved = self.unsaved_indexes(self.size())?;
        old.copy_to(&unsaved, i64::MAX, u64::MAX)?;
        *slot = Some(Arc::new(unsaved));
        Ok(())
    }

    /// Empty indexes in memory. Their files are removed, so that none is taken for complete.
    pub(super) fn unsaved_indexes(&self, size: u64) -> Result<Indexes> {
        let (offset, time) = self.index_paths();
        remove_if_exists(&offset)?;
        remove_if_exists(&time)?;
        let interval = u64::from(self.settings.interval_bytes).max(BATCH_SIZE_MIN);
        // One more at each end: the last entry is for the largest timestamp.
        let entries = size / interval + 2;
        Ok(Indexes::unsaved(&self.dir, self.base_offset, entries as usize))
    }

    /// True when an index is in memory only.
    pub(crate) fn is_incomplete(&self) -> bool {
        let unsaved = |indexes: &Arc<Indexes>| indexes.is_unsaved();
        self.indexes.read().as_ref().is_some_and(unsaved)
            || self
                .transactions
                .read()
                .as_ref()
                .is_some_and(|index| index.is_unsaved())
    }

    /// Writes the files of indexes that are in memory only. `active` for the segment that is appended to. The
    /// caller has the log's writer lock.
    ///
    /// Errors: also a disk that is still full, after which everything is as before.
    pub(crate) fn complete(&self, active: bool) -> Result<()> {
        let transactions = self.transactions.read().clone();
        if let Some(transactions) = transactions.filter(|index| index.is_unsaved()) {
            // First: the other indexes without this one mean that the segment has no aborted transactions.
            transactions.save()?;
            transactions
                .flush()
                .and_then(|()| files::sync_dir(&self.dir))
                .map_err(|cause| {
                    // It is not tried again: the data may be lost.
                    StorageError::io("fsync", self.path())(io::Error::other(cause.to_string()))
                })?;
        }
        let indexes = self.indexes()?;
        let reopen = active && self.is_sealed();
        if !indexes.is_unsaved() && !reopen {
            return Ok(());
        }
        let tail = self.tail();
        // Appends compare with the largest timestamp.
        self.largest()?;
        let mut slot = self.indexes.write();
        let save = || {
            let capacity = self.index_capacity(tail.size);
            let saved = Indexes::create(&self.dir, self.base_offset, capacity)?;
            indexes.copy_to(&saved, i64::MAX, u64::MAX)?;
            if !active {
                saved.trim()?;
            }
            Ok(saved)
        };
        let saved = save().or_else(|error| {
            // A part of an index is not kept.
            self.unsaved_indexes(0)?;
            Err(error)
        })?;
        if reopen {
            let last = saved.offset.last().map_or(0, |last| last.position);
            self.tail.lock().bytes_since_index = tail.size - last.min(tail.size);
        }
        *slot = Some(Arc::new(saved));
        self.unsynced_indexes.store(true, Ordering::Release);
        self.directory_synced.store(false, Ordering::Release);
        self.sealed.store(!active, Ordering::Release);
        Ok(())
    }
}
