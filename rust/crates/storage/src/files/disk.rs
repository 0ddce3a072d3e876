//! Every change this crate makes to a disk: files created, written, cut, renamed, removed, and brought to disk.
//!
//! Nothing is decided here. The functions are those of `std::fs` with the path in hand, so that a test can stand between
//! the crate and the disk: under `cfg(test)` each change is shown to the `Watcher` of its directory first, which may
//! record it, refuse it, or let a write through in part. What is stored through a memory mapping is not seen: only index
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
    /// A file is created, or emptied if it is there.
    Create {
        path: &'a Path,
    },
    /// A file is created unless it is there.
    Open {
        path: &'a Path,
    },
    Write {
        path: &'a Path,
        position: u64,
        bytes: &'a [u8],
    },
    /// A file is cut, or grows by zeros.
    SetLen {
        path: &'a Path,
        len: u64,
    },
    /// Blocks are given to a file up to `end`; its length stays.
    Allocate {
        path: &'a Path,
        end: u64,
    },
    /// A file's bytes and length are brought to disk.
    Sync {
        path: &'a Path,
    },
    /// A directory's entries are brought to disk.
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
    /// A directory is removed with all that is in it.
    RemoveDir {
        path: &'a Path,
    },
}

#[cfg(test)]
impl<'a> Change<'a> {
    /// Of what it is a change; of a rename, the name before.
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
    watch::ask(change).map(|_all| ())
}

/// A file to be read and written, empty.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    allow(Change::Create { path })?;
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
}

/// A file to be read and written, created when it is not there.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    allow(Change::Open { path })?;
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
}

/// Writes all of `bytes` at `position`. After an error any part of them may be there.
pub(crate) fn write_all_at(file: &File, path: &Path, bytes: &[u8], position: u64) -> io::Result<()> {
    #[cfg(test)]
    {
        let change = Change::Write {
            path,
            position,
            bytes,
        };
        if let Some((part, error)) = watch::ask(change)? {
            file.write_all_at(&bytes[..part], position)?;
            return Err(error);
        }
    }
    #[cfg(not(test))]
    let _ = path;
    // Not the standard library's: it goes by way of libc, which takes 6% of a small append's time.
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

/// Gives `length` bytes from `position` on blocks on disk; the file's length stays.
pub(crate) fn allocate(file: &File, path: &Path, position: u64, length: u64) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::Errno;
    allow(Change::Allocate {
        path,
        end: position + length,
    })?;
    match fallocate(file, FallocateFlags::KEEP_SIZE, position, length) {
        // A file system without fallocate allocates as it likes; there is nothing better to do than to write.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Brings a file's bytes, and what is needed to find them again, to disk.
pub(crate) fn sync(file: &File, path: &Path) -> io::Result<()> {
    allow(Change::Sync { path })?;
    file.sync_data()
}

/// Brings the first `len` bytes of a mapped file, and the file's length, to disk.
pub(crate) fn sync_map(map: &MmapRaw, path: &Path, len: usize) -> io::Result<()> {
    allow(Change::Sync { path })?;
    map.flush_range(0, len)
}

/// Sets when a file was last written. Not shown to watchers: no byte and no name depends on it.
pub(crate) fn set_modified(file: &File, time: SystemTime) -> io::Result<()> {
    file.set_modified(time)
}

/// Makes entries of a directory (new, renamed and removed files) survive a power loss.
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

/// The directory and those above it, as far as they are not there.
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
    //! Tests that stand between the crate and the disk.

    use std::io;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;

    use parking_lot::RwLock;

    use super::Change;

    /// Sees every change in a directory before it is made.
    pub(crate) trait Watcher: Send + Sync {
        /// `Ok(None)`: it is made. `Ok(Some((part, error)))`: of a write, the first `part` bytes are written and then
        /// `error` is given. `Err`: nothing is made.
        fn before(&self, change: Change<'_>) -> io::Result<Option<(usize, io::Error)>>;
    }

    static WATCHERS: RwLock<Vec<(PathBuf, Arc<dyn Watcher>)>> = RwLock::new(Vec::new());

    /// Shows `watcher` all changes in `root` and below, until what is returned is dropped.
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

    pub(super) fn ask(change: Change<'_>) -> io::Result<Option<(usize, io::Error)>> {
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
