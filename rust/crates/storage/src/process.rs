//! Which process this is, and which process opened something.
//!
//! A process that forks has its logs twice in memory and once on disk, so only the process that opened a log
//! may write it.
//!
//! The id is kept in a page that the kernel clears in a forked child (`MADV_WIPEONFORK`, Linux 4.14), so that
//! an append does not ask the kernel. Without such a page the kernel is asked each time. Any thread may ask.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::MmapMut;
use rustix::mm::{Advice, madvise};

use crate::error::{Result, StorageError};

/// The process that opened something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner(u32);

impl Owner {
    /// This process.
    pub fn this() -> Self {
        Self(id())
    }

    /// False in a child that was forked since.
    pub fn is_this(self) -> bool {
        self == Self::this()
    }

    /// Errors: [`StorageError::Forked`] in a child that was forked since `dir` was opened.
    pub fn check(self, dir: impl FnOnce() -> PathBuf) -> Result<()> {
        if self.is_this() {
            return Ok(());
        }
        Err(StorageError::Forked { dir: dir() })
    }
}

/// Zero until it is first asked.
static PAGE: OnceLock<Option<MmapMut>> = OnceLock::new();

fn id() -> u32 {
    let Some(page) = PAGE.get_or_init(wiped_page) else {
        return std::process::id();
    };
    // SAFETY: the mapping is private to this process, is never unmapped because it is in a static, begins on
    // a page, and has at least four bytes. Any bits are an AtomicU32, and it is only accessed through this
    // reference. The kernel writes it only in a child that is being forked, before the child runs.
    let known = unsafe { &*page.as_ptr().cast::<AtomicU32>() };
    match known.load(Ordering::Relaxed) {
        // No process that can run this has id 0: not asked yet, or not since the fork.
        0 => {
            let id = std::process::id();
            known.store(id, Ordering::Relaxed);
            id
        }
        id => id,
    }
}

fn wiped_page() -> Option<MmapMut> {
    let page = MmapMut::map_anon(size_of::<AtomicU32>()).ok()?;
    let start = page.as_ptr().cast_mut().cast();
    // SAFETY: the range is our own anonymous private mapping, as this advice requires, and holds nothing yet.
    unsafe { madvise(start, page.len(), Advice::LinuxWipeOnFork) }.ok()?;
    Some(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Broken if it failed: every append would be refused as another process's. Python tests fork, and show
    // the other half.
    #[test]
    fn the_id_is_the_kernels() {
        let owner = Owner::this();
        for _ in 0..3 {
            assert_eq!(id(), std::process::id());
            assert!(owner.is_this());
        }
    }
}
