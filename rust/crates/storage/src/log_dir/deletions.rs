//! Deleting logs: the directory is renamed at once (`-delete`) and removed after `file.delete.delay.ms`, as
//! in Kafka (`LogManager.asyncDelete`). So a deletion does not wait for the unlinking of a large log's files.
//!
//! A crash leaves the renamed directory. The next opening removes it, also after the delay.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use super::{Found, LogDir, Opening, Partition, partition_path};
use crate::clock::system_now_ms;
use crate::error::{Result, StorageError};
use crate::files;
use crate::files::disk;
use crate::files::partition_dir::{self, Key, Kind};

impl LogDir {
    /// Deletes a log: ends its appends and reads, and renames its directory so that a crash cannot bring it
    /// back. [`LogDir::maintain`] removes the directory after `file.delete.delay.ms`, or [`LogDir::close`].
    /// Slices that were returned before stay readable.
    ///
    /// Errors: [`StorageError::NotFound`]; [`StorageError::Offline`], after which the log is not served
    /// either.
    pub fn delete(&self, topic: &str, partition: i32) -> Result<()> {
        let _changing = self.changing.lock();
        self.check_open()?;
        let key = (topic.to_owned(), partition);
        let removed = self.partitions.write().remove(&key);
        let removed = removed.ok_or_else(|| StorageError::NotFound {
            path: partition_path(&self.path, &key),
        })?;
        self.remove(&removed)
    }

    /// Renames the directory of a log that was removed from the list.
    pub(super) fn remove(&self, removed: &Partition) -> Result<()> {
        removed.log.abandon();
        self.check_usable()?;
        let key = (removed.topic.clone(), removed.partition);
        let renamed = rename_deleted(&removed.log.dir(), &key).map_err(|error| self.fail(error))?;
        let delay_ms = removed.log.config().file_delete_delay_ms;
        let due_ms = system_now_ms().saturating_add(delay_ms);
        self.deletions.lock().push((due_ms, renamed));
        // They are written before a log is created, so no log begins with an entry of a deleted one. Written
        // here, they would make the deletion of a large topic take a second for every few logs.
        self.checkpoints_stale.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Removes directories that are due. The next opening removes those that cannot be removed now.
    ///
    /// Errors: the first one.
    pub(super) fn remove_deleted(&self, now_ms: i64) -> Result<()> {
        let due: Vec<PathBuf> = {
            let mut deletions = self.deletions.lock();
            let is_due = |(due_ms, _): &mut (i64, PathBuf)| *due_ms <= now_ms;
            let due = deletions.extract_if(.., is_due);
            due.map(|(_, path)| path).collect()
        };
        let mut first = Ok(());
        for path in due {
            let removed = disk::remove_dir_all(&path).map_err(StorageError::io("remove", &path));
            first = first.and(removed);
        }
        first
    }
}

/// Renames a log's directory to that of a deleted log and flushes the name; returns the new path.
pub(super) fn rename_deleted(dir: &Path, (topic, partition): &Key) -> Result<PathBuf> {
    let renamed = dir.with_file_name(partition_dir::with_suffix(topic, *partition, Kind::Deleted)?);
    disk::rename(dir, &renamed).map_err(StorageError::io("rename", dir))?;
    files::sync_parent(&renamed)?;
    Ok(renamed)
}

/// Takes the directories of deleted logs out of `found`, with the time of their removal. One without any file
/// of a log is foreign, whatever its name. The names are on disk when this returns, so a log that was gone
/// once does not come back.
pub(super) fn take(
    found: &mut Vec<Found>,
    opening: &Opening<'_>,
    warnings: &mut Vec<String>,
) -> Result<Vec<(i64, PathBuf)>> {
    let now_ms = system_now_ms();
    let mut deletions = Vec::new();
    for one in found.extract_if(.., |one| one.kind == Kind::Deleted) {
        if files::has_only_foreign_files(&one.dir).unwrap_or(true) {
            warnings.push(format!(
                "{} has the name of a deleted log but no file of a log: it is not removed",
                one.dir.display()
            ));
            continue;
        }
        let delay_ms = (opening.config_for)(&one.key.0).file_delete_delay_ms;
        deletions.push((now_ms.saturating_add(delay_ms), one.dir));
    }
    if let Some((_, renamed)) = deletions.first() {
        files::sync_parent(renamed)?;
    }
    Ok(deletions)
}
