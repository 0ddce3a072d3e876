//! An eventfd that wakes a Python event loop.
//!
//! It is readable while something waits for Python. Any thread may signal. The receiver clears it *before* it
//! takes what waits, so a signal in between leaves it readable and is not lost.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// A non-blocking eventfd.
#[derive(Debug)]
pub struct WakeFd(OwnedFd);

impl WakeFd {
    /// Makes a descriptor that is not readable.
    ///
    /// # Errors
    /// The operating system's, as with too many open files.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
    }

    /// Makes the descriptor readable.
    pub fn signal(&self) {
        // EAGAIN means that the counter is at its maximum: the descriptor is readable already.
        while let Err(Errno::INTR) = rustix::io::write(&self.0, &1u64.to_ne_bytes()) {}
    }

    /// Makes the descriptor unreadable until the next signal.
    pub fn clear(&self) {
        let mut counter = [0; 8];
        // EAGAIN means that it was not readable.
        while let Err(Errno::INTR) = rustix::io::read(&self.0, &mut counter) {}
    }

    #[must_use]
    pub fn borrowed(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    #[must_use]
    pub fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
