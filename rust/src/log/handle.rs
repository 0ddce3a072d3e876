//! What a Python log stands on: a directory opened by itself.

use logcore_columns::LogSource;
use logcore_storage::{Appended, Log, StandaloneLog, StorageError};

/// An open log, shared by the Python object and the scans over it.
pub(crate) struct Handle {
    log: StandaloneLog,
}

impl Handle {
    pub(super) fn new(log: StandaloneLog) -> Self {
        Self { log }
    }

    /// Appends whole v2 batches.
    pub(super) fn append(&self, batches: &mut [u8]) -> Result<Appended, StorageError> {
        self.log.append(batches)
    }

    /// Flushes, closes and frees the lock.
    pub(super) fn close(&self) -> Result<(), StorageError> {
        self.log.close()
    }
}

impl LogSource for Handle {
    fn log(&self) -> &Log {
        &self.log
    }
}
