//! Deleting logs: the directory is renamed at once (`-delete`), and removed after `file.delete.delay.ms`, as Kafka does
//! (`LogManager.asyncDelete`). So whoever waits for the deletion does not wait for the files of a large log to be unlinked.
//!
//! A crash leaves the renamed directory; the next opening removes it, after the delay too.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use super::{Found, LogDir, Opening, Partition, partition_path};
use crate::clock::system_now_ms;
use crate::error::{Result, StorageError};
use crate::files;
use crate::files::disk;
use crate::files::partition_dir::{self, Key, Kind};

impl LogDir {
    /// Deletes a log: no more appends and reads, the directory renamed so that a crash cannot bring it back. It is removed by
    /// [`LogDir::maintain`] after `file.delete.delay.ms`, or by [`LogDir::close`]. Slices taken before stay readable.
    ///
    /// Errors: [`StorageError::NotFound`]; [`StorageError::Offline`], after which the log is not served any more either.
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

    /// Renames the directory of a log that is not in the list any more.
    pub(super) fn remove(&self, removed: &Partition) -> Result<()> {
        removed.log.abandon();
        self.check_usable()?;
        let key = (removed.topic.clone(), removed.partition);
        let renamed = rename_deleted(&removed.log.dir(), &key).map_err(|error| self.fail(error))?;
        let delay_ms = removed.log.config().file_delete_delay_ms;
        let due_ms = system_now_ms().saturating_add(delay_ms);
        self.deletions.lock().push((due_ms, renamed));
        self.checkpoints_stale.store(true, Ordering::Relaxed);
        self.write_checkpoints(None)
    }

    /// Removes directories whose time has come. One that cannot be removed is left for the next opening.
    ///
    /// Errors: the first there was.
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

/// Gives a log's directory the name of a deleted one, which is on disk then; returns where it is.
pub(super) fn rename_deleted(dir: &Path, (topic, partition): &Key) -> Result<PathBuf> {
    let renamed = dir.with_file_name(partition_dir::with_suffix(topic, *partition, Kind::Deleted)?);
    disk::rename(dir, &renamed).map_err(StorageError::io("rename", dir))?;
    files::sync_parent(&renamed)?;
    Ok(renamed)
}

/// Takes the directories out that were being deleted, and says when they go. One without any file of a log is somebody
/// else's, whatever its name. Their names are on disk when this returns: a log that is gone once does not come back.
pub(super) fn take(
    found: &mut Vec<Found>,
    opening: &Opening<'_>,
    warnings: &mut Vec<String>,
) -> Result<Vec<(i64, PathBuf)>> {
    let now_ms = system_now_ms();
    let mut deletions = Vec::new();
    for one in found.extract_if(.., |one| one.kind == Kind::Deleted) {
        if files::is_strangers(&one.dir).unwrap_or(true) {
            warnings.push(format!(
                "{} has the name of a deleted log and no file of one: it is not removed",
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
