//! Up to where a log is on disk for certain, noted at every flush.
//!
//! ```text
//! flushed   8 bytes of magic, then the offset, big-endian: replaced in place
//! ```
//!
//! A log in a broker's directory has the broker's recovery point. One that is by itself has its last segment's base offset, and
//! if whoever appends acknowledges what is flushed, this file, with which damage to what was acknowledged is told from the torn
//! tail of what was not ([`crate::StandaloneLog::note_flushes`]). It goes when the log is closed.
//!
//! The note is not flushed itself, so a power loss leaves an older one, which says less. Before the log is cut it is lowered,
//! on disk: the note is never beyond what may be missing. Eight bytes are written as one.

use std::fs::File;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

pub(crate) use super::names::FLUSHED_FILE;
use crate::error::{Result, StorageError};
use crate::files;
use crate::files::disk;

const MAGIC: &[u8; 8] = b"LCFLUSH1";
const SIZE: u64 = 16;

/// The note of a log that is open.
#[derive(Debug)]
pub(crate) struct FlushedMark {
    file: File,
    path: PathBuf,
    /// Nothing beyond it is noted: the log is about to be cut there.
    ceiling: Mutex<i64>,
}

impl FlushedMark {
    /// Begins to note, on disk when it returns.
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

    /// Notes what a flush has come to, which is asked for once nobody cuts the log.
    pub(crate) fn note(&self, recovery_point: impl FnOnce() -> i64) {
        let ceiling = self.ceiling.lock();
        let offset = recovery_point().min(*ceiling);
        // An older note says less, and is as true.
        let _ = disk::write_all_at(&self.file, &self.path, &offset.to_be_bytes(), 8);
    }

    /// Before the log is cut at `end`; on disk when it returns.
    pub(crate) fn lower(&self, end: i64, recovery_point: i64) -> Result<()> {
        let mut ceiling = self.ceiling.lock();
        *ceiling = end;
        let offset = recovery_point.min(end);
        disk::write_all_at(&self.file, &self.path, &offset.to_be_bytes(), 8)
            .and_then(|()| disk::sync(&self.file, &self.path))
            .map_err(StorageError::io("write", &self.path))
    }

    /// The log is cut.
    pub(crate) fn rise(&self) {
        *self.ceiling.lock() = i64::MAX;
    }
}

/// What the note of a log that is not open says; nothing that is no note says anything.
pub(crate) fn read(dir: &Path) -> Option<i64> {
    let bytes = files::read_small(&dir.join(FLUSHED_FILE), SIZE).ok()??;
    let (magic, offset) = bytes.split_first_chunk::<8>()?;
    let offset = i64::from_be_bytes(offset.try_into().ok()?);
    (magic == MAGIC && offset >= 0).then_some(offset)
}

/// Forgets the note.
pub(crate) fn remove(dir: &Path) -> Result<()> {
    files::remove_if_exists(&dir.join(FLUSHED_FILE)).map(|_| ())
}
