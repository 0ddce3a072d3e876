//! The eventfd that wakes a Python event loop.
//!
//! Readable while something waits for Python: control requests or log lines. Any thread may signal; the taker clears it
//! *before* it drains, so a signal between the two leaves it readable and nothing is slept through.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// A non-blocking eventfd.
#[derive(Debug)]
pub(crate) struct WakeFd(OwnedFd);

impl WakeFd {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(
            0,
            EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC,
        )?))
    }

    /// Makes the descriptor readable.
    pub(crate) fn signal(&self) {
        // The one possible failure is a counter at its maximum (EAGAIN): the descriptor is readable then, as wanted.
        while let Err(Errno::INTR) = rustix::io::write(&self.0, &1u64.to_ne_bytes()) {}
    }

    /// Makes the descriptor unreadable until the next signal.
    pub(crate) fn clear(&self) {
        let mut counter = [0; 8];
        // EAGAIN means that it was not readable to begin with.
        while let Err(Errno::INTR) = rustix::io::read(&self.0, &mut counter) {}
    }

    pub(crate) fn borrowed(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
