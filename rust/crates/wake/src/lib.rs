//! The eventfd that wakes a Python event loop.
//!
//! Readable while something waits for Python. Any thread may signal; the taker clears it
//! *before* it drains, so a signal between the two leaves it readable and nothing is slept through.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// A non-blocking eventfd.
#[derive(Debug)]
pub struct WakeFd(OwnedFd);

impl WakeFd {
    /// One that is not readable.
    ///
    /// # Errors
    /// The operating system's: too many open files, for one.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
    }

    /// Makes the descriptor readable.
    pub fn signal(&self) {
        // The one possible failure is a counter at its maximum (EAGAIN): the descriptor is readable then, as wanted.
        while let Err(Errno::INTR) = rustix::io::write(&self.0, &1u64.to_ne_bytes()) {}
    }

    /// Makes the descriptor unreadable until the next signal.
    pub fn clear(&self) {
        let mut counter = [0; 8];
        // EAGAIN means that it was not readable to begin with.
        while let Err(Errno::INTR) = rustix::io::read(&self.0, &mut counter) {}
    }

    /// The descriptor, to wait for it.
    #[must_use]
    pub fn borrowed(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Its number.
    #[must_use]
    pub fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
