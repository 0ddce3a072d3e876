//! Why a member's files cannot be used.

use std::path::{Path, PathBuf};

use logcore_storage::StorageError;
use thiserror::Error;

#[derive(Debug, Error)]
pub enum OpenError {
    /// An error of the log.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The files do not fit together.
    #[error(
        "{path}: {reason}. This member may have lost votes or entries that it acknowledged: move the \
         directory away and start the member again, and it joins anew"
    )]
    Corrupt { path: PathBuf, reason: String },
    #[error("{path}: this is not the directory of a member of an ensemble")]
    NoMember { path: PathBuf },
    #[error(
        "{path}: this is the directory of server {found}, and this is server {server}: give the server its \
         own directory, or correct its id"
    )]
    WrongServer { path: PathBuf, found: u16, server: u16 },
}

impl OpenError {
    pub(crate) fn corrupt(path: &Path, reason: impl Into<String>) -> Self {
        Self::Corrupt {
            path: path.to_path_buf(),
            reason: reason.into(),
        }
    }
}
