//! The segment that a cleaning writes: a `.log` file and its indexes with `.cleaned` names.
//!
//! No reader sees it before the swap renames it. Batches go through one buffer; the indexes are in memory
//! until [`Output::finish`] writes and flushes everything. Dropping it before the swap removes the files. The
//! loader removes them after a crash.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::{Result, StorageError};
use crate::files::disk;
use crate::files::{
    CLEANED_FILES, INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, cleaned_file,
    remove_if_exists,
};
use crate::index::transactions::{AbortedTxn, TxnIndex};

pub(crate) struct Output {
    dir: PathBuf,
    pub(crate) base_offset: i64,
    interval_bytes: u64,
    path: PathBuf,
    file: File,
    /// Batches that are not written yet. Call [`Output::added`] after adding one.
    pub(crate) buffer: Vec<u8>,
    buffer_bytes: usize,
    written: u64,
    bytes_since_index: u64,
    offset_index: Vec<u8>,
    time_index: Vec<u8>,
    /// The largest timestamp so far and the last offset of its batch.
    largest: Option<(i64, i64)>,
    last_indexed_timestamp: i64,
    aborted: TxnIndex,
    swapped: bool,
}

impl Output {
    pub(crate) fn create(
        dir: &Path,
        base_offset: i64,
        interval_bytes: u32,
        mut buffer: Vec<u8>,
        buffer_bytes: usize,
    ) -> Result<Self> {
        let path = cleaned_file(dir, base_offset, LOG_SUFFIX);
        let file = disk::create(&path).map_err(StorageError::io("create", &path))?;
        buffer.clear();
        Ok(Self {
            dir: dir.to_path_buf(),
            base_offset,
            interval_bytes: u64::from(interval_bytes),
            path,
            file,
            buffer,
            buffer_bytes,
            written: 0,
            bytes_since_index: 0,
            offset_index: Vec::new(),
            time_index: Vec::new(),
            largest: None,
            last_indexed_timestamp: -1,
            aborted: TxnIndex::create(&cleaned_file(dir, base_offset, TXN_INDEX_SUFFIX))?,
            swapped: false,
        })
    }

    /// Notes a batch that was added to the end of the buffer.
    pub(crate) fn added(&mut self, size: usize, last_offset: i64, timestamp: i64) -> Result<()> {
        let position = self.written + (self.buffer.len() - size) as u64;
        if timestamp > self.largest.map_or(-1, |(largest, _)| largest) {
            self.largest = Some((timestamp, last_offset));
        }
        if self.bytes_since_index > self.interval_bytes {
            self.index(last_offset, position);
            self.bytes_since_index = 0;
        }
        self.bytes_since_index += size as u64;
        if self.buffer.len() >= self.buffer_bytes {
            self.write()?;
        }
        Ok(())
    }

    /// Adds an entry to each index, if it fits the index's 31 bits.
    fn index(&mut self, last_offset: i64, position: u64) {
        let relative = i32::try_from(last_offset - self.base_offset);
        if let (Ok(relative), Ok(position)) = (relative, i32::try_from(position)) {
            self.offset_index.extend(relative.to_be_bytes());
            self.offset_index.extend(position.to_be_bytes());
        }
        self.index_time();
    }

    fn index_time(&mut self) {
        let Some((timestamp, offset)) = self.largest else {
            return;
        };
        if timestamp <= self.last_indexed_timestamp {
            return;
        }
        if let Ok(relative) = i32::try_from(offset - self.base_offset) {
            self.time_index.extend(timestamp.to_be_bytes());
            self.time_index.extend(relative.to_be_bytes());
            self.last_indexed_timestamp = timestamp;
        }
    }

    /// Keeps an aborted transaction whose marker stays.
    pub(crate) fn keep_aborted(&self, transaction: AbortedTxn) -> Result<()> {
        self.aborted.append(transaction)
    }

    fn write(&mut self) -> Result<()> {
        disk::write_all_at(&self.file, &self.path, &self.buffer, self.written)
            .map_err(StorageError::io("write", &self.path))?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Writes the rest of the buffer and the indexes, gives the `.log` file the time of the last segment it
    /// replaces, and flushes everything.
    pub(crate) fn finish(&mut self, modified: SystemTime) -> Result<()> {
        self.write()?;
        self.index_time();
        let sync = |file: &File, path: &Path| disk::sync(file, path).map_err(StorageError::io("fsync", path));
        sync(&self.file, &self.path)?;
        for (suffix, bytes) in [
            (INDEX_SUFFIX, &self.offset_index),
            (TIME_INDEX_SUFFIX, &self.time_index),
        ] {
            let path = cleaned_file(&self.dir, self.base_offset, suffix);
            let file = disk::create(&path).map_err(StorageError::io("create", &path))?;
            disk::write_all_at(&file, &path, bytes, 0).map_err(StorageError::io("write", &path))?;
            sync(&file, &path)?;
        }
        self.aborted.flush()?;
        disk::set_modified(&self.file, modified).map_err(StorageError::io("set the time of", &self.path))
    }

    /// Bytes of log so far.
    pub(crate) fn size(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// The files were renamed, so dropping this removes nothing.
    pub(crate) fn was_swapped(&mut self) {
        self.swapped = true;
    }

    /// The buffer, for the next output.
    pub(crate) fn take_buffer(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.buffer)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.swapped {
            return;
        }
        for suffix in CLEANED_FILES {
            let path = cleaned_file(&self.dir, self.base_offset, suffix);
            let _left_for_the_loader = remove_if_exists(&path);
        }
    }
}
