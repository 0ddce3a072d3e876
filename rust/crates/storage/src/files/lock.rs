//! The lock on a directory: one writer among all processes, Apache Kafka included.
//!
//! The file is Kafka's `.lock`. Java's `FileChannel.lock` is a POSIX record lock of the whole file. Ours is a
//! lock of the open file description on the same range (`F_OFD_SETLK`, Linux 3.15). The two exclude each
//! other. Unlike a record lock, ours stays when this process opens and closes the file again, as a backup
//! does, and it excludes a second opening in the same process. A forked child shares the description but
//! never frees the lock; when the parent frees it, it is free. The kernel frees the lock when the processes
//! end. The file stays, as in Kafka.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

pub use super::names::LOCK_FILE;
use crate::error::{Result, StorageError};
use crate::process::Owner;

/// A directory that this process has locked, until this is dropped.
#[derive(Debug)]
pub struct DirLock {
    file: File,
    /// The process that took the lock.
    owner: Owner,
}

impl DirLock {
    /// Takes the lock of an existing directory without waiting.
    pub fn acquire(dir: &Path) -> Result<Self> {
        let dir = dir.canonicalize().map_err(StorageError::io("resolve", dir))?;
        let path = dir.join(LOCK_FILE);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(StorageError::io("open", &path))?;
        match fcntl(&file, libc::F_OFD_SETLK, libc::F_WRLCK) {
            Ok(_) => Ok(Self {
                file,
                owner: Owner::this(),
            }),
            Err(error) if is_taken(&error) => Err(StorageError::Locked { dir }),
            Err(error) => Err(StorageError::io("lock", &path)(error)),
        }
    }
}

impl Drop for DirLock {
    fn drop(&mut self) {
        if self.owner.is_this() {
            // If this fails, closing the descriptor frees the lock.
            let _ = fcntl(&self.file, libc::F_OFD_SETLK, libc::F_UNLCK);
        }
    }
}

/// True when a process has the lock, this one or another. Takes and creates nothing.
pub fn is_held(dir: &Path) -> bool {
    File::open(dir.join(LOCK_FILE))
        .ok()
        .and_then(|file| fcntl(&file, libc::F_OFD_GETLK, libc::F_WRLCK).ok())
        .is_some_and(|found| found != libc::F_UNLCK)
}

/// Sets or queries a lock of the whole file; returns the lock type that the kernel reports.
fn fcntl(file: &File, command: libc::c_int, kind: libc::c_int) -> io::Result<libc::c_int> {
    let mut whole = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open while `file` is borrowed. These commands take a pointer to a `flock`,
    // which lives until the call returns and has no other reference.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut whole) };
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(libc::c_int::from(whole.l_type))
}

fn is_taken(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Broken if it failed: two writers, in one process or in two, would share a directory.
    #[test]
    fn one_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_held(dir.path()));
        let lock = DirLock::acquire(dir.path()).unwrap();
        let again = DirLock::acquire(&dir.path().join("../").join(dir.path().file_name().unwrap()));
        assert!(matches!(again, Err(StorageError::Locked { .. })));
        assert!(is_held(dir.path()));
        drop(lock);
        assert!(!is_held(dir.path()));
        drop(DirLock::acquire(dir.path()).unwrap());
    }

    // Broken if it failed: a backup that reads the directory would let Apache Kafka write beside us.
    #[test]
    fn reading_the_file_does_not_free_it() {
        let dir = tempfile::tempdir().unwrap();
        let lock = DirLock::acquire(dir.path()).unwrap();
        std::fs::read(dir.path().join(LOCK_FILE)).unwrap();
        let file = OpenOptions::new()
            .write(true)
            .open(dir.path().join(LOCK_FILE))
            .unwrap();
        // Java's `FileChannel.tryLock` asks this. The answer names locks of other owners, and this lock is
        // one.
        let found = fcntl(&file, libc::F_GETLK, libc::F_WRLCK).unwrap();
        assert_eq!(found, libc::F_WRLCK);
        drop(lock);
        let found = fcntl(&file, libc::F_GETLK, libc::F_WRLCK).unwrap();
        assert_eq!(found, libc::F_UNLCK);
    }

    // Broken if it failed: a closed log would stay locked while a worker lives that was forked before.
    #[test]
    fn a_copy_of_the_descriptor_does_not_keep_it() {
        let dir = tempfile::tempdir().unwrap();
        let lock = DirLock::acquire(dir.path()).unwrap();
        let copy = lock.file.try_clone().unwrap();
        drop(lock);
        drop(DirLock::acquire(dir.path()).unwrap());
        drop(copy);
    }
}
