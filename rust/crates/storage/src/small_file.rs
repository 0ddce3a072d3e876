//! Small files that are replaced whole, for the crates that keep such beside a log.

use std::path::Path;

use crate::error::Result;
use crate::files;

/// Writes a file whole, or leaves the old one: a temporary file beside it, fsync, rename, fsync of the directory.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    files::replace_file(path, bytes)
}

/// Reads a file; `None` when it is not there. More than `limit` bytes is corruption.
pub fn read(path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
    files::read_small(path, limit)
}
