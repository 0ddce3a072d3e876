//! The partitions' directories in a log directory, before any log is opened.
//!
//! The opening of the log directory calls this with its lock.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Result, StorageError};
use crate::files;
use crate::files::checkpoints::Offsets;
use crate::files::lock::{self, DirLock};
use crate::files::single_log::own_log_start;

use crate::files::partition_dir::{self, Key, Kind, check_not_moved};

/// A partition's directory.
pub(super) struct Found {
    pub(super) key: Key,
    pub(super) kind: Kind,
    pub(super) dir: PathBuf,
}

/// The partitions' directories, and links to such directories, as in Kafka.
pub(super) fn partition_dirs(path: &Path) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(StorageError::io("list", path))? {
        let entry = entry.map_err(StorageError::io("list", path))?;
        let name = entry.file_name();
        if let Some((key, kind)) = name.to_str().and_then(partition_dir::parse)
            && files::is_dir(&entry)
        {
            let dir = entry.path();
            found.push(Found { key, kind, dir });
        }
    }
    found.sort_by(|one, other| (&one.key, &one.dir).cmp(&(&other.key, &other.dir)));
    Ok(found)
}

/// Checks that no process has one of the partitions open without the broker, and locks those that are links:
/// such a directory can be reached by a path without this log directory's lock.
///
/// Errors: [`StorageError::Locked`].
pub(super) fn lock_members(found: &[Found]) -> Result<Vec<DirLock>> {
    let mut locks = Vec::new();
    for Found { dir, .. } in found {
        if lock::is_held(dir) {
            return Err(StorageError::Locked { dir: dir.clone() });
        }
        if dir.is_symlink() {
            locks.push(DirLock::acquire(dir)?);
        }
    }
    Ok(locks)
}

/// Adds the log starts of logs that were used without a broker before; returns their directories.
pub(super) fn take_own_starts(found: &[Found], log_starts: &mut Offsets) -> Vec<PathBuf> {
    let mut newcomers = Vec::new();
    for Found { key, dir, .. } in found {
        if let Some(start) = own_log_start(dir) {
            let known = log_starts.entry(key.clone()).or_insert(start);
            *known = start.max(*known);
            newcomers.push(dir.clone());
        }
    }
    newcomers
}

/// Takes foreign directories out of `found`, whatever their names.
pub(super) fn skip_foreign_dirs(found: &mut Vec<Found>, warnings: &mut Vec<String>) {
    found.retain(|one| {
        // Loading reports a directory that cannot be listed.
        let foreign = files::has_only_foreign_files(&one.dir).unwrap_or(false);
        if foreign {
            warnings.push(format!(
                "{} has the name of a partition but no file of one: it is left alone",
                one.dir.display()
            ));
        }
        !foreign
    });
}

/// Checks that no partition is in two of a broker's log directories, before any of them is opened. A
/// directory that cannot be listed is skipped: its opening reports the error.
///
/// Errors: [`StorageError::Duplicate`].
pub fn check_duplicates(paths: &[PathBuf]) -> Result<()> {
    let mut seen: BTreeMap<(Key, bool), PathBuf> = BTreeMap::new();
    for path in paths.iter().filter_map(|path| path.canonicalize().ok()) {
        for Found { key, kind, dir } in partition_dirs(&path).unwrap_or_default() {
            let future = match kind {
                // A move left it; it is not opened.
                Kind::Current if check_not_moved(&dir).is_err() => continue,
                Kind::Current => false,
                Kind::Future => true,
                Kind::Deleted | Kind::Stray => continue,
            };
            match seen.insert((key.clone(), future), dir.clone()) {
                // Loading reports two in one directory. A directory that is named twice is found locked.
                Some(one) if one.parent() != dir.parent() => {
                    return Err(StorageError::Duplicate {
                        topic: key.0,
                        partition: key.1,
                        one,
                        other: dir,
                    });
                }
                Some(_) | None => {}
            }
        }
    }
    Ok(())
}
