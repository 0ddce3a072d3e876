//! Why nothing is written to a log directory any more (`LogDirFailureChannel`).
//!
//! One for each directory, shared by the logs in it: what one log's write or fsync meets, the disk would do to the others
//! too. Set once, from any thread; the directory has to be opened anew. A damaged file is no reason, and neither are a full disk
//! nor a want of descriptors: see [`StorageError::is_directory_failure`].

use std::path::Path;
use std::sync::OnceLock;

use crate::error::{Result, StorageError};

#[derive(Debug, Default)]
pub(crate) struct DirFailure(OnceLock<String>);

impl DirFailure {
    /// Takes the directory offline if `error` is its disk's fault.
    pub(crate) fn note(&self, error: &StorageError) {
        if error.is_directory_failure() {
            let _first_reason_stays = self.0.set(error.to_string());
        }
    }

    /// Why the directory is offline, if it is.
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
