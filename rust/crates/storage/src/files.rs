//! Names of the files in a partition's directory, and the few file operations all of them share.
//!
//! Names are Kafka's (`LogFileUtils`): the base offset in 20 digits and a suffix. A crash between the two steps of
//! [`replace_file`] leaves the old file whole and a `.tmp` beside it, which nobody reads.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::checkpoints::{CLEANER_FILE, LEADER_EPOCH_FILE, LOG_START_FILE};
use crate::disk;
use crate::error::{Result, StorageError};
use crate::flushed_mark::FLUSHED_FILE;
use crate::lock::LOCK_FILE;
use crate::metadata::{CLEAN_SHUTDOWN_FILE, MOVED_FILE, PARTITION_METADATA_FILE};

pub(crate) const LOG_SUFFIX: &str = ".log";
pub(crate) const INDEX_SUFFIX: &str = ".index";
pub(crate) const TIME_INDEX_SUFFIX: &str = ".timeindex";
pub(crate) const TXN_INDEX_SUFFIX: &str = ".txnindex";
pub(crate) const SNAPSHOT_SUFFIX: &str = ".snapshot";
pub(crate) const DELETED_SUFFIX: &str = ".deleted";
pub(crate) const CLEANED_SUFFIX: &str = ".cleaned";
pub(crate) const SWAP_SUFFIX: &str = ".swap";
/// Of what [`replace_file`] writes first.
pub(crate) const TEMPORARY_SUFFIX: &str = ".tmp";

/// All files one segment may have; the snapshot with its base offset goes with it.
pub(crate) const SEGMENT_SUFFIXES: [&str; 5] = [
    LOG_SUFFIX,
    INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    SNAPSHOT_SUFFIX,
];

/// `00000000000000000042.log` for 42 and `.log`.
pub(crate) fn segment_file(dir: &Path, base_offset: i64, suffix: &str) -> PathBuf {
    dir.join(format!("{base_offset:020}{suffix}"))
}

/// The offset in a file's name when the name is 20 digits and exactly `suffix`.
pub(crate) fn offset_of(name: &str, suffix: &str) -> Option<i64> {
    let digits = name.strip_suffix(suffix)?;
    if digits.len() != 20 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok()
}

/// Files of a partition that are none of a segment's. The last two are Kafka's in KRaft mode.
const OTHER_FILES: [&str; 9] = [
    LEADER_EPOCH_FILE,
    PARTITION_METADATA_FILE,
    CLEAN_SHUTDOWN_FILE,
    LOCK_FILE,
    // Of a log that is by itself.
    LOG_START_FILE,
    CLEANER_FILE,
    FLUSHED_FILE,
    "quorum-state",
    "quorum-state.tmp",
];

/// The base offset in the name of a segment's file with one of its suffixes.
pub(crate) fn base_of(name: &str) -> Option<i64> {
    SEGMENT_SUFFIXES.iter().find_map(|suffix| offset_of(name, suffix))
}

/// The base offset of a segment's file that ends with `suffix` for the time being: 42 for
/// `00000000000000000042.log.swap` and `.swap`.
pub(crate) fn base_of_unfinished(name: &str, suffix: &str) -> Option<i64> {
    base_of(name.strip_suffix(suffix)?)
}

/// True for what [`replace_file`] leaves of a partition's file when a crash comes in between.
pub(crate) fn is_temporary(name: &str) -> bool {
    name.strip_suffix(TEMPORARY_SUFFIX).is_some_and(|whole| {
        OTHER_FILES.contains(&whole) || whole == MOVED_FILE || offset_of(whole, SNAPSHOT_SUFFIX).is_some()
    })
}

/// True for the name of a file that a step left which was interrupted. Nobody else's file has such a name.
pub(crate) fn is_unfinished(name: &str) -> bool {
    [DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX]
        .iter()
        .any(|suffix| base_of_unfinished(name, suffix).is_some())
        || is_temporary(name)
        || name == MOVED_FILE
}

/// True for the name of a file that a partition's directory may have.
pub(crate) fn is_of_partition(name: &str) -> bool {
    let snapshot_of_metadata = name
        .strip_suffix(".checkpoint")
        .is_some_and(|rest| rest.len() == 31 && rest.as_bytes()[20] == b'-');
    snapshot_of_metadata || OTHER_FILES.contains(&name) || base_of(name).is_some() || is_unfinished(name)
}

/// True for a directory that has something in it and no file of a partition: somebody else's.
pub(crate) fn is_strangers(dir: &Path) -> Result<bool> {
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

/// The first name in a directory that a partition's would not have, if there is one.
pub(crate) fn first_foreign_name(dir: &Path) -> Result<Option<OsString>> {
    for entry in fs::read_dir(dir).map_err(StorageError::io("list", dir))? {
        let name = entry.map_err(StorageError::io("list", dir))?.file_name();
        // The file system's own, where a disk is mounted.
        let known = |name: &str| is_of_partition(name) || name == "lost+found";
        if !name.to_str().is_some_and(known) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// True when there is a segment in a directory.
pub(crate) fn has_segments(dir: &Path) -> Result<bool> {
    let names = file_names(dir)?;
    Ok(names.iter().any(|name| offset_of(name, LOG_SUFFIX).is_some()))
}

/// True for a directory, also one that a link leads to, as for Kafka.
pub(crate) fn is_dir(entry: &fs::DirEntry) -> bool {
    entry.file_type().is_ok_and(|kind| {
        kind.is_dir() || (kind.is_symlink() && fs::metadata(entry.path()).is_ok_and(|dir| dir.is_dir()))
    })
}

/// Names of the plain files in a directory, also of those that links lead to, sorted; names that are not UTF-8 are none of
/// ours and left out.
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

/// Makes the entry of `path` in the directory it is in survive a power loss. A directory that we may not read, a mount
/// point's say, is its owner's to bring to disk.
pub(crate) fn sync_parent(path: &Path) -> Result<()> {
    let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) else {
        return Ok(());
    };
    match disk::sync_dir(parent) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        synced => synced.map_err(StorageError::io("fsync directory", parent)),
    }
}

/// Writes a file whole, or leaves the old one: `.tmp` beside it, fsync, rename, fsync of the directory.
pub(crate) fn replace_file(path: &Path, bytes: &[u8]) -> Result<()> {
    put_in_place(path, bytes, disk::sync)?;
    path.parent().map_or(Ok(()), sync_dir)
}

/// The same without waiting for the disk: a power loss may leave the old file, the new one, or an empty or torn one.
pub(crate) fn replace_file_unsynced(path: &Path, bytes: &[u8]) -> Result<()> {
    put_in_place(path, bytes, |_, _| Ok(()))
}

/// Brings such a file to disk.
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

/// Reads a small text or binary file of ours; `None` when it is not there. More than `limit` bytes is corruption.
pub(crate) fn read_small(path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    // Broken if it failed: Kafka would not find our segments, or we would take a foreign file for one.
    #[test]
    fn names() {
        let dir = Path::new("/d");
        assert_eq!(
            segment_file(dir, 42, LOG_SUFFIX),
            Path::new("/d/00000000000000000042.log")
        );
        assert_eq!(offset_of("00000000000000000042.log", LOG_SUFFIX), Some(42));
        assert_eq!(
            offset_of("09223372036854775807.index", INDEX_SUFFIX),
            Some(i64::MAX)
        );
        for name in [
            "42.log",
            "0000000000000000004x.log",
            "00000000000000000042.log.deleted",
            "99999999999999999999.log",
            "+0000000000000000042.log",
        ] {
            assert_eq!(offset_of(name, LOG_SUFFIX), None, "{name}");
        }
        for name in [
            "00000000000000000042.log.deleted",
            "00000000000000000042.timeindex.swap",
            "00000000000000000042.txnindex.cleaned",
            "00000000000000000042.snapshot.tmp",
            "leader-epoch-checkpoint.tmp",
            "partition.metadata.tmp",
            "logcore-moved",
            "logcore-moved.tmp",
        ] {
            assert!(is_unfinished(name) && is_of_partition(name), "{name}");
        }
        for name in [
            "mail.deleted",
            "42.log.deleted",
            "00000000000000000042.deleted",
            "00000000000000000042.txt.swap",
            "00000000000000000042.log.tmp",
            "report.tmp",
            "x.cleaned",
        ] {
            assert!(!is_unfinished(name) && !is_of_partition(name), "{name}");
        }
    }
}
