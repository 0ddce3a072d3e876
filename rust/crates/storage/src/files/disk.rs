//! Every change that this crate makes to a disk: files created, written, cut, renamed, removed and flushed.
//!
//! The functions are those of `std::fs`, with the path as an argument, so that tests can see and fail each
//! change: under `cfg(test)` the `Watcher` of the directory sees a change before it is made, and may record
//! it, refuse it, or let part of a write through. Stores through a memory mapping are not seen. Only index
//! files are mapped, and they are hints.

use std::fs::{self, File, OpenOptions};
use std::io;
#[cfg(test)]
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::SystemTime;

use memmap2::MmapRaw;
use rustix::io::Errno;

/// A change about to be made.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) enum Change<'a> {
    /// A file is created, or emptied if it exists.
    Create {
        path: &'a Path,
    },
    /// A file is created unless it exists.
    Open {
        path: &'a Path,
    },
    Write {
        path: &'a Path,
        position: u64,
        bytes: &'a [u8],
    },
    /// A file is cut, or extended with zeros.
    SetLen {
        path: &'a Path,
        len: u64,
    },
    /// Disk blocks up to `end` are allocated; the length stays.
    Allocate {
        path: &'a Path,
        end: u64,
    },
    /// A file's bytes and length are flushed.
    Sync {
        path: &'a Path,
    },
    /// A directory's entries are flushed.
    SyncDir {
        path: &'a Path,
    },
    Rename {
        from: &'a Path,
        to: &'a Path,
    },
    Remove {
        path: &'a Path,
    },
    CreateDir {
        path: &'a Path,
    },
    /// A directory is removed with its content.
    RemoveDir {
        path: &'a Path,
    },
}

#[cfg(test)]
impl<'a> Change<'a> {
    /// The path that changes; of a rename, the old name.
    pub(crate) fn path(&self) -> &'a Path {
        match self {
            Self::Create { path }
            | Self::Open { path }
            | Self::Write { path, .. }
            | Self::SetLen { path, .. }
            | Self::Allocate { path, .. }
            | Self::Sync { path }
            | Self::SyncDir { path }
            | Self::Remove { path }
            | Self::CreateDir { path }
            | Self::RemoveDir { path }
            | Self::Rename { from: path, .. } => path,
        }
    }
}

#[cfg(not(test))]
#[inline(always)]
fn allow(_: Change<'_>) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
fn allow(change: Change<'_>) -> io::Result<()> {
    watch::before_change(change).map(|_all| ())
}

/// Creates or empties a file for reading and writing.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    allow(Change::Create { path })?;
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
}

/// Opens a file for reading and writing; creates it if it does not exist.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    allow(Change::Open { path })?;
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
}

/// Writes all of `bytes` at `position`. After an error any part of them may have been written.
pub(crate) fn write_all_at(file: &File, path: &Path, bytes: &[u8], position: u64) -> io::Result<()> {
    #[cfg(test)]
    {
        let change = Change::Write {
            path,
            position,
            bytes,
        };
        if let Some((part, error)) = watch::before_change(change)? {
            file.write_all_at(&bytes[..part], position)?;
            return Err(error);
        }
    }
    #[cfg(not(test))]
    let _ = path;
    // The standard library's function calls libc, which takes 6 % of the time of a small append.
    let (mut rest, mut position) = (bytes, position);
    while !rest.is_empty() {
        match rustix::io::pwrite(file, rest, position) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                rest = &rest[written..];
                position += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

pub(crate) fn set_len(file: &File, path: &Path, len: u64) -> io::Result<()> {
    allow(Change::SetLen { path, len })?;
    file.set_len(len)
}

/// Allocates disk blocks for `length` bytes from `position`; the file's length stays.
pub(crate) fn allocate(file: &File, path: &Path, position: u64, length: u64) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::Errno;
    allow(Change::Allocate {
        path,
        end: position + length,
    })?;
    match fallocate(file, FallocateFlags::KEEP_SIZE, position, length) {
        // A file system without fallocate allocates blocks when they are written.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Flushes a file's bytes and the metadata that is needed to find them.
pub(crate) fn sync(file: &File, path: &Path) -> io::Result<()> {
    allow(Change::Sync { path })?;
    file.sync_data()
}

/// Flushes the first `len` bytes of a mapped file, and the file's length.
pub(crate) fn sync_map(map: &MmapRaw, path: &Path, len: usize) -> io::Result<()> {
    allow(Change::Sync { path })?;
    map.flush_range(0, len)
}

/// Sets the time of the last write. Watchers do not see it, because no byte and no name depends on it.
pub(crate) fn set_modified(file: &File, time: SystemTime) -> io::Result<()> {
    file.set_modified(time)
}

/// Makes the entries of a directory (new, renamed and removed files) survive a power loss.
pub(crate) fn sync_dir(path: &Path) -> io::Result<()> {
    allow(Change::SyncDir { path })?;
    File::open(path)?.sync_all()
}

pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    allow(Change::Rename { from, to })?;
    fs::rename(from, to)
}

pub(crate) fn remove(path: &Path) -> io::Result<()> {
    allow(Change::Remove { path })?;
    fs::remove_file(path)
}

pub(crate) fn create_dir(path: &Path) -> io::Result<()> {
    allow(Change::CreateDir { path })?;
    fs::create_dir(path)
}

/// Creates the directory and its missing parents.
pub(crate) fn create_dir_all(path: &Path) -> io::Result<()> {
    allow(Change::CreateDir { path })?;
    fs::create_dir_all(path)
}

pub(crate) fn remove_dir_all(path: &Path) -> io::Result<()> {
    allow(Change::RemoveDir { path })?;
    fs::remove_dir_all(path)
}

#[cfg(test)]
pub(crate) mod watch {
    //! Watchers, by which tests see the changes to a disk.

    use std::io;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use parking_lot::RwLock;

    use super::Change;

    /// Sees every change in a directory before it is made.
    pub(crate) trait Watcher: Send + Sync {
        /// `Ok(None)`: the change is made. `Ok(Some((part, error)))`: the first `part` bytes of a write are
        /// written, and then it fails with `error`. `Err`: the change is not made.
        fn before(&self, change: Change<'_>) -> io::Result<Option<(usize, io::Error)>>;
    }

    static WATCHERS: RwLock<Vec<(PathBuf, Arc<dyn Watcher>)>> = RwLock::new(Vec::new());

    /// Shows `watcher` all changes in `root` and below until the result is dropped.
    pub(crate) fn watch(root: &Path, watcher: Arc<dyn Watcher>) -> Watching {
        WATCHERS.write().push((root.to_path_buf(), watcher));
        Watching(root.to_path_buf())
    }

    pub(crate) struct Watching(PathBuf);

    impl Drop for Watching {
        fn drop(&mut self) {
            WATCHERS.write().retain(|(root, _)| *root != self.0);
        }
    }

    pub(super) fn before_change(change: Change<'_>) -> io::Result<Option<(usize, io::Error)>> {
        let path = change.path();
        let found = WATCHERS
            .read()
            .iter()
            .find(|(root, _)| path.starts_with(root))
            .map(|(_, watcher)| Arc::clone(watcher));
        found.map_or(Ok(None), |watcher| watcher.before(change))
    }

    // Broken if it failed: tests that inject faults would inject none.
    #[test]
    fn changes_are_seen_and_refused() {
        struct Full;
        impl Watcher for Full {
            fn before(&self, change: Change<'_>) -> io::Result<Option<(usize, io::Error)>> {
                match change {
                    Change::Write { .. } => Ok(Some((3, io::ErrorKind::StorageFull.into()))),
                    Change::Sync { .. } => Err(io::ErrorKind::Other.into()),
                    _ => Ok(None),
                }
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let watching = watch(dir.path(), Arc::new(Full));
        let file = super::create(&path).unwrap();
        super::write_all_at(&file, &path, b"12345", 0).unwrap_err();
        assert_eq!(std::fs::read(&path).unwrap(), b"123");
        super::sync(&file, &path).unwrap_err();
        drop(watching);
        super::write_all_at(&file, &path, b"12345", 0).unwrap();
        super::sync(&file, &path).unwrap();
    }
}
