//! Waiting for a log to change, without polling.
//!
//! Owns descriptors that become readable when a log may have changed. For a log that this process writes it
//! is an eventfd, which [`Signal::notify`] makes readable after an append. For a directory that another
//! process writes it is inotify. The caller clears the watch first and reads the log after that, so it misses
//! no change. Where inotify does not work (network file systems, no descriptors left) the caller looks every
//! [`LOOK_AGAIN`].
//!
//! Any thread may notify; each watch has one waiter. A crash leaves nothing.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;

use crate::error::{Result, StorageError};

/// The longest wait before the caller reads the log again.
pub const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// The watches on one log of this process.
#[derive(Debug, Default)]
pub struct Signal {
    watches: Mutex<Vec<Weak<OwnedFd>>>,
}

impl Signal {
    /// Wakes all waiters. Call it when readers can see the change.
    pub fn notify(&self) {
        let mut watches = self.watches.lock();
        if watches.is_empty() {
            return;
        }
        watches.retain(|watch| match watch.upgrade() {
            Some(fd) => {
                // It fails only when the counter is at its maximum. The descriptor is readable then, as it
                // should be.
                while let Err(Errno::INTR) = rustix::io::write(&*fd, &1u64.to_ne_bytes()) {}
                true
            }
            None => false,
        });
    }

    /// A watch that sees every notification from now on. `dir` is for error messages.
    ///
    /// Errors: no descriptors left.
    pub fn watch(&self, dir: &Path) -> Result<Watch> {
        let fd = Arc::new(event_fd(dir)?);
        self.watches.lock().push(Arc::downgrade(&fd));
        Ok(Watch { fd })
    }
}

fn event_fd(dir: &Path) -> Result<OwnedFd> {
    eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
        .map_err(|errno| StorageError::io("wait for", dir)(errno.into()))
}

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// The log may have changed.
    Changed,
    TimedOut,
    /// This thread received a signal.
    Interrupted,
}

/// A descriptor that is readable when a log may have changed.
#[derive(Debug)]
pub struct Watch {
    fd: Arc<OwnedFd>,
}

impl Watch {
    /// Watches the files in a directory that another process writes.
    ///
    /// Errors: no descriptors left, not even for an eventfd.
    pub fn directory(dir: &Path) -> Result<Self> {
        let fd = match inotify_fd(dir) {
            Ok(fd) => fd,
            // A user has few inotify descriptors. An eventfd is never readable here: the waiter wakes by
            // timeout.
            Err(_) => event_fd(dir)?,
        };
        Ok(Self { fd: Arc::new(fd) })
    }

    /// Waits until the log may have changed, at most for `timeout`.
    ///
    /// Errors: the operating system's.
    pub fn wait(&self, timeout: Duration) -> Result<Woken, std::io::Error> {
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        let mut waiting = [PollFd::new(&*self.fd, PollFlags::IN)];
        match poll(&mut waiting, Some(&timeout)) {
            Ok(0) => Ok(Woken::TimedOut),
            Ok(_) => Ok(Woken::Changed),
            Err(Errno::INTR) => Ok(Woken::Interrupted),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes the descriptor unreadable until the next change. Read the log after this, not before.
    pub fn clear(&self) {
        // Room for several inotify events; an eventfd has eight bytes.
        let mut events = [0; 4096];
        loop {
            match rustix::io::read(&*self.fd, &mut events) {
                Ok(0) => return,
                Ok(_) | Err(Errno::INTR) => {}
                // EAGAIN: nothing is left.
                Err(_) => return,
            }
        }
    }

    /// The descriptor, for an event loop.
    pub fn raw_fd(&self) -> RawFd {
        self.fd.as_fd().as_raw_fd()
    }
}

fn inotify_fd(dir: &Path) -> Result<OwnedFd, Errno> {
    let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
    let changes = WatchFlags::MODIFY
        | WatchFlags::CREATE
        | WatchFlags::MOVED_TO
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF;
    inotify::add_watch(&fd, dir, changes)?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    // Broken if it failed: a follower of a log would miss an append, or wake again and again.
    #[test]
    fn a_notification_wakes_all_who_watch_once() {
        let signal = Signal::default();
        let dir = Path::new("/some/log");
        signal.notify();
        let watches = [signal.watch(dir).unwrap(), signal.watch(dir).unwrap()];
        assert_eq!(watches[0].wait(Duration::ZERO).unwrap(), Woken::TimedOut);
        signal.notify();
        signal.notify();
        for watch in &watches {
            assert_eq!(watch.wait(LONG).unwrap(), Woken::Changed);
            watch.clear();
            assert_eq!(watch.wait(Duration::ZERO).unwrap(), Woken::TimedOut);
        }
        let [first, second] = watches;
        drop(first);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| second.wait(LONG).unwrap());
            signal.notify();
            assert_eq!(waiting.join().unwrap(), Woken::Changed);
        });
        assert_eq!(signal.watches.lock().len(), 1);
    }

    // Broken if it failed: a reader beside another process would see its appends late.
    #[test]
    fn a_change_in_a_directory_wakes_and_reading_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("00000000000000000000.log");
        std::fs::write(&path, b"a").unwrap();
        let watch = Watch::directory(dir.path()).unwrap();
        std::fs::read(&path).unwrap();
        assert_eq!(watch.wait(Duration::ZERO).unwrap(), Woken::TimedOut);
        std::fs::write(&path, b"ab").unwrap();
        assert_eq!(watch.wait(LONG).unwrap(), Woken::Changed);
        watch.clear();
        assert_eq!(watch.wait(Duration::ZERO).unwrap(), Woken::TimedOut);
        std::fs::write(dir.path().join("00000000000000000002.log"), b"").unwrap();
        assert_eq!(watch.wait(LONG).unwrap(), Woken::Changed);
        // Without a directory there is no event, and there must still be a descriptor to wait on.
        let none = Watch::directory(&dir.path().join("none")).unwrap();
        assert_eq!(none.wait(Duration::ZERO).unwrap(), Woken::TimedOut);
    }
}
