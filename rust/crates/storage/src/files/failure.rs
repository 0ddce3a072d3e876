//! Why a log directory is offline (`LogDirFailureChannel`).
//!
//! All logs in a directory share one value, because they share the disk: after one log's write or fsync
//! fails, the others must not write either. Any thread may set it, once. The directory must be opened again.
//! Damaged files, a full disk and a lack of descriptors do not take a directory offline: see
//! [`StorageError::is_directory_failure`].

use std::path::Path;
use std::sync::OnceLock;

use crate::error::{Result, StorageError};

#[derive(Debug, Default)]
pub(crate) struct DirFailure(OnceLock<String>);

impl DirFailure {
    /// Takes the directory offline if `error` is a failure of its disk.
    pub(crate) fn note(&self, error: &StorageError) {
        if error.is_directory_failure() {
            let _first_reason_stays = self.0.set(error.to_string());
        }
    }

    /// Why the directory is offline; `None` when it is not.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }

    /// Errors: [`StorageError::Offline`] of `path`.
    pub(crate) fn check(&self, path: &Path) -> Result<()> {
        match self.reason() {
            None => Ok(()),
            Some(reason) => Err(StorageError::Offline {
                dir: path.to_path_buf(),
                reason: reason.to_owned(),
            }),
        }
    }
}
