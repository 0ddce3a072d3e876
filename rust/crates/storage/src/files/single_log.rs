//! What a log that is used without a broker keeps in its own directory: where it begins, and up to where it
//! is on disk.
//!
//! Inside a broker's log directory the broker's checkpoint files have both instead.

use std::path::Path;

use super::checkpoints::{LOG_START_FILE, read_offsets};
use super::{LOG_SUFFIX, file_names, flushed_mark, offset_of, remove_if_exists};
use crate::error::Result;

/// The topic name of a single log in its own checkpoint files. Its partition is 0.
pub(crate) const TOPIC: &str = "log";

/// The log start offset of a single log, if it was ever moved.
pub(crate) fn own_log_start(dir: &Path) -> Option<i64> {
    // With a damaged file the log begins at its first segment.
    let offsets = read_offsets(&dir.join(LOG_START_FILE)).ok()?;
    offsets.get(&(TOPIC.to_owned(), 0)).copied()
}

/// Removes the file, once the broker's checkpoint has the offset.
pub(crate) fn forget_own_start(dir: &Path) -> Result<()> {
    remove_if_exists(&dir.join(LOG_START_FILE)).map(|_| ())
}

/// The offset below which a single log is on disk: each segment is flushed when the next begins, and the
/// flushed mark may be further.
pub(crate) fn own_recovery_point(dir: &Path) -> Result<i64> {
    let names = file_names(dir)?;
    let last_base = names
        .iter()
        .filter_map(|name| offset_of(name, LOG_SUFFIX))
        .next_back();
    Ok(last_base.max(flushed_mark::read(dir)).unwrap_or(0))
}
