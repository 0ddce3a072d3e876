//! The lock on a directory: one writer among all processes, Apache Kafka's included.
//!
//! The file is Kafka's `.lock`. Java's `FileChannel.lock` is a POSIX record lock, so that one is taken to exclude a
//! Kafka broker; `flock` is taken too, because a POSIX lock does not know forked children; and because a POSIX lock is
//! lost as soon as its process closes any descriptor of the file, a table in memory keeps a second opening in this
//! process from touching the file at all. All of it goes with the process, however that ends; the file stays, as
//! Kafka's does.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, fcntl_lock, flock};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType, fcntl_getlk};

use crate::error::{Result, StorageError};

/// `.lock`.
pub const LOCK_FILE: &str = ".lock";

static HELD: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// A directory that is ours until this is dropped.
#[derive(Debug)]
pub struct DirLock {
    path: PathBuf,
    file: Option<File>,
}

impl DirLock {
    /// Takes the lock of an existing directory, without waiting.
    pub fn acquire(dir: &Path) -> Result<Self> {
        let dir = dir
            .canonicalize()
            .map_err(StorageError::io("resolve", dir))?;
        let path = dir.join(LOCK_FILE);
        if !HELD.lock().insert(path.clone()) {
            return Err(StorageError::Locked { dir });
        }
        // From here on, dropping `lock` takes the entry out of the table again.
        let mut lock = Self { path, file: None };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&lock.path)
            .map_err(StorageError::io("open", &lock.path))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .and_then(|()| fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive))
            .map_err(|errno| match errno {
                Errno::WOULDBLOCK | Errno::ACCESS => StorageError::Locked { dir: dir.clone() },
                other => StorageError::io("lock", &lock.path)(other.into()),
            })?;
        lock.file = Some(file);
        Ok(lock)
    }
}

/// True when somebody holds the lock of a directory: this process, or another. Takes and creates nothing.
pub fn is_held(dir: &Path) -> bool {
    let Ok(dir) = dir.canonicalize() else {
        return false;
    };
    let path = dir.join(LOCK_FILE);
    // Kept over the whole question: closing a descriptor of the file would free the lock of this process.
    let held = HELD.lock();
    if held.contains(&path) {
        return true;
    }
    let Ok(file) = File::open(&path) else {
        return false;
    };
    let wanted = Flock::from(FlockType::WriteLock);
    matches!(fcntl_getlk(&file, &wanted), Ok(Some(_)))
}

impl Drop for DirLock {
    fn drop(&mut self) {
        // The descriptor must be closed before another opening in this process may have its own.
        self.file = None;
        HELD.lock().remove(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Broken if it failed: two writers would share a directory, in one process or in two.
    #[test]
    fn one_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let lock = DirLock::acquire(dir.path()).unwrap();
        let again = DirLock::acquire(&dir.path().join("../").join(dir.path().file_name().unwrap()));
        assert!(matches!(again, Err(StorageError::Locked { .. })));
        drop(lock);
        let lock = DirLock::acquire(dir.path()).unwrap();
        // Another opening of the file, as another process has, sees it.
        let other = File::open(dir.path().join(LOCK_FILE)).unwrap();
        let taken = flock(&other, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(taken, Err(Errno::WOULDBLOCK));
        drop(lock);
    }
}
