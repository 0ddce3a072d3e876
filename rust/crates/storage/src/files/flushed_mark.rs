//! The offset up to which a log is on disk, noted at every flush.
//!
//! ```text
//! flushed   8 bytes of magic, then the offset, big-endian: replaced in place
//! ```
//!
//! Used by a log without a broker whose caller acknowledges what it flushed
//! ([`crate::StandaloneLog::note_flushes`]). The mark tells damage to acknowledged batches from a torn tail
//! of batches that were not acknowledged. Without the mark, the base offset of the last segment is all that
//! is known to be on disk. A log in a broker's directory has the broker's recovery point instead. Closing the
//! log removes the file.
//!
//! The mark itself is not flushed, so a power loss may leave an older one, which claims less. Before the log
//! is truncated the mark is lowered, and that is flushed: it never claims more than the disk has. The disk
//! writes eight bytes at once.

use std::fs::File;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

pub(crate) use super::names::FLUSHED_FILE;
use crate::error::{Result, StorageError};
use crate::files;
use crate::files::disk;

const MAGIC: &[u8; 8] = b"LCFLUSH1";
const SIZE: u64 = 16;

/// The mark of an open log.
#[derive(Debug)]
pub(crate) struct FlushedMark {
    file: File,
    path: PathBuf,
    /// No higher offset is noted while the log is truncated to it.
    ceiling: Mutex<i64>,
}

impl FlushedMark {
    /// Creates the mark; it is on disk when this returns.
    pub(crate) fn create(dir: &Path, offset: i64) -> Result<Self> {
        let path = dir.join(FLUSHED_FILE);
        let file = disk::open(&path).map_err(StorageError::io("create", &path))?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend(offset.to_be_bytes());
        disk::write_all_at(&file, &path, &bytes, 0)
            .and_then(|()| disk::sync(&file, &path))
            .map_err(StorageError::io("write", &path))?;
        files::sync_dir(dir)?;
        Ok(Self {
            file,
            path,
            ceiling: Mutex::new(i64::MAX),
        })
    }

    /// Notes the recovery point after a flush. It is read under the lock that truncations take.
    pub(crate) fn note(&self, recovery_point: impl FnOnce() -> i64) {
        let ceiling = self.ceiling.lock();
        let offset = recovery_point().min(*ceiling);
        // After a failed write the file has an older mark, which is also true.
        let _ = disk::write_all_at(&self.file, &self.path, &offset.to_be_bytes(), 8);
    }

    /// Lowers the mark before the log is truncated to `end`; it is on disk when this returns.
    pub(crate) fn lower(&self, end: i64, recovery_point: i64) -> Result<()> {
        let mut ceiling = self.ceiling.lock();
        *ceiling = end;
        let offset = recovery_point.min(end);
        disk::write_all_at(&self.file, &self.path, &offset.to_be_bytes(), 8)
            .and_then(|()| disk::sync(&self.file, &self.path))
            .map_err(StorageError::io("write", &self.path))
    }

    /// Ends a truncation.
    pub(crate) fn rise(&self) {
        *self.ceiling.lock() = i64::MAX;
    }
}

/// The mark of a log that is not open; `None` for a file that is no mark.
pub(crate) fn read(dir: &Path) -> Option<i64> {
    let bytes = files::read_small(&dir.join(FLUSHED_FILE), SIZE).ok()??;
    let (magic, offset) = bytes.split_first_chunk::<8>()?;
    let offset = i64::from_be_bytes(offset.try_into().ok()?);
    (magic == MAGIC && offset >= 0).then_some(offset)
}

/// Removes the mark.
pub(crate) fn remove(dir: &Path) -> Result<()> {
    files::remove_if_exists(&dir.join(FLUSHED_FILE)).map(|_| ())
}
