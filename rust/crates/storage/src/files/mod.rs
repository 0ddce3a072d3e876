//! The files of a log directory: their names, the operations that they share, and the small files themselves.
//!
//! A crash between the two steps of [`replace_file`] leaves the old file whole and a `.tmp` file beside it,
//! which is never read.

pub mod checkpoints;
pub(crate) mod disk;
pub(crate) mod failure;
pub(crate) mod flushed_mark;
pub mod lock;
pub mod metadata;
mod names;
pub mod partition_dir;
pub(crate) mod single_log;
pub mod uuid;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Result, StorageError};

pub(crate) use names::*;

/// True for a directory that has files and none of a partition's files.
pub(crate) fn has_only_foreign_files(dir: &Path) -> Result<bool> {
    let mut found = false;
    for entry in fs::read_dir(dir).map_err(StorageError::io("list", dir))? {
        let entry = entry.map_err(StorageError::io("list", dir))?;
        if entry.file_name().to_str().is_some_and(is_of_partition) {
            return Ok(false);
        }
        found = true;
    }
    Ok(found)
}

/// The first name in a directory that a partition's directory does not have.
pub(crate) fn first_foreign_name(dir: &Path) -> Result<Option<OsString>> {
    for entry in fs::read_dir(dir).map_err(StorageError::io("list", dir))? {
        let name = entry.map_err(StorageError::io("list", dir))?.file_name();
        // The file system's own directory at the top of a disk.
        let known = |name: &str| is_of_partition(name) || name == "lost+found";
        if !name.to_str().is_some_and(known) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

pub(crate) fn has_segments(dir: &Path) -> Result<bool> {
    let names = file_names(dir)?;
    Ok(names.iter().any(|name| offset_of(name, LOG_SUFFIX).is_some()))
}

/// True for a directory, and for a link to one, as in Kafka.
pub(crate) fn is_dir(entry: &fs::DirEntry) -> bool {
    entry.file_type().is_ok_and(|kind| {
        kind.is_dir() || (kind.is_symlink() && fs::metadata(entry.path()).is_ok_and(|dir| dir.is_dir()))
    })
}

/// Names of the plain files in a directory and of links to plain files, sorted. Names that are not UTF-8 are
/// left out.
pub(crate) fn file_names(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(StorageError::io("list", dir))? {
        let entry = entry.map_err(StorageError::io("list", dir))?;
        let is_file = entry.file_type().is_ok_and(|kind| {
            kind.is_file()
                || (kind.is_symlink() && fs::metadata(entry.path()).is_ok_and(|file| file.is_file()))
        });
        if is_file && let Ok(name) = entry.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Makes entries of a directory (new, renamed and removed files) survive a power loss.
pub(crate) fn sync_dir(dir: &Path) -> Result<()> {
    disk::sync_dir(dir).map_err(StorageError::io("fsync directory", dir))
}

/// Makes the entry of `path` in its parent directory survive a power loss. A parent that this process may not
/// read, such as a mount point, is left to its owner.
pub(crate) fn sync_parent(path: &Path) -> Result<()> {
    let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) else {
        return Ok(());
    };
    match disk::sync_dir(parent) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        synced => synced.map_err(StorageError::io("fsync directory", parent)),
    }
}

/// Replaces a file whole: writes `.tmp` beside it, fsync, rename, fsync of the directory.
pub fn replace_file(path: &Path, bytes: &[u8]) -> Result<()> {
    put_in_place(path, bytes, disk::sync)?;
    path.parent().map_or(Ok(()), sync_dir)
}

/// [`replace_file`] without fsync: a power loss may leave the old file, the new one, or an empty or torn one.
pub(crate) fn replace_file_unsynced(path: &Path, bytes: &[u8]) -> Result<()> {
    put_in_place(path, bytes, |_, _| Ok(()))
}

/// Flushes such a file.
pub(crate) fn sync_in_place(path: &Path) -> Result<()> {
    fs::File::open(path)
        .and_then(|file| disk::sync(&file, path))
        .map_err(StorageError::io("fsync", path))?;
    path.parent().map_or(Ok(()), sync_dir)
}

fn put_in_place(
    path: &Path,
    bytes: &[u8],
    sync: impl FnOnce(&fs::File, &Path) -> io::Result<()>,
) -> Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(TEMPORARY_SUFFIX);
    let temporary = PathBuf::from(name);
    disk::create(&temporary)
        .and_then(|file| {
            disk::write_all_at(&file, &temporary, bytes, 0)?;
            sync(&file, &temporary)
        })
        .map_err(StorageError::io("write", &temporary))?;
    disk::rename(&temporary, path).map_err(StorageError::io("replace", path))
}

/// Removes a file; true when it was there.
pub(crate) fn remove_if_exists(path: &Path) -> Result<bool> {
    match disk::remove(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(StorageError::io("remove", path)(error)),
    }
}

/// Reads a small file; `None` when it does not exist. More than `limit` bytes is corruption.
pub fn read_small(path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
    let size = match fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StorageError::io("read", path)(error)),
    };
    if size > limit {
        return Err(StorageError::Corrupt {
            path: path.to_path_buf(),
            position: limit,
            reason: format!("the file has {size} bytes, more than the {limit} it can have"),
        });
    }
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StorageError::io("read", path)(error)),
    }
}
