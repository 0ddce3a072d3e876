//! What a Python log stands on: a directory opened by itself, and those who wait for it to grow.

use logcore_columns::LogSource;
use logcore_storage::watch::{Signal, Watch};
use logcore_storage::{Appended, Log, StandaloneLog, StorageError};

/// An open log, shared by the Python object, the scans over it and those who follow it.
pub(crate) struct Handle {
    log: StandaloneLog,
    readonly: bool,
    /// The process whose log this is: a child that it forks has a copy that never grows.
    opened_by: u32,
    grown: Signal,
}

impl Handle {
    pub(super) fn new(log: StandaloneLog, readonly: bool) -> Self {
        Self {
            log,
            readonly,
            opened_by: std::process::id(),
            grown: Signal::default(),
        }
    }

    pub(super) fn is_readonly(&self) -> bool {
        self.readonly
    }

    /// Appends whole v2 batches.
    pub(super) fn append(&self, batches: &mut [u8]) -> Result<Appended, StorageError> {
        let appended = self.log.append(batches)?;
        self.grown.notify();
        Ok(appended)
    }

    /// Flushes, closes and frees the lock; those who wait are told that it is closed.
    pub(super) fn close(&self) -> Result<(), StorageError> {
        let closed = self.log.close();
        self.grown.notify();
        closed
    }

    /// Sees the log grow from now on.
    pub(super) fn watch(&self) -> Result<Watch, StorageError> {
        let dir = self.log.dir();
        if self.readonly {
            return Watch::directory(&dir);
        }
        if self.opened_by != std::process::id() {
            return Err(StorageError::Closed { dir });
        }
        self.grown.watch(&dir)
    }
}

impl LogSource for Handle {
    fn log(&self) -> &Log {
        &self.log
    }
}
