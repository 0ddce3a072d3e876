//! The lock on a directory: one writer among all processes, Apache Kafka's included.
//!
//! The file is Kafka's `.lock`. Java's `FileChannel.lock` is a POSIX record lock of the whole file; ours is a lock of the
//! open file description on the same range (`F_OFD_SETLK`, Linux 3.15), because the two exclude each other, but ours stays
//! when this process opens and closes the file again, as a backup does, and refuses a second opening in this process as it
//! does another's. A forked child shares the description: it never frees the lock, and when it is freed here it is free,
//! however long the child lives. The lock goes with the processes that have it; the file stays, as Kafka's does.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

pub use super::names::LOCK_FILE;
use crate::error::{Result, StorageError};
use crate::process;

/// A directory that is ours until this is dropped.
#[derive(Debug)]
pub struct DirLock {
    file: File,
    /// The process that took it.
    owner: u32,
}

impl DirLock {
    /// Takes the lock of an existing directory, without waiting.
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
        match ask(&file, libc::F_OFD_SETLK, libc::F_WRLCK) {
            Ok(_) => Ok(Self {
                file,
                owner: process::id(),
            }),
            Err(error) if is_taken(&error) => Err(StorageError::Locked { dir }),
            Err(error) => Err(StorageError::io("lock", &path)(error)),
        }
    }
}

impl Drop for DirLock {
    fn drop(&mut self) {
        if self.owner == process::id() {
            // Should it fail, the lock goes with the descriptor.
            let _ = ask(&self.file, libc::F_OFD_SETLK, libc::F_UNLCK);
        }
    }
}

/// True when somebody holds the lock of a directory: this process, or another. Takes and creates nothing.
pub fn is_held(dir: &Path) -> bool {
    File::open(dir.join(LOCK_FILE))
        .ok()
        .and_then(|file| ask(&file, libc::F_OFD_GETLK, libc::F_WRLCK).ok())
        .is_some_and(|found| found != libc::F_UNLCK)
}

/// Asks the kernel for a lock of the whole file or about one; what it says there is.
fn ask(file: &File, command: libc::c_int, kind: libc::c_int) -> io::Result<libc::c_int> {
    let mut whole = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open as long as `file` is borrowed; these commands take a pointer to a `flock`, which
    // lives until the call is over, and nobody else has a reference to it.
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

    // Broken if it failed: two writers would share a directory, in one process or in two.
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

    // Broken if it failed: a backup that reads the directory would let Apache Kafka in beside us.
    #[test]
    fn reading_the_file_does_not_free_it() {
        let dir = tempfile::tempdir().unwrap();
        let lock = DirLock::acquire(dir.path()).unwrap();
        std::fs::read(dir.path().join(LOCK_FILE)).unwrap();
        let file = OpenOptions::new()
            .write(true)
            .open(dir.path().join(LOCK_FILE))
            .unwrap();
        // What Java's `FileChannel.tryLock` asks for. It answers for another process only, and this lock is nobody's.
        let found = ask(&file, libc::F_GETLK, libc::F_WRLCK).unwrap();
        assert_eq!(found, libc::F_WRLCK);
        drop(lock);
        let found = ask(&file, libc::F_GETLK, libc::F_WRLCK).unwrap();
        assert_eq!(found, libc::F_UNLCK);
    }

    // Broken if it failed: a log that was closed would stay locked as long as a worker lives that was forked before.
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
