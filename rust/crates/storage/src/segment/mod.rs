//! One segment: a `.log` file of batches and its three indexes (`LogSegment`).
//!
//! Owns the open file, the published size, and the indexes. Indexes of sealed segments are opened when first
//! used, and then checked or rebuilt. The log decides when to roll and what to append.
//!
//! One thread appends, with the log's writer lock. Readers use what is published: the tail's mutex is held
//! for a few loads or stores, never during I/O. A crash leaves a prefix of the written bytes, or random bytes
//! at the end. The loader cuts the file after the last whole batch.

mod full_disk;
mod lookup;
mod repair;
pub(crate) mod scan;
mod transactions;
mod truncate;

pub(crate) use repair::Torn;

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, RwLock};

use crate::clock::Now;
use crate::error::{Result, StorageError};
use crate::files::disk;
use crate::files::{INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, remove_if_exists, segment_file};
use crate::index::sparse::OffsetIndex;
use crate::index::sparse::{TimeEntry, TimeIndex};
use crate::index::transactions::TxnIndex;
use crate::segment::scan::{Next, StoredBatch};

/// The settings of the indexes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IndexSettings {
    pub(crate) interval_bytes: u32,
    pub(crate) max_bytes: u32,
}

#[derive(Debug)]
pub(crate) struct Indexes {
    pub(crate) offset: OffsetIndex,
    pub(crate) time: TimeIndex,
}

impl Indexes {
    fn create(dir: &Path, base_offset: i64, max_bytes: u32) -> Result<Self> {
        let offset = segment_file(dir, base_offset, INDEX_SUFFIX);
        let time = segment_file(dir, base_offset, TIME_INDEX_SUFFIX);
        // A new file: a reader may have mapped the old one, which must not be cut then.
        remove_if_exists(&offset)?;
        remove_if_exists(&time)?;
        Ok(Self {
            offset: OffsetIndex::create(&offset, base_offset, max_bytes)?,
            time: TimeIndex::create(&time, base_offset, max_bytes)?,
        })
    }

    /// Allocates disk space for `entries` more entries.
    fn reserve(&self, entries: usize) -> Result<()> {
        self.offset.reserve(entries)?;
        self.time.reserve(entries)
    }

    pub(crate) fn trim(&self) -> Result<()> {
        self.offset.trim()?;
        self.time.trim()
    }

    pub(crate) fn flush(&self) -> Result<()> {
        self.offset.flush()?;
        self.time.flush()
    }

    /// Indexes in memory, without files.
    fn unsaved(dir: &Path, base_offset: i64, entries: usize) -> Self {
        let offset = segment_file(dir, base_offset, INDEX_SUFFIX);
        let time = segment_file(dir, base_offset, TIME_INDEX_SUFFIX);
        Self {
            offset: OffsetIndex::unsaved(&offset, base_offset, entries),
            time: TimeIndex::unsaved(&time, base_offset, entries),
        }
    }

    fn is_unsaved(&self) -> bool {
        self.offset.is_unsaved() || self.time.is_unsaved()
    }

    /// Appends to `other` the entries below `next_offset` and in the first `size` bytes.
    fn copy_to(&self, other: &Self, next_offset: i64, size: u64) -> Result<()> {
        self.offset.copy_to(&other.offset, next_offset, size)?;
        self.time.copy_to(&other.time, next_offset)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.offset.is_full() || self.time.is_full()
    }
}

/// What readers may see.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tail {
    /// Bytes of whole batches.
    pub(crate) size: u64,
    /// The offset after the last record.
    pub(crate) next_offset: i64,
    /// The largest timestamp and the last offset of its batch.
    largest: Largest,
    /// The largest timestamp of the first batch, from which the age of the segment counts.
    first_timestamp: Option<i64>,
    bytes_since_index: u64,
}

/// A batch of an append, as the indexes and the tail need it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placed {
    /// In the file, or in the bytes that are appended.
    pub(crate) position: u64,
    /// Bytes, header included.
    pub(crate) size: u64,
    pub(crate) last_offset: i64,
    pub(crate) max_timestamp: i64,
}

impl From<&StoredBatch> for Placed {
    fn from(batch: &StoredBatch) -> Self {
        Self {
            position: batch.position,
            size: batch.size,
            last_offset: batch.last_offset,
            max_timestamp: batch.max_timestamp,
        }
    }
}

/// The active segment with the state that an append needs.
#[derive(Debug)]
pub(crate) struct OpenSegment {
    pub(crate) segment: Arc<Segment>,
    pub(crate) indexes: Arc<Indexes>,
    pub(crate) tail: Tail,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Largest {
    /// Not looked up yet in a sealed segment.
    Unknown,
    /// No record has a timestamp.
    None,
    At(TimeEntry),
}

/// How a segment's files may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// This process has locked the directory.
    Owned,
    /// Another process owns them: nothing is written or mapped.
    Foreign,
}

#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) base_offset: i64,
    pub(crate) created_ms: i64,
    dir: PathBuf,
    path: Arc<PathBuf>,
    file: Arc<File>,
    access: Access,
    settings: IndexSettings,
    tail: Mutex<Tail>,
    indexes: RwLock<Option<Arc<Indexes>>>,
    transactions: RwLock<Option<Arc<TxnIndex>>>,
    /// The first offset of the transactions that were open when the segment began, once it was looked up. It
    /// never changes.
    undecided_before: OnceLock<Option<i64>>,
    sealed: AtomicBool,
    /// The indexes have entries, or a size, that may not be on disk.
    unsynced_indexes: AtomicBool,
    /// The files belong to another segment now, so no file may be opened any more.
    retired: AtomicBool,
    /// The directory entries of this segment's files are on disk.
    pub(crate) directory_synced: AtomicBool,
}

impl Segment {
    pub(crate) fn create(dir: &Path, base_offset: i64, settings: IndexSettings, now_ms: i64) -> Result<Self> {
        let path = segment_file(dir, base_offset, LOG_SUFFIX);
        let file = disk::create(&path).map_err(StorageError::io("create", &path))?;
        let segment = Self::new(dir, path, file, base_offset, settings, Access::Owned);
        *segment.indexes.write() = Some(Arc::new(Indexes::create(dir, base_offset, settings.max_bytes)?));
        segment.reset_txn_index()?;
        segment.tail.lock().largest = Largest::None;
        Ok(Self {
            created_ms: now_ms,
            sealed: AtomicBool::new(false),
            ..segment
        })
    }

    /// Opens an existing segment. Its size is that of the file. Its next offset is unknown before
    /// [`Segment::set_next_offset`], [`Segment::recover`] or [`Segment::find_end`]. Its indexes are opened
    /// when they are used.
    pub(crate) fn open(
        dir: &Path,
        base_offset: i64,
        settings: IndexSettings,
        access: Access,
        now_ms: i64,
    ) -> Result<Self> {
        let path = segment_file(dir, base_offset, LOG_SUFFIX);
        let file = OpenOptions::new()
            .read(true)
            .write(access == Access::Owned)
            .open(&path)
            .map_err(StorageError::io("open", &path))?;
        let segment = Self::new(dir, path, file, base_offset, settings, access);
        segment.tail.lock().size = segment.file_size()?;
        Ok(Self {
            created_ms: now_ms,
            ..segment
        })
    }

    fn new(
        dir: &Path,
        path: PathBuf,
        file: File,
        base_offset: i64,
        settings: IndexSettings,
        access: Access,
    ) -> Self {
        Self {
            base_offset,
            created_ms: 0,
            dir: dir.to_path_buf(),
            path: Arc::new(path),
            file: Arc::new(file),
            access,
            settings,
            tail: Mutex::new(Tail {
                size: 0,
                next_offset: base_offset,
                largest: Largest::Unknown,
                first_timestamp: None,
                bytes_since_index: 0,
            }),
            indexes: RwLock::new(None),
            transactions: RwLock::new(None),
            undecided_before: OnceLock::new(),
            sealed: AtomicBool::new(true),
            unsynced_indexes: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            directory_synced: AtomicBool::new(false),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Bytes in the file, published or not.
    pub(crate) fn file_size(&self) -> Result<u64> {
        let metadata = self
            .file
            .metadata()
            .map_err(StorageError::io("read", self.path()))?;
        Ok(metadata.len())
    }

    pub(crate) fn tail(&self) -> Tail {
        *self.tail.lock()
    }

    pub(crate) fn size(&self) -> u64 {
        self.tail.lock().size
    }

    pub(crate) fn next_offset(&self) -> i64 {
        self.tail.lock().next_offset
    }

    /// Seals a segment that ends where the next one begins.
    pub(crate) fn set_next_offset(&self, next_offset: i64) {
        self.tail.lock().next_offset = next_offset;
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }

    pub(crate) fn corrupt(&self, position: u64, reason: String) -> StorageError {
        StorageError::Corrupt {
            path: self.path().to_path_buf(),
            position,
            reason,
        }
    }

    /// The time of the file's last write.
    pub(crate) fn modified(&self) -> Result<SystemTime> {
        self.file
            .metadata()
            .and_then(|metadata| metadata.modified())
            .map_err(StorageError::io("read", self.path()))
    }

    /// [`Segment::modified`] in milliseconds since the epoch.
    pub(crate) fn modified_ms(&self) -> Result<i64> {
        let since = self.modified()?.duration_since(UNIX_EPOCH);
        Ok(since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX)))
    }

    // ---- appending ----

    /// True when positions and offsets fit the index's 31 bits.
    pub(crate) fn can_hold(&self, last_offset: i64) -> bool {
        last_offset - self.base_offset <= i64::from(i32::MAX)
    }

    /// The caller has the log's writer lock.
    pub(crate) fn open_to_append(self: Arc<Self>) -> Result<OpenSegment> {
        Ok(OpenSegment {
            indexes: self.indexes()?,
            tail: self.tail(),
            segment: self,
        })
    }

    /// The largest timestamp of the first batch; `None` for an empty segment.
    pub(crate) fn first_timestamp(&self) -> Result<Option<i64>> {
        let tail = self.tail();
        let first = match tail.first_timestamp {
            Some(first) => first,
            None if tail.size == 0 => -1,
            None => {
                let first = match self.scan_headers(0, tail.size).next() {
                    Ok(Next::Batch(batch)) => batch.max_timestamp,
                    Ok(Next::End | Next::Torn(_)) => -1,
                    Err(error) => return Err(StorageError::io("read", self.path())(error)),
                };
                self.tail.lock().first_timestamp = Some(first);
                first
            }
        };
        Ok((first >= 0).then_some(first))
    }

    /// Cuts off what an append wrote before the disk was full, so that the file ends with a whole batch. The
    /// cut is flushed for a power loss, because closing does not flush when nothing was appended.
    fn take_back(&self, size: u64, error: StorageError) -> Result<()> {
        if error.is_disk_full() && self.file_size()? > size {
            // After an error here the file must not be used: a partial batch may be at its end.
            disk::set_len(&self.file, self.path(), size)
                .and_then(|()| disk::sync(&self.file, self.path()))
                .map_err(|cause| {
                    StorageError::io("truncate", self.path())(io::Error::other(cause.to_string()))
                })?;
        }
        Err(error)
    }

    /// Publishes what was appended.
    pub(crate) fn publish(&self, tail: Tail) {
        *self.tail.lock() = tail;
    }

    /// Ends the appends: the time index gets its last entry, and the index files are trimmed.
    pub(crate) fn seal(&self) -> Result<()> {
        self.trim()?;
        self.sealed.store(true, Ordering::Release);
        Ok(())
    }

    fn trim(&self) -> Result<()> {
        // Sealed indexes were trimmed before.
        if self.sealed.load(Ordering::Acquire) {
            return Ok(());
        }
        let indexes = self.indexes()?;
        if let Some(largest) = self.largest()? {
            indexes.time.append(largest)?;
        }
        indexes.trim()
    }

    /// Flushes the records, and the indexes of a sealed segment. Recovery rebuilds those of an active
    /// segment.
    pub(crate) fn flush(&self) -> Result<()> {
        disk::sync(&self.file, self.path()).map_err(StorageError::io("fsync", self.path()))?;
        if !self.is_sealed() {
            return Ok(());
        }
        let opened = self.indexes.read().clone();
        if let Some(indexes) = opened {
            indexes.flush()?;
        }
        self.flush_txn_index()?;
        self.unsynced_indexes.store(false, Ordering::Release);
        Ok(())
    }

    /// True when a flush has more to do than the records.
    pub(crate) fn has_unsynced_indexes(&self) -> bool {
        self.unsynced_indexes.load(Ordering::Acquire)
    }

    // ---- indexes ----

    /// The indexes, opened if they were not. Missing or damaged ones of an owned segment are rebuilt.
    pub(crate) fn indexes(&self) -> Result<Arc<Indexes>> {
        if let Some(indexes) = &*self.indexes.read() {
            return Ok(indexes.clone());
        }
        let mut slot = self.indexes.write();
        if let Some(indexes) = &*slot {
            return Ok(indexes.clone());
        }
        let indexes = match self.load_indexes() {
            Ok(Some(indexes)) => indexes,
            Ok(None) | Err(StorageError::Io { .. } | StorageError::Corrupt { .. }) => {
                match self.access {
                    Access::Owned if self.owns_files() => self.build_indexes()?,
                    // Foreign, or deleted while a reader uses it: searches scan.
                    Access::Owned | Access::Foreign => self.no_indexes(),
                }
            }
            Err(other) => return Err(other),
        };
        let indexes = Arc::new(indexes);
        *slot = Some(indexes.clone());
        Ok(indexes)
    }

    /// Whether [`Segment::indexes`] has them open. Otherwise it opens files, and may read the whole segment.
    pub(crate) fn has_open_indexes(&self) -> bool {
        self.indexes.read().is_some()
    }

    /// Rebuilds indexes that led to a wrong batch. Returns false for indexes that are not rebuilt here.
    fn distrust_indexes(&self) -> Result<bool> {
        let mut slot = self.indexes.write();
        // Checked under the lock: a truncation makes a sealed segment an active one.
        if self.access != Access::Owned || !self.sealed.load(Ordering::Acquire) {
            // The indexes of an active segment were written by this process, and foreign ones belong to their
            // owner.
            return Ok(false);
        }
        *slot = Some(Arc::new(if self.owns_files() {
            self.build_indexes()?
        } else {
            self.no_indexes()
        }));
        Ok(true)
    }

    /// True while its file names are its own.
    fn owns_files(&self) -> bool {
        !self.retired.load(Ordering::Acquire) && self.path.exists()
    }

    /// Prepares for another segment's files to replace this one's. Readers continue with the open files.
    /// Indexes that are not open are opened now, because their files will be gone.
    pub(crate) fn retire(&self) {
        // An index that cannot be read now fails later, when a reader needs it.
        let _opened = self.txn_index();
        let mut slot = self.indexes.write();
        if slot.is_none() {
            let loaded = self.load_indexes().ok().flatten();
            *slot = Some(Arc::new(loaded.unwrap_or_else(|| self.no_indexes())));
        }
        self.retired.store(true, Ordering::Release);
    }

    /// Bytes of the two index files; 0 for a missing one.
    pub(crate) fn index_sizes(&self) -> Result<(u64, u64)> {
        let (offset, time) = self.index_paths();
        let size = |path: PathBuf| match std::fs::metadata(&path) {
            Ok(metadata) => Ok(metadata.len()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(StorageError::io("read", &path)(error)),
        };
        Ok((size(offset)?, size(time)?))
    }

    /// The transactions whose abort marker is in this segment.
    #[cfg(test)]
    pub(crate) fn aborted_transactions(&self) -> Result<Vec<crate::index::transactions::AbortedTxn>> {
        self.txn_index().map(|index| index.entries())
    }

    fn index_paths(&self) -> (PathBuf, PathBuf) {
        (
            segment_file(&self.dir, self.base_offset, INDEX_SUFFIX),
            segment_file(&self.dir, self.base_offset, TIME_INDEX_SUFFIX),
        )
    }

    fn no_indexes(&self) -> Indexes {
        let (offset, time) = self.index_paths();
        Indexes {
            offset: OffsetIndex::none(&offset, self.base_offset),
            time: TimeIndex::none(&time, self.base_offset),
        }
    }
}

impl OpenSegment {
    /// The age of the segment in milliseconds when a record with `timestamp` arrives.
    pub(crate) fn age_ms(&mut self, now: Now, timestamp: i64) -> Result<i64> {
        let first = match self.tail.first_timestamp {
            Some(first) => first,
            None => self.segment.first_timestamp()?.unwrap_or(-1),
        };
        self.tail.first_timestamp = Some(first);
        Ok(match Some(first).filter(|first| *first >= 0) {
            Some(first) => timestamp - first,
            None => now.ms() - self.segment.created_ms,
        })
    }

    /// Writes the batches in one piece after the last and indexes them. Readers see them after
    /// [`Segment::publish`]. `batches` describes `bytes`.
    ///
    /// After an error the tail is as before.
    pub(crate) fn append(
        &mut self,
        bytes: &[u8],
        batches: impl ExactSizeIterator<Item = Placed>,
    ) -> Result<()> {
        let (segment, mut tail) = (&*self.segment, self.tail);
        // Before the write: otherwise a full disk could refuse one entry and leave others.
        self.indexes.reserve(batches.len())?;
        disk::write_all_at(&segment.file, segment.path(), bytes, tail.size)
            .map_err(StorageError::io("append to", segment.path()))
            .or_else(|error| segment.take_back(tail.size, error))?;
        let start = tail.size;
        for batch in batches {
            let batch = Placed {
                position: start + batch.position,
                ..batch
            };
            tail.add(batch, segment.settings, &self.indexes)?;
        }
        segment.unsynced_indexes.store(true, Ordering::Release);
        self.tail = tail;
        Ok(())
    }
}

impl Tail {
    /// Adds a batch to the tail, and to the indexes when enough bytes have been appended.
    fn add(&mut self, batch: Placed, settings: IndexSettings, indexes: &Indexes) -> Result<()> {
        if batch.position == 0 {
            self.first_timestamp = Some(batch.max_timestamp);
        }
        let entry = TimeEntry {
            timestamp: batch.max_timestamp,
            offset: batch.last_offset,
        };
        self.largest = match self.largest {
            Largest::At(largest) if largest.timestamp >= entry.timestamp => Largest::At(largest),
            Largest::At(_) => Largest::At(entry),
            Largest::None if entry.timestamp >= 0 => Largest::At(entry),
            Largest::None => Largest::None,
            // `largest` resolves this before the first append.
            Largest::Unknown => Largest::Unknown,
        };
        if self.bytes_since_index > u64::from(settings.interval_bytes) {
            indexes.offset.append(batch.last_offset, batch.position)?;
            // The last entry is reserved for the segment's largest timestamp, which retention and searches
            // use.
            if let Largest::At(largest) = self.largest
                && !indexes.time.is_full()
            {
                indexes.time.append(largest)?;
            }
            self.bytes_since_index = 0;
        }
        self.bytes_since_index += batch.size;
        self.size = batch.position + batch.size;
        self.next_offset = batch.last_offset + 1;
        Ok(())
    }
}
